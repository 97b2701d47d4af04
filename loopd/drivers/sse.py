"""Server-sent events out of bytes, however they are cut: no I/O, bounded memory.

Follows the event stream grammar of the WHATWG HTML standard (lines end in CR, LF or CRLF; a leading
byte order mark is skipped; several `data` lines of one event are joined by LF). Only `event` and
`data` matter here; `id` and `retry` are for clients that reconnect by themselves.
"""

from __future__ import annotations

import msgspec

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Largest single event; servers that send a whole answer in one event stay far below."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event: its `event` field (empty for the default) and its joined `data`."""

    event: str
    data: str


class EventTooLarge(Exception):
    """An event outgrew `MAX_EVENT_BYTES`; the stream is given up."""


class EventParser:
    """Feed it bytes, get the events that they complete. An event cut off by the end is dropped."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._buffer = bytearray()
        self._scanned = 0
        self._data: list[str] = []
        self._event = ""
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Take bytes in.

        Raises:
            EventTooLarge: one event is larger than allowed.
        """
        self._buffer += chunk
        found: list[ServerEvent] = []
        while (line := self._line()) is not None:
            event = self._take(line)
            if event is not None:
                found.append(event)
        if len(self._buffer) + self._size > self._max:
            raise EventTooLarge(f"an event of more than {self._max} bytes; expected smaller ones")
        return found

    def _line(self) -> bytes | None:
        buffer = self._buffer
        ends = [at for mark in (b"\n", b"\r") if (at := buffer.find(mark, self._scanned)) >= 0]
        if not ends:
            self._scanned = len(buffer)
            return None
        end = min(ends)
        skip = 1
        if buffer[end] == 0x0D:
            if end + 1 == len(buffer):
                # Whether a LF follows is not known yet; the line is, but so is its end only later.
                self._scanned = end
                return None
            skip = 2 if buffer[end + 1] == 0x0A else 1
        line = bytes(buffer[:end])
        del buffer[: end + skip]
        self._scanned = 0
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line

    def _take(self, line: bytes) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._event, "\n".join(self._data)) if self._data else None
            self._data, self._event, self._size = [], "", 0
            return event
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
            self._size += len(line)
        elif name == b"event":
            self._event = text
        return None
