"""How old things become in the journal."""

from __future__ import annotations

import msgspec

from loopd.engine.ports import Clock
from loopd_protocol.command import DAY_MS

JUMP_MS = 3_600_000
BELIEVED_AFTER_MS = DAY_MS


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How old things become; 0 days is for ever. Content never outlives its metadata."""

    content_days: int = 30
    metadata_days: int = 400
    every_s: float = 3_600.0

    @property
    def content_ms(self) -> int:
        """Age of content in milliseconds, 0 for ever."""
        ages = [days for days in (self.content_days, self.metadata_days) if days]
        return min(ages) * DAY_MS if ages else 0

    @property
    def metadata_ms(self) -> int:
        """Age of metadata in milliseconds, 0 for ever."""
        return self.metadata_days * DAY_MS

    @property
    def content(self) -> str:
        """The rule for content, as the journal names it."""
        return f"content {self.content_ms // DAY_MS} d"

    @property
    def metadata(self) -> str:
        """The rule for metadata, as the journal names it."""
        return f"metadata {self.metadata_days} d"


class Trusted:
    """Whether the wall clock goes as time does. One that jumps forward makes everything look old.

    A jump is believed when the clock has gone on steadily for a day since; a person who asks for a run need
    not wait for that.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall, self._steady = clock.now_ms(), clock.monotonic_ms()
        self._jumped: tuple[int, int] | None = None

    def ahead_ms(self) -> int:
        """How far the clock is ahead of the time that has passed; 0 while it can be believed."""
        wall, steady = self._clock.now_ms(), self._clock.monotonic_ms()
        ahead = (wall - self._wall) - (steady - self._steady)
        if ahead < JUMP_MS:
            self._jumped = None
            if ahead < 0:
                self._wall, self._steady = wall, steady
            return 0
        if self._jumped is None or abs((wall - self._jumped[0]) - (steady - self._jumped[1])) >= JUMP_MS:
            self._jumped = wall, steady
        if steady - self._jumped[1] >= BELIEVED_AFTER_MS:
            self._wall, self._steady, self._jumped = wall, steady, None
            return 0
        return ahead
