"""How an event changes a session: the only way that its state ever changes. Pure.

`evolve` is used while deciding (`loopd.core.session`), when a projection is checked against the
journal, and in replay, so the three cannot differ.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from loopd.core import effects, occurrences, permits, progress, rules, spending, turn_fold
from loopd.core.state import CronJob, Gate, Goal, Origin, Session, Waiting, Wake
from loopd.core.stops import counting, following, precedence
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.forensic_events import SessionForked
from loopd_protocol.sources import Source

LOOPS_REMEMBERED = 64

DERIVATION = 2
"""Raised when rules or counters make something else of the same events: `verify` then knows that a session
was derived otherwise. Journals of before 2 have no such number; they count as 0."""

NOTHING_FOUND = rules.Verdicts(state=rules.RulesState())


def evolve(session: Session | None, event: ev.Event, *, ss: int, at_ms: int) -> Session:
    """The session after `event`, which has session sequence number `ss` and happened at `at_ms`.

    Raises:
        ValueError: the event does not follow `session` (a gap, or an event before creation).
    """
    return fold(session, event, ss=ss, at_ms=at_ms)[0]


def fold(session: Session | None, event: ev.Event, *, ss: int, at_ms: int) -> tuple[Session, rules.Verdicts]:
    """Like `evolve`, with what the rules found in the event."""
    if isinstance(event, ev.SessionCreated):
        return _created(event, at_ms), NOTHING_FOUND
    if session is None:
        raise ValueError(f"{event.kind!r} at ss {ss}; expected 'session.created' first")
    if ss != session.ss + 1:
        raise ValueError(f"{event.kind!r} has ss {ss}; expected {session.ss + 1}")
    session = replace(session, ss=ss)
    found = NOTHING_FOUND
    match event:
        case SessionForked():
            origin = Origin(sid=event.parent, n=event.n, seq=event.seq, log=event.log)
            session = replace(session, origin=origin, turns=event.turns, steps=event.steps)
        case ev.EnvelopeAccepted():
            session = _accepted(session, event, at_ms)
        case ev.EnvelopeHeld():
            session = replace(session, inbox=_marked_held(session.inbox, event.id))
        case ev.EnvelopeCoalesced():
            session = _coalesced(session, event)
        case ev.EnvelopeDropped() | ev.EnvelopeDelivered():
            session = replace(session, inbox=tuple(w for w in session.inbox if w.id != event.id))
        case ev.GateChanged():
            session = _gate_changed(session, event, at_ms)
        case ev.DegenerationDetected():
            session = _detected(session, event)
        case ev.TurnStarted():
            session = turn_fold.turn_started(session, event, at_ms)
        case ev.TurnStep():
            session, found = turn_fold.stepped(session, event, at_ms)
        case ev.TurnCompleted():
            session, found = turn_fold.completed(session, event, at_ms)
        case ev.TurnInterrupted():
            session = turn_fold.interrupted(session, event, at_ms)
        case ev.GoalChanged():
            session = _goal_changed(session, event, at_ms)
        case ev.AgentReported():
            session = _reported(session, event, at_ms)
        case ev.WakeSet():
            wake = Wake(id=event.id, due_ms=event.due_ms, note=event.note, expr=event.expr)
            rest = tuple(w for w in session.wakes if w.id != event.id)
            session = replace(session, wakes=(*rest, wake))
        case ev.WakeCancelled():
            session = replace(session, wakes=tuple(w for w in session.wakes if w.id != event.id))
        case ev.CronChanged():
            session = _cron_changed(session, event)
        case ev.CronOccurrence():
            session = occurrences.followed(session, event)
        case ev.SessionEnded():
            session = replace(
                session, status=event.status, stop_reason=event.stop_reason, ended_ms=at_ms, wakes=()
            )
        case ev.SessionResumed():
            session = _resumed(session, event, at_ms)
        case ev.DriverRemembered():
            session = replace(session, memory=_remembered(session.memory, event))
        case ev.PhaseClamped():
            session = replace(session, stops=following.clamped(session.stops, event.edge))
        case ev.EffectIntent():
            session = effects.intended(session, event)
        case ev.EffectOutcome():
            session = effects.turned_out(session, event)
        case ev.ContextCompacted():
            session = turn_fold.compacted(session, event, at_ms)
        case ev.ModelCalled():
            session = spending.called(session, event, at_ms)
        case pe.ApprovalRequested():
            session = replace(session, permits=permits.requested(session.permits, event, at_ms))
            session = spending.asked(session, at_ms)
        case pe.ApprovalAnswered():
            session = replace(session, permits=permits.answered(session.permits, event))
            session = spending.settled(session, at_ms)
        case pe.ApprovalExpired():
            session = replace(session, permits=permits.expired(session.permits, event))
            session = spending.settled(session, at_ms)
        case pe.BudgetChanged():
            session = spending.changed(session, event, at_ms)
        case pe.BudgetExhausted():
            session = spending.exhausted(session, event)
        case pe.ConfigChanged():
            session = _configured(session, event)
        case _:
            pass  # detector.failed, provider.retrying: facts without state
    return session, found


def _created(event: ev.SessionCreated, at_ms: int) -> Session:
    session = Session(
        sid=event.sid,
        num=event.num,
        name=event.name,
        driver=event.driver,
        preset=event.preset,
        overrides=event.settings,
        labels=event.labels,
        workspace=event.workspace,
        created_ms=at_ms,
        progress_ms=at_ms,
        ss=1,
        permits=permits.Permits(rules=event.policy) if event.policy else permits.Permits(),
    )
    return spending.founded(session, event, at_ms)


def _configured(session: Session, event: pe.ConfigChanged) -> Session:
    when = "overrides" if session.turn is None else "next_overrides"
    session = replace(session, **{when: event.settings})
    if event.policy is None:
        return session
    return replace(session, permits=replace(session.permits, rules=event.policy))


def _accepted(session: Session, event: ev.EnvelopeAccepted, at_ms: int) -> Session:
    waiting = Waiting(
        id=event.id,
        ss=session.ss,
        source=event.source,
        at_ms=at_ms,
        job=event.job,
        due_ms=event.due_ms,
        manual=event.source is Source.CRON and event.due_ms == session.last_manual_ms,
    )
    wakes = session.wakes
    if event.source is Source.REWAKE and event.job is not None:
        wakes = tuple(w for w in wakes if w.id != event.job or w.expr is not None)
    return replace(session, inbox=(*session.inbox, waiting), wakes=wakes)


def _marked_held(inbox: tuple[Waiting, ...], envelope: str) -> tuple[Waiting, ...]:
    return tuple(replace(w, held=True) if w.id == envelope else w for w in inbox)


def _coalesced(session: Session, event: ev.EnvelopeCoalesced) -> Session:
    inbox = tuple(
        replace(w, count=event.count) if w.id == event.into else w for w in session.inbox if w.id != event.id
    )
    return replace(session, inbox=inbox)


def _gate_changed(session: Session, event: ev.GateChanged, at_ms: int) -> Session:
    state = session.rules
    for hold in session.gate.holds:
        if hold.kind == "Degeneration" and hold.kind in event.removed:
            state = rules.rearm(state, getattr(hold, "rule", ""))
    changes: dict[str, Any] = {"gate": Gate(holds=event.holds, gen=event.gen), "rules": state}
    if event.cause == "gate_extend" and event.added is not None and event.added.kind == "AwaitingApproval":
        changes["permits"] = permits.extended(session.permits, event.added.until_ms or 0)
    changes["stops"] = following.gate_changed(session.stops, session.gate.holds, event, at_ms)
    added = event.added if event.cause != "gate_extend" else None
    if added is not None and added.kind == "RequestIdle" and session.turn is not None:
        # a second idle in one turn adds only what it lasts longer
        stood = next((h.until_ms for h in session.gate.holds if h.kind == "RequestIdle"), None)
        begin = added.since_ms if stood is None else stood
        changes["idled"] = True
        changes["idle_ms"] = session.idle_ms + max(0, (added.until_ms or 0) - begin)
    if added is not None and added.kind == "ProviderBackoff":
        changes["provider_failures"] = session.provider_failures + 1
    return replace(session, **changes)


def _detected(session: Session, event: ev.DegenerationDetected) -> Session:
    changes: dict[str, Any] = {}
    if event.shadow:
        return session
    changes["stops"] = following.found(session.stops, event)
    if event.verdict == "text_only":
        changes["withhold_tools"] = True
    elif event.verdict == "close":
        relapses = {k: v for k, v in session.relapses.items() if k != event.loop_id}
        relapses[event.loop_id] = event.relapse + 1
        while len(relapses) > LOOPS_REMEMBERED:
            del relapses[next(iter(relapses))]
        changes["relapses"] = relapses
    turn = session.turn
    if turn is not None and event.verdict in {"close", "terminate"}:
        before, _, rule = (turn.stopping or "").partition(":")
        weaker = precedence.rank(event.rule) >= precedence.rank(rule) or event.verdict != "terminate"
        if before != "terminate" or not weaker:
            changes["turn"] = replace(turn, stopping=f"{event.verdict}:{event.rule}")
    return replace(session, **changes)


def _reported(session: Session, event: ev.AgentReported, at_ms: int) -> Session:
    session = replace(session, phase=event.phase or session.phase)
    if event.metric is None or event.value_micro is None:
        return session
    known, better = progress.reported(
        session.rules.progress, event.metric, event.value_micro, at_ms, session.steps
    )
    session = replace(session, rules=replace(session.rules, progress=known))
    if not better:
        return session
    turn = session.turn
    return replace(
        session,
        stops=following.improved(session.stops, session.steps),
        progress_ms=at_ms,
        spent=replace(session.spent, barren=0),
        turn=None if turn is None else replace(turn, progressed=True),
    )


def _resumed(session: Session, event: ev.SessionResumed, at_ms: int) -> Session:
    return replace(
        session,
        status="live",
        stop_reason="",
        ended_ms=0,
        run=event.run,
        rules=rules.human_spoke(session.rules, at_ms, session.steps),
        stops=counting.StopState(checks=session.stops.checks),
        spent=replace(session.spent, barren=0),
        progress_ms=at_ms,
        toolless_continuations=0,
        provider_failures=0,
        idle_ms=0,
        withhold_tools=False,
        account=replace(session.account, said=()),
    )


def _goal_changed(session: Session, event: ev.GoalChanged, at_ms: int) -> Session:
    # An agent that flips its own goal's status must not wipe the evidence against it.
    state = session.rules
    if event.origin == "user":
        state = rules.human_spoke(state, at_ms, session.steps)
        session = replace(session, stops=following.restarted(session.stops))
    if event.status == "cleared":
        return replace(session, goal=None, rules=state)
    old = session.goal
    text = event.text if event.text is not None else ("" if old is None else old.text)
    goal = Goal(text=text, status=event.status, origin=event.origin, note=event.note, set_ms=at_ms)
    return replace(session, goal=goal, rules=state)


def _remembered(memory: dict[str, str], event: ev.DriverRemembered) -> dict[str, str]:
    rest = {key: value for key, value in memory.items() if key != event.key}
    return {**rest, event.key: event.value} if event.value else rest


def _cron_changed(session: Session, event: ev.CronChanged) -> Session:
    rest = tuple(j for j in session.crons if j.job != event.job)
    if event.change == "removed":
        return replace(session, crons=rest)
    job = CronJob(
        job=event.job,
        expr=event.expr,
        text=event.text,
        tz=event.tz,
        missed=event.missed,
        catchup_ms=event.catchup_ms,
        next_ms=event.next_ms,
        paused=event.change == "paused",
    )
    return replace(session, crons=(*rest, job))


def encode(session: Session) -> bytes:
    """The session as stored in its row."""
    return msgspec.msgpack.encode(session)


def decode(data: bytes) -> Session:
    """The session from its row; fields that a newer version added get their defaults."""
    return msgspec.msgpack.decode(data, type=Session)
