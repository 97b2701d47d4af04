"""Old keys, refused resumptions, writes that fail while another is on its way: nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.core.inputs import CutRequested
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from tests.engine.stage import Gate, Stage, say, stage

pytestmark = pytest.mark.anyio
DAY = 86_400_000


async def refused(on: Stage, command: cm.Command, **given: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await on.call(command, **given)
    return caught.value


# -- keys --------------------------------------------------------------------------------------------


async def test_a_key_of_last_week_may_be_used_again_and_disturbs_no_turn() -> None:
    gate = Gate()

    async def works(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new("works", run=works)
        await on.call(cm.Suspend(sid=sid), key="weekly")
        await on.call(cm.Unsuspend(sid=sid))
        on.clock.advance(8 * DAY)
        await on.send(sid)  # the log's time goes on
        await gate.reached.wait()
        again = await on.call(cm.Suspend(sid=sid), key="weekly")
        assert not again.dup
        assert (await on.call(cm.Suspend(sid=sid), key="weekly")).dup
        assert on.cancelled == []
        gate.open()
        await on.settle()
        assert await on.decoded(sid, ev.TurnInterrupted) == []


async def test_a_jump_of_the_clock_that_is_taken_back_makes_no_command_run_twice() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.Send(sid=sid, text="pay"), key="k")
        on.clock.jump(30 * DAY)
        await on.send(sid, "while the clock is wrong")
        on.clock.jump(-30 * DAY)
        await on.send(sid, "and right again")
        again = await on.call(cm.Send(sid=sid, text="pay"), key="k")
        assert again.dup
        await on.settle()
        accepted = await on.decoded(sid, ev.EnvelopeAccepted)
        assert [each.text for each in accepted].count("pay") == 1


async def test_a_key_with_a_dedupe_is_not_free_for_another_command() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.Send(sid=sid, text="a", dedupe="d"), key="k")
        assert (await on.call(cm.Send(sid=sid, text="a", dedupe="d"), key="k")).dup
        assert (await refused(on, cm.Suspend(sid=sid), key="k")).code == "idempotency_conflict"


# -- names -------------------------------------------------------------------------------------------


async def test_a_refused_resumption_leaves_the_name_to_others() -> None:
    async with stage() as on:
        sid = await on.new(name="a")
        await on.call(cm.SessionEnd(sid=sid, reason="over"))
        assert (await refused(on, cm.SessionResume(sid=sid), if_rev=999)).code == "precondition_failed"
        on.store.refuse = Refused("storage_full", "no room")
        assert (await refused(on, cm.SessionResume(sid=sid))).code == "storage_full"
        on.store.refuse = None
        await on.new(name="a")


# -- a write that fails ---------------------------------------------------------------------------------


async def test_the_turn_of_a_lost_write_has_stopped_before_the_next_one_begins() -> None:
    stopped = Gate()
    reached = anyio.Event()

    async def works(request: TurnRequest, host: TurnHost) -> TurnEnd:
        if request.n > 1:
            await say(host)
            return TurnEnd(outcome="completed")
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await stopped.wait()  # a tool that takes a moment to end
        raise AssertionError

    async with stage() as on:
        sid = await on.new("works", run=works)
        await on.send(sid)
        await reached.wait()
        on.store.refuse = Refused("overloaded", "busy")
        assert (await refused(on, cm.Send(sid=sid, text="lost"))).code == "overloaded"
        on.store.refuse = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid, "next")
            try:
                await on.settle()
                assert [r.n for r in on.requests] == [1]  # PlayedDriver itself refuses two at once
            finally:
                stopped.open()
        await on.settle()
        assert [r.n for r in on.requests] == [1, 2]


async def test_a_session_is_not_read_again_while_a_write_of_its_is_on_the_way() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid, "first")
            await on.settle()
            on.store.refuse = Refused("overloaded", "busy")
            assert (await refused(on, cm.Send(sid=sid, text="second"))).code == "overloaded"
            on.store.refuse = None
            got: list[Any] = []

            async def looks() -> None:
                got.append(await on.router.loop_of(sid))

            tasks.start_soon(looks)
            await on.settle()
            on.store.release()
        await on.settle()
        assert got[0].session.ss == (await on.state(sid)).ss
        await on.send(sid, "third")
        await on.settle()
        assert (await on.state(sid)).turn is None


# -- leaving -------------------------------------------------------------------------------------------


async def test_a_drain_lets_a_turn_finish_whose_start_was_on_its_way_to_the_journal() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid)
            await on.settle()
            on.router.draining = True
            done = anyio.Event()

            async def waits() -> None:
                await on.router.finished()
                done.set()

            tasks.start_soon(waits)
            await on.settle()
            early = done.is_set()
            on.store.release()
            await done.wait()
        assert not early
        assert [event.outcome for event in await on.decoded(sid, ev.TurnCompleted)] == ["completed"]


async def test_what_a_cut_turn_still_ran_when_the_daemon_died_is_ended_at_the_next_start() -> None:
    gate, ended = Gate(), Gate()

    async def begins(request: TurnRequest, host: TurnHost) -> TurnEnd:
        tool = ToolCall(id="c", name="shell", args={})
        await host.intent(tool)
        try:
            await gate.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await ended.wait()
                await host.outcome(tool, "cancelled")
        raise AssertionError

    asked: list[list[str]] = []

    def end_leftovers(sids: Collection[str]) -> int:
        asked.append(list(sids))
        return 0

    async with stage() as on:
        sid = await on.new("begins", run=begins)
        await on.send(sid)
        await gate.reached.wait()
        loop = await on.router.loop_of(sid)
        await loop.apply(CutRequested(cause="interrupt")).committed()
        await ended.reached.wait()
        image = on.store.image()  # it dies while the tool is being ended
        ended.open()
    async with stage(image=image, clock=on.clock, end_leftovers=end_leftovers):
        pass
    assert asked == [[sid]]


# -- freezing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", ["together", "one by one"])
async def test_a_freeze_that_meets_an_unfreeze_stands(released: str) -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.DaemonFreeze())
        await on.send(sid, "while frozen")
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.call, cm.DaemonUnfreeze())
            await on.settle(2)
            tasks.start_soon(on.call, cm.DaemonFreeze())
            await on.settle()
            if released == "one by one":
                on.store.release_one()
                await on.settle()
            on.store.release()
        frozen_at = (await on.events(None, "daemon.frozen"))[-1].seq
        assert on.router.frozen
        await on.send(sid, "and more")
        await on.settle()
        assert [e.seq for e in await on.events(sid, "turn.started") if e.seq > frozen_at] == []
        await on.call(cm.DaemonUnfreeze())
        await on.settle()
        assert len(await on.events(sid, "turn.started")) == 1


async def test_a_freeze_that_cannot_be_written_leaves_the_house_as_the_journal_says() -> None:
    async with stage() as on:
        await on.call(cm.DaemonFreeze())
        on.store.refuse = Refused("storage_full", "no room")
        assert (await refused(on, cm.DaemonUnfreeze())).code == "storage_full"
        assert on.router.frozen
        on.store.refuse = None
        await on.call(cm.DaemonUnfreeze())
        on.store.refuse = Refused("storage_full", "no room")
        assert (await refused(on, cm.DaemonFreeze())).code == "storage_full"
        assert not on.router.frozen
        on.store.refuse = None


# -- many sessions ------------------------------------------------------------------------------------------


def to_all(*sids: str) -> cm.Batch:
    return cm.Batch(selector=cm.Selector(sids=sids), cmd=cm.Send(sid="x", text="once"))


async def times_sent(on: Stage, sid: str) -> int:
    return len(await on.events(sid, "envelope.accepted"))


async def test_a_batch_with_a_key_is_carried_out_once_for_each_session() -> None:
    async with stage() as on:
        sids = [await on.new(), await on.new()]
        first = await on.call(to_all(*sids), key="k")
        again = await on.call(to_all(*sids), key="k")
        assert (again.dup, again.result["results"]) == (True, first.result["results"])
        assert [await times_sent(on, sid) for sid in sids] == [1, 1]
        assert (await refused(on, to_all(sids[0]), key="k")).code == "idempotency_conflict"
        await on.call(to_all(*sids), key="another")
        assert [await times_sent(on, sid) for sid in sids] == [2, 2]


async def test_a_batch_that_a_crash_met_in_its_middle_goes_on_where_it_was() -> None:
    async with stage() as on:
        sids = [await on.new(), await on.new()]
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(on.call, to_all(*sids), key="k"))
            await on.settle()
            on.store.release_one()
            image = on.store.image()
            on.store.release()
    async with stage(image=image, clock=on.clock) as again:
        assert [await times_sent(again, sid) for sid in sids] == [1, 0]
        await again.call(to_all(*sids), key="k")
        assert [await times_sent(again, sid) for sid in sids] == [1, 1]


# -- drivers ------------------------------------------------------------------------------------------------


class Leaving:
    """A driver whose agent takes a moment to end."""

    def __init__(self, here: list[Leaving], gate: Gate) -> None:
        here.append(self)
        self._here = here
        self._gate = gate

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        assert self._here == [self], "the one before it has not left"
        await say(host, f"turn {request.n}")
        return TurnEnd(outcome="completed")

    def render(self, request: TurnRequest) -> bytes | None:
        return None

    async def aclose(self) -> None:
        await self._gate.wait()
        self._here.remove(self)


@pytest.mark.parametrize("why", ["suspended", "unloaded"])
async def test_a_driver_begins_when_the_one_before_it_has_left(why: str) -> None:
    async with stage(idle_bytes=None if why == "suspended" else 0) as on:
        sid, other = await on.new(), await on.new()
        here: list[Leaving] = []
        gate = Gate()
        on.router.make_driver = lambda *_: Leaving(here, gate)
        try:
            await on.send(sid, "one")
            await on.settle()
            # Of those that rest there is room for the newest only.
            await on.call(cm.Suspend(sid=sid if why == "suspended" else other))
            await on.until(gate.reached.is_set)
            await on.send(sid, "two")
            await on.settle()
        finally:
            gate.open()
        await on.settle()
        assert [event.outcome for event in await on.decoded(sid, ev.TurnCompleted)] == ["completed"] * 2


async def test_a_deadline_of_a_session_that_is_no_more_is_dropped() -> None:
    async with stage() as on:
        on.router.timers.arm("ses_gone", on.clock.now_ms())
        await on.pump()
        assert on.router.timers.deadline_of("ses_gone") is None
