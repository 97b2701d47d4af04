"""One daemon per data folder: a lock that dies with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from loopd_protocol.errors import Refused

LOCK_NAME = "loopd.lock"


class InstanceLock:
    """Holds a data folder. The file stays behind, the lock on it does not, so there is nothing stale.

    The folder itself is locked as well: whoever deletes or replaces the file lets nobody else in. Where a
    folder cannot be locked (network file systems) the file alone has to do.

    Args:
        data: the folder; made (0750) when it is missing.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / LOCK_NAME
        self._held: list[int] = []

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            Refused: `conflict`, naming the owner; `storage_readonly` when the folder cannot be used.
        """
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise Refused(
                "storage_readonly", f"data folder {str(self.path.parent)!r}: {error.strerror}"
            ) from error
        self._held.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock_folder()
        except BlockingIOError:
            owner = os.read(fd, 64).decode("utf-8", "replace").strip() or "unknown"
            self._let_go()
            raise Refused(
                "conflict",
                f"another loopd (pid {owner}) has the data folder {str(self.path.parent)!r}; "
                "`loopctl stop` ends it",
            ) from None
        except OSError as error:
            self._let_go()
            raise Refused("storage_readonly", f"{str(self.path)!r} cannot be locked: {error}") from error
        with contextlib.suppress(OSError):  # a full disk: the lock stands without a name in it
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        return self

    def _lock_folder(self) -> None:
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # it may be written to, but not read
        self._held.append(folder)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # not on this file system

    def _let_go(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._held[0], 0)
        self._let_go()
