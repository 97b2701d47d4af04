"""Which part of an event is content: what was said, shown or handed to a tool.

Metadata is the rest: that it happened, when, by whose leave, what it cost. Callers without `read.content`
see events without content, and retention deletes it earlier than the metadata.
"""

from __future__ import annotations

from typing import Any

import msgspec

CONTENT: dict[str, dict[str, Any]] = {
    "session.created": {"driver": {}, "settings": {}},
    "session.ended": {"explanation": "", "remaining": []},
    "issue.written": {"loop": "", "evidence": [], "last_reason": "", "last_command": ""},
    "phase.clamped": {"phase": "", "proposed": "", "edge": ""},
    "envelope.accepted": {"text": ""},
    "degeneration.detected": {"evidence": []},
    "detector.failed": {"error": ""},
    "turn.started": {"prompt": None},
    "turn.step": {"text": "", "calls": [], "text_blob": None, "frames": None},
    "turn.completed": {"error": "", "frames": None},
    "turn.interrupted": {"partial": "", "partial_blob": None, "frames": None},
    "context.compacted": {"summary": "", "summary_blob": None},
    "goal.changed": {"text": None, "note": ""},
    "wake.set": {"note": ""},
    "cron.changed": {"text": ""},
    "driver.remembered": {"value": ""},
    "effect.intent": {"args": None, "args_blob": None},
    "effect.outcome": {"note": ""},
    "effect.denied": {"excerpt": ""},
    "approval.requested": {"excerpt": "", "subjects": []},
    "webhook.failing": {"error": ""},
    "webhook.dead_letter": {"error": ""},
    "config.changed": {"settings": {}},
}
"""Kind → what stands in the place of content. Reasons that operators give are not content."""

KEPT = frozenset(
    {
        "session.created",
        "cron.changed",
        "driver.remembered",
        "webhook.failing",
        "webhook.dead_letter",
        "config.changed",
    }
)
"""Kinds that retention leaves whole while their rows exist: settings, without which nothing can be carried on."""

_CALL_METADATA = ("id", "name", "tool_class", "ok")


def without_content(kind: str, body: bytes) -> bytes:
    """The payload for those who may not read content; the same bytes when there is none."""
    content = CONTENT.get(kind, {})
    if not content and b'"given"' not in body:
        return body
    # What led to an event may hold anything that somebody said.
    decoded = msgspec.json.decode(body)
    return msgspec.json.encode({k: content.get(k, value) for k, value in decoded.items() if k != "given"})


def after_retention(kind: str, body: bytes) -> bytes:
    """What is left of a payload when its content is deleted; the same bytes when there is none.

    Tools keep their names: what was called how often is metadata.
    """
    content = {} if kind in KEPT else CONTENT.get(kind, {})
    if not content and b'"given"' not in body:
        return body
    left: dict[str, Any] = {}
    for name, value in msgspec.json.decode(body).items():
        if name == "given":
            continue
        if name == "calls" and kind == "turn.step":
            left[name] = [{k: call[k] for k in _CALL_METADATA if k in call} for call in value]
        else:
            left[name] = content.get(name, value)
    return msgspec.json.encode(left)
