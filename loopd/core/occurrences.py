"""Cron jobs and wake-ups of a session: every due moment is accounted for. Pure.

due ─▶ fired                       delivered at once
─▶ held ─▶ late | coalesced | skipped    the gate kept it; delivered later, replaced, dropped
─▶ skipped                     the job is paused
─▶ missed | late               the daemon was down or asleep; the job's policy decides
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from loopd.core import rules, schedule
from loopd.core.inputs import CronChangeRequested, CronPutRequested
from loopd.core.settings import Settings
from loopd.core.state import CronJob, Session, Waiting
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import Event
from loopd_protocol.sources import Source

JOBS_MAX = 100
JOBS_SEEN = 2 * JOBS_MAX
"""Jobs, removed ones included, of which the last accounted moment is remembered."""


class Decides(Protocol):
    """The part of `loopd.core.session.Decision` that is needed here."""

    session: Session
    settings: Settings
    now: int
    envelope: str | None

    def emit(self, event: Event) -> rules.Verdicts:
        """Add an event and follow it."""

    def accept(
        self,
        source: Source,
        text: str,
        *,
        by: str,
        job: str | None = None,
        due_ms: int | None = None,
        alone: bool = True,
    ) -> str:
        """Make an envelope durable."""

    def judge(self) -> None:
        """Judge all that waits."""


def hold(decision: Decides, waiting: Waiting) -> None:
    """The gate keeps a cron envelope waiting."""
    if waiting.source is Source.CRON and waiting.job is not None:
        decision.emit(_occurrence(decision, waiting, "held"))


def settle(decision: Decides, waiting: Waiting, result: str | None) -> None:
    """A cron envelope reached its end; `result` None means that it is delivered now."""
    if waiting.source is not Source.CRON or waiting.job is None:
        return
    if result is None:
        late = waiting.held or decision.now - (waiting.due_ms or 0) > schedule.LATE_MS
        result = "late" if late else "fired"
    decision.emit(_occurrence(decision, waiting, result))


def _occurrence(decision: Decides, waiting: Waiting, result: str) -> ev.CronOccurrence:
    assert waiting.job is not None
    due = waiting.at_ms if waiting.due_ms is None else waiting.due_ms
    return ev.CronOccurrence(
        job=waiting.job,
        due_ms=due,
        result=result,
        envelope=waiting.id,
        late_ms=max(0, decision.now - due),
        manual=waiting.manual,
    )


def _job(session: Session, name: str) -> CronJob | None:
    return next((j for j in session.crons if j.job == name), None)


def change(decision: Decides, given: CronPutRequested | CronChangeRequested) -> None:
    """Carry out a cron command.

    Raises:
        Refused: `invalid` for an expression or zone, `not_found`, `conflict` for a bound or state.
    """
    if isinstance(given, CronPutRequested):
        _put(decision, given)
        return
    job = _job(decision.session, given.job)
    if job is None:
        raise Refused("not_found", f"session {decision.session.name!r} has no cron job {given.job!r}")
    match given.change:
        case "run":
            due = max(decision.now, decision.session.last_manual_ms + 1)
            due += due % 1_000 == 0  # never the moment of an expression, whose accounts are its own
            decision.emit(ev.CronOccurrence(job=job.job, due_ms=due, result="due", manual=True))
            decision.envelope = decision.accept(Source.CRON, job.text, by=given.by, job=job.job, due_ms=due)
            decision.judge()
        case "removed":
            decision.emit(ev.CronChanged(job=job.job, change="removed", by=given.by))
        case "paused" | "resumed":
            if job.paused == (given.change == "paused"):
                raise Refused("conflict", f"cron job {job.job!r} is {given.change} already")
            next_ms = job.next_ms
            if next_ms is None and given.change == "resumed":
                after = max(decision.now, _seen(decision.session, job.job))
                next_ms = schedule.next_due(job.expr, job.tz, after)
            decision.emit(_changed(job, given.change, by=given.by, next_ms=next_ms))


def _seen(session: Session, job: str) -> int:
    """The last moment of a job that was accounted for: also when the clock went back it does not come again."""
    return session.cron_seen.get(job, 0)


def _put(decision: Decides, given: CronPutRequested) -> None:
    if _job(decision.session, given.job) is None and len(decision.session.crons) >= JOBS_MAX:
        raise Refused("conflict", f"session has {JOBS_MAX} cron jobs, the most it may have")
    due = schedule.next_due(given.expr, given.tz, max(decision.now, _seen(decision.session, given.job)))
    if due is None:
        raise Refused("invalid", f"cron expression {given.expr!r} never comes due", path="$.expr")
    job = CronJob(
        job=given.job,
        expr=given.expr,
        text=given.text,
        tz=given.tz,
        missed=given.missed,
        catchup_ms=given.catchup_ms,
    )
    decision.emit(_changed(job, "put", by=given.by, next_ms=due))


def _changed(job: CronJob, how: str, *, by: str, next_ms: int | None) -> ev.CronChanged:
    return ev.CronChanged(
        job=job.job,
        change=how,
        expr=job.expr,
        tz=job.tz,
        text=job.text,
        missed=job.missed,
        catchup_ms=job.catchup_ms,
        next_ms=next_ms,
        by=by,
    )


def fire_due(decision: Decides) -> None:
    """Turn everything that is due by now into envelopes and accounts."""
    for job in decision.session.crons:
        if job.next_ms is not None and job.next_ms <= decision.now:
            _fire(decision, job)
    for wake in decision.session.wakes:
        if wake.due_ms <= decision.now:
            text = wake.note or "You asked to be woken now."
            decision.accept(Source.REWAKE, text, by="agent", job=wake.id, due_ms=wake.due_ms)
            if wake.expr is not None:
                due = _next_wake(wake.expr, decision.now)
                if due is None:
                    decision.emit(ev.WakeCancelled(id=wake.id, by="daemon"))
                else:
                    decision.emit(ev.WakeSet(id=wake.id, due_ms=due, expr=wake.expr, note=wake.note))


def _next_wake(expr: str, now: int) -> int | None:
    """When it is due again, or None: also for an expression that is not understood any more."""
    try:
        return schedule.next_due(expr, "UTC", now)
    except Refused:
        return None


def _fire(decision: Decides, job: CronJob) -> None:
    assert job.next_ms is not None
    try:
        due, following, cut = schedule.due_between(job.expr, job.tz, job.next_ms, decision.now)
    except Refused:
        # Its time zone is gone: an upgrade renamed it, or this machine never had it. All else goes on.
        decision.emit(_changed(job, "paused", by="daemon", next_ms=None))
        return
    for i, at in enumerate(due):
        last = i == len(due) - 1
        late = decision.now - at
        result = _verdict(job, late, last=last)
        decision.emit(
            ev.CronOccurrence(
                job=job.job,
                due_ms=at,
                result=result,
                late_ms=max(0, late),
                uncounted=cut and last,
                next_ms=(following or 0) if last else None,
            )
        )
        if result == "due":
            # `all` means each of them, if nothing keeps them: `coalesce` looks when that is known
            alone = job.missed != "all" or i <= len(due) - decision.settings.gate.inbox_cap
            decision.accept(Source.CRON, job.text, by="cron", job=job.job, due_ms=at, alone=alone)


def coalesce(decision: Decides) -> None:
    """Of several envelopes of one job that wait on, the newest stands for all."""
    newest: dict[str, Waiting] = {}
    for waiting in decision.session.inbox:
        if waiting.source is Source.CRON and waiting.job is not None:
            newest[waiting.job] = waiting
    for into in newest.values():
        replaced(decision, into.id, into.job or "")


def replaced(decision: Decides, envelope: str, job: str) -> None:
    """`envelope` takes the place of all others of its job."""
    for old in decision.session.inbox:
        if old.job == job and old.id != envelope and old.source is Source.CRON:
            now = next(w for w in decision.session.inbox if w.id == envelope)
            count = old.count + now.count
            decision.emit(ev.EnvelopeCoalesced(id=old.id, into=envelope, job=job, count=count))
            settle(decision, old, "coalesced")


def followed(session: Session, event: ev.CronOccurrence) -> Session:
    """The session behind an account of a due moment."""
    if event.manual:
        return replace(session, last_manual_ms=max(session.last_manual_ms, event.due_ms))
    seen = session.cron_seen
    if event.due_ms > seen.get(event.job, 0):
        seen = {name: at for name, at in seen.items() if name != event.job}
        while len(seen) >= JOBS_SEEN:
            del seen[next(iter(seen))]
        seen[event.job] = event.due_ms
        session = replace(session, cron_seen=seen)
    if event.next_ms is None:
        return session
    next_ms = event.next_ms or None
    crons = tuple(replace(j, next_ms=next_ms) if j.job == event.job else j for j in session.crons)
    return replace(session, crons=crons)


def _verdict(job: CronJob, late_ms: int, *, last: bool) -> str:
    """`due` for a moment that becomes an envelope, else its final account."""
    if job.paused:
        return "skipped"
    if late_ms <= schedule.LATE_MS:
        return "due"
    if job.missed == "skip" or late_ms > job.catchup_ms:
        return "missed"
    return "due" if job.missed == "all" or last else "missed"
