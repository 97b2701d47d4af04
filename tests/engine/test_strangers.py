"""Who knocks is written down, and cannot fill a disk by knocking."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.engine.clock import ManualClock
from loopd.engine.strangers import WINDOW_S, Strangers
from loopd_protocol.access_events import ATTEMPTS_MAX, AccessRefused
from loopd_protocol.errors import Refused

pytestmark = pytest.mark.anyio
DOORS = ("control", "agent", "http")


class Log:
    """Keeps what is said, unless it is full."""

    def __init__(self) -> None:
        self.said: list[AccessRefused] = []
        self.full = False

    async def say(self, event: AccessRefused, /, *, principal: str) -> None:
        assert principal == "daemon"
        if self.full:
            raise Refused("storage_full", "the disk is full")
        self.said.append(event)

    def total(self) -> int:
        return sum(event.more + sum(each.count for each in event.attempts) for event in self.said)


@given(
    knocks=st.lists(
        st.tuples(st.sampled_from(DOORS), st.integers(0, 40), st.sampled_from(("", "k1"))), max_size=200
    )
)
async def test_no_attempt_is_lost_and_no_event_names_more_sources_than_it_may(
    knocks: list[tuple[str, int, str]],
) -> None:
    log = Log()
    strangers = Strangers(ManualClock(1_000), log.say)
    for door, number, kid in knocks:
        strangers.knocked(door, f"ip:192.0.2.{number}", "unauthenticated", kid)
    await strangers.write()
    await strangers.write()
    assert log.total() == len(knocks)
    assert len(log.said) == bool(knocks)
    assert all(len(event.attempts) <= ATTEMPTS_MAX for event in log.said)


async def test_the_first_attempt_is_written_at_once_and_then_one_event_a_minute_whoever_knocks() -> None:
    log, clock = Log(), ManualClock(1_000)
    slept: list[float] = []
    woken = anyio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await woken.wait()

    strangers = Strangers(clock, log.say, sleep=sleep)
    async with anyio.create_task_group() as group:
        group.start_soon(strangers.run)
        strangers.knocked("http", "ip:192.0.2.7", "unauthenticated")
        await _settle()
        assert [(e.source, e.count) for e in log.said[0].attempts] == [("ip:192.0.2.7", 1)]
        for number in range(10_000):
            clock.advance(1)
            strangers.knocked("http", f"ip:10.0.{number % 256}.{number % 251}", "unauthenticated")
        await _settle()
        assert len(log.said) == 1
        assert slept == [WINDOW_S]
        clock.advance(60_000)
        woken.set()
        await _settle()
        assert len(log.said) == 2
        assert log.total() == 10_001
        second = log.said[1]
        assert (len(second.attempts), second.last_ms - second.first_ms) == (ATTEMPTS_MAX, 9_999)
        group.cancel_scope.cancel()


async def test_what_a_full_disk_does_not_take_is_written_later_and_not_forgotten() -> None:
    log = Log()
    strangers = Strangers(ManualClock(1_000), log.say)
    log.full = True
    strangers.knocked("control", "uid:1001", "unauthenticated", "k1")
    await strangers.write()
    strangers.knocked("control", "uid:1001", "unauthenticated", "k1")
    log.full = False
    await strangers.write()
    (event,) = log.said
    assert [(a.door, a.source, a.kid, a.count) for a in event.attempts] == [("control", "uid:1001", "k1", 2)]
    assert event.first_ms == 1_000


async def _settle() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
