"""The report of a run: how it went and why it ended, from the session's state and its last events. Pure.

Agent-written text is redacted here and escaped where it is rendered as Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loopd.core.account import own_purses
from loopd.core.redaction import redacted
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd.core.stops.counting import ceiling
from loopd.core.stops.limits import limits_of
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe

KINDS = (
    "session.created",
    "session.ended",
    "session.resumed",
    "gate.changed",
    "goal.changed",
    "degeneration.detected",
    "detector.failed",
    "phase.clamped",
    "turn.completed",
    "turn.interrupted",
    "issue.written",
    "approval.answered",
    "approval.expired",
    "effect.denied",
    "budget.exhausted",
    "config.changed",
)
"""Events that a report is made of, besides the state."""

EVENTS = 400
"""How many of the last ones are looked at."""
TIMELINE = 60
TURNS = 10
TEXT_CHARS = 300


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the timeline; `turn` is the turn it belongs to, or None."""

    at_ms: int
    ss: int
    what: str
    turn: int | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went.

    Attributes:
        status: `live` or the terminal state; `explanation` has at most three sentences.
        counters: by name, `steps`, `steps_since_progress`, `corrections` and so on.
        edges: `a->b` → passages since the last progress and in the run, refusals, the last reasons.
        failures: commands that failed and did not pass since.
        gates: kind of hold → how often it was set and for how many milliseconds it stood.
        turns: the last turns, with the command that shows each.
        spent: `cost_micro` in millionths of the currency, `wall_ms` of running turns.
        unpriced: tokens by model that are in no cost, because nobody wrote down its price.
        budgets: the session's own limits.
        issue: the structured issue of an abort, or None.
    """

    sid: str
    name: str
    run: int
    status: str
    stop_reason: str
    rule: str | None
    explanation: str
    profile: str
    preset: str
    secondary: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    goal: dict[str, str] | None = None
    created_ms: int = 0
    ended_ms: int | None = None
    phase: str = ""
    counters: dict[str, int] = {}
    limits: dict[str, int] = {}
    edges: dict[str, dict[str, Any]] = {}
    failures: tuple[dict[str, Any], ...] = ()
    checks: tuple[dict[str, Any], ...] = ()
    gates: dict[str, dict[str, int]] = {}
    last_progress_step: int | None = None
    last_progress_ms: int = 0
    tokens: dict[str, int] = {}
    spent: dict[str, int] = {}
    unpriced: dict[str, int] = {}
    budgets: tuple[dict[str, Any], ...] = ()
    timeline: tuple[Entry, ...] = ()
    turns: tuple[dict[str, Any], ...] = ()
    issue: dict[str, Any] | None = None
    resume: str | None = None


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One event with its place."""

    ss: int
    at_ms: int
    event: ev.Event
    turn: int | None = None


def run_report(
    session: Session,
    settings: Settings,
    happened: Sequence[Happened],
    reasons: Mapping[int, str],
    now_ms: int,
) -> RunReport:
    """Make the report of the session's present run.

    Args:
        session: as committed.
        settings: of the session.
        happened: its last events of the kinds `KINDS`, in order.
        reasons: texts of the steps that are marked on edges, by `ss`.
        now_ms: holds that stand are counted up to here.
    """
    stops, lane, limits = session.stops, session.stops.lane, limits_of(settings.stop)
    ended = _last(happened, ev.SessionEnded) if session.status != "live" else None
    issue = _last(happened, ev.IssueWritten) if session.status != "live" else None
    if issue is not None and issue.run != session.run:
        issue = None
    last = session.rules.progress.last
    return RunReport(
        sid=session.sid,
        name=session.name,
        run=session.run,
        status=session.status,
        stop_reason=session.stop_reason,
        rule=None if ended is None else ended.rule,
        explanation=redacted(_explanation(session, ended)),
        profile=settings.stop.profile,
        preset=session.preset,
        secondary=() if ended is None else ended.secondary,
        remaining=() if ended is None else tuple(redacted(line) for line in ended.remaining),
        goal=None
        if session.goal is None
        else {"status": session.goal.status, "text": redacted(session.goal.text)},
        created_ms=session.created_ms,
        ended_ms=session.ended_ms or None,
        phase=session.phase or lane.phase,
        counters={
            "turns": session.turns,
            "steps": session.steps,
            "steps_toward_ceiling": lane.steps,
            "steps_since_progress": lane.since if settings.stop.enabled else max(0, session.steps - last),
            "extensions": lane.extensions,
            "same_error": max((each.same for each in lane.attempts), default=0),
            "noop_edits": lane.edits.noop,
            "unresolved_tools": lane.unresolved,
            "corrections": stops.corrections,
            "clamps": stops.clamps,
            "milestones": stops.milestones,
            "gate_closings": sum(sets for sets, _ in stops.gates.values()),
        },
        limits={
            "max_steps": ceiling(lane, limits),
            "edge_loop": limits.edge_loop,
            "same_error": limits.same_error,
            "noop_edit": limits.noop_edit,
            "no_progress": limits.no_progress,
            "unresolved_tools": limits.unresolved_tools,
        }
        if settings.stop.enabled
        else {},
        edges={
            name: {
                "since_progress": edge.since,
                "lifetime": edge.lifetime,
                "clamped": edge.clamped,
                "reasons": [redacted(_line(reasons[ss])) for ss in edge.marks if reasons.get(ss)],
            }
            for name, edge in sorted(stops.main.edges.items(), key=lambda item: -item[1].lifetime)
        },
        failures=tuple(
            {
                "command": redacted(each.label),
                "signature": each.signature,
                "in_a_row": each.same,
                "since_it_passed": each.total,
            }
            for each in reversed(lane.attempts)
        ),
        checks=tuple({"command": redacted(each.label), "passes": each.passes} for each in stops.checks),
        gates=_gates(session, now_ms),
        last_progress_step=last or None,
        last_progress_ms=session.progress_ms,
        tokens={
            "input": session.spent.input,
            "output": session.spent.output,
            "total": session.spent.input + session.spent.output,
            "after_last_progress": session.spent.barren,
        },
        spent={"cost_micro": session.account.cost, "wall_ms": session.account.wall},
        unpriced=session.account.unpriced,
        budgets=tuple(
            {"which": purse.which, "used": purse.used, "limit": purse.limit, "until_ms": purse.until_ms}
            for purse in own_purses(session, now_ms)
        ),
        timeline=_timeline(happened),
        turns=_turns(session.sid, happened),
        issue=None if issue is None else msgspec.to_builtins(issue),
        resume=f"loopctl resume {session.sid}" if session.status != "live" else None,
    )


def _last(happened: Sequence[Happened], kind: type[Any]) -> Any:
    return next((each.event for each in reversed(happened) if isinstance(each.event, kind)), None)


def _explanation(session: Session, ended: ev.SessionEnded | None) -> str:
    if ended is not None:
        return ended.explanation or f"The run ended as {ended.status}: {ended.stop_reason}."
    holds = ", ".join(hold.kind for hold in session.gate.holds)
    if holds:
        return f"The run goes on. Its gate is closed by {holds}."
    return "The run goes on."


def _gates(session: Session, now_ms: int) -> dict[str, dict[str, int]]:
    made = {kind: {"times": n, "held_ms": ms} for kind, (n, ms) in sorted(session.stops.gates.items())}
    for hold in session.gate.holds:
        entry = made.setdefault(hold.kind, {"times": 1, "held_ms": 0})
        entry["held_ms"] += max(0, now_ms - hold.since_ms)
    return made


def _turns(sid: str, happened: Sequence[Happened]) -> tuple[dict[str, Any], ...]:
    made: list[dict[str, Any]] = []
    for each in happened:
        event = each.event
        if isinstance(event, ev.TurnCompleted):
            made.append({"n": event.n, "outcome": event.outcome, "steps": event.steps})
        elif isinstance(event, ev.TurnInterrupted):
            made.append({"n": event.n, "outcome": "interrupted", "steps": event.steps})
    return tuple(turn | {"show": f"loopctl show {sid}@{turn['n']}"} for turn in made[-TURNS:])


def _timeline(happened: Sequence[Happened]) -> tuple[Entry, ...]:
    made = []
    for each in happened:
        what = _what(each.event)
        if what:
            made.append(Entry(at_ms=each.at_ms, ss=each.ss, turn=each.turn, what=redacted(_line(what))))
    return tuple(made[-TIMELINE:])


def _what(event: ev.Event) -> str:
    match event:
        case ev.SessionCreated():
            return f"created with preset {event.preset}"
        case ev.SessionEnded():
            return f"ended {event.status}: {event.stop_reason}"
        case ev.SessionResumed():
            return f"resumed by {event.by} as run {event.run}: {event.reason}".rstrip(": ")
        case ev.GateChanged():
            if event.added is not None and event.cause != "gate_extend":
                return f"gate closed by {event.added.kind}: {event.added.reason}".rstrip(": ")
            return f"{', '.join(event.removed)} went: {event.cause}" if event.removed else ""
        case ev.GoalChanged():
            return f"goal {event.status} by {event.origin}"
        case ev.DegenerationDetected():
            said = event.evidence[0] if event.evidence else ""
            shadow = " (shadow)" if event.shadow else ""
            return f"{event.rule} {event.verdict}{shadow}, {event.score} of {event.threshold} {event.unit}: {said}"
        case ev.DetectorFailed():
            return f"rule {event.rule} failed: {event.cause}"
        case ev.PhaseClamped():
            return f"phase {event.proposed} refused: {event.edge} {event.count} times, limit {event.limit}"
        case ev.TurnInterrupted():
            return f"turn {event.n} interrupted: {event.cause}"
        case pe.ApprovalAnswered():
            return f"approval {event.id}: {event.answer} by {event.by} {event.reason}".rstrip()
        case pe.ApprovalExpired():
            return f"approval {event.id} denied: {event.cause}"
        case pe.EffectDenied():
            return f"{event.tool} denied by {event.rule}: {event.excerpt}"
        case pe.BudgetExhausted():
            return f"budget spent: {event.which}, {event.used} of {event.limit}"
        case pe.ConfigChanged():
            return f"settings changed by {event.by}: {', '.join(event.changed) or 'policy'}"
        case ev.IssueWritten():
            return f"issue {event.id} written"
        case _:
            return ""


def _line(text: str) -> str:
    plain = " ".join(text[: 4 * TEXT_CHARS].split())
    return plain if len(plain) <= TEXT_CHARS else plain[: TEXT_CHARS - 1] + "…"
