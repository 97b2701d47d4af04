"""Files of a session's workspace: reading, writing and editing inside it and nowhere else.

A path is resolved with all its symbolic links before it is judged, so neither `..` nor a link leads
out. The last component is opened without following a link that appeared in between. This keeps an
honest or confused agent inside; it is no wall against a process that rearranges directories at the
same moment, and the shell tool is not confined at all (see `loopd.drivers.shell`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

READ_BYTES = 1024 * 1024
"""Largest file that `read_text` opens, and largest that `edit` rewrites."""


class Denied(Exception):
    """The path leads out of the workspace or to something that is no regular file."""


class Failed(Exception):
    """The file operation could not be done; the text is for the model."""


class Workspace:
    """The directory that belongs to one session."""

    def __init__(self, root: str) -> None:
        self.root = Path(os.path.realpath(root))

    def resolve(self, path: str) -> Path:
        """The real path of something inside; it need not exist.

        Raises:
            Denied: it is outside, or no path at all.
        """
        if not path or "\0" in path:
            raise Denied(f"path {path!r}; expected a path inside the workspace")
        real = Path(os.path.realpath(self.root / path))
        if real != self.root and self.root not in real.parents:
            raise Denied(f"path {path!r} leads out of the workspace; expected a path inside it")
        return real

    def read(self, path: str) -> bytes:
        """The whole content of a regular file of at most `READ_BYTES`.

        Raises:
            Denied: outside, or no regular file.
            Failed: missing, unreadable or too large.
        """
        real = self.resolve(path)
        try:
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Failed(f"{path!r} cannot be read: {error.strerror}") from error
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise Denied(f"{path!r} is no regular file; expected one")
        with os.fdopen(descriptor, "rb") as stream:
            if found.st_size > READ_BYTES:
                raise Failed(f"{path!r} has {found.st_size} bytes; expected at most {READ_BYTES}")
            try:
                data = stream.read(READ_BYTES + 1)
            except OSError as error:
                raise Failed(f"{path!r} cannot be read: {error.strerror}") from error
        if len(data) > READ_BYTES:
            raise Failed(f"{path!r} grew over {READ_BYTES} bytes while it was read")
        return data

    def write(self, path: str, data: bytes) -> Path:
        """Replace or create a file as a whole; missing directories are made. Returns its real path.

        Raises:
            Denied: outside, or something that is no regular file stands there.
            Failed: the system refused.
        """
        real = self.resolve(path)
        if real == self.root:
            raise Denied(f"path {path!r} is the workspace itself; expected a file inside it")
        try:
            real.parent.mkdir(parents=True, exist_ok=True)
            if Path(os.path.realpath(real.parent)) != real.parent:
                raise Denied(
                    f"path {path!r} changed while it was written; expected a path inside the workspace"
                )
            mode = _mode(real, path)
            _replace(real, data, mode)
        except OSError as error:
            raise Failed(f"{path!r} cannot be written: {error.strerror}") from error
        return real


def _mode(real: Path, path: str) -> int:
    try:
        found = os.lstat(real)
    except FileNotFoundError:
        return 0o666 & ~_umask()
    if not stat.S_ISREG(found.st_mode):
        raise Denied(f"{path!r} is no regular file; expected one")
    return stat.S_IMODE(found.st_mode)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _replace(real: Path, data: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=".loopd-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), mode)
        os.replace(name, real)
    except BaseException:
        os.unlink(name)
        raise
