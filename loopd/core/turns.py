"""What a step and the end of a turn lead to: record, judge, act, go on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopd.core import approvals, budgets, gate, ladder, provider, stopping
from loopd.core.inputs import StepReported, TurnEnded
from loopd_protocol import events as ev
from loopd_protocol.sources import Source

if TYPE_CHECKING:
    from loopd.core.decision import Decision


def stepped(decision: Decision, given: StepReported) -> None:
    """Record a step, act on what the rules found, show waiting notes to the model."""
    turn, done = decision.session.turn, given.done
    assert turn is not None
    before = budgets.purses(decision)
    charge = budgets.charge(
        decision,
        done.usage,
        cost_micro=given.cost_micro,
        model=given.model,
        priced=given.priced,
        prepaid=turn.prepaid,
    )
    found = decision.judged(
        ev.TurnStep(
            n=turn.n,
            step=turn.steps + 1,
            total=decision.session.steps + 1,
            text=done.text,
            text_blob=given.text_blob,
            calls=done.calls,
            usage=done.usage,
            finish=done.finish,
            tools_withheld=done.tools_withheld,
            state_fingerprint=done.state_fingerprint,
            request_sha256=done.request_sha256,
            phase=decision.session.phase or None,
            compacted=done.compacted,
            tools_sha256=done.tools_sha256,
            charge=charge,
        )
    )
    budgets.warn(decision, charge)
    budgets.tell(decision, before)
    ladder.act_on(decision, found)
    stopping.act_on(decision)
    if done.calls:
        budgets.stop_spent(decision)
    turn = decision.session.turn
    assert turn is not None
    limit = turn.steps >= decision.settings.turn.max_steps
    decision.stop = turn.stopping is not None or limit
    if done.calls and not decision.stop:
        for waiting in decision.session.inbox:
            if waiting.source is Source.SYSTEM:
                decision.emit(ev.EnvelopeDelivered(id=waiting.id, n=turn.n))


def ended(decision: Decision, given: TurnEnded) -> None:
    """Record the end of a turn and go on with what waits."""
    turn, end = decision.session.turn, given.end
    assert turn is not None
    approvals.drop(decision)
    outcome: str = end.outcome
    if turn.stopping is not None:
        outcome = "budget" if turn.stopping.startswith("budget:") else "stopped_by_rule"
    elif turn.steps >= decision.settings.turn.max_steps and outcome == "completed":
        outcome = "step_limit"
    found = decision.judged(
        ev.TurnCompleted(
            n=turn.n,
            outcome=outcome,
            steps=turn.steps,
            duration_ms=max(0, decision.now - turn.started_ms),
            error=end.error[:4_000],
            near_misses=turn.near,
            charge=budgets.charge(decision, None),
            cause=end.cause if outcome in {"model_error", "failed"} else "",
        )
    )
    stopped_by = turn.stopping
    if outcome in {"model_error", "failed"}:
        provider.back_off(decision, turn.trigger, end.cause or end.outcome, end.retry_after_ms)
    if end.goal_complete and decision.session.goal is not None and decision.session.goal.status == "active":
        decision.emit(ev.GoalChanged(status="complete", origin="model", note="the script is at its end"))
    if turn.passing and turn.progressed:
        decision.change_gate(gate.Open(("Degeneration",)), cause="progress", by="daemon")
    for verdict in ladder.act_on(decision, found):
        stopped_by = verdict
    decision.after_turn(stopped_by)
