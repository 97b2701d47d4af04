"""Which refused commands get an event: all at first, then only so many a minute.

Each event costs a commit. Whoever may not do anything must not be able to fill the journal by trying.
"""

from __future__ import annotations

WINDOW_MS = 60_000
PER_WINDOW = 10
PRINCIPALS = 1_024
"""Beyond so many at once the one that began first is forgotten."""


class Denials:
    """Counts refusals by principal."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[int, int]] = {}

    def worth_writing(self, principal: str, now_ms: int) -> bool:
        """Count one; whether it is among the first `PER_WINDOW` of its `WINDOW_MS`. `now_ms` is monotonic."""
        began, count = self._windows.get(principal, (now_ms, 0))
        if now_ms - began >= WINDOW_MS:
            began, count = now_ms, 0
        self._windows.pop(principal, None)
        self._windows[principal] = (began, count + 1)
        if len(self._windows) > PRINCIPALS:
            del self._windows[next(iter(self._windows))]
        return count < PER_WINDOW
