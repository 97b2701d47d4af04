"""Rollout logs of Codex: JSON lines `{"timestamp", "type", "payload"}`."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from loopd.transcripts.logs import (
    Amend,
    Begin,
    Draft,
    Items,
    arguments,
    moment_ms,
    natural,
    small,
    task_of,
    text_of,
    word,
)
from loopd_protocol.events import Usage
from loopd_protocol.sources import Trigger

TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state"})
_HEAD_CHARS = 1_024
_EXIT = re.compile(r"^(?:Process exited with code|Exit code:|exit_code=)\s*(-?\d{1,9})\b", re.MULTILINE)
_HEAD = re.compile(r"\A(?:(?:Chunk ID|Wall time|Exit code|Process [^\n:]*|Original token count|Total output lines)[^\n]*\n)+Output:\n?")  # fmt: skip
"""What Codex writes above a command's output: it differs from run to run and would hide that nothing did."""

_CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"}
)
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
_NOT_TYPED = (
    "<environment_context", "<user_instructions", "# AGENTS.md", "<INSTRUCTIONS", "<skill", "<permissions",
    "<turn_aborted", "<subagent_notification", "<user_shell_command",
)  # fmt: skip


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like one of this format."""
    return word(line.get("type")) in TYPES and isinstance(line.get("payload"), dict)


class Rollouts:
    """Importer. A step ends when the model speaks after results."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: str | None = None
        self._draft: Draft | None = None
        self._n = 0
        self._trigger: Trigger | None = None
        self._compacted = self._answered = self._task = False

    def line(self, _number: int, line: dict[str, Any], /) -> Items:
        """Read one line."""
        payload = line.get("payload")
        if not isinstance(payload, dict):
            return
        kind = word(payload.get("type"))
        match line.get("type"):
            case "session_meta":
                yield from self._session(word(payload.get("id")) or self._name)
            case "compacted":
                self._compacted = True
            case "event_msg" if kind == "token_count" and self._draft is not None:
                self._draft.usage = _usage(payload) or self._draft.usage
            case "event_msg" if kind == "context_compacted":
                self._compacted = True
            case "response_item" if kind == "message" and payload.get("role") == "user":
                text = text_of(payload.get("content")).lstrip()
                if text and not text.startswith(_NOT_TYPED):
                    yield from self._typed(text)
            case "response_item" if kind in _OUTPUTS:
                self._answered = True
                if self._draft is not None:
                    _result(self._draft, payload)
            case "response_item" if kind in _CALLS or (
                kind == "message" and payload.get("role") == "assistant"
            ):
                yield from self._spoke(line, payload)
            case _:
                pass

    def end(self) -> Items:
        """Bring out the last step."""
        if self._draft is not None:
            yield self._draft.done()
            self._draft = None

    def _session(self, identity: str) -> Items:
        # a resumed or forked rollout carries the heads of its ancestors
        if self._begun == identity or (self._begun is not None and self._draft is None):
            return
        yield from self.end()
        self._n, self._trigger, self._task = 0, None, False
        self._begun = identity
        yield Begin(id=identity, source="codex")

    def _typed(self, text: str) -> Items:
        if self._begun is None:
            yield from self._session(self._name)
        self._trigger = Trigger.HUMAN
        if not self._task:
            self._task = True
            yield Amend(task=task_of(text))

    def _spoke(self, line: dict[str, Any], payload: dict[str, Any]) -> Items:
        if self._begun is None:
            yield from self._session(self._name)
        if self._draft is None or self._answered or self._trigger is not None:
            if self._draft is not None:
                yield self._draft.done()
            self._n += 1
            self._draft = Draft(
                self._n,
                trigger=self._trigger,
                at_ms=moment_ms(line.get("timestamp")),
                compacted=self._compacted,
            )
            self._trigger, self._compacted, self._answered = None, False, False
        if payload.get("type") == "message":
            self._draft.say(text_of(payload.get("content")))
        else:
            _call(self._draft, payload)


def _call(draft: Draft, payload: dict[str, Any]) -> None:
    args: Any = payload.get("arguments", payload.get("input", payload.get("action")))
    if payload.get("type") == "function_call":
        args = arguments(args)
    elif isinstance(args, str):
        args = {"input": args}
    name = word(payload.get("name")) or str(payload.get("type", "")).removesuffix("_call")
    draft.call(word(payload.get("call_id")) or word(payload.get("id")), name, args)


def _result(draft: Draft, payload: dict[str, Any]) -> None:
    output = payload.get("output")
    ok: bool | None = None
    code: int | None = None
    if isinstance(output, str) and output.startswith("{"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            output = msgspec.json.decode(output)
    if isinstance(output, dict):
        ok = output.get("success") if isinstance(output.get("success"), bool) else None
        metadata = output.get("metadata")
        if isinstance(metadata, dict):
            code = small(metadata.get("exit_code"))
        output = output.get("content") or output.get("output") or ""
    text = text_of(output)
    head = _HEAD.match(text[:_HEAD_CHARS])
    said = text[: head.end()] if head else text[:_HEAD_CHARS]
    match = _EXIT.search(said)
    if code is None and match:
        code = small(int(match[1]))
    if head:
        text = text[head.end() :]
    if code is not None:
        ok = code == 0
    draft.result(word(payload.get("call_id")), text, ok=ok, exit_code=code)


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
