"""An event as a sink wants it: the event itself, or a sentence for people."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.content import without_content
from loopd.core.webhook import Webhook
from loopd.core.writes import StoredEvent

SENTENCE_CHARS = 600
URGENT = frozenset(
    {"degeneration.detected", "approval.requested", "daemon.frozen", "webhook.dead_letter", "webhook.gap"}
)


def request(hook: Webhook, event: StoredEvent, log: str, name: str | None) -> tuple[bytes, dict[str, str]]:
    """Body and headers for an event; `name` is the session's."""
    body = event.body if hook.content else without_content(event.kind, event.body)
    if hook.format == "json":
        return _event(event, body, log, name), {"content-type": "application/json"}
    told = sentence(event, msgspec.json.decode(body), name)
    if hook.format == "slack":
        escaped = told.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return msgspec.json.encode({"text": escaped}), {"content-type": "application/json"}
    urgent = event.kind in URGENT
    return told.encode(), {
        "content-type": "text/plain; charset=utf-8",
        "title": f"loopd: {name or 'daemon'}",
        "priority": "high" if urgent else "default",
        "tags": "warning" if urgent else "robot",
    }


def _event(event: StoredEvent, body: bytes, log: str, name: str | None) -> bytes:
    head: dict[str, Any] = {
        "t": "ev",
        "log": log,
        "seq": event.seq,
        "sid": event.sid,
        "name": name,
        "ss": event.ss,
        "ts": event.at_ms,
        "k": event.kind,
        "kv": event.kv,
        "turn": event.turn,
        "b": msgspec.Raw(body),
    }
    return msgspec.json.encode({key: value for key, value in head.items() if value is not None})


def sentence(event: StoredEvent, body: dict[str, Any], name: str | None) -> str:
    """What happened, in one line for people; control characters are spaces."""
    who = name or event.sid or "the daemon"
    match event.kind:
        case "degeneration.detected":
            finding = f"{body.get('rule', 'a rule')} ({body.get('verdict') or body.get('rung') or 'found'})"
            text = f"{who} goes in circles: {finding}"
        case "session.ended":
            text = f"{who} ended as {body.get('status')}: {body.get('stop_reason')}"
        case "gate.changed":
            holds = ", ".join(_kinds(body.get("added"))) or ", ".join(_kinds(body.get("removed")))
            text = f"{who}: gate {body.get('gate')} ({body.get('cause')}{': ' + holds if holds else ''})"
        case "approval.requested":
            text = f"{who} asks to run {body.get('tool', 'a tool')}; answer with `loopctl approve {who}`"
        case "daemon.frozen":
            text = f"frozen by {body.get('by')}: {body.get('reason') or 'no reason given'}"
        case "anchor.signed":
            text = f"log {body.get('log')} had {body.get('seq')} events, hash {body.get('h')}"
        case "webhook.failing" | "webhook.dead_letter":
            text = f"webhook {body.get('name')} at event {body.get('seq')}: {body.get('error')}"
        case "webhook.gap":
            text = f"webhook {body.get('name')} missed events {body.get('first')} to {body.get('last')}: deleted by then"
        case _:
            known = [
                f"{key} {value}"
                for key, value in body.items()
                if key != "k" and isinstance(value, str | int) and value != ""
            ]
            text = f"{who}: {event.kind}" + (f" ({', '.join(known[:4])})" if known else "")
    return "".join(char if char.isprintable() else " " for char in text)[:SENTENCE_CHARS]


def _kinds(holds: Any) -> list[str]:
    if not isinstance(holds, list):
        return []
    return [str(hold.get("kind")) if isinstance(hold, dict) else str(hold) for hold in holds]
