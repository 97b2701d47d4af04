"""Who watches is told to the journal, whoever only looks is not."""

from __future__ import annotations

import anyio
import pytest

from loopd.client_async import connect
from loopd.server import attendance
from loopd.server.attendance import Attendance
from loopd_protocol.access_events import WatcherAttached, WatcherDetached
from loopd_protocol.event import Event
from tests.control_stage import serving

pytestmark = pytest.mark.anyio


class Notes:
    """What was told, and whether it is taken."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.takes = True

    def __call__(self, event: Event, principal: str) -> bool:
        assert principal.startswith("uid:")
        if self.takes:
            self.told.append(event)
        return self.takes

    async def wait_for(self, count: int) -> None:
        with anyio.fail_after(10):
            while len(self.told) < count:  # noqa: ASYNC110  (the clock of the loop decides)
                await anyio.sleep(0.01)


async def test_whoever_stays_is_told_when_it_comes_and_when_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "WATCHING_S", 0.05)
    notes = Notes()
    async with serving() as (server, _, path):
        server.fanout.attendance = Attendance(notes)
        async with connect(path) as client:
            frames = client.subscribe()
            await anext(frames)
            await notes.wait_for(1)
            (came,) = notes.told
            assert came == WatcherAttached(id="w1", via="socket", all=True)
            await frames.aclose()
            await notes.wait_for(2)
        went = notes.told[-1]
        assert isinstance(went, WatcherDetached)
        assert (went.id, went.lasted_ms >= 50) == ("w1", True)


async def test_whoever_only_looks_leaves_no_trail_nor_does_a_daemon_that_stops() -> None:
    notes = Notes()
    async with serving() as (server, _, path):
        server.fanout.attendance = watch = Attendance(notes)
        for _ in range(20):
            async with connect(path) as client:
                frames = client.subscribe()
                await anext(frames)
                await frames.aclose()
        async with connect(path) as client:
            frames = client.subscribe()
            await anext(frames)
            watch.end()
            await frames.aclose()
    assert notes.told == []


async def test_what_is_not_taken_is_not_told_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "WATCHING_S", 0.0)
    notes = Notes()
    notes.takes = False
    async with serving() as (server, _, path):
        server.fanout.attendance = Attendance(notes)
        async with connect(path) as client:
            frames = client.subscribe()
            await anext(frames)
            await anyio.sleep(0.05)
            notes.takes = True
            await frames.aclose()
            await client.ping()
    assert notes.told == []
