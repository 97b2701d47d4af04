"""Tokens of a hosted agent's prompts, from reports whose meaning differs from agent to agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopd_protocol.events import Usage

_NAMES = {
    "input": ("inputTokens", "input_tokens", "promptTokens", "prompt_tokens", "input"),
    "output": ("outputTokens", "output_tokens", "completionTokens", "completion_tokens", "output"),
    "cached": ("cachedReadTokens", "cached_read_tokens", "cacheReadInputTokens", "cached_tokens"),
    "thought": ("thoughtTokens", "thought_tokens"),
}


class UsageMeter:
    """Turns reports into the usage of steps.

    Args:
        scope: what the agent's numbers stand for; see `kinds.Capabilities`.
        before: for `cumulative`: the session's total so far, as `total` gave it, or empty.
    """

    def __init__(self, scope: str, before: str = "") -> None:
        self._scope = scope
        self._base = _parsed(before)
        self._latest: tuple[int, int, int] | None = None

    @property
    def reported(self) -> bool:
        """Something was reported in this prompt."""
        return self._latest is not None

    def begin(self) -> None:
        """A prompt begins."""
        self._latest = None

    def take(self, report: Any) -> None:
        """Take one report; later ones replace earlier ones of the same prompt."""
        if self._scope == "none" or not isinstance(report, Mapping):
            return
        found = {name: _number(report, keys) for name, keys in _NAMES.items()}
        if found["input"] is None and found["output"] is None:
            return
        read = (found["input"] or 0, found["output"] or 0, found["cached"] or 0)
        if any(read) or self._latest is None:
            self._latest = read

    def settle(self) -> Usage | None:
        """The usage of the whole prompt (or its last call), None when nothing was reported."""
        latest, self._latest = self._latest, None
        if latest is None:
            return None
        if self._scope == "cumulative":
            before = self._base
            # A total that fell belongs to another count: the agent began anew.
            grown = before is not None and all(now >= then for now, then in zip(latest, before, strict=True))
            self._base = latest
            if grown and before is not None:
                latest = (latest[0] - before[0], latest[1] - before[1], latest[2] - before[2])
        return Usage(
            input_tokens=latest[0],
            output_tokens=latest[1],
            cached_tokens=latest[2],
            scope="last_call" if self._scope == "last_call" else "turn",
        )

    @property
    def total(self) -> str:
        """For `cumulative`: what has to be remembered over a restart."""
        return "" if self._scope != "cumulative" or self._base is None else "/".join(map(str, self._base))


def estimated(context_chars: int, made_chars: int) -> Usage:
    """Four characters a token, both ways."""
    return Usage(input_tokens=-(-context_chars // 4), output_tokens=-(-made_chars // 4), measured=False)


def _number(report: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = report.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
            return value
    return None


def _parsed(text: str) -> tuple[int, int, int] | None:
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[1]), int(parts[2])


def reports_in(value: Any, depth: int = 0) -> Any:
    """The part of an answer or update that reports usage, wherever the agent puts it, or None."""
    if not isinstance(value, dict) or depth > 3:
        return None
    if any(key in value for key in (*_NAMES["input"][:4], *_NAMES["output"][:4])):
        return value
    for key in ("usage", "tokenUsage", "token_usage", "_meta", "quota", "cost", "token_count"):
        found = reports_in(value.get(key), depth + 1)
        if found is not None:
            return found
    meta = value.get("_meta")
    if isinstance(meta, dict):
        for inner in meta.values():
            found = reports_in(inner, depth + 1)
            if found is not None:
                return found
    return None
