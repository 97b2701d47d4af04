"""A progress bar on standard error, for work that is long enough to make people wonder."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

PATIENCE_S = 0.5
"""Nothing is shown of work that is done sooner."""

REDRAW_S = 0.1
CELLS = 24
_UNITS = ("B", "KB", "MB", "GB", "TB")


class Bar:
    """Bytes done of bytes to do, with the rate and the time that is left. Silent where nobody looks.

    Args:
        total: bytes to do; None for unknown.
        err: where to draw; a bar appears on a terminal only.
    """

    def __init__(self, total: int | None, err: TextIO | None = None) -> None:
        self._err = err or sys.stderr
        self._shown = self._err.isatty() and os.environ.get("TERM") != "dumb"
        self._total = total
        self._done = 0
        self._logs = 0
        self._begun = time.monotonic()
        self._next = self._begun + PATIENCE_S
        self._drawn = False

    def advance(self, size: int) -> None:
        """So many bytes more are done."""
        self._done += size
        if self._shown:
            self._draw()

    def log(self) -> None:
        """One log more is done."""
        self._logs += 1

    def clear(self) -> None:
        """Make room for other output; the bar comes back with the next redraw."""
        if self._drawn:
            self._err.write("\r\x1b[2K")
            self._err.flush()
            self._drawn = False

    def _draw(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REDRAW_S
        self._drawn = True
        self._err.write(f"\r\x1b[2K{self.line(now - self._begun)}")
        self._err.flush()

    def line(self, elapsed_s: float) -> str:
        """The bar after so many seconds."""
        rate = self._done / max(elapsed_s, 1e-9)
        words = f"{size(self._done)}  {size(rate)}/s  {self._logs} logs"
        if not self._total:
            return words
        part = min(1.0, self._done / self._total)
        full = round(part * CELLS)
        left_s = (self._total - self._done) / rate if rate else 0.0
        left = f"  {max(0.0, left_s):.0f} s left" if elapsed_s > 1 else ""
        return f"{'█' * full}{'░' * (CELLS - full)} {100 * part:3.0f} %  {words}{left}"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1_000
    raise AssertionError
