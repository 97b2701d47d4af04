"""Large JSON documents member by member, without holding more than one element of a list.

    for key, raw, listed in Members(wanted=…, lists=…).feed(piece): …

A document is scanned for structure only; what is handed out has balanced brackets and closed
strings, and its reader finds out whether it is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from loopd.trajectory import MAX_LINE_BYTES

_NEXT = re.compile(rb'["{}\[\],:]')
_CLOSE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class NoDocument(Exception):
    """The bytes are no JSON object, or an element is too large; the text says which."""


class Members:
    """Splits documents, one or several in a row, fed in pieces.

    Args:
        wanted: members that are handed out whole.
        lists: members that are lists and are handed out element by element.

    Attributes:
        line: lines before what was handed out last, for error messages.
        inside: a document has begun and has not ended.
    """

    def __init__(self, *, wanted: frozenset[str], lists: frozenset[str]) -> None:
        self._wanted = wanted
        self._lists = lists
        self._buffer = b""
        self._at = 0
        self._depth = 0
        self._key: str | None = None
        self._text: bytes | None = None
        self._start = -1
        self._list = False
        self.line = 0

    @property
    def inside(self) -> bool:
        """Whether a document has begun and has not ended."""
        return self._depth > 0

    def feed(self, piece: bytes) -> Iterator[tuple[str | None, bytes, bool]]:
        """Take the next piece; hands out (key, bytes, is an element), and (None, b"", False) at the end.

        Raises:
            NoDocument: nothing sensible can follow.
        """
        self._drop()
        self._buffer += piece
        if len(self._buffer) > MAX_LINE_BYTES + 2 * len(piece):
            raise NoDocument(f"one element of over {MAX_LINE_BYTES} bytes; expected smaller ones")
        while True:
            found = _NEXT.search(self._buffer, self._at)
            if found is None:
                self._stray(len(self._buffer))
                self._at = len(self._buffer)
                return
            self._stray(found.start())
            mark = found.group()
            if mark == b'"':
                close = _CLOSE.match(self._buffer, found.end())
                if close is None:
                    self._at = found.start()  # the rest of the text is in the next piece
                    return
                self._at = close.end()
                if self._depth == 1 and self._key is None:
                    self._text = self._buffer[found.start() : self._at]
                continue
            self._at = found.end()
            yield from self._structure(mark, found.start())

    def _structure(self, mark: bytes, place: int) -> Iterator[tuple[str | None, bytes, bool]]:
        if mark in b"{[":
            self._depth += 1
            if self._depth == 1 and mark == b"[":
                raise NoDocument("a list; expected an object")
            if self._depth == 2 and mark == b"[" and self._key in self._lists:
                self._list, self._start = True, self._at
        elif mark == b":":
            if self._depth == 1 and self._key is None and self._text is not None:
                self._key = _decoded(self._text)
                self._start = self._at if self._key in self._wanted else -1
        elif mark == b",":
            if self._depth == 1:
                yield from self._member(place)
            elif self._depth == 2 and self._list:
                yield from self._element(place)
                self._start = self._at
        else:
            self._depth -= 1
            if self._depth == 1 and self._list:
                yield from self._element(place)
                self._list, self._start = False, -1
            elif self._depth == 0:
                yield from self._member(place)
                yield None, b"", False
            elif self._depth < 0:
                raise NoDocument("more brackets closed than opened; expected JSON")

    def _member(self, place: int) -> Iterator[tuple[str | None, bytes, bool]]:
        if self._start >= 0 and self._key is not None:
            yield self._key, self._buffer[self._start : place], False
        self._key = self._text = None
        self._start = -1

    def _element(self, place: int) -> Iterator[tuple[str | None, bytes, bool]]:
        raw = self._buffer[self._start : place]
        if raw.strip() and self._key is not None:
            yield self._key, raw, True

    def _stray(self, end: int) -> None:
        if self._depth == 0 and self._buffer[self._at : end].strip(b" \t\r\n,"):
            raise NoDocument("text outside of an object; expected JSON")

    def _drop(self) -> None:
        """Forget what was handed out."""
        done = self._at if self._start < 0 else min(self._at, self._start)
        self.line += self._buffer.count(b"\n", 0, done)
        self._buffer = self._buffer[done:]
        self._at -= done
        if self._start >= 0:
            self._start -= done


def _decoded(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return ""
