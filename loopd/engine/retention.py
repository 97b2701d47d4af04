"""How old things become in the journal."""

from __future__ import annotations

import msgspec

from loopd_protocol.command import DAY_MS


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
