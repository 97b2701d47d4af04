"""One session: `advance(session, input, now, house)` decides everything that may happen to it. Pure.

                     EnvelopeArrived / continuation due, gate admits
              ┌────────────────────────────────────────────────────────┐
              │                                                        ▼
    live: ── idle ◀── turn.completed / turn.interrupted ─────────── running ──▶ turn.step …
              │                                                        │
              └──────────── EndRequested / verdict `terminate` ────────┴──▶ one of four terminal states
                                                  ResumeRequested ──▶ live again, run + 1

Each decision becomes events; `loopd.core.evolution` alone says how an event changes the state.
The shell writes the events, and only then carries out the effects.
"""

from __future__ import annotations

from loopd.core import (
    agent_tools,
    approvals,
    budgets,
    continuation,
    controls,
    effects,
    gate,
    ladder,
    occurrences,
    reconfigure,
    recovery,
    turns,
)
from loopd.core.decision import Decision
from loopd.core.inputs import (
    Advanced,
    AgentAsked,
    ContextShrunk,
    CronChangeRequested,
    CronPutRequested,
    CutRequested,
    DropRequested,
    EffectEnded,
    EffectIntended,
    EffectResolved,
    EndRequested,
    EnvelopeArrived,
    GateExtendRequested,
    GateOpenRequested,
    GoalChangeRequested,
    HoldReleased,
    HoldRequested,
    House,
    Input,
    InterruptRequested,
    ModelReported,
    Reconsidered,
    Recovered,
    Remembered,
    ResumeRequested,
    RetryReported,
    StepReported,
    StreamJudged,
    SuspendRequested,
    Ticked,
    TurnEnded,
    UnsuspendRequested,
)
from loopd.core.policy_inputs import (
    AffordAsked,
    ApprovalGiven,
    BudgetSetRequested,
    ConfigSetRequested,
    PermitAsked,
)
from loopd.core.rules import Verdicts
from loopd.core.state import Session
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import SOURCE_POLICIES

TURN_INPUTS = frozenset(
    {
        StepReported,
        TurnEnded,
        AgentAsked,
        RetryReported,
        Remembered,
        StreamJudged,
        EffectIntended,
        ContextShrunk,
    }
    | {PermitAsked, AffordAsked}
)
"""Inputs that speak for one turn and are stale when that turn is over."""


def advance(session: Session, given: Input, now: int, house: House) -> Advanced:
    """Decide what an input leads to.

    Args:
        session: the state before; it is not changed.
        given: what happened.
        now: wall clock, milliseconds since the epoch (UTC).
        house: what holds for all sessions, and the settings of this one.

    Raises:
        Refused: the input cannot be accepted; nothing is changed.
    """
    decision = Decision(session, now, house)
    if session.status != "live" and not isinstance(
        given,
        Ticked
        | Recovered
        | Reconsidered
        | ResumeRequested
        | EffectEnded
        | EffectResolved
        | BudgetSetRequested,
    ):
        if type(given) in TURN_INPUTS or isinstance(given, CutRequested | ModelReported):
            return decision.stale()
        raise Refused("session_terminal", f"session {session.name!r} has ended as {session.status!r}")
    if type(given) in TURN_INPUTS and (session.turn is None or session.turn.n != getattr(given, "n", 0)):
        return decision.stale()
    match given:
        case EnvelopeArrived():
            decision.arrived(given)
        case SuspendRequested():
            controls.suspend(decision, given)
        case UnsuspendRequested():
            decision.change_gate(gate.Open(("UserSuspend",)), cause="unsuspend", by=given.by)
            decision.judge()
        case InterruptRequested():
            controls.interrupt(decision, given)
        case GateOpenRequested():
            controls.open_by_hand(decision, given)
        case GateExtendRequested():
            decision.change_gate(gate.Extend(given.kind, given.until_ms), cause="gate_extend", by=given.by)
        case HoldRequested():
            decision.close(given.hold, cause=given.cause)
            decision.mark_held()
        case HoldReleased():
            decision.change_gate(gate.Open((given.kind,)), cause=given.cause, by="daemon")
            decision.judge()
        case GoalChangeRequested():
            decision.change_goal(given)
        case CronPutRequested() | CronChangeRequested():
            occurrences.change(decision, given)
        case DropRequested():
            decision.drop(given)
        case EndRequested():
            decision.end("aborted_constraint", "operator", by=given.by, explanation=given.reason)
        case ResumeRequested():
            controls.resume(decision, given)
        case StepReported():
            turns.stepped(decision, given)
        case RetryReported():
            decision.emit(
                ev.ProviderRetrying(
                    n=given.n, attempt=given.attempt, cause=given.cause, delay_ms=given.delay_ms
                )
            )
        case Remembered():
            if session.memory.get(given.key, "") != given.value:
                decision.emit(ev.DriverRemembered(key=given.key, value=given.value))
        case StreamJudged():
            ladder.act_on(decision, Verdicts(state=session.rules, findings=(given.finding,)))
        case AgentAsked():
            decision.reply = agent_tools.answer(decision, given.request)
        case EffectIntended():
            effects.intend(decision, given)
        case EffectEnded():
            effects.end(decision, given)
        case EffectResolved():
            effects.resolve(decision, given)
        case ContextShrunk():
            budgets.compacted(decision, given)
        case ModelReported():
            budgets.called(decision, given)
        case PermitAsked():
            approvals.judge(decision, given)
        case AffordAsked():
            budgets.afford(decision)
        case ApprovalGiven():
            approvals.answer(decision, given)
        case BudgetSetRequested():
            budgets.change(decision, given)
        case ConfigSetRequested():
            reconfigure.change(decision, given)
        case TurnEnded():
            turns.ended(decision, given)
        case CutRequested():
            if given.n is None or (session.turn is not None and session.turn.n == given.n):
                decision.cut(given.cause, by=given.by)
                decision.judge()
        case Recovered():
            recovery.recovered(decision, given)
        case Ticked():
            decision.ticked()
        case Reconsidered():
            if session.turn is not None or not budgets.conclude(decision):
                decision.judge()
    return decision.done()


def next_deadline(session: Session, house: House) -> int | None:
    """The earliest moment at which the session has to be `Ticked`, or None."""
    if session.status != "live":
        return None
    # Asked after each commit, and most of it is not there: what is absent costs nothing.
    holds, moments = session.gate.holds, [continuation.due(session, house)]
    if holds:
        moments.append(gate.deadline_of(session.gate))
    if session.permits.pending:
        moments.append(approvals.next_due(session))
    if session.account.limits:
        moments.append(budgets.wall_due(session))
    if session.crons or session.wakes:
        scheduled = [*(job.next_ms for job in session.crons), *(wake.due_ms for wake in session.wakes)]
        moments += [max(due, house.scheduled_from_ms) for due in scheduled if due is not None]
    if holds and session.inbox and session.turn is None and house.closed_by is None:
        may_pass_ms = session.last_pass_ms + house.settings.gate.pass_gap_ms
        for waiting in session.inbox:
            if SOURCE_POLICIES[waiting.source].starts_turn and not gate.blocked_by(
                session.gate, waiting.source, session.preset, may_pass=True
            ):
                moments.append(may_pass_ms)
    return min((m for m in moments if m is not None), default=None)
