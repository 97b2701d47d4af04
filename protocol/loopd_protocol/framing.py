"""Where one frame ends and the next begins, without a socket.

NDJSON: a frame ends at LF; an empty line is nothing. msgpack: four bytes of big-endian length,
then the frame. Bytes may come in pieces of any size; the work is linear in their number.
"""

from __future__ import annotations

from typing import Literal

from loopd_protocol.errors import Refused
from loopd_protocol.frames import FRAME_LIMIT_BYTES

_HEADER_BYTES = 4


class Splitter:
    """Cuts a stream of bytes into frames.

    `limit_bytes` and `enc` may be set between two pulls: `hello` raises the limit and may change the
    encoding in the middle of a piece. An incomplete frame is held back up to `limit_bytes`, no more.

    Attributes:
        limit_bytes: largest frame, without its LF or length.
        enc: `json` or `msgpack`.
        failure: set once, when a frame is over the limit; nothing is pulled after that.
    """

    __slots__ = ("_data", "_pos", "_tail", "enc", "failure", "limit_bytes")

    def __init__(
        self, *, limit_bytes: int = FRAME_LIMIT_BYTES, enc: Literal["json", "msgpack"] = "json"
    ) -> None:
        self.limit_bytes = limit_bytes
        self.enc = enc
        self.failure: Refused | None = None
        self._data = b""
        self._pos = 0
        self._tail = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of the incomplete frame."""
        return len(self._tail)

    def feed(self, data: bytes) -> None:
        """Take in bytes. Pull until None before feeding again, or they pile up."""
        if self.failure is not None:
            return
        rest = self._data[self._pos :]
        self._data = rest + data if rest else data
        self._pos = 0

    def pull(self) -> bytes | None:
        """The next whole frame without LF or length, or None when more bytes are needed."""
        if self.failure is not None:
            return None
        return self._line() if self.enc == "json" else self._sized()

    def split(self, data: bytes) -> list[bytes]:
        """Feed and pull everything. See `failure` afterwards."""
        self.feed(data)
        frames = []
        while (frame := self.pull()) is not None:
            frames.append(frame)
        return frames

    def _line(self) -> bytes | None:
        while True:
            data, pos = self._data, self._pos
            end = data.find(b"\n", pos)
            if end < 0:
                self._keep(len(data) - pos)
                return None
            self._pos = end + 1
            size = len(self._tail) + end - pos
            if size > self.limit_bytes:
                self._fail(size)
                return None
            frame = data[pos:end]
            if self._tail:
                self._tail += frame
                frame = bytes(self._tail)
                self._tail.clear()
            if frame and not frame.isspace():
                return frame

    def _sized(self) -> bytes | None:
        tail = self._tail
        if not self._gather(_HEADER_BYTES):
            return None
        size = int.from_bytes(tail[:_HEADER_BYTES], "big")
        if size > self.limit_bytes:
            self._fail(size)
            return None
        if not self._gather(_HEADER_BYTES + size):
            return None
        frame = bytes(tail[_HEADER_BYTES:])
        tail.clear()
        return frame

    def _gather(self, size: int) -> bool:
        """Move bytes to the tail until it has `size`."""
        missing = size - len(self._tail)
        if missing > 0:
            self._tail += self._data[self._pos : self._pos + missing]
            self._pos = min(self._pos + missing, len(self._data))
        if self._pos >= len(self._data):
            self._data, self._pos = b"", 0
        return len(self._tail) >= size

    def _keep(self, size: int) -> None:
        if len(self._tail) + size > self.limit_bytes:
            self._fail(len(self._tail) + size)
            return
        self._tail += self._data[self._pos :]
        self._data, self._pos = b"", 0

    def _fail(self, size: int) -> None:
        self.failure = Refused(
            "frame_too_large", f"frame has {size} bytes or more; the limit is {self.limit_bytes}"
        )
        self._data, self._pos = b"", 0
        self._tail = bytearray()
