"""What may stay in memory between two turns, and what leaves it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loopd.core.conversation import StepDone, TurnEnd, TurnRequest
from loopd.core.state import Session
from loopd.engine.feeding import READ_AT_ONCE
from loopd.engine.history import History
from loopd.engine.loading import BLOBS_AT_ONCE, read_session
from loopd.engine.ports import TurnHost
from loopd.engine.residents import size_bytes
from loopd_protocol import commands as cm
from loopd_protocol.events import ToolCall
from tests.engine.stage import Gate, Stage, stage

pytestmark = pytest.mark.anyio
LONG = "x" * 30_000
ROOM = 200_000


async def long_step(request: TurnRequest, host: TurnHost) -> TurnEnd:
    """A turn that leaves 30 KB behind."""
    await host.step(StepDone(text=f"{request.n}{LONG}"))
    return TurnEnd(outcome="completed")


async def talk(on: Stage, sid: str, times: int = 1) -> None:
    for n in range(times):
        await on.send(sid, f"message {n}")
        await on.settle()


def recounted(history: History) -> int:
    """Its size, counted from its messages."""
    told = sum(len(m.text) + 32 for m in history.request(""))
    return told + sum(len(m.text) + 32 for m in history._waiting.values())


async def test_what_rests_takes_no_more_than_it_may_and_the_longest_unused_leaves_first() -> None:
    async with stage(idle_bytes=ROOM) as on:
        sids = [await on.new("long", run=long_step) for _ in range(8)]
        for sid in sids:
            await talk(on, sid, 2)
            assert on.router.residents.idle_bytes <= ROOM
        here = {loop.session.sid for loop in on.router.residents}
        assert here == set(sids[-len(here) :])
        assert 2 <= len(here) < 8
        assert on.router.residents.idle_bytes == sum(map(size_bytes, on.router.residents))


async def test_who_left_memory_is_told_the_same_as_who_stayed() -> None:
    async def contexts(idle_bytes: int) -> tuple[list[list[str]], int]:
        async with stage(idle_bytes=idle_bytes) as on:
            sids = [await on.new("long", run=long_step) for _ in range(5)]
            for _ in range(9):  # more than fits into a context of 200 KB
                for sid in sids:
                    await talk(on, sid)
            return [[m.text for m in r.messages] for r in on.requests], len(on.drivers)

    stayed, few = await contexts(1 << 30)
    left, many = await contexts(0)
    assert left == stayed
    assert many > few  # each had to be loaded, and to be given a driver, again


async def test_a_step_with_many_long_results_comes_back_whole() -> None:
    calls = 3 * BLOBS_AT_ONCE

    async def many(request: TurnRequest, host: TurnHost) -> TurnEnd:
        done = tuple(
            ToolCall(id=f"c{n}", name="shell", ok=True, result=f"{n}{LONG[:5_000]}") for n in range(calls)
        )
        await host.step(StepDone(text="looked", calls=done))
        return TurnEnd(outcome="completed")

    async with stage(idle_bytes=0) as on:
        sid = await on.new("many", run=many)
        await talk(on, sid)
        await on.new()  # and it has left
        await talk(on, sid)
        results = [m.text for m in on.requests[-1].messages if m.role == "tool"]
    assert results == [f"{n}{LONG[:5_000]}" for n in range(calls)]


async def test_a_long_session_is_read_no_further_back_than_its_context() -> None:
    read: list[str] = []

    async with stage(idle_bytes=0) as on:
        sid = await on.new("long", run=long_step)
        await talk(on, sid, 40)
        asked = [m.text for m in on.requests[-1].messages]
        await on.new()  # and it has left
        blobs = on.store.blobs

        async def counted(digests: Sequence[str]) -> dict[str, bytes]:
            read.extend(digests)
            return await blobs(digests)

        on.store.blobs = counted  # type: ignore[method-assign]
        await talk(on, sid)
        again = [m.text for m in on.requests[-1].messages]
    assert len(again) == len(asked)
    assert again[-3:-1] == ["message 39", f"40{LONG}"]
    assert len(read) == len(set(read)) == BLOBS_AT_ONCE


async def test_a_session_that_is_larger_than_the_room_works() -> None:
    async with stage(idle_bytes=0) as on:
        sid = await on.new("long", run=long_step)
        await talk(on, sid, 3)
        assert len(on.requests) == 3
        assert len(on.router.residents) == 1


async def test_an_ended_session_does_not_stay_in_memory() -> None:
    async with stage() as on:
        sid = await on.new("long", run=long_step)
        await talk(on, sid)
        await on.call(cm.SessionEnd(sid=sid))
        await on.settle()
        assert sid not in on.router.residents
        assert on.router.residents.idle_bytes == 0
        await on.call(cm.SessionResume(sid=sid))
        await talk(on, sid)
        assert [m.text[:9] for m in on.requests[-1].messages][:2] == ["message 0", "1xxxxxxxx"]


async def test_what_works_is_not_counted_and_does_not_leave() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        return await long_step(request, host)

    async with stage(idle_bytes=0) as on:
        busy = [await on.new("waits", run=waits) for _ in range(4)]
        for sid in busy:
            await on.send(sid)
        await gate.reached.wait()
        idle = [await on.new() for _ in range(3)]
        await on.settle()
        assert {*busy} <= {loop.session.sid for loop in on.router.residents}
        assert on.router.residents.idle == 1
        gate.open()
        await on.settle()
        assert len(on.router.residents) == on.router.residents.idle == 1
        assert idle[-1] not in on.router.residents


async def test_the_size_of_a_history_is_that_of_its_messages() -> None:
    async with stage() as on:
        sid = await on.new("long", run=long_step)
        for n in range(9):
            await talk(on, sid)
            loop = await on.router.loop_of(sid)
            assert loop.history.size_bytes() == recounted(loop.history), n
        await on.call(cm.Suspend(sid=sid, quarantine=True))
        for n in range(3):
            await on.send(sid, f"waits {n}")
        assert loop.history.size_bytes() == recounted(loop.history)
        again = await read_session(on.router, sid)
        assert again.history.size_bytes() == loop.history.size_bytes()


async def test_many_that_are_due_together_are_read_at_the_same_time() -> None:
    reading: list[int] = [0, 0]

    async with stage(idle_bytes=0) as on:
        sids = [await on.new("long", run=long_step) for _ in range(40)]
        for sid in sids:
            await on.call(cm.Suspend(sid=sid, until_ms=on.clock.now_ms() + 60_000))
        load = on.store.load_session

        async def slow(sid: str) -> Session | None:
            reading[0] += 1
            reading[1] = max(reading)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            reading[0] -= 1
            return await load(sid)

        on.store.load_session = slow  # type: ignore[method-assign]
        await on.pump(60_000)
        assert reading == [0, READ_AT_ONCE]
        assert [sid for sid in sids if not (await on.state(sid)).gate.is_open] == []
        assert len(on.router.residents) == 1


@example([(10_000, 0)] * 24)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 9_000)), min_size=1, max_size=14))
async def test_what_is_read_again_is_what_was_in_memory(turns: list[tuple[int, int]]) -> None:
    async def some(request: TurnRequest, host: TurnHost) -> TurnEnd:
        text, result = turns[request.n - 1]
        call = ToolCall(
            id="c", name="shell", args={"n": request.n}, ok=True, result=f"{request.n}" + "r" * result
        )
        await host.step(StepDone(text=f"{request.n}" + chr(97 + request.n) * text, calls=(call,)))
        return TurnEnd(outcome="completed")

    async with stage(idle_bytes=1 << 30) as on:
        sid = await on.new("some", run=some)
        for n in range(len(turns)):
            await talk(on, sid)
            assert len(on.requests) == n + 1
        loop = await on.router.loop_of(sid)
        again = await read_session(on.router, sid)
        assert again.history.request("") == loop.history.request("")
        assert again.history.size_bytes() == loop.history.size_bytes()
