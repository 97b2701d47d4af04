"""What a caller without `read.content` gets to see of an event: that it happened, not what was said."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.writes import StoredEvent
from loopd_protocol.events import EVENT_TYPES

_CONTENT: dict[str, dict[str, Any]] = {
    "session.created": {"driver": {}, "settings": {}},
    "session.ended": {"explanation": "", "remaining": []},
    "issue.written": {
        "loop": "",
        "evidence": [],
        "last_reason": "",
        "last_command": "",
    },
    "phase.clamped": {"phase": "", "proposed": "", "edge": ""},
    "envelope.accepted": {"text": ""},
    "degeneration.detected": {"evidence": []},
    "detector.failed": {"error": ""},
    "turn.started": {"prompt": None},
    "turn.step": {"text": "", "calls": [], "text_blob": None},
    "turn.completed": {"error": ""},
    "turn.interrupted": {"partial": "", "partial_blob": None},
    "goal.changed": {"text": None, "note": ""},
    "wake.set": {"note": ""},
    "cron.changed": {"text": ""},
}
"""Kind → what stands in the place of content. Messages, prompts and tool output are content;
reasons that operators give for a hold are not."""


def may_pass(kind: str) -> bool:
    """Whether a caller without `read.content` is told of this kind; unknown kinds may hold anything."""
    return kind in EVENT_TYPES


def redacted_body(event: StoredEvent) -> bytes:
    """The payload without its content."""
    content = _CONTENT.get(event.kind, {})
    if not content and b'"given"' not in event.body:
        return event.body
    body = msgspec.json.decode(event.body)
    # what led to it may hold anything that somebody said
    return msgspec.json.encode({k: content.get(k, value) for k, value in body.items() if k != "given"})
