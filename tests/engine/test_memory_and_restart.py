"""Sessions leave memory and come back, daemons die and start again: nobody can tell from the outside."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd, TurnRequest
from loopd.core.inputs import EnvelopeArrived, Ticked
from loopd.engine import boot as boot_module
from loopd.engine import loading
from loopd.engine import residents as residents_module
from loopd.engine.clock import ManualClock
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from loopd_protocol.sources import Source
from tests.engine.stage import AGENT, Gate, PlayedDriver, Stage, digest, one_step, rendered, say, stage

pytestmark = pytest.mark.anyio
MINUTE, HOUR = 60_000, 3_600_000


# -- unloading ---------------------------------------------------------------------------------------


@pytest.fixture
def tiny_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents_module, "IDLE_SESSIONS_MAX", 2)


@pytest.mark.usefixtures("tiny_memory")
async def test_idle_sessions_leave_memory_and_come_back_with_history_and_holds() -> None:
    async with stage() as on:
        sids = [await on.new(goal=None) for _ in range(6)]
        for sid in sids:
            await on.send(sid, f"first of {sid}")
        await on.settle()
        await on.call(cm.Suspend(sid=sids[0], reason="kept"))
        for sid in sids[1:]:
            await on.send(sid, f"second of {sid}")
            await on.settle()
        assert len(on.router.residents) <= 3
        await on.settle()
        assert sum(driver.closed for driver in on.drivers) >= 3
        assert [m.text for m in on.requests[-1].messages] == [
            f"first of {sids[-1]}",
            "turn 1",
            f"second of {sids[-1]}",
        ]
        why = (await on.call(cm.Why(sid=sids[0]))).result
        assert [h["reason"] for h in why["holds"]] == ["kept"]


async def test_the_session_that_is_asked_for_works_though_memory_is_full_of_running_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(residents_module, "IDLE_SESSIONS_MAX", 2)
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        idle = await on.new()
        busy = [await on.new("waits", run=waits) for _ in range(5)]
        for sid in busy:
            await on.send(sid)
        await on.settle()
        for text in "abc":
            await on.send(idle, text)
            await on.settle()
        assert [list(r.messages)[-1].text for r in on.requests if r.sid == idle] == ["a", "b", "c"]
        gate.open()


@pytest.mark.usefixtures("tiny_memory")
async def test_a_running_session_never_leaves_memory() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        host.delta("half")
        await gate.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new("waits", run=waits)
        await on.send(sid)
        await gate.reached.wait()
        for _ in range(5):
            await on.send(await on.new(), "x")
            await on.settle()
        answer = await on.call(cm.Interrupt(sid=sid))
        assert answer.result["stopped"] is True
        (cut,) = await on.decoded(sid, ev.TurnInterrupted)
        assert cut.partial == "half"


@pytest.mark.usefixtures("tiny_memory")
async def test_who_still_holds_a_session_that_left_memory_cannot_write_with_it() -> None:
    async with stage() as on:
        sid = await on.new()
        stale = await on.router.loop_of(sid)
        for _ in range(4):
            await on.new()
        await on.send(sid, "by the one that was read again")
        with pytest.raises(Refused):
            stale.apply(EnvelopeArrived(source=Source.HUMAN, text="by the stale one", by="x"))
        await on.settle()
        assert len(await on.decoded(sid, ev.EnvelopeAccepted)) == 1


async def test_what_waits_longer_than_the_history_that_is_read_keeps_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "HISTORY_EVENTS", 3)
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.Suspend(sid=sid, quarantine=True))
        for n in range(8):
            await on.send(sid, f"waits {n}")
        async with await restarted(on) as again:
            await again.call(cm.Unsuspend(sid=sid))
            await again.settle()
            assert [m.text for m in again.requests[0].messages] == [f"waits {n}" for n in range(8)]


@pytest.mark.usefixtures("tiny_memory")
async def test_a_session_is_read_once_when_many_ask_for_it_at_once() -> None:
    async with stage() as on:
        sids = [await on.new() for _ in range(5)]
        await on.settle()
        assert sids[0] not in on.router.residents
        on.store.slow_reads = True
        reads: list[str] = []
        load = on.store.load_session

        async def counted(sid: str) -> Any:
            reads.append(sid)
            return await load(sid)

        on.store.load_session = counted  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for i in range(6):
                tasks.start_soon(on.send, sids[0], f"m{i}")
        await on.settle()
        assert reads == [sids[0]]
        assert len(await on.decoded(sids[0], ev.EnvelopeAccepted)) == 6


@pytest.mark.usefixtures("tiny_memory")
async def test_a_caller_that_goes_away_while_a_session_is_read_takes_nobody_with_it() -> None:
    async with stage() as on:
        sids = [await on.new() for _ in range(5)]
        await on.settle()
        on.store.slow_reads = True
        first = anyio.CancelScope()

        async def gives_up() -> None:
            with first:
                await on.send(sids[0], "never sent")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gives_up)
            await anyio.lowlevel.checkpoint()
            tasks.start_soon(on.send, sids[0], "sent")
            await anyio.lowlevel.checkpoint()
            first.cancel()
        assert [e.text for e in await on.decoded(sids[0], ev.EnvelopeAccepted)] == ["sent"]


@pytest.mark.usefixtures("tiny_memory")
async def test_a_session_that_cannot_be_read_fails_alone() -> None:
    async with stage() as on:
        sids = [await on.new(goal="win") for _ in range(5)]
        await on.settle()
        load = on.store.load_session

        async def broken(sid: str) -> Any:
            if sid == sids[0]:
                raise msgspec.ValidationError("not a session")
            return await load(sid)

        on.store.load_session = broken  # type: ignore[method-assign]
        await on.pump_through(2_000)
        await on.settle()
        assert {r.sid for r in on.requests} == set(sids[1:])
        on.store.load_session = load  # type: ignore[method-assign]
        await on.pump_through(2_000)
        assert sids[0] in {r.sid for r in on.requests}


@pytest.mark.usefixtures("tiny_memory")
async def test_an_unfreeze_reaches_every_session_that_can_be_read() -> None:
    async with stage() as on:
        sids = [await on.new() for _ in range(6)]
        await on.call(cm.DaemonFreeze())
        for sid in sids:
            await on.send(sid)
        await on.settle()
        load = on.store.load_session

        async def broken(sid: str) -> Any:
            if sid == sids[0]:
                raise msgspec.ValidationError("not a session")
            return await load(sid)

        on.store.load_session = broken  # type: ignore[method-assign]
        await on.call(cm.DaemonUnfreeze())
        await on.settle()
        assert {r.sid for r in on.requests} == set(sids[1:])
        on.store.load_session = load  # type: ignore[method-assign]
        await on.pump(1_000)
        await on.settle()
        assert sids[0] in {r.sid for r in on.requests}


async def test_a_daemon_whose_disk_is_full_starts_and_recovers_when_there_is_room() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new("waits", run=waits)
        await on.send(sid)
        await gate.reached.wait()
        image = on.store.image()
    async with stage(image=image, clock=on.clock, refuse=Refused("storage_full", "no room")) as again:
        assert (await again.call(cm.Why(sid=sid))).result["turn"]["n"] == 1
        await again.pump(1_000)
        again.store.refuse = None
        await again.pump(1_000)
        assert [e.cause for e in await again.decoded(sid, ev.TurnInterrupted)] == ["crash"]
        await again.send(sid)
        await again.settle()
        assert [r.n for r in again.requests] == [2]


async def test_all_running_turns_are_stopped_even_when_nothing_can_be_written_any_more() -> None:
    async def forever(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await anyio.sleep_forever()
        raise AssertionError

    async with stage() as on:
        for _ in range(4):
            await on.send(await on.new("forever", run=forever))
        await on.until(lambda: len(on.active) == 4)
        on.store.refuse = Refused("storage_full", "no room")
        assert await on.router.cut_all("drain", by="daemon") == 4
        await on.until(lambda: not on.active)
        on.store.refuse = None
        await on.pump(1_000)


# -- restart -------------------------------------------------------------------------------------------


async def restarted(on: Stage, ms: int = 0) -> Any:
    on.clock.advance(ms)
    return stage(image=on.store.image(), clock=on.clock)


async def test_after_a_restart_holds_deadlines_envelopes_goal_and_counters_are_as_they_were() -> None:
    async with stage() as on:
        sid = await on.new(goal="win", name="one", labels={"a": "b"})
        await on.pump_through(4_000)
        await on.call(cm.Suspend(sid=sid, until_ms=on.clock.now_ms() + HOUR, reason="why"))
        for text in ("one", "two"):
            await on.send(sid, text, caller=AGENT)
        await on.call(cm.CronPut(sid=sid, job="j", expr="*/5 * * * *", text="x"))
        before = await on.state(sid)
        async with await restarted(on) as again:
            assert await again.state(sid) == before
            assert again.router.timers.deadline_of(sid) == on.router.timers.deadline_of(sid)
            await again.pump_through(HOUR)
            await again.settle()
            started = again.requests[0]
            assert [m.text for m in started.messages[-3:]] == ["one", "two", "x"]


async def test_a_deadline_that_passed_while_the_daemon_was_down_fires_once_soon_after_the_start() -> None:
    async with stage() as on:
        sids = [await on.new() for _ in range(12)]
        for sid in sids:
            await on.call(cm.Suspend(sid=sid, until_ms=on.clock.now_ms() + MINUTE))
        async with await restarted(on, HOUR) as again:
            armed = [again.router.timers.deadline_of(sid) or 0 for sid in sids]
            assert len(set(armed)) > 1, "they do not all come at once"
            assert min(armed) >= again.clock.now_ms()
            await again.pump_through(boot_module.SPREAD_MS)
            for sid in sids:
                (opened,) = [e for e in await again.decoded(sid, ev.GateChanged) if e.cause == "deadline"]
                assert opened.late_ms is not None
                assert HOUR - MINUTE <= opened.late_ms <= HOUR - MINUTE + boot_module.SPREAD_MS
            async with await restarted(again) as third:
                await third.pump_through(MINUTE)
                assert (
                    len([e for e in await third.decoded(sids[0], ev.GateChanged) if e.cause == "deadline"])
                    == 1
                )


async def test_a_turn_that_ran_when_the_daemon_died_is_interrupted_once_and_what_waited_goes_on() -> None:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await say(host, "durable", calls=(ToolCall(id="c", name="shell", ok=True),))
        await gate.wait()
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new("waits", run=waits)
        await on.send(sid, "one")
        await gate.reached.wait()
        waiting = await on.send(sid, "two")
        async with await restarted(on) as again:
            await again.settle()
            assert again.router.boot.recovered == 1
            (cut,) = await again.decoded(sid, ev.TurnInterrupted)
            assert (cut.cause, cut.boot) == ("crash", again.store.boots)
            assert [list(e.envelopes) for e in await again.decoded(sid, ev.TurnStarted)][1:] == [
                [waiting.result["id"]]
            ]
            texts = [m.text for m in again.requests[0].messages]
            assert texts[:2] == ["one", "durable"]
            assert texts[-1] == "two"
            assert sum("interrupted (crash)" in text for text in texts) == 1
            async with await restarted(again) as third:
                assert third.router.boot.recovered == 0
        gate.open()


async def test_cron_that_came_due_while_down_is_accounted_by_its_policy() -> None:
    async with stage() as on:
        sids = {}
        for missed in ("skip", "one", "all"):
            sid = sids[missed] = await on.new()
            await on.call(cm.CronPut(sid=sid, job="j", expr="0 * * * *", text=missed, missed=missed))  # type: ignore[arg-type]
        async with await restarted(on, 5 * HOUR + 30 * MINUTE) as again:
            await again.pump_through(boot_module.SPREAD_MS)
            await again.settle()
            for missed, expected in (
                ("skip", ["missed"] * 5),
                ("one", ["missed"] * 4 + ["late"]),
                ("all", ["late"] * 5),
            ):
                rows = (await again.call(cm.CronHistory(sid=sids[missed]))).result["occurrences"]
                assert [row["result"] for row in reversed(rows)] == expected


async def test_forty_eight_fires_during_a_suspension_are_one_delivery_and_forty_eight_accounts() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.CronPut(sid=sid, job="j", expr="*/30 * * * *", text="look"))
        await on.call(cm.Suspend(sid=sid))
        await on.pump_through(12 * HOUR)
        async with await restarted(on) as again:
            await again.pump_through(12 * HOUR)
            assert again.requests == []
            await again.call(cm.Unsuspend(sid=sid))
            await again.settle()
            (request,) = again.requests
            assert [m.text for m in request.messages] == ["look"]
            rows = (await again.call(cm.CronHistory(sid=sid))).result["occurrences"]
            results = [row["result"] for row in rows]
            assert (len(results), results.count("coalesced"), results[0]) == (48, 47, "late")


@pytest.mark.parametrize("ms", [-HOUR, HOUR, -5_000, 30 * 24 * HOUR])
async def test_a_jump_of_the_wall_clock_neither_loses_nor_repeats_a_deadline(ms: int) -> None:
    async with stage() as on:
        sid = await on.new()
        until = on.clock.now_ms() + 2 * HOUR
        await on.call(cm.Suspend(sid=sid, until_ms=until))
        on.clock.jump(ms)
        await on.pump()
        early = on.clock.now_ms() < until
        assert (await on.state(sid)).gate.is_open != early
        if early:
            await on.pump_through(until - on.clock.now_ms())
        on.clock.jump(-10 * HOUR)
        await on.pump_through(20 * HOUR)
        assert [e.cause for e in await on.decoded(sid, ev.GateChanged)] == ["suspend", "deadline"]


# -- what the model saw ----------------------------------------------------------------------------------


class _Exact(PlayedDriver):
    """Reports the digest of exactly what it sends, step by step."""

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        self._stage.requests.append(request)
        messages = request
        long = "long output " * 800
        for step in range(1, 4):
            sent = digest(rendered(messages))
            calls = ()
            if step < 3:
                calls = (
                    ToolCall(
                        id="call_1",
                        name="shell",
                        args={"n": step},
                        ok=True,
                        result=long if step == 1 else "same",
                    ),
                    ToolCall(id="call_2", name="read_file", args={}, ok=False, result=None),
                )
            text = f"turn {request.n} step {step} " + ("x" * 6_000 if step == 2 else "")
            done = await host.step(
                StepDone(text=text, calls=calls, request_sha256=sent, tools_withheld=messages.tools_withheld)
            )
            if done.stop:
                return TurnEnd(outcome="stopped_by_rule")
            messages = msgspec.structs.replace(
                messages, messages=(*messages.messages, *done.messages), tools_withheld=done.tools_withheld
            )
            if step == 2 and request.n == 3:
                host.delta("cut in the middle")
                self._stage.plays["cut"] = one_step
                await anyio.sleep_forever()
        return TurnEnd(outcome="completed")


@pytest.mark.parametrize("reload", [False, True])
async def test_every_request_can_be_rebuilt_from_the_journal_byte_for_byte(
    reload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.engine.stage.PlayedDriver", _Exact)
    settings = {"rules.progress_stall.threshold": 1, "rules.tool_repetition.enabled": False}
    async with stage() as on:
        sid = await on.new(set=settings, goal="win")
        await on.send(sid, "do it", caller=AGENT)
        await on.settle()
        await on.call(cm.CronPut(sid=sid, job="j", expr="* * * * *", text="tick"))
        await on.pump(MINUTE)
        await on.settle()
        await on.send(sid, "third")
        await on.until(lambda: "cut" in on.plays)
        await on.call(cm.Interrupt(sid=sid))
        await on.send(sid, "fourth")
        await on.settle()
        checked = 0

        async def check(here: Stage) -> int:
            checked = 0
            for n in range(1, (await here.state(sid)).turns + 1):
                turn = (await here.call(cm.TurnGet(sid=sid, n=n))).result
                for step in range(1, len(turn["steps"]) + 1):
                    prompt = (await here.call(cm.TurnGet(sid=sid, n=n, prompt=True, step=step))).result[
                        "prompt"
                    ]
                    assert prompt["missing"] == []
                    assert prompt["recorded_sha256"] is not None
                    assert prompt["request_sha256"] == prompt["recorded_sha256"], f"turn {n}, step {step}"
                    checked += 1
            return checked

        checked = await check(on)
        assert checked >= 10
        assert await on.decoded(sid, ev.EnvelopeDelivered), "a notice inside a turn is part of the story"
        if reload:
            async with await restarted(on) as again:
                assert await check(again) == checked


async def test_a_session_that_is_read_again_shows_the_model_the_same_as_one_that_never_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two twins live the same life; one is read from the journal before each turn."""
    seen: dict[bool, list[list[tuple[str, str, str]]]] = {}
    for forgetful in (False, True):
        clock = ManualClock()
        image: bytes | None = None
        sid = ""
        requests: list[list[tuple[str, str, str]]] = []

        async def life(request: TurnRequest, host: TurnHost) -> TurnEnd:
            if request.n % 3 == 0:
                await host.ask(AgentRequest(name="request_idle", args={"max_idle_duration_secs": 60}))
            call = ToolCall(
                id="c", name="shell", args={"n": request.n}, ok=True, result=f"out {request.n} " * 900
            )
            await say(host, f"working {request.n}", calls=(call,))
            await say(host, f"said {request.n} " * (700 if request.n == 2 else 1))
            return TurnEnd(outcome="completed")

        async def chapter(here: Stage, act: int, sid: str, requests: list[Any] = requests) -> None:
            here.plays["life"] = life
            match act % 4:
                case 0:
                    await here.send(sid, f"human {act}")
                case 1:
                    await here.call(cm.CronRun(sid=sid, job="j"))
                case 2:
                    await here.call(cm.Suspend(sid=sid))
                    await here.send(sid, f"agent {act}", caller=AGENT)
                    await here.send(sid, f"lifts {act}")
                case _:
                    await here.pump_through(2 * MINUTE)
            await here.settle(80)
            requests.extend([(m.role, m.source, m.text) for m in r.messages] for r in here.requests)
            here.requests.clear()

        async with stage(clock=clock) as first:
            sid = await first.new("life", run=life, goal="win")
            await first.call(cm.CronPut(sid=sid, job="j", expr="0 0 1 1 *", text="by hand"))
            image = first.store.image()
            if not forgetful:
                for act in range(10):
                    await chapter(first, act, sid)
        for act in range(10 if forgetful else 0):
            async with stage(image=image, clock=clock) as here:
                await chapter(here, act, sid)
                image = here.store.image()
        seen[forgetful] = requests
    assert len(seen[False]) > 10
    assert seen[True] == seen[False]


async def test_ephemeral_messages_are_shown_in_their_own_turn_only() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.CronPut(sid=sid, job="j", expr="0 0 1 1 *", text="tick tock"))
        await on.call(cm.CronRun(sid=sid, job="j"))
        await on.settle()
        assert "tick tock" in [m.text for m in on.requests[0].messages]
        await on.send(sid, "human")
        await on.settle()
        assert [m.text for m in on.requests[1].messages] == ["turn 1", "human"]
        prompt = (await on.call(cm.TurnGet(sid=sid, n=1, prompt=True))).result["prompt"]
        assert [(m["text"], m["ephemeral"]) for m in prompt["messages"]] == [("tick tock", True)]


async def test_old_turns_leave_the_context_whole_and_the_newest_stays_whatever_its_size() -> None:
    async def talk(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await say(host, f"answer {request.n} " + "y" * 500)
        return TurnEnd(outcome="completed")

    spec = cm.ChatSpec(base_url="http://127.0.0.1:1/v1", model="m", context_bytes=3_000)
    async with stage() as on:
        on.plays["chat"] = talk
        make = on.router.make_driver
        on.router.make_driver = lambda sid, spec, workspace: make(sid, {"script": "chat"}, workspace)
        sid = str((await on.call(cm.SessionCreate(driver=spec))).result["sid"])
        for n in range(12):
            await on.send(sid, f"question {n}")
            await on.settle()
        texts = [m.text for m in on.requests[-1].messages]
        assert texts[-1] == "question 11"
        assert texts[0].startswith("question "), "a turn is kept whole or not at all"
        assert 3 <= len(texts) <= 12
        await on.send(sid, "z" * 50_000)
        await on.settle()
        assert on.requests[-1].messages[-1].text == "z" * 50_000


async def test_a_prompt_that_is_asked_for_where_there_is_none_is_not_found() -> None:
    async with stage() as on:
        sid = await on.new()
        await on.send(sid)
        await on.settle()
        for given in ({"n": 2}, {"n": 0}, {"n": 1, "step": 5}):
            with pytest.raises(Refused) as refused:
                await on.call(cm.TurnGet(sid=sid, prompt=True, **given))  # type: ignore[arg-type]
            assert refused.value.code == "not_found"


async def test_a_tick_that_finds_nothing_due_writes_nothing() -> None:
    async with stage() as on:
        sid = await on.new(goal="win")
        head = on.store.head
        loop = await on.router.loop_of(sid)
        await loop.apply(Ticked()).committed()
        assert on.store.head == head
