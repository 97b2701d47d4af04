"""loopd's own tools for the agent: what it may ask of its session. Pure.

An agent can idle, update its goal, set wake-ups and report. It can never open its own gate, extend
its budget or lift a suspension: there is no such request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from loopd.core import goal, rules, schedule, stopping
from loopd.core.conversation import AgentReply, AgentRequest
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd_protocol import events as ev
from loopd_protocol.commands import IDLE_MAX_S, IDLE_MIN_S, WAKES_MAX
from loopd_protocol.errors import Refused
from loopd_protocol.events import Event
from loopd_protocol.holds import AnyHold, RequestIdle
from loopd_protocol.sources import Source

WAKE_MAX_S = 31 * 86_400
METRIC_MAX = 9_000_000_000


class Decides(Protocol):
    """The part of `loopd.core.session.Decision` that is needed here."""

    session: Session
    now: int
    settings: Settings

    def emit(self, event: Event) -> rules.Verdicts:
        """Add an event and follow it."""

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold."""

    def accept(self, source: Source, text: str, *, by: str) -> str:
        """Make an envelope durable."""

    def mark_held(self) -> None:
        """Say of each waiting envelope that something keeps it, if something does."""


def answer(decision: Decides, request: AgentRequest) -> AgentReply:
    """Carry out a request; a bad one changes nothing and tells the agent what was expected."""
    handler = _TOOLS.get(request.name)
    try:
        if handler is None:
            raise Refused("unknown_type", f"no tool {request.name!r}; expected one of {', '.join(_TOOLS)}")
        return handler(decision, request.args)
    except Refused as refusal:
        return AgentReply(ok=False, text=refusal.message)


def _integer(args: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = args.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Refused("invalid", f"{name} is {value!r}; expected an integer from {low} to {high}", path=name)
    return value


def _text(args: Mapping[str, Any], name: str, most: int, *, least: int = 0) -> str:
    value = args.get(name, "")
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise Refused("invalid", f"{name} must be a text of {least} to {most} characters", path=name)
    return value


def _request_idle(decision: Decides, args: Mapping[str, Any]) -> AgentReply:
    seconds = _integer(args, "max_idle_duration_secs", IDLE_MIN_S, IDLE_MAX_S)
    reason = _text(args, "reason", 4_000)
    until = decision.now + seconds * 1_000
    decision.close(RequestIdle(by="agent", reason=reason, until_ms=until), cause="request_idle")
    chained = decision.session.idle_ms // 1_000
    text = f"Idle for at most {seconds} s; any message wakes you earlier. Idle in a row: {chained} s."
    return AgentReply(ok=True, text=text, ends_turn=True)


def _update_goal(decision: Decides, args: Mapping[str, Any]) -> AgentReply:
    status = goal.check_model_change(decision.session.goal, args.get("status"))
    note = _text(args, "note", 4_000)
    decision.emit(ev.GoalChanged(status=status, origin="model", note=note, by="agent"))
    return AgentReply(ok=True, text=f"The goal is {status} now.")


def _wake_me(decision: Decides, args: Mapping[str, Any]) -> AgentReply:
    note = _text(args, "note", 4_000)
    expr = args.get("cron")
    if (expr is None) == (args.get("after_secs") is None):
        raise Refused("invalid", "expected exactly one of after_secs and cron")
    if len(decision.session.wakes) >= WAKES_MAX:
        raise Refused("conflict", f"{WAKES_MAX} wake-ups are pending, the most there may be")
    if expr is None:
        due: int | None = decision.now + _integer(args, "after_secs", IDLE_MIN_S, WAKE_MAX_S) * 1_000
    else:
        expr = _text(args, "cron", 200, least=1)
        due = schedule.next_due(expr, "UTC", decision.now)
    if due is None:
        raise Refused("invalid", f"cron expression {expr!r} never comes due", path="cron")
    wake = f"wk_{decision.session.num}_{decision.session.ss + 1}"
    decision.emit(ev.WakeSet(id=wake, due_ms=due, expr=expr, note=note))
    return AgentReply(ok=True, text=f"You will be woken in {(due - decision.now) // 1_000} s.")


def _report_phase(decision: Decides, args: Mapping[str, Any]) -> AgentReply:
    name = _text(args, "name", 64, least=1)
    refused = stopping.clamp(decision, name)
    if refused is not None:
        return refused
    decision.emit(ev.AgentReported(phase=name))
    return AgentReply(ok=True, text="Noted.")


def _report_progress(decision: Decides, args: Mapping[str, Any]) -> AgentReply:
    metric = _text(args, "metric", 64, least=1)
    value = args.get("value")
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= METRIC_MAX:
        raise Refused("invalid", f"value is {value!r}; expected a number up to {METRIC_MAX}", path="value")
    decision.emit(ev.AgentReported(metric=metric, value_micro=round(value * 1_000_000)))
    return AgentReply(ok=True, text="Noted.")


_TOOLS = {
    "request_idle": _request_idle,
    "update_goal": _update_goal,
    "wake_me": _wake_me,
    "report_phase": _report_phase,
    "report_progress": _report_progress,
}
