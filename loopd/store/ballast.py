"""A file that is there to be deleted: room for the last words of a daemon whose disk is full."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

NAME = "ballast"
FREE_SHARE = 8
"""It is laid only where at least so many times its size is free."""

MARGIN_BYTES = 16 << 20
"""What must be free besides, before it is laid again behind a full disk."""


class Ballast:
    """The ballast of one data folder.

    Args:
        folder: the data folder.
        size_bytes: how large; 0 for none.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._path = folder / NAME
        self.size_bytes = size_bytes

    @property
    def laid(self) -> bool:
        """Whether it lies there, whole."""
        try:
            return self.size_bytes > 0 and self._path.stat().st_size >= self.size_bytes
        except OSError:
            return False

    def free_bytes(self) -> int:
        """Room on the file system, without the ballast's own."""
        return shutil.disk_usage(self._path.parent).free

    def lay(self, *, share: int = FREE_SHARE) -> bool:
        """Take the room, if there is plenty; false when there is not. Nothing is left behind then."""
        if self.laid or not self.size_bytes:
            return True
        try:
            if self.free_bytes() < max(share * self.size_bytes, self.size_bytes + MARGIN_BYTES):
                return False
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._fill(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        return True

    def _fill(self, fd: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, self.size_bytes)
            return
        block = bytes(1 << 20)  # a file of holes would be no room
        for at in range(0, self.size_bytes, len(block)):
            os.pwrite(fd, block[: self.size_bytes - at], at)

    def drop(self) -> bool:
        """Give the room back; whether there was any."""
        was = self._path.exists()
        self._path.unlink(missing_ok=True)
        return was
