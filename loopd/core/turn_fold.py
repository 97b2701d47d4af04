"""How the events of a turn change a session: its start, its steps, its end. Pure.

Called by `loopd.core.evolution` alone.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loopd.core import rules, spending
from loopd.core.inputs import tokens_of
from loopd.core.records import TurnRecord, step_record
from loopd.core.settings import Settings, settings_for
from loopd.core.state import Running, Session
from loopd.core.stops import counting, following
from loopd_protocol import events as ev
from loopd_protocol.sources import Trigger

CRASH_BOOTS_KEPT = 10
DEFIED = "defied"
"""How a step finishes in which a hosted agent called tools although it was told not to."""
JUDGED_OUTCOMES = frozenset({"completed", "empty", "idle", "stopped_by_rule", "step_limit"})
"""Outcomes of turns in which the model really answered; the others say nothing about it."""


def turn_started(session: Session, event: ev.TurnStarted, at_ms: int) -> Session:
    """The turn runs; the envelopes it names wait no more."""
    named = set(event.envelopes)
    by_human = event.trigger is Trigger.HUMAN
    state = rules.begin_turn(session.rules)
    changes: dict[str, Any] = {
        "inbox": tuple(w for w in session.inbox if w.id not in named),
        "turn": Running(
            n=event.n, trigger=event.trigger, started_ms=at_ms, ss=session.ss, passing=event.passing
        ),
        "turns": event.n,
        "idled": False,
        "stops": following.begun(session.stops),
    }
    if by_human:
        changes["stops"] = following.restarted(session.stops)
        state = rules.human_spoke(state, at_ms, session.steps)
        changes |= {"progress_ms": at_ms, "spent": replace(session.spent, barren=0)}
        changes |= {"toolless_continuations": 0, "idle_ms": 0}
    if event.passing:
        changes["last_pass_ms"] = at_ms
    return spending.begun(replace(session, rules=state, **changes), at_ms)


def stepped(session: Session, event: ev.TurnStep, at_ms: int) -> tuple[Session, rules.Verdicts]:
    """One model call ended: the rules and the stop counters have seen it."""
    turn = session.turn
    assert turn is not None, "turn.step without a running turn"
    text = event.text
    if event.text_blob is not None:
        text = f"{event.text}\0{event.text_blob}"  # equal iff the whole texts are equal
    settings, state = settings_for(session.preset, session.overrides), session.rules
    masked = rules.wants_mask(state, settings.rules, turn.trigger)
    record = replace(step_record(event, trigger=turn.trigger, at_ms=at_ms, masked=masked), text=text)
    found = rules.observe_step(
        state,
        settings.rules,
        record,
        defied=event.finish == DEFIED,
        **_manner(session, settings, turn.trigger, at_ms, event.skipped_rules),
    )
    progressed = found.progress is not None and found.progress.made
    stops = session.stops
    if settings.stop.enabled:
        stops = counting.observe(stops, record, found.progress, session.ss)
    tokens = tokens_of(event.usage)
    spent = spending.tokens_spent(session.spent, event.charge, event.usage)
    spent = replace(spent, barren=0 if progressed else spent.barren + spending.barren(event.usage, turn))
    session = spending.stepped(session, event, at_ms)
    turn = session.turn
    assert turn is not None
    return replace(
        session,
        rules=found.state,
        stops=stops,
        steps=event.total,
        spent=spent,
        progress_ms=at_ms if progressed else session.progress_ms,
        fingerprint=event.state_fingerprint or session.fingerprint,
        withhold_tools=False,
        turn=replace(
            turn,
            steps=event.step,
            calls=turn.calls + len(event.calls),
            tokens=turn.tokens + tokens,
            text=text,
            progressed=turn.progressed or progressed,
            near=_counted(turn.near, tuple(each.rule for each in found.near)),
        ),
    ), found


def compacted(session: Session, event: ev.ContextCompacted, at_ms: int) -> Session:
    """The summary of the context cost tokens; it is no step."""
    usage = event.usage
    if usage is None:
        return session
    session = spending.charge(session, event.charge, at_ms)
    turn, tokens = session.turn, tokens_of(usage)
    spent = spending.tokens_spent(session.spent, event.charge, usage)
    return replace(
        session,
        spent=replace(spent, barren=spent.barren + tokens),
        turn=None if turn is None else replace(turn, tokens=turn.tokens + tokens),
    )


def _manner(session: Session, settings: Settings, trigger: Trigger, at_ms: int, skip: tuple[str, ...]) -> Any:
    attended = rules.is_attended(session.rules, settings.ladder, trigger, at_ms)
    return {"ladder": settings.ladder, "attended": attended, "skip": skip}


def _counted(counts: dict[str, int], names: tuple[str, ...]) -> dict[str, int]:
    return counts if not names else counts | {name: counts.get(name, 0) + 1 for name in names}


def completed(session: Session, event: ev.TurnCompleted, at_ms: int) -> tuple[Session, rules.Verdicts]:
    """The turn ended by itself or by a rule."""
    turn = session.turn
    assert turn is not None, "turn.completed without a running turn"
    record = TurnRecord(
        n=turn.n,
        trigger=turn.trigger,
        at_ms=at_ms,
        outcome=event.outcome,
        text=turn.text,
        calls=turn.calls,
        steps=turn.steps,
        tokens=turn.tokens,
        progressed=turn.progressed,
        started_ms=turn.started_ms,
    )
    settings = settings_for(session.preset, session.overrides)
    found = rules.observe_turn(
        session.rules,
        settings.rules,
        record,
        **_manner(session, settings, turn.trigger, at_ms, event.skipped_rules),
    )
    repeat, barren = rules.streaks(found.state)
    toolless = session.toolless_continuations
    if turn.calls or turn.progressed:
        toolless = 0
    elif turn.trigger is Trigger.CONTINUATION and event.outcome in JUDGED_OUTCOMES:
        toolless += 1
    session = spending.charge(session, event.charge, at_ms)
    return replace(
        session,
        **_next_settings(session),
        turn=None,
        rules=found.state,
        last_turn_ms=at_ms,
        repeat_streak=repeat,
        barren_streak=barren,
        toolless_continuations=toolless,
        idle_ms=session.idle_ms if session.idled else 0,
        provider_failures=session.provider_failures if event.outcome in {"model_error", "failed"} else 0,
    ), found


def interrupted(session: Session, event: ev.TurnInterrupted, at_ms: int) -> Session:
    """The turn was cut off; nothing is judged."""
    boots = session.crash_boots
    if event.cause == "crash" and event.boot not in boots:
        boots = (*boots, event.boot)[-CRASH_BOOTS_KEPT:]
    session = spending.charge(session, event.charge, at_ms)
    return replace(session, **_next_settings(session), turn=None, last_turn_ms=at_ms, crash_boots=boots)


def _next_settings(session: Session) -> dict[str, Any]:
    """What was set while the turn ran holds from its end on."""
    if session.next_overrides is None:
        return {}
    return {"overrides": session.next_overrides, "next_overrides": None}
