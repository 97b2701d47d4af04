"""How late the event loop is: the longest delay of a timer that does nothing."""

from __future__ import annotations

from collections.abc import Callable

import anyio

TICK_S = 0.5
"""Two wake-ups a second cost less than 0.02 % of a processor."""
WINDOW_S = 30.0


class LoopLag:
    """Samples the delay of a timer on the loop that it runs on.

    Reading does not reset it, so several scrapers see the same: the maximum is that of the
    current window and the one before, 30 to 60 s.
    """

    def __init__(self, monotonic_s: Callable[[], float] | None = None) -> None:
        self._monotonic_s = monotonic_s or anyio.current_time
        self._current = 0.0
        self._previous = 0.0
        self._began = 0.0

    @property
    def max_s(self) -> float:
        """Longest delay in seconds in the last 30 to 60 s."""
        return max(self._current, self._previous)

    def sample(self, lag_s: float, now_s: float) -> None:
        """Take one measured delay."""
        if now_s - self._began >= WINDOW_S:
            stale = now_s - self._began >= 2 * WINDOW_S
            self._previous = 0.0 if stale else self._current
            self._current, self._began = 0.0, now_s
        self._current = max(self._current, lag_s)

    async def run(self) -> None:
        """Sample until cancelled."""
        self._began = self._monotonic_s()
        while True:
            due = self._monotonic_s() + TICK_S
            await anyio.sleep(TICK_S)
            now = self._monotonic_s()
            self.sample(max(0.0, now - due), now)
