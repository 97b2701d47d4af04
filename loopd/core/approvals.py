"""Questions to a person about tool calls: asked, answered, expired. Pure.

    allow ───────────────────────────────────────────────▶ the intent, the tool runs
    deny ────▶ effect.denied ────────────────────────────▶ the agent is told
    ask ─────▶ approval.requested, AwaitingApproval ─┬─ answered allow ──▶ the intent, the tool runs
                                                     ├─ answered deny ───▶ the agent is told
                                                     ├─ deadline ────────▶ approval.expired: denied
                                                     └─ the turn is cut ─▶ approval.expired: nobody to tell

A question belongs to its turn. When that is cut off, also by a crash, nothing has run and the question is
void; an agent that still wants it asks again. The question whether a parked session gets more steps is
answered by the same command; it belongs to the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopd.core import ending, gate
from loopd.core.policy_inputs import ApprovalGiven, PermitAsked, Settle
from loopd.core.state import Session
from loopd.core.stopping import MORE_STEPS
from loopd_protocol.errors import Refused
from loopd_protocol.holds import AwaitingApproval
from loopd_protocol.policy_events import (
    ApprovalAnswered,
    ApprovalExpired,
    ApprovalRequested,
    EffectDenied,
)

if TYPE_CHECKING:
    from loopd.core.decision import Decision

PENDING_MAX = 64
"""Open questions of one session; a call that would be one more is denied."""


def steps_id(session: Session) -> str:
    """Id of the question whether a parked session gets more steps."""
    return f"apr_{session.num}_steps"


def parked(session: Session) -> AwaitingApproval | None:
    """The hold of a session that waits for more steps, or None."""
    hold = gate.hold_of(session.gate, "AwaitingApproval")
    return hold if isinstance(hold, AwaitingApproval) and hold.request == MORE_STEPS else None


def judge(decision: Decision, given: PermitAsked) -> None:
    """Ask a person about a call, or deny it; sets `decision.asked` or `decision.denied`."""
    session, verdict = decision.session, given.verdict
    assert session.turn is not None
    if verdict.effect == "allow":
        return
    if verdict.effect == "ask" and parked(session) is None and len(session.permits.pending) < PENDING_MAX:
        _ask(decision, given)
        return
    reason = verdict.reason
    if verdict.effect == "ask":
        reason = f"it needs a person's answer, and {len(session.permits.pending)} questions are open already"
    decision.emit(
        EffectDenied(
            n=given.n,
            call=given.call,
            tool=given.tool,
            tool_class=given.tool_class,
            args_sha256=given.args_sha256,
            excerpt=verdict.excerpt,
            rule=verdict.rule,
            reason=reason[:4_000],
        )
    )
    decision.denied = _said(f"the rule `{verdict.rule}` forbids it", reason)
    _end_if_told(decision, f"{given.tool} was denied by the rule `{verdict.rule}`.", by="policy")


def _ask(decision: Decision, given: PermitAsked) -> None:
    verdict = given.verdict
    approval = f"apr_{decision.session.num}_{decision.session.ss + 1}"
    until_ms = decision.now + decision.settings.approvals.wait_s * 1_000
    decision.emit(
        ApprovalRequested(
            id=approval,
            n=given.n,
            call=given.call,
            tool=given.tool,
            tool_class=given.tool_class,
            args_sha256=given.args_sha256,
            excerpt=verdict.excerpt,
            rule=verdict.rule,
            reason=verdict.reason[:4_000],
            until_ms=until_ms,
            about=verdict.about,
            subjects=verdict.subjects,
        )
    )
    decision.asked = approval
    decision.close(
        AwaitingApproval(
            by="policy",
            reason=f"{given.tool}: {verdict.excerpt}"[:4_000],
            until_ms=until_ms,
            request=approval,
        ),
        cause="approval",
    )
    decision.mark_held()


def answer(decision: Decision, given: ApprovalGiven) -> None:
    """Take in a person's answer.

    Raises:
        Refused: `conflict` when it was answered, expired or cut off before, `not_found` for no such question.
    """
    session = decision.session
    if given.id == steps_id(session) and parked(session) is not None:
        _answer_steps(decision, given)
        return
    asked = next((each for each in session.permits.pending if each.id == given.id), None)
    if asked is None:
        settled = session.permits.settled.get(given.id)
        if settled is not None or _was_asked(session, given.id):
            raise Refused(
                "conflict", f"approval {given.id!r} is closed: {settled or 'it was answered or expired'}"
            )
        raise Refused(
            "not_found",
            f"no approval {given.id!r} in session {session.name!r}; see `loopctl approvals`",
            path="$.id",
        )
    decision.emit(
        ApprovalAnswered(
            id=given.id, answer=given.answer, scope=given.scope, reason=given.reason, by=given.by
        )
    )
    allowed = given.answer == "allow"
    said = "" if allowed else _said("a person refused it", given.reason)
    decision.effects.append(Settle(id=given.id, allowed=allowed, said=said))
    _release(decision, by=given.by)
    if not allowed:
        _end_if_told(decision, f"{asked.tool} was denied by {given.by}.", by=given.by)


def _answer_steps(decision: Decision, given: ApprovalGiven) -> None:
    decision.emit(ApprovalAnswered(id=given.id, answer=given.answer, reason=given.reason, by=given.by))
    if given.answer == "allow":
        decision.change_gate(gate.Open(("AwaitingApproval",)), cause="answer", by=given.by)
        decision.judge()
    else:
        ending.denied(decision, by=given.by)


def expire(decision: Decision) -> None:
    """Deny what nobody answered in time; its hold has gone by its own deadline or goes now."""
    late = [each for each in decision.session.permits.pending if each.until_ms <= decision.now]
    for asked in late:
        decision.emit(ApprovalExpired(id=asked.id, cause="deadline", late_ms=decision.now - asked.until_ms))
        waited_s = (asked.until_ms - asked.asked_ms) // 1_000
        decision.effects.append(
            Settle(id=asked.id, allowed=False, said=_said(f"nobody approved it within {waited_s} s", ""))
        )
    if late:
        _release(decision, by="daemon")
        _end_if_told(decision, f"Nobody approved {late[0].tool} in time.", by="policy")


def drop(decision: Decision) -> None:
    """The turn is over: its questions are void."""
    for asked in decision.session.permits.pending:
        decision.emit(ApprovalExpired(id=asked.id, cause="turn_over"))
        decision.effects.append(Settle(id=asked.id, allowed=False, said="the turn is over"))
    _release(decision, by="daemon")


def next_due(session: Session) -> int | None:
    """The earliest deadline of a question."""
    return min((each.until_ms for each in session.permits.pending), default=None)


def _release(decision: Decision, *, by: str) -> None:
    """Open the gate again when no question is left that closed it."""
    hold = gate.hold_of(decision.session.gate, "AwaitingApproval")
    if (
        isinstance(hold, AwaitingApproval)
        and hold.request.startswith(f"apr_{decision.session.num}_")
        and not decision.session.permits.pending
    ):
        decision.change_gate(gate.Open(("AwaitingApproval",)), cause="answer", by=by)


def _was_asked(session: Session, approval: str) -> bool:
    head, _, number = approval.rpartition("_")
    return (
        head == f"apr_{session.num}"
        and number.isascii()
        and number.isdigit()
        and 0 < int(number) <= session.ss
    )


def _said(why: str, reason: str) -> str:
    """What the model is told; drivers put `denied: ` before it."""
    return f"{why}{': ' if reason else ''}{reason}. Do not try the same again; go on without it."


def _end_if_told(decision: Decision, explanation: str, *, by: str) -> None:
    if decision.settings.approvals.on_deny == "end" and decision.session.status == "live":
        decision.end("aborted_constraint", "denied", by=by, explanation=explanation)
