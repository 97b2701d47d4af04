"""What a caller without `read.content` gets to see of an event: that it happened, not what was said."""

from __future__ import annotations

from loopd.core.content import without_content
from loopd.core.writes import StoredEvent
from loopd_protocol.events import EVENT_TYPES


def may_pass(kind: str) -> bool:
    """Whether a caller without `read.content` is told of this kind; unknown kinds may hold anything."""
    return kind in EVENT_TYPES


def redacted_body(event: StoredEvent) -> bytes:
    """The payload without its content."""
    return without_content(event.kind, event.body)
