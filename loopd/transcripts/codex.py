"""Rollout logs of Codex: JSON lines `{"timestamp", "type", "payload"}`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from loopd.transcripts.logs import Begin, Draft, Items, moment_ms, natural, text_of
from loopd_protocol.events import Usage
from loopd_protocol.sources import Trigger

TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_EXIT = re.compile(r"(?:^|\n)(?:Process exited with code|Exit code:|exit_code=)\s*(-?\d+)")
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "web_search_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like one of this format."""
    return line.get("type") in TYPES and isinstance(line.get("payload"), dict)


def steps(lines: Iterable[tuple[int, dict[str, Any]]], name: str) -> Items:
    """Turn lines (number, object) into steps: a step ends when the model speaks after results."""
    draft: Draft | None = None
    n = 0
    trigger: Trigger | None = None
    compacted = answered = False
    for _, line in lines:
        payload = line.get("payload")
        if not isinstance(payload, dict):
            continue
        kind = payload.get("type")
        match line.get("type"):
            case "session_meta":
                yield Begin(id=str(payload.get("id") or name), source="codex", task=name)
            case "compacted":
                compacted = True
            case "event_msg" if kind == "token_count" and draft is not None:
                draft.usage = _usage(payload) or draft.usage
            case "event_msg" if kind == "context_compacted":
                compacted = True
            case "response_item" if kind == "message" and payload.get("role") == "user":
                text = text_of(payload.get("content")).lstrip()
                if text and not text.startswith(
                    ("<environment_context", "<user_instructions", "# AGENTS.md")
                ):
                    trigger = Trigger.HUMAN
            case "response_item" if kind in _OUTPUTS:
                answered = True
                if draft is not None:
                    _result(draft, payload)
            case "response_item" if kind in _CALLS or (
                kind == "message" and payload.get("role") == "assistant"
            ):
                if draft is None or answered or trigger is not None:
                    if draft is not None:
                        yield draft.done()
                    n += 1
                    at_ms = moment_ms(line.get("timestamp"))
                    draft = Draft(n, trigger=trigger, at_ms=at_ms, compacted=compacted)
                    trigger, compacted, answered = None, False, False
                if kind == "message":
                    draft.say(text_of(payload.get("content")))
                else:
                    _call(draft, payload)
            case _:
                pass
    if draft is not None:
        yield draft.done()


def _call(draft: Draft, payload: dict[str, Any]) -> None:
    args: Any = payload.get("arguments", payload.get("input", payload.get("action")))
    if isinstance(args, str) and payload.get("type") == "function_call":
        try:
            args = msgspec.json.decode(args)
        except msgspec.DecodeError:
            args = {"_raw": args}
    elif isinstance(args, str):
        args = {"input": args}
    name = payload.get("name") or str(payload.get("type", "")).removesuffix("_call")
    draft.call(str(payload.get("call_id") or payload.get("id") or ""), str(name), args)


def _result(draft: Draft, payload: dict[str, Any]) -> None:
    output = payload.get("output")
    ok: bool | None = None
    code: int | None = None
    if isinstance(output, str) and output.startswith("{"):
        with contextlib.suppress(msgspec.DecodeError):
            output = msgspec.json.decode(output)
    if isinstance(output, dict):
        ok = output.get("success") if isinstance(output.get("success"), bool) else None
        metadata = output.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("exit_code"), int):
            code = metadata["exit_code"]
        output = output.get("content") or output.get("output") or ""
    text = text_of(output)
    match = _EXIT.search(text[:4_096])
    if code is None and match:
        code = int(match[1])
    if code is not None:
        ok = code == 0
    draft.result(str(payload.get("call_id", "")), text, ok=ok, exit_code=code)


def _usage(payload: dict[str, Any]) -> Usage | None:
    info = payload.get("info")
    last = info.get("last_token_usage") if isinstance(info, dict) else None
    if not isinstance(last, dict):
        return None
    return Usage(
        input_tokens=natural(last.get("input_tokens")),
        output_tokens=natural(last.get("output_tokens")),
        cached_tokens=natural(last.get("cached_input_tokens")),
    )
