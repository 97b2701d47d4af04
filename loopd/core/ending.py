"""How a run ends: which of four states it gets, why in at most three sentences, and the issue. Pure.

    terminate ─▶ aborted_stuck         operator ─▶ aborted_constraint
    a total budget spent ─▶ aborted_constraint
    parked, nobody answered ─▶ done_partial with a verified milestone, else aborted_stuck
    claimed complete, with `stop.end_on_complete` ─▶ done_success if the checks passed as observed,
                                                     else done_partial with what remains

The agent's claim alone ends nothing: without that setting a session whose goal is complete stays live,
idle, and answers to whoever sends it something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopd.core import budgets, gate
from loopd.core.redaction import redacted
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd.core.stopping import MORE_STEPS
from loopd.core.stops import precedence
from loopd.core.stops.counting import Fired
from loopd.core.stops.limits import limits_of
from loopd_protocol import events as ev
from loopd_protocol.holds import AwaitingApproval

if TYPE_CHECKING:
    from loopd.core.decision import Decision

ABORTED = frozenset({"aborted_stuck", "aborted_constraint"})
TERMINAL = ("done_success", "done_partial", "aborted_stuck", "aborted_constraint")
"""The four states in which a run ends."""

SAID_CHARS = 600
CUT_CHARS = 4_000


def conclude(decision: Decision, stopping: str | None) -> bool:
    """End the session if the turn that is over leaves a reason to; returns whether it did.

    Args:
        decision: whose turn is over.
        stopping: the verdict that the turn was told to stop by, as `Running.stopping` has it.
    """
    if budgets.conclude(decision):
        return True
    session = decision.session
    rule = precedence.strongest(f.rule for f in session.stops.fired if f.verdict == "terminate")
    if rule is None and stopping is not None and stopping.startswith("terminate:"):
        rule = stopping.removeprefix("terminate:")
    if rule is not None:
        decision.end(
            "aborted_stuck",
            rule,
            by=f"rule:{rule}",
            rule=rule,
            explanation=explanation(session, decision.settings, rule),
        )
        return True
    goal = session.goal
    claimed = goal is not None and goal.status == "complete" and goal.origin == "model"
    if not claimed or not decision.settings.stop.end_on_complete:
        return False
    status, left = judged(session, decision.settings.stop.profile)
    said = {
        "done_success": "The agent declared its goal complete, and the checks passed as the daemon saw them.",
        "done_partial": "The agent declared its goal complete, but the checks do not prove it.",
    }[status]
    demands = (
        "The strict profile demands that every check passes."
        if decision.settings.stop.profile == "strict"
        else "The yolo profile accepts the functional goal: the check that ran last."
    )
    decision.end(status, "goal_complete", by="agent", explanation=f"{said} {demands}", remaining=left)
    return True


def reach(
    decision: Decision,
    status: str,
    stop_reason: str,
    *,
    by: str,
    explanation: str = "",
    rule: str | None = None,
    remaining: tuple[str, ...] = (),
) -> None:
    """Reach a terminal state: cut the turn, drop what waits, take the holds away, say so last.

    An abort writes its issue in the same commit, so that there is one whenever there is an end.
    """
    record = issue(decision.session, status, stop_reason, rule)
    if decision.session.turn is not None:
        decision.interrupt("ended", by=by)
    for waiting in decision.session.inbox:
        decision.forget(waiting, reason="session_ended", by=by)
    kinds = tuple(h.kind for h in decision.session.gate.holds)
    decision.change_gate(gate.Open(kinds), cause="ended", by=by)
    for job in decision.session.crons:
        decision.emit(ev.CronChanged(job=job.job, change="removed", by=by))
    if status in ABORTED:
        decision.emit(record)
    decision.emit(
        ev.SessionEnded(
            status=status,
            stop_reason=stop_reason,
            rule=rule,
            explanation=explanation,
            by=by,
            secondary=secondary(decision.session, rule),
            remaining=remaining,
            run=decision.session.run,
        )
    )


def judged(session: Session, profile: str) -> tuple[str, tuple[str, ...]]:
    """Status of a run whose goal is claimed complete, and what remains; by observed checks only."""
    checks = session.stops.checks
    demanded = checks if profile == "strict" else checks[-1:]
    failing = tuple(f"check does not pass: {check.label}" for check in demanded if not check.passes)
    if checks and not failing:
        return "done_success", ()
    return "done_partial", failing or ("no check was seen to pass",)


def awaits_more(session: Session, now: int) -> bool:
    """Whether the question for more steps stands unanswered at its deadline."""
    hold = gate.hold_of(session.gate, "AwaitingApproval")
    return isinstance(hold, AwaitingApproval) and hold.request == MORE_STEPS and hold.until_ms <= now


def denied(decision: Decision, *, by: str | None = None) -> None:
    """Nobody granted more steps, or `by` refused them: the run is over."""
    session = decision.session
    limits = limits_of(decision.settings.stop)
    steps = session.stops.lane.steps
    said = f"{steps} steps were taken, and nobody granted more within {limits.park_s} s."
    if by is not None:
        said = f"{steps} steps were taken, and {by} granted no more."
    reason = "more_steps_denied"
    if not session.stops.milestones:
        profile = decision.settings.stop.profile
        decision.end(
            "aborted_stuck",
            reason,
            by="rule:max_steps",
            rule="max_steps",
            explanation=f"{said} Nothing that was done is verified. The {profile} profile allows "
            f"{limits.max_steps} steps and {limits.max_extensions} extensions.",
        )
        return
    left = tuple(f"check does not pass: {each.label}" for each in session.stops.checks if not each.passes)
    if session.goal is not None and session.goal.status != "complete":
        left = (f"goal is {session.goal.status}: {session.goal.text}"[:SAID_CHARS], *left)
    decision.end(
        "done_partial",
        reason,
        by="rule:max_steps",
        rule="max_steps",
        explanation=f"{said} {session.stops.milestones} milestones were verified, the last one at step "
        f"{session.stops.milestone_step}.",
        remaining=left or ("the work was not declared complete",),
    )


def explanation(session: Session, settings: Settings, rule: str) -> str:
    """Why a rule ended the run, in at most three sentences."""
    fired = _fired(session, rule)
    said = _sentence(fired.evidence[0]) if fired is not None and fired.evidence else f"rule {rule} ended it"
    profile = settings.stop.profile
    first = f"The run was ended by {rule}: {said}."
    if profile == "yolo":
        first = f"The run was ended early by {rule}: {said}."
    bound = ""
    if fired is not None and fired.rule in precedence.STOP_RULES:
        bound = f" The {profile} profile allows {fired.threshold} {fired.unit}."
    last = session.rules.progress.last
    progress = f"The last progress was at step {last}." if last else "There was no progress before it."
    return redacted(f"{first}{bound} {progress}")


def _fired(session: Session, rule: str | None) -> Fired | None:
    return next((each for each in reversed(session.stops.fired) if each.rule == rule), None)


def _sentence(text: str) -> str:
    """A piece of evidence inside a sentence: on one line, without sentence ends of its own."""
    plain = " ".join(text.split()).replace(". ", "; ").replace("! ", "; ").replace("? ", "; ")
    return plain.rstrip(".!?")[:SAID_CHARS]


def secondary(session: Session, rule: str | None) -> tuple[str, ...]:
    """Other reasons to stop that were found in the same turn, the strongest first."""
    others = {each.rule for each in session.stops.fired} - {rule}
    return tuple(sorted(others, key=lambda other: (precedence.rank(other), other)))


def issue(session: Session, status: str, stop_reason: str, rule: str | None) -> ev.IssueWritten:
    """The structured record of an aborted run."""
    stops, lane = session.stops, session.stops.lane
    fired = _fired(session, rule)
    evidence = () if fired is None else tuple(redacted(line)[:CUT_CHARS] for line in fired.evidence)
    loop = ""
    if fired is not None:
        loop = (
            lane.passed if rule == "edge_loop" and lane.passed else next(iter(evidence[1:] or evidence), "")
        )
    counters = {
        "turns": session.turns,
        "steps": session.steps,
        "steps_since_progress": max(0, session.steps - session.rules.progress.last),
        "corrections": stops.corrections,
        "clamps": stops.clamps,
        "gate_closings": sum(sets for sets, _ in stops.gates.values()),
        "same_error": max((each.same for each in lane.attempts), default=0),
        "noop_edits": lane.edits.noop,
        "extensions": lane.extensions,
        "tokens": session.spent.input + session.spent.output,
        "tokens_after_last_progress": session.spent.barren,
    }
    said = stops.reason or (session.turn.text if session.turn is not None else "")
    return ev.IssueWritten(
        id=f"iss_{session.num}_{session.run}",
        run=session.run,
        status=status,
        stop_reason=stop_reason,
        rule=rule,
        loop=redacted(loop)[:CUT_CHARS],
        evidence=evidence,
        last_reason=redacted(said)[:SAID_CHARS],
        last_command=redacted(stops.command)[:CUT_CHARS],
        error_signature=stops.signature,
        counters=counters,
        state_fingerprint=session.fingerprint,
        resume=f"loopctl resume {session.sid}",
    )
