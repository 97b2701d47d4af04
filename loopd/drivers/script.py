"""A trajectory file cut into turns: an index of offsets, steps read on demand.

A step with a `trigger` begins a turn, and so does a new trajectory in the same file; a file without
any trigger is one turn. Small files are kept decoded and shared between sessions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from loopd.trajectory import Head, Step, open_script, read, read_from
from loopd_protocol.errors import Refused

SCRIPT_BYTES = 64 * 1024 * 1024
"""Largest script (unpacked): it is indexed at once, at about 60 MB a second, when the session is created."""
KEEP_BYTES = 1024 * 1024
"""Files up to this size (unpacked) stay in memory; larger ones are read again for each turn."""


class Cut(msgspec.Struct, frozen=True):
    """Where a turn begins (line, byte offset in the unpacked file) and how many steps it has."""

    line: int
    offset: int
    steps: int


class Script:
    """One indexed file.

    Attributes:
        path: as it was opened.
        cuts: the turns, in order; never empty.
    """

    def __init__(self, path: str, stamp: tuple[int, int, int]) -> None:
        self.path = path
        self._stamp = stamp
        kept: list[list[Step]] | None = []
        starts: list[list[int]] = []
        fresh, size = True, 0
        for record in read(path):
            if isinstance(record.item, Head):
                fresh = True
                continue
            if fresh or record.item.trigger is not None:
                starts.append([record.line, record.offset, 0])
                if kept is not None:
                    kept.append([])
                fresh = False
            starts[-1][2] += 1
            size = record.offset
            if size > SCRIPT_BYTES:
                raise Refused(
                    "invalid", f"{path!r} has more than {SCRIPT_BYTES} bytes; expected a shorter script"
                )
            if size > KEEP_BYTES:
                kept = None
            if kept is not None:
                kept[-1].append(record.item)
        if not starts:
            raise Refused("invalid", f"{path!r} holds a trajectory without steps; expected at least one")
        self.cuts = tuple(Cut(*start) for start in starts)
        self._kept = None if kept is None else tuple(tuple(turn) for turn in kept)

    @property
    def kept(self) -> bool:
        """Whether the steps are in memory, so that reading one takes no time."""
        return self._kept is not None

    def turn(self, index: int) -> Iterator[Step]:
        """Steps of one turn, counted from 0.

        Raises:
            Refused: `invalid` when the file was changed since it was indexed.
        """
        if self._kept is not None:
            yield from self._kept[index]
            return
        cut = self.cuts[index]
        if stamp_of(self.path) != self._stamp:
            raise Refused("invalid", f"script {self.path!r} was changed after the session had opened it")
        with open_script(self.path) as stream:
            stream.seek(cut.offset)
            left = cut.steps
            for record in read_from(stream, self.path, line=cut.line - 1, headed=True):
                if isinstance(record.item, Head):  # pragma: no cover - a cut ends before the next head
                    return
                yield record.item
                left -= 1
                if not left:
                    return


def stamp_of(path: str) -> tuple[int, int, int]:
    """What changes when a file is replaced or written: inode, size, mtime in ns.

    Raises:
        Refused: `invalid` when there is no such file.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused("invalid", f"script {path!r} cannot be read: {reason}; expected a file") from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=32)
def _load(path: str, stamp: tuple[int, int, int]) -> Script:
    return Script(path, stamp)


def load(path: str) -> Script:
    """Index a file, or take the index of the same unchanged file.

    Raises:
        Refused: `invalid` when it is no trajectory, with file and line.
    """
    return _load(path, stamp_of(path))
