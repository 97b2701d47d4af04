"""Files and pipes as lines or pieces of bounded size, unpacked, with a place for error messages."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, cast

from loopd.trajectory import MAX_LINE_BYTES
from loopd.transcripts.logs import Fault

STDIN = "-"
PIECE_BYTES = 1024 * 1024
TELL_BYTES = 256 * 1024
"""How often progress is told."""

_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"SQLite format 3": "an SQLite database",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

Line = tuple[int, bytes | Fault]
Progress = Callable[[int], None]
"""Told how many bytes were read since it was last told: of a packed file, packed bytes."""


class CannotRead(Exception):
    """The file cannot be opened; the text says why and what was expected."""


class Source:
    """One input, opened.

    Attributes:
        name: for error messages.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self.name = "standard input" if path == STDIN else os.fspath(path)
        self._progress = progress
        self._told = 0
        self._given = 0
        raw = _standard_input() if path == STDIN else _opened(self.name)
        self._raw = raw
        self._owned = path != STDIN
        self._tells = raw.seekable()
        head = raw.peek(16)[:16] if isinstance(raw, io.BufferedReader) else b""
        found = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)
        if found is not None:
            self.close()
            raise CannotRead(f"{found}; expected text or gzip")
        self._stream: IO[bytes] = raw
        if head.startswith(_GZIP):
            unpacked = cast("io.RawIOBase", gzip.GzipFile(fileobj=raw, mode="rb"))
            self._stream = cast("IO[bytes]", io.BufferedReader(unpacked, 256 * 1024))

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._owned:
            self._raw.close()

    def lines(self) -> Iterator[Line]:
        """Lines with their numbers from 1. What cannot be read is a `Fault` in its place."""
        number = 0
        while True:
            number += 1
            data = self._take(self._stream.readline, MAX_LINE_BYTES + 1, number)
            if isinstance(data, Fault):
                yield number, data
                return
            if not data:
                return
            if number == 1:
                data = data.removeprefix(b"\xef\xbb\xbf")
            yield number, data
            # asked for more, so the rest of a line that is too long was not wanted
            while len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                rest = self._take(self._stream.readline, MAX_LINE_BYTES, number)
                if isinstance(rest, Fault):
                    yield number, rest
                    return
                if not rest or rest.endswith(b"\n"):
                    break

    def pieces(self) -> Iterator[bytes | Fault]:
        """The rest of the file in pieces."""
        while True:
            data = self._take(self._stream.read, PIECE_BYTES, 0)
            if not data:
                return
            yield data
            if isinstance(data, Fault):
                return

    def _take(self, read: Callable[[int], bytes], size: int, number: int) -> bytes | Fault:
        try:
            data = read(size)
        except (OSError, EOFError, zlib.error) as error:
            where = f"{self.name}, line {number}" if number else self.name
            return Fault(where=where, message=f"cannot be read further: {error}", fatal=True)
        self._given += len(data)
        if self._progress is not None and (not data or self._given >= TELL_BYTES):
            at = self._raw.tell() if self._tells else self._told + self._given
            self._progress(at - self._told)
            self._told, self._given = at, 0
        return data


def too_long(data: bytes) -> bool:
    """Whether a line was cut because it is too long."""
    return len(data) > MAX_LINE_BYTES and not data.endswith(b"\n")


def size_bytes(path: str | os.PathLike[str]) -> int | None:
    """Size of a regular file; None for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _opened(name: str) -> io.BufferedReader:
    try:
        raw = open(name, "rb")  # noqa: SIM115  (closed by `Source.close`)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotRead(f"cannot be opened: {reason}; expected a file") from error
    return raw


def _standard_input() -> io.BufferedReader:
    return cast("io.BufferedReader", sys.stdin.buffer)
