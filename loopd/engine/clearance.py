"""What a caller without `read.content` gets to see of an answer: how things stand, not what was said.

Goals, messages, notes and what an agent gives as a reason are content; reasons of operators are not. The same
line as in events, see `loopd.server.redaction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HIDDEN: Mapping[str, Mapping[str, Any]] = {
    "goal": {"text": "", "note": ""},
    "crons": {"text": ""},
    "jobs": {"text": ""},
    "job": {"text": ""},
    "wakes": {"note": ""},
    "approvals": {"excerpt": "", "subjects": [], "reason": ""},
}
"""Name of an object, or of a list of objects → its members that hold content, and what is shown instead."""
_AGENT_HOLDS = frozenset({"RequestIdle", "Degeneration", "AwaitingApproval"})
"""Holds whose reason comes from the agent or quotes it."""


def cleared(result: dict[str, Any]) -> dict[str, Any]:
    """The answer without content."""
    return {name: _member(name, value) for name, value in result.items()}


def _member(name: str, value: Any) -> Any:
    if name == "driver" and isinstance(value, dict):
        return {"kind": value.get("kind")}
    if name == "settings" and isinstance(value, dict):
        return {}
    if isinstance(value, dict):
        return _object(name, value)
    if isinstance(value, list):
        return [_object(name, item) if isinstance(item, dict) else item for item in value]
    return value


def _object(name: str, value: dict[str, Any]) -> dict[str, Any]:
    shown = {key: _member(key, inner) for key, inner in value.items()}
    for key, instead in _HIDDEN.get(name, {}).items():
        if key in shown:
            shown[key] = instead
    if name == "holds" and value.get("kind") in _AGENT_HOLDS:
        shown |= {key: "" for key in ("reason", "evidence", "explanation") if key in shown}
    return shown
