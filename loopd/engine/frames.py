"""What passed between a driver and a hosted agent since the last step: the record of what it saw.

One frame a line: `> ` and what was sent, `< ` and what came. The middle of what is too long is left
out, and a line that begins with `! ` says how much.
"""

from __future__ import annotations

from collections import deque

FRAMES_BYTES = 4 << 20
"""Kept of one step, in two halves: its beginning and its end."""


class Frames:
    """Collects the frames of one step, bounded."""

    def __init__(self, limit_bytes: int = FRAMES_BYTES) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out = 0
        self._left_out_bytes = 0

    def keep(self, line: bytes) -> None:
        """Keep one frame, without its line end; a longer one than fits is left out and counted."""
        line = line.replace(b"\n", b" ") + b"\n"
        if not self._tail and len(self._head) + len(line) <= self._half:
            self._head += line
            return
        self._tail.append(line)
        self._tail_bytes += len(line)
        while self._tail_bytes > self._half:
            size = len(self._tail.popleft())
            self._tail_bytes -= size
            self._left_out += 1
            self._left_out_bytes += size

    def take(self) -> bytes:
        """Everything since the last call of this; nothing is kept afterwards."""
        gap = b""
        if self._left_out:
            gap = b"! %d frames of %d bytes left out\n" % (self._left_out, self._left_out_bytes)
        data = bytes(self._head) + gap + b"".join(self._tail)
        self._head.clear()
        self._tail.clear()
        self._tail_bytes = self._left_out = self._left_out_bytes = 0
        return data


def listed(data: bytes) -> list[dict[str, str]]:
    """Stored frames as rows: `way` is `sent`, `received` or `note`, `frame` the text of the message."""
    ways = {b">": "sent", b"<": "received"}
    return [
        {"way": ways.get(line[:1], "note"), "frame": line[2:].decode("utf-8", "replace")}
        for line in data.split(b"\n")
        if line
    ]
