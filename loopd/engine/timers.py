"""All deadlines of all sessions: one heap, one sleeping task, lazy cancellation.

Deadlines are wall-clock moments (UTC), waiting is monotonic and at most `NAP_MS` at a time, so a
jump of the wall clock is noticed within that time; each deadline fires once, whatever the clock does.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from loopd.engine.ports import Clock

NAP_MS = 1_000
"""Longest single sleep. A wake-up costs some 20 µs, so an idle daemon stays far under 0.2 % of a core."""

STALE_FRACTION = 2
"""The heap is rebuilt when it holds more than this many entries for each armed session."""


class Timers:
    """At most one armed deadline for each key; arming again replaces it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        self._wake = anyio.Event()
        self._advanced_ms = clock.monotonic_ms()

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: str, deadline_ms: int | None) -> None:
        """Set the deadline of `key`; None disarms it."""
        if deadline_ms is None:
            self._armed.pop(key, None)
            return
        if self._armed.get(key) == deadline_ms:
            return
        self._armed[key] = deadline_ms
        if not self._heap or deadline_ms < self._heap[0][0]:
            self._wake.set()
        heapq.heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > 64 + STALE_FRACTION * len(self._armed):
            self._heap = [(deadline, name) for name, deadline in self._armed.items()]
            heapq.heapify(self._heap)

    def deadline_of(self, key: str) -> int | None:
        """The armed deadline of `key`."""
        return self._armed.get(key)

    def next_ms(self) -> int | None:
        """The earliest armed deadline."""
        while self._heap and self._armed.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: int) -> list[str]:
        """Disarm and return all keys whose deadline is at or before `now`, earliest first."""
        due = []
        while (first := self.next_ms()) is not None and first <= now:
            key = heapq.heappop(self._heap)[1]
            del self._armed[key]
            due.append(key)
        return due

    def overdue_ms(self, now: int) -> int:
        """How late the earliest armed deadline is, 0 when none is late."""
        first = self.next_ms()
        return max(0, now - first) if first is not None else 0

    def stalled_ms(self) -> int:
        """Monotonic time since the loop last looked at the heap; the watchdog asks."""
        return self._clock.monotonic_ms() - self._advanced_ms

    async def run(self, fire: Callable[[list[str]], Awaitable[object]]) -> None:
        """Call `fire` with the keys that are due, for ever. Cancel the task to stop."""
        while True:
            self._advanced_ms = self._clock.monotonic_ms()
            due = self.pop_due(self._clock.now_ms())
            if due:
                await fire(due)
                await anyio.lowlevel.checkpoint()  # however much is due, the rest of the daemon has its turn
                continue
            self._wake = anyio.Event()
            first = self.next_ms()
            nap_ms = NAP_MS if first is None else min(NAP_MS, max(0, first - self._clock.now_ms()))
            with anyio.move_on_after(nap_ms / 1_000):
                await self._wake.wait()
