"""What an agent's words about a failure mean: its errors, and errors that it passes off as answers."""

from __future__ import annotations

import re

from loopd.core.conversation import TurnEnd
from loopd.drivers.acp.connection import AgentGone, RpcError
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.error_prose import ErrorProse

_CAUSES: dict[str, str] = {
    "context_overflow": r"context[ _-]?(length|window|size|limit)|maximum context|too many tokens"
    r"|prompt is too long|exceeds? the (available )?context|exceed_context|input is too long",
    "rate_limited": r"\b429\b|rate.?limit|too many requests|quota|usage limit",
    "auth": r"\b40[13]\b|unauthori[sz]ed|forbidden|authenticat|api[ _-]?key|credential|log ?in\b|auth_required",
    "overloaded": r"\b503\b|\b529\b|overload|at capacity|high demand|too busy|service unavailable",
    "unreachable": r"connection (refused|error|reset|closed)|econnre|enotfound|etimedout|fetch failed"
    r"|unable to connect|could not connect|network error|timed? ?out|request timeout|dns"
    r"|error sending request",
    "server_error": r"\b50[0-9]\b|internal server error|bad gateway|server error",
    "rejected": r"\b4(0[0-9]|2[0-9])\b|bad request|invalid_request|not found|model .{0,80}does not exist",
}
"""Cause → what texts about it say; the first one that fits counts."""
_SORTED = tuple((cause, re.compile(pattern, re.IGNORECASE)) for cause, pattern in _CAUSES.items())
_EVERYWHERE = ErrorProse()
_AFTER = re.compile(
    r"(?:retry|try again|available|wait)[^0-9\n]{0,40}?(\d{1,6}(?:\.\d{1,3})?)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b",
    re.IGNORECASE,
)
_UNIT_MS = {"ms": 1, "mi": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def cause_of(text: str, otherwise: str) -> str:
    """One short word for what a text about a failure says."""
    return next((cause for cause, pattern in _SORTED if pattern.search(text)), otherwise)


def retry_after_ms(text: str) -> int | None:
    """How long the text asks to wait, or None."""
    found = _AFTER.search(text)
    if found is None:
        return None
    unit = found.group(2).lower()
    if unit.startswith("milli"):
        unit = "ms"
    factor = 60_000 if unit.startswith("min") else _UNIT_MS.get(unit, _UNIT_MS.get(unit[0], 1_000))
    return int(float(found.group(1)) * factor)


def is_error_prose(text: str, kind: AgentKind) -> bool:
    """Does an answer only say that the model could not be reached?"""
    if _fits(kind.error_prose, text):
        return True
    for remark in kind.remarks:
        text = re.sub(remark, "", text, flags=re.IGNORECASE)
    return _EVERYWHERE.told(text)


def is_empty_prose(text: str, kind: AgentKind) -> bool:
    """Does an answer only say that the model's was empty?"""
    return _fits(kind.empty_prose, text)


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.MULTILINE) for pattern in patterns)


def refused(error: RpcError) -> TurnEnd:
    """The end of a turn whose prompt was answered with an error."""
    said = str(error)
    return model_error(cause_of(said, "agent_error"), f"{error.method} failed: {said}", said)


def prose(text: str) -> TurnEnd:
    """The end of a turn whose only answer was an error message."""
    shown = " ".join(text.split())[:1_000]
    return model_error(
        cause_of(text, "error_prose"), f"the agent's answer is an error message: {shown}", text
    )


def model_error(cause: str, said: str, source: str = "") -> TurnEnd:
    """A turn that the model's side failed."""
    return TurnEnd(outcome="model_error", cause=cause, error=said, retry_after_ms=retry_after_ms(source))


def wordless(*, paused: bool, steps: int) -> TurnEnd:
    """A turn whose last answer was nothing, and cost nothing.

    Args:
        paused: the proxy answered instead of the model.
        steps: steps that were handed in before; the last one then stands for the answer.
    """
    if paused:
        return TurnEnd(outcome="idle")
    if steps:
        return TurnEnd(outcome="completed")
    return model_error("empty_answer", "the agent ended its turn without a word or a tool call")


def gone(error: AgentGone) -> TurnEnd:
    """A turn whose agent ended or fell silent for ever."""
    return TurnEnd(outcome="failed", cause=error.cause, error=str(error))
