"""Session logs of Claude Code: JSON lines, one content block each, results in later user lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loopd.transcripts.logs import Begin, Draft, Items, moment_ms, natural, text_of
from loopd_protocol.events import Usage
from loopd_protocol.sources import Trigger

TYPES = frozenset({"user", "assistant", "system", "summary", "queue-operation", "file-history-snapshot"})


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like one of this format."""
    return line.get("type") in TYPES and ("sessionId" in line or "leafUuid" in line or "snapshot" in line)


def steps(lines: Iterable[tuple[int, dict[str, Any]]], name: str) -> Items:
    """Turn lines (number, object) into steps. Side chains (sub-agents) are left out."""
    begun = False
    draft: Draft | None = None
    message = ""
    n = 0
    trigger: Trigger | None = None
    compacted = False
    for _, line in lines:
        if not begun and isinstance(line.get("sessionId"), str):
            begun = True
            yield Begin(id=line["sessionId"], source="claude-code", task=name)
        if line.get("isSidechain"):
            continue
        body = line.get("message")
        body = body if isinstance(body, dict) else {}
        match line.get("type"):
            case "assistant":
                identity = str(body.get("id") or line.get("uuid") or "")
                if draft is None or identity != message or not identity:
                    if draft is not None:
                        yield draft.done()
                    n += 1
                    draft = Draft(
                        n, trigger=trigger, at_ms=moment_ms(line.get("timestamp")), compacted=compacted
                    )
                    message, trigger, compacted = identity, None, False
                _said(draft, body)
            case "user":
                if _results(draft, body.get("content")) or line.get("isMeta"):
                    continue
                if text_of(body.get("content")).strip():
                    trigger = Trigger.HUMAN
            case "system" if line.get("subtype") == "compact_boundary":
                compacted = True
            case _:
                pass
    if draft is not None:
        yield draft.done()


def _said(draft: Draft, body: dict[str, Any]) -> None:
    content = body.get("content")
    if isinstance(content, str):
        draft.say(content)
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            draft.say(block["text"])
        elif block.get("type") == "tool_use":
            draft.call(str(block.get("id", "")), str(block.get("name", "")), block.get("input"))
    usage = body.get("usage")
    if isinstance(usage, dict):
        cached = natural(usage.get("cache_read_input_tokens"))
        made = natural(usage.get("cache_creation_input_tokens"))
        draft.usage = Usage(
            input_tokens=natural(usage.get("input_tokens")) + cached + made,
            output_tokens=natural(usage.get("output_tokens")),
            cached_tokens=cached,
        )


def _results(draft: Draft | None, content: object) -> bool:
    """Fill in tool results; whether there were any."""
    found = False
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "tool_result":
            found = True
            if draft is not None:
                body = block.get("content")
                text = None if body is None else text_of(body)
                draft.result(str(block.get("tool_use_id", "")), text, ok=not block.get("is_error"))
    return found
