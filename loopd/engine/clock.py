"""The only place that reads a clock."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time for records and deadlines, monotonic time for waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch (UTC); may jump both ways."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""
        return time.monotonic_ns() // 1_000_000


class OffsetClock(SystemClock):
    """The system clock moved by what a file says: jumps of the wall clock, for tests of whole daemons."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset_ms = 0

    def now_ms(self) -> int:
        """The wall clock plus the milliseconds in the file; a file that is no number changes nothing."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                self._offset_ms = int(file.read(32))
        except (OSError, ValueError):
            pass  # missing, or being written
        return super().now_ms() + self._offset_ms


class ManualClock:
    """Virtual time: moves only when told. `loopd.testing` and simulations use it."""

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now = now_ms
        self._monotonic = 0

    def now_ms(self) -> int:
        """The wall clock as last set."""
        return self._now

    def monotonic_ms(self) -> int:
        """Time that was advanced in total."""
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self._now += ms
        self._monotonic += ms

    def jump(self, ms: int) -> None:
        """Set the wall clock by `ms` without letting time pass."""
        self._now += ms
