"""What operators do to a session: suspend, interrupt, open by hand, resume. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopd.core import budgets, gate
from loopd.core.inputs import GateOpenRequested, InterruptRequested, ResumeRequested, SuspendRequested
from loopd.core.stopping import MORE_STEPS
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.holds import AwaitingApproval, Interrupted, UserSuspend

if TYPE_CHECKING:
    from loopd.core.decision import Decision


def suspend(decision: Decision, given: SuspendRequested) -> None:
    """Set or replace `UserSuspend`; a running turn ends as the mode says."""
    if given.until_ms is not None and given.until_ms <= decision.now:
        raise Refused(
            "invalid", f"until {given.until_ms} ms has passed; now is {decision.now} ms", path="$.until_ms"
        )
    hold = UserSuspend(by=given.by, reason=given.reason, until_ms=given.until_ms, quarantine=given.quarantine)
    decision.close(hold, cause="suspend")
    if given.mode != "after_turn":
        decision.cut("kill" if given.mode == "kill" else "suspend", by=given.by)
    decision.mark_held()


def interrupt(decision: Decision, given: InterruptRequested) -> None:
    """Cut the running turn and keep everything automatic away for a while."""
    for_ms = decision.settings.gate.interrupt_for_ms if given.for_ms is None else given.for_ms
    decision.close(
        Interrupted(by=given.by, reason=given.reason, until_ms=decision.now + for_ms), cause="interrupt"
    )
    if given.suspend:
        before = gate.hold_of(decision.session.gate, "UserSuspend")
        quarantine = isinstance(before, UserSuspend) and before.quarantine  # an interrupt loosens nothing
        decision.close(UserSuspend(by=given.by, reason=given.reason, quarantine=quarantine), cause="suspend")
    decision.cut("interrupt", by=given.by)
    decision.mark_held()


def open_by_hand(decision: Decision, given: GateOpenRequested) -> None:
    """Remove what `gate open` may remove."""
    if given.kind is not None and given.kind not in gate.OPENED_BY_HAND:
        raise Refused(
            "conflict",
            f"{given.kind} is not opened by hand; expected one of {', '.join(sorted(gate.OPENED_BY_HAND))} "
            "(use `unsuspend` for UserSuspend)",
        )
    kinds = (given.kind,) if given.kind else tuple(gate.OPENED_BY_HAND)
    if given.kind and gate.hold_of(decision.session.gate, given.kind) is None:
        raise Refused("conflict", f"no hold {given.kind} stands on session {decision.session.name!r}")
    decision.change_gate(gate.Open(kinds), cause="gate_open", by=given.by)
    decision.judge()


def resume(decision: Decision, given: ResumeRequested) -> None:
    """Begin a new run, or grant more steps to a run that waits for them."""
    hold = gate.hold_of(decision.session.gate, "AwaitingApproval")
    if decision.session.status != "live":
        budgets.check_resumable(decision)
        decision.emit(ev.SessionResumed(run=decision.session.run + 1, reason=given.reason, by=given.by))
    elif isinstance(hold, AwaitingApproval) and hold.request == MORE_STEPS:
        decision.change_gate(gate.Open((hold.kind,)), cause="answer", by=given.by)
    else:
        raise Refused(
            "conflict",
            f"session {decision.session.name!r} is live and does not wait for more steps; there is nothing "
            "to resume (see `loopctl why`)",
        )
    decision.judge()
