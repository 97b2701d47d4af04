"""The first events of a session: its creation, and its goal if it begins with one."""

from __future__ import annotations

from loopd.core.evolution import evolve
from loopd.core.inputs import Advanced, Effect, GoalChangeRequested, House, Input, SuspendRequested
from loopd.core.recorded import FORKED, fact, marked
from loopd.core.session import advance
from loopd.core.settings import settings_for
from loopd_protocol import events as ev
from loopd_protocol.forensic_events import SessionForked


def founded(
    created: ev.SessionCreated,
    goal: str | None,
    *,
    now: int,
    closed_by: str | None,
    forked: SessionForked | None = None,
    suspended: bool = False,
) -> Advanced:
    """What follows from the creation at once; its state includes the creation, its events do not.

    Args:
        created: the creation.
        goal: what it works for from the beginning, or None.
        now: wall clock (UTC).
        closed_by: see `House`.
        forked: what a fork begins with.
        suspended: begin with the gate closed by who created it.
    """
    session = evolve(None, created, ss=1, at_ms=now)
    events: list[ev.Event] = []
    if forked is not None:
        event = fact(forked, FORKED)
        session = evolve(session, event, ss=2, at_ms=now)
        events.append(event)
    house = House(settings=settings_for(created.preset, created.settings), closed_by=closed_by)
    asked: list[Input] = []
    if suspended:
        asked.append(SuspendRequested(by=created.by, reason="forked"))
    if goal is not None:
        asked.append(GoalChangeRequested(by=created.by, status="active", text=goal))
    effects: list[Effect] = []
    for given in asked:
        done = advance(session, given, now, house)
        session = done.session
        events += marked(given, house, done.events)
        effects += done.effects
    return Advanced(session=session, events=tuple(events), effects=tuple(effects))
