"""Trajectories of SWE-agent (`.traj`) and mini-swe-agent (`.traj.json`): one JSON object a file."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from loopd.transcripts.logs import Begin, Draft, Items, natural, text_of
from loopd_protocol.events import Usage

_BLOCK = re.compile(r"```(?:bash|mswea_bash_command|sh)?\s*\n(.*?)\n?```", re.DOTALL)
_CODE = re.compile(r"<returncode>\s*(-?\d+)\s*</returncode>")


def recognises(document: dict[str, Any]) -> bool:
    """Whether a document looks like one of these formats."""
    return isinstance(document.get("trajectory"), list) or isinstance(document.get("messages"), list)


def steps(document: dict[str, Any], name: str) -> Items:
    """Turn a document into steps."""
    info = document.get("info")
    info = info if isinstance(info, dict) else {}
    status = str(info.get("exit_status") or "unknown")
    identity = str(document.get("instance_id") or document.get("environment") or name)
    if isinstance(document.get("messages"), list):
        yield Begin(id=identity, source="mini-swe-agent", task=name, outcome=status)
        yield from _messages(document["messages"])
    else:
        yield Begin(id=identity, source="swe-agent", task=name, outcome=status)
        yield from _trajectory(document["trajectory"])


def _trajectory(rows: list[Any]) -> Items:
    for n, row in enumerate((row for row in rows if isinstance(row, dict)), 1):
        draft = Draft(n)
        draft.say(str(row.get("thought") or row.get("response") or ""))
        action = row.get("action")
        if isinstance(action, str) and action.strip():
            draft.call(f"c{n}", "bash", {"command": action.strip()})
            observation = row.get("observation")
            draft.result(f"c{n}", observation if isinstance(observation, str) else None, ok=None)
        yield draft.done()


def _messages(rows: list[Any]) -> Items:
    draft: Draft | None = None
    waiting = ""
    n = 0
    for row in rows:
        if not isinstance(row, dict):
            continue
        role = row.get("role")
        if role == "assistant":
            if draft is not None:
                yield draft.done()
            n += 1
            draft = Draft(n)
            waiting = _asked(draft, row, n)
        elif role == "tool" and draft is not None:
            _observed(draft, str(row.get("tool_call_id", "")), row)
        elif role == "user" and draft is not None and waiting:
            _observed(draft, waiting, row)
            waiting = ""
    if draft is not None:
        yield draft.done()


def _asked(draft: Draft, row: dict[str, Any], n: int) -> str:
    """Read an assistant message; returns the id of a call that a user message will answer."""
    text = text_of(row.get("content"))
    draft.say(text)
    draft.usage = _usage(row)
    calls = row.get("tool_calls")
    if isinstance(calls, list) and calls:
        for index, call in enumerate(call for call in calls if isinstance(call, dict)):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            args = function.get("arguments")
            if isinstance(args, str):
                try:
                    args = msgspec.json.decode(args)
                except msgspec.DecodeError:
                    args = {"_raw": args}
            draft.call(str(call.get("id") or f"c{n}.{index}"), str(function.get("name") or "bash"), args)
        return ""
    block = _BLOCK.search(text)
    if block is None:
        return ""
    draft.call(f"c{n}", "bash", {"command": block[1].strip()})
    return f"c{n}"


def _observed(draft: Draft, identity: str, row: dict[str, Any]) -> None:
    text = text_of(row.get("content"))
    code = _CODE.search(text[:4_096])
    exit_code = None if code is None else int(code[1])
    draft.result(identity, text, ok=None if exit_code is None else exit_code == 0, exit_code=exit_code)


def _usage(row: dict[str, Any]) -> Usage | None:
    extra = row.get("extra")
    response = extra.get("response") if isinstance(extra, dict) else None
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return None
    return Usage(
        input_tokens=natural(usage.get("prompt_tokens") or usage.get("input_tokens")),
        output_tokens=natural(usage.get("completion_tokens") or usage.get("output_tokens")),
    )
