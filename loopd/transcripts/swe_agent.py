"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`): one JSON object each.

mini-swe-agent writes three kinds of messages, one for each way of asking a model: chat with tool
calls, chat with a fenced block, and responses with output items.
"""

from __future__ import annotations

import os
import re
from typing import Any

from loopd.core.judge import LoggedStep
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

LISTS = frozenset({"trajectory", "messages"})
"""Members whose elements are steps; they come one at a time."""

MEMBERS = frozenset({"info", "instance_id", "environment"})
"""Members that say something about the whole."""

_BLOCK = re.compile(r"```(?:bash|mswea_bash_command|sh)?\s*\n(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"<returncode>\s*(-?\d{1,9})\s*</returncode>")
_TASK = re.compile(r"<(?:pr_description|task|issue)>(.*?)(?:</|\Z)", re.DOTALL)


def recognises(document: dict[str, Any]) -> bool:
    """Whether a document looks like one of these formats."""
    return isinstance(document.get("trajectory"), list) or isinstance(document.get("messages"), list)


class Trajectory:
    """Importer of one document, member by member, in whatever order they come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = ""
        self._draft: Draft | None = None
        self._waiting = ""
        self._task = False
        self._n = 0

    def member(self, key: str, value: object) -> Items:
        """Read a member that is no list of steps."""
        if key == "info" and isinstance(value, dict):
            yield from self._begin("messages" if "mini_version" in value else "trajectory")
            status = word(value.get("exit_status"))
            if status:
                yield Amend(outcome=status)
        elif key in {"instance_id", "environment"} and word(value):
            yield from self._begin("messages" if key == "instance_id" else "trajectory")
            if key == "instance_id" or self._begun != "instance_id":
                yield Amend(id=word(value))
                self._begun = key

    def element(self, key: str, value: object) -> Items:
        """Read one element of a list of steps."""
        yield from self._begin(key)
        if not isinstance(value, dict):
            return
        if key == "trajectory":
            yield self._row(value)
        else:
            yield from self._message(value)

    def end(self) -> Items:
        """Bring out the last step."""
        if self._draft is not None:
            yield self._draft.done()
            self._draft = None

    def _begin(self, key: str) -> Items:
        if not self._begun:
            self._begun = "begun"
            source = "swe-agent" if key == "trajectory" else "mini-swe-agent"
            yield Begin(id=os.path.basename(self._name), source=source, whole=True)

    def _row(self, row: dict[str, Any]) -> LoggedStep:
        self._n += 1
        n = self._n
        draft = Draft(n)
        draft.say(text_of(row.get("thought")) or text_of(row.get("response")))
        action = row.get("action")
        if isinstance(action, str) and action.strip():
            draft.call(f"c{n}", "bash", {"command": action.strip()})
            observation = row.get("observation")
            draft.result(f"c{n}", observation if isinstance(observation, str) else None, ok=None)
        return draft.done()

    def _message(self, row: dict[str, Any]) -> Items:
        role = row.get("role")
        if role == "assistant" or row.get("object") == "response":
            yield from self.end()
            self._n += 1
            extra = row.get("extra")
            at_ms = moment_ms(extra.get("timestamp")) if isinstance(extra, dict) else 0
            self._draft = Draft(self._n, at_ms=at_ms)
            self._waiting = _asked(self._draft, row, self._n)
        elif self._draft is None:
            if role == "user" and not self._task:
                self._task = True
                text = text_of(row.get("content"))
                found = _TASK.search(text)
                yield Amend(task=task_of(found[1] if found else text.strip().partition("\n\n")[0]))
        elif role == "tool":
            _observed(self._draft, word(row.get("tool_call_id")), row, row.get("content"))
        elif row.get("type") == "function_call_output":
            _observed(self._draft, word(row.get("call_id")), row, row.get("output"))
        elif role == "user" and self._waiting:
            _observed(self._draft, self._waiting, row, row.get("content"))
            self._waiting = ""


def _asked(draft: Draft, row: dict[str, Any], n: int) -> str:
    """Read what the model said; returns the id of a call that a user message will answer."""
    draft.usage = _usage(row)
    if row.get("object") == "response":
        for item in row["output"] if isinstance(row.get("output"), list) else ():
            if not isinstance(item, dict):
                continue
            if item.get("type") == "message":
                draft.say(text_of(item.get("content")))
            elif item.get("type") == "function_call":
                draft.call(
                    word(item.get("call_id")), word(item.get("name")), arguments(item.get("arguments"))
                )
        return ""
    text = text_of(row.get("content"))
    draft.say(text)
    calls = row.get("tool_calls")
    if isinstance(calls, list) and calls:
        for index, call in enumerate(call for call in calls if isinstance(call, dict)):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            identity = word(call.get("id")) or f"c{n}.{index}"
            draft.call(identity, word(function.get("name")) or "bash", arguments(function.get("arguments")))
        return ""
    extra = row.get("extra")
    actions = extra.get("actions") if isinstance(extra, dict) else None
    first = actions[0] if isinstance(actions, list) and actions else None
    command = first.get("command") if isinstance(first, dict) else None
    if not isinstance(command, str):
        block = _BLOCK.search(text)
        if block is None:
            return ""
        command = block[1].strip()
    draft.call(f"c{n}", "bash", {"command": command})
    return f"c{n}"


def _observed(draft: Draft, identity: str, row: dict[str, Any], content: object) -> None:
    text = text_of(content)
    extra = row.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    exit_code = small(extra.get("returncode"))
    if exit_code is None:
        code = _CODE.search(text[:4_096])
        exit_code = None if code is None else small(int(code[1]))
    raw = extra.get("raw_output")
    # what the model saw may be cut in the middle; the raw output is not
    whole = f"{exit_code}\n{raw}" if isinstance(raw, str) else None
    ok = None if exit_code is None else exit_code == 0
    draft.result(identity, text, ok=ok, exit_code=exit_code, whole=whole)


def _usage(row: dict[str, Any]) -> Usage | None:
    extra = row.get("extra")
    response = extra.get("response") if isinstance(extra, dict) else None
    usage = response.get("usage") if isinstance(response, dict) else row.get("usage")
    if not isinstance(usage, dict):
        return None
    return Usage(
        input_tokens=natural(usage.get("prompt_tokens") or usage.get("input_tokens")),
        output_tokens=natural(usage.get("completion_tokens") or usage.get("output_tokens")),
    )
