"""The first events of a session: its creation, and its goal if it begins with one."""

from __future__ import annotations

from msgspec.structs import replace

from loopd.core.evolution import evolve
from loopd.core.inputs import Advanced, GoalChangeRequested, House
from loopd.core.recorded import marked
from loopd.core.session import advance
from loopd.core.settings import settings_for
from loopd_protocol import events as ev


def founded(created: ev.SessionCreated, goal: str | None, *, now: int, closed_by: str | None) -> Advanced:
    """What follows from the creation at once; its state includes the creation, its events do not."""
    session = evolve(None, created, ss=1, at_ms=now)
    if goal is None:
        return Advanced(session=session)
    house = House(settings=settings_for(created.preset, created.settings), closed_by=closed_by)
    asked = GoalChangeRequested(by=created.by, status="active", text=goal)
    done = advance(session, asked, now, house)
    return replace(done, events=marked(asked, house, done.events))
