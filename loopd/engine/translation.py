"""Commands to inputs of the core, and what was decided to the answers of commands."""

from __future__ import annotations

from typing import Any

from loopd.core.access import Caller
from loopd.core.account import which
from loopd.core.goal import USER_CHANGES
from loopd.core.inputs import (
    Advanced,
    CronChangeRequested,
    CronPutRequested,
    DropRequested,
    EffectResolved,
    EndRequested,
    EnvelopeArrived,
    GateExtendRequested,
    GateOpenRequested,
    GoalChangeRequested,
    Input,
    InterruptRequested,
    ResumeRequested,
    SuspendRequested,
    UnsuspendRequested,
)
from loopd.core.policy_inputs import ApprovalGiven, BudgetSetRequested, ConfigSetRequested
from loopd.core.state import Session
from loopd.engine.views import cron_view, gate_view, goal_view, settings_view, turn_view
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol import policy_commands as pc
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

CRON_CHANGES = {
    "cron.pause": "paused",
    "cron.resume": "resumed",
    "cron.remove": "removed",
    "cron.run": "run",
}
Result = dict[str, Any]


def input_of(command: cm.Command, caller: Caller) -> Input:
    """The input of the core that a command stands for; envelopes get the caller's source."""
    by = caller.principal
    match command:
        case cm.Send():
            source = caller.source if caller.source is not Source.SYSTEM else Source.CHANNEL
            return EnvelopeArrived(source=source, text=command.text, by=by, dedupe=command.dedupe)
        case cm.Suspend():
            return SuspendRequested(
                by=by,
                reason=command.reason,
                until_ms=command.until_ms,
                mode=command.mode,
                quarantine=command.quarantine,
            )
        case cm.Unsuspend():
            return UnsuspendRequested(by=by)
        case cm.Interrupt():
            return InterruptRequested(
                by=by, reason=command.reason, for_ms=command.for_ms, suspend=command.suspend
            )
        case cm.GateOpen():
            return GateOpenRequested(by=by, kind=command.kind)
        case cm.GateExtend():
            return GateExtendRequested(by=by, kind=command.kind, until_ms=command.until_ms)
        case cm.GoalSet():
            return GoalChangeRequested(by=by, status="active", text=command.text)
        case cm.GoalPause() | cm.GoalResume() | cm.GoalInfeasible() | cm.GoalComplete() | cm.GoalClear():
            note = getattr(command, "reason", "")
            return GoalChangeRequested(by=by, status=USER_CHANGES[command.type], note=note)
        case cm.CronPut():
            return CronPutRequested(
                by=by,
                job=command.job,
                expr=command.expr,
                text=command.text,
                tz=command.tz,
                missed=command.missed,
                catchup_ms=command.catchup_ms,
            )
        case cm.CronPause() | cm.CronResume() | cm.CronRemove() | cm.CronRun():
            change = CRON_CHANGES[command.type]
            return CronChangeRequested(by=by, job=command.job, change=change)  # type: ignore[arg-type]
        case cm.InboxDrop():
            return DropRequested(by=by, id=command.id)
        case cm.EffectResolve():
            return EffectResolved(by=by, id=command.id, outcome=command.outcome, note=command.note)
        case cm.SessionEnd():
            return EndRequested(by=by, reason=command.reason)
        case cm.SessionResume():
            return ResumeRequested(by=by, reason=command.reason)
        case pc.ApprovalAnswer():
            return ApprovalGiven(
                by=by, id=command.id, answer=command.answer, scope=command.scope, reason=command.reason
            )
        case pc.BudgetSet():
            return BudgetSetRequested(
                by=by,
                kind=command.kind,
                limit=command.limit,
                per_ms=command.per_ms,
                reason=command.reason,
            )
        case pc.SessionSet():
            return ConfigSetRequested(
                by=by,
                set=command.set,
                unset=command.unset,
                policy=command.policy,
                reason=command.reason,
            )
    raise Refused("unknown_type", f"no handler for {command.type!r}")


def result_of(command: cm.Command, before: Session, advanced: Advanced) -> Result:
    """What the command answers, from what was decided; `seq` is added when it is durable."""
    session = advanced.session
    result: Result = {"sid": session.sid}
    match command:
        case cm.Send():
            held = next(
                (e for e in advanced.events if isinstance(e, ev.EnvelopeHeld) and e.id == advanced.envelope),
                None,
            )
            result |= {"id": advanced.envelope, "held": held is not None, "by": list(held.by) if held else []}
        case cm.Suspend():
            will = {"after_turn": "finish", "interrupt": "interrupt", "kill": "kill"}[command.mode]
            result |= {**gate_view(session), "turn": turn_view(before, will)}
        case cm.Unsuspend() | cm.GateOpen() | cm.GateExtend():
            gone = [k for e in advanced.events if isinstance(e, ev.GateChanged) for k in e.removed]
            result |= {**gate_view(session), "removed": gone, "turn": turn_view(session)}
        case cm.Interrupt():
            hold = next((h for h in session.gate.holds if h.kind == "Interrupted"), None)
            resumes = None if command.suspend or hold is None else hold.until_ms
            result |= {**gate_view(session), "turn": turn_view(before, "interrupt"), "resumes_ms": resumes}
        case (
            cm.GoalSet()
            | cm.GoalPause()
            | cm.GoalResume()
            | cm.GoalInfeasible()
            | cm.GoalComplete()
            | cm.GoalClear()
        ):
            result["goal"] = goal_view(session)
        case cm.CronPut() | cm.CronPause() | cm.CronResume() | cm.CronRemove() | cm.CronRun():
            result |= _cron_result(command, advanced)
        case cm.EffectResolve():
            left = [effect.id for effect in session.effects if effect.uncertain]
            result |= {"id": command.id, "outcome": command.outcome, "uncertain": left}
        case cm.SessionEnd():
            result |= {"status": session.status, "stop_reason": session.stop_reason}
        case pc.ApprovalAnswer():
            result |= {"id": command.id, "answer": command.answer, "scope": command.scope}
        case pc.BudgetSet():
            result |= {"which": which("session", command.kind, command.per_ms), "limit": command.limit}
            result |= {"status": session.status, **gate_view(session)}
        case pc.SessionSet():
            result |= settings_view(session)
        case cm.SessionResume():
            result |= {"status": session.status, "run": session.run, **gate_view(session)}
        case _:
            pass
    return result


def _cron_result(command: Any, advanced: Advanced) -> Result:
    job = next((j for j in advanced.session.crons if j.job == command.job), None)
    result: Result = {"job": None if job is None else cron_view(advanced.session.sid, job)}
    if isinstance(command, cm.CronRun):
        held = next(
            (e for e in advanced.events if isinstance(e, ev.EnvelopeHeld) and e.id == advanced.envelope), None
        )
        result |= {
            "envelope": advanced.envelope,
            "held": held is not None,
            "by": list(held.by) if held else [],
        }
    return result
