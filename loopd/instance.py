"""One daemon per data folder: a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from loopd_protocol.errors import Refused

LOCK_NAME = "loopd.lock"


class InstanceLock:
    """Holds a data folder. The file stays behind, the lock on it does not, so there is nothing stale.

    Args:
        data: the folder; made (0750) when it is missing.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / LOCK_NAME
        self._fd: int | None = None

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
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 64).decode("utf-8", "replace").strip() or "unknown"
            os.close(fd)
            raise Refused(
                "conflict",
                f"another loopd (pid {owner}) has the data folder {str(self.path.parent)!r}; "
                "`loopctl stop` ends it",
            ) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
