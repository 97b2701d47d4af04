"""Sessions that live in the engine: write first, then act; interrupt, fail, hang, and go on."""

from __future__ import annotations

import anyio
import pytest

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd, TurnRequest
from loopd.engine import session_loop
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from tests.engine.stage import AGENT, CHANNEL, Gate, one_step, say, stage

pytestmark = pytest.mark.anyio
HOUR = 3_600_000


def waits_at(gate: Gate, text: str = "half a sen"):
    """A turn that streams something and then waits for the test."""

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        host.delta(text)
        await gate.wait()
        await say(host, "whole")
        return TurnEnd(outcome="completed")

    return play


# -- write, then tell ------------------------------------------------------------------------------


async def test_a_turn_starts_only_when_its_start_is_durable() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            answers: list[object] = []

            async def send() -> None:
                answers.append(await on.send(sid))

            tasks.start_soon(send)
            await on.settle()
            assert (on.requests, answers) == ([], [])
            on.store.release()
            await on.until(lambda: answers and on.requests)


async def test_effects_follow_the_commit_also_when_the_caller_went_away() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid)
            await on.settle()
            tasks.cancel_scope.cancel()
            assert on.requests == []
            on.store.release()
        await on.until(lambda: on.requests)
        await on.settle()
        assert [e.outcome for e in await on.decoded(sid, ev.TurnCompleted)] == ["completed"]


async def test_a_turn_that_is_cut_before_its_start_is_durable_is_never_driven() -> None:
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid)
            await on.settle()
            tasks.start_soon(on.call, cm.Suspend(sid=sid, mode="interrupt"))
            await on.settle()
            on.store.release()
        await on.settle()
        assert on.requests == []
        assert [e.cause for e in await on.decoded(sid, ev.TurnInterrupted)] == ["suspend"]


async def test_a_turn_whose_cut_is_on_its_way_to_the_disk_is_not_driven_when_its_start_arrives_there() -> (
    None
):
    async with stage() as on:
        sid = await on.new()
        on.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.send, sid)
            await on.settle()
            tasks.start_soon(on.call, cm.Suspend(sid=sid, mode="interrupt"))
            await on.settle()
            on.store.release_one()
            await on.settle()
            assert on.requests == []
            on.store.release()


async def test_the_deadline_of_a_turn_does_not_take_back_a_step_that_waits_for_the_disk() -> None:
    async with stage() as on:
        slow = Gate()

        async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
            on.store.held = True
            slow.reached.set()
            await say(host, "durable in the end")
            raise AssertionError("went on")

        sid = await on.new(run=play, set={"turn.deadline_ms": 20})
        await on.send(sid)
        await slow.reached.wait()
        await on.until(lambda: on.cancelled)
        on.store.release()
        await on.settle()
        assert [e.text for e in await on.decoded(sid, ev.TurnStep)] == ["durable in the end"]
        assert [e.cause for e in await on.decoded(sid, ev.TurnInterrupted)] == ["deadline"]


async def test_a_step_is_judged_and_durable_before_the_driver_goes_on() -> None:
    async with stage() as on:
        went_on = anyio.Event()

        async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
            on.store.held = True
            await say(host, "first")
            went_on.set()
            return TurnEnd(outcome="completed")

        sid = await on.new(run=play)
        await on.send(sid)
        await on.settle()
        assert not went_on.is_set()
        on.store.release()
        await on.until(went_on.is_set)


# -- failed writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["storage_full", "storage_readonly", "overloaded"])
async def test_what_the_journal_refuses_did_not_happen_and_the_session_goes_on_later(code: str) -> None:
    async with stage() as on:
        sid = await on.new()
        await on.call(cm.Suspend(sid=sid, quarantine=True))
        kept = (await on.send(sid, "kept")).result["id"]
        before = await on.state(sid)
        on.store.refuse = Refused(code, "no room")
        for command in (cm.Send(sid=sid, text="lost"), cm.Unsuspend(sid=sid), cm.GoalSet(sid=sid, text="x")):
            with pytest.raises(Refused) as refused:
                await on.call(command)
            assert refused.value.code == code
        assert await on.state(sid) == before
        assert (await on.call(cm.Why(sid=sid))).result["holds"][0]["kind"] == "UserSuspend"
        on.store.refuse = None
        sent = (await on.send(sid, "after")).result["id"]
        await on.call(cm.Unsuspend(sid=sid))
        await on.settle()
        (started,) = await on.decoded(sid, ev.TurnStarted)
        assert list(started.envelopes) == [kept, sent]
        assert [m.text for m in on.requests[-1].messages] == ["kept", "after"]


async def test_a_turn_whose_step_could_not_be_written_is_recovered_like_after_a_crash() -> None:
    gate = Gate()
    async with stage() as on:
        refusals: list[str] = []

        async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
            if request.n > 1:
                return await one_step(request, host)
            await say(host, "durable")
            await gate.wait()
            try:
                await say(host, "not durable")
            except Refused as refused:
                refusals.append(refused.code)
                raise
            raise AssertionError("a step that was not stored was accepted")

        sid = await on.new(run=play)
        await on.send(sid, "one")
        await gate.reached.wait()
        waiting = (await on.send(sid, "two")).result["id"]
        on.store.refuse = Refused("storage_full", "no room")
        gate.open()
        await on.until(lambda: not on.active)
        await on.pump(1_000)  # still full: looked at again and again, never forgotten
        await on.pump(1_000)
        on.store.refuse = None
        await on.pump(1_000)
        await on.settle()
        (cut,) = await on.decoded(sid, ev.TurnInterrupted)
        assert cut.cause == "crash"
        started = await on.decoded(sid, ev.TurnStarted)
        assert [list(e.envelopes) for e in started][1:] == [[waiting]]
        texts = [m.text for m in on.requests[-1].messages]
        assert texts[:2] == ["one", "durable"]
        assert texts[-1] == "two"
        assert "not durable" not in texts
        assert refusals == ["storage_full"] or on.cancelled == [(sid, 1)]


async def test_a_turn_of_a_session_whose_write_failed_is_stopped_before_the_session_is_read_again() -> None:
    gate = Gate()
    async with stage() as on:
        sid = await on.new("waits", run=waits_at(gate))
        await on.send(sid, "one")
        await gate.reached.wait()
        on.store.refuse = Refused("storage_full", "no room")
        with pytest.raises(Refused):
            await on.send(sid, "lost")
        await on.until(lambda: not on.active)
        assert on.cancelled == [(sid, 1)]
        on.store.refuse = None
        on.plays["waits"] = one_step
        await on.send(sid, "two")
        await on.settle()
        assert [e.cause for e in await on.decoded(sid, ev.TurnInterrupted)] == ["crash"]
        assert on.requests[-1].messages[-1].text == "two"


async def test_a_failed_write_of_one_session_does_not_touch_another() -> None:
    gate = Gate()
    async with stage() as on:
        on.plays["waits"] = waits_at(gate)
        first, second = await on.new(), await on.new("waits")
        await on.send(second)
        await gate.reached.wait()
        on.store.refuse = Refused("storage_full", "no room")
        with pytest.raises(Refused):
            await on.send(first)
        on.store.refuse = None
        gate.open()
        await on.settle()
        assert [e.outcome for e in await on.decoded(second, ev.TurnCompleted)] == ["completed"]


async def test_a_session_whose_creation_could_not_be_written_does_not_exist() -> None:
    async with stage() as on:
        on.store.refuse = Refused("storage_full", "no room")
        with pytest.raises(Refused):
            await on.new(name="one", goal="win")
        on.store.refuse = None
        with pytest.raises(Refused) as refused:
            await on.call(cm.SessionGet(sid="one"))
        assert refused.value.code == "not_found"
        await on.pump(5_000)
        assert len(on.router.timers) == 0, "nothing is looked at for ever for a session that never was"
        await on.new(name="one")


# -- interrupt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["interrupt", "suspend", "kill", "freeze", "end"])
async def test_cutting_keeps_the_partial_text_and_answers_when_the_driver_has_stopped(how: str) -> None:
    gate = Gate()
    stopped = anyio.Event()

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        host.delta("half a ")
        host.delta("sen")
        try:
            await gate.wait()
        finally:
            with anyio.CancelScope(shield=True):  # a driver may need a moment to stop
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
            host.delta("never seen")
            stopped.set()
        raise AssertionError("went on")

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await gate.reached.wait()
        command: cm.Command = {
            "interrupt": cm.Interrupt(sid=sid),
            "suspend": cm.Suspend(sid=sid, mode="interrupt"),
            "kill": cm.Suspend(sid=sid, mode="kill"),
            "freeze": cm.DaemonFreeze(interrupt=True),
            "end": cm.SessionEnd(sid=sid),
        }[how]
        answer = await on.call(command)
        assert stopped.is_set(), "the answer came before the driver had stopped"
        assert on.cancelled == [(sid, 1)]
        (cut,) = await on.decoded(sid, ev.TurnInterrupted)
        assert (cut.partial, cut.phase) == ("half a sen", "model")
        assert cut.cause == {"end": "ended"}.get(how, how)
        assert "never seen" not in [text for *_, text in on.deltas]
        if how == "freeze":
            assert answer.result["interrupted"] == 1
        else:
            assert answer.result["stopped"] is True


async def test_the_turn_after_an_interruption_is_told_of_it_and_sees_what_was_said() -> None:
    gate = Gate()
    async with stage() as on:
        sid = await on.new("waits", run=waits_at(gate))
        await on.send(sid, "first")
        await gate.reached.wait()
        await on.call(cm.Interrupt(sid=sid))
        gate.open()
        await on.send(sid, "second")
        await on.settle()
        messages = on.requests[-1].messages
        assert [(m.role, m.text) for m in messages[:2]] == [("user", "first"), ("assistant", "half a sen")]
        assert messages[2].source == "session"
        assert "interrupted (interrupt)" in messages[2].text
        assert messages[-1].text == "second"


async def test_an_interrupted_session_answers_when_it_resumes_and_does() -> None:
    gate = Gate()
    async with stage() as on:
        on.plays["waits"] = waits_at(gate)
        sid = await on.new("waits", goal="win")
        await on.send(sid)
        await gate.reached.wait()
        answer = await on.call(cm.Interrupt(sid=sid, for_ms=60_000))
        assert answer.result["resumes_ms"] == on.clock.now_ms() + 60_000
        gate.open()
        held = await on.send(sid, caller=AGENT)
        assert (held.result["held"], held.result["by"]) == (True, ["Interrupted"])
        await on.pump_through(59_999)
        assert len(on.requests) == 1
        await on.pump_through(1)
        assert len(on.requests) == 2


async def test_an_interrupt_while_nothing_runs_answers_at_once() -> None:
    async with stage() as on:
        sid = await on.new()
        with anyio.fail_after(1):
            answer = await on.call(cm.Interrupt(sid=sid))
        assert answer.result["turn"] is None
        assert [h["kind"] for h in answer.result["holds"]] == ["Interrupted"]


async def test_a_tool_is_not_run_when_the_turn_is_over_and_its_phase_is_known() -> None:
    gate = Gate()
    call = ToolCall(id="c1", name="shell", args={"cmd": "make"})

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await host.intent(call)
        try:
            await gate.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await host.outcome(call, "cancelled")
                with pytest.raises(Refused) as refused:
                    await host.intent(ToolCall(id="c2", name="shell"))
                assert refused.value.code == "gate_closed"
            raise
        raise AssertionError

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await gate.reached.wait()
        await on.call(cm.Interrupt(sid=sid))
        (cut,) = await on.decoded(sid, ev.TurnInterrupted)
        assert cut.phase == "tool"
        assert len(await on.decoded(sid, ev.EffectIntent)) == 1


# -- drivers that fail ---------------------------------------------------------------------------------


async def test_a_driver_that_raises_ends_its_turn_and_not_the_session() -> None:
    async with stage() as on:

        async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
            if request.n == 1:
                raise RuntimeError("boom")
            return await one_step(request, host)

        sid = await on.new(run=play)
        await on.send(sid)
        await on.settle()
        (over,) = await on.decoded(sid, ev.TurnCompleted)
        assert (over.outcome, over.error) == ("failed", "boom")
        assert [h.kind for h in (await on.state(sid)).gate.holds] == ["ProviderBackoff"]
        await on.pump_through(30_000)
        assert [e.outcome for e in await on.decoded(sid, ev.TurnCompleted)] == ["failed", "completed"]


async def test_a_driver_that_cannot_be_made_any_more_fails_its_turn() -> None:
    async with stage() as on:
        sid = await on.new("plain")
        on.router.make_driver = lambda *_: (_ for _ in ()).throw(Refused("invalid", "the script is gone"))
        await on.send(sid)
        await on.settle()
        (over,) = await on.decoded(sid, ev.TurnCompleted)
        assert (over.outcome, over.error) == ("failed", "the script is gone")


async def test_a_driver_that_hangs_is_cut_at_the_deadline_of_the_turn() -> None:
    async with stage() as on:

        async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
            host.delta("so far")
            await anyio.sleep_forever()
            raise AssertionError

        sid = await on.new(run=play, set={"turn.deadline_ms": 30})
        await on.send(sid)
        await on.until(lambda: on.cancelled)
        await on.settle()
        (cut,) = await on.decoded(sid, ev.TurnInterrupted)
        assert (cut.cause, cut.partial) == ("deadline", "so far")
        await on.settle()
        assert on.cancelled == [(sid, 1)]
        assert on.active == set()


async def test_a_driver_that_ignores_its_cancellation_is_named_and_the_next_turn_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_loop, "STOP_WITHIN_S", 0.05)
    gate = Gate()

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        if request.n == 1:
            with anyio.CancelScope(shield=True):
                await gate.wait()
            await say(host, "too late")
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await gate.reached.wait()
        answer = await on.call(cm.Interrupt(sid=sid))
        assert answer.result["stopped"] is False
        await on.send(sid, "go on")
        await on.settle()
        assert len(on.requests) == 1, "two turns of one session at once"
        gate.open()
        await on.until(lambda: len(on.requests) == 2)
        await on.settle()
        assert not await on.decoded(sid, ev.TurnStep)


async def test_no_turn_overtakes_a_driver_that_does_not_stop_however_many_are_cut_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_loop, "STOP_WITHIN_S", 0.02)
    gate = Gate()

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        if request.n == 1:
            with anyio.CancelScope(shield=True):
                await gate.wait()
        return await one_step(request, host)

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await gate.reached.wait()
        for text in ("second", "third"):
            await on.call(cm.Interrupt(sid=sid))
            await on.send(sid, text)
            await on.settle()
            assert [r.n for r in on.requests] == [1]
        gate.open()
        await on.until(lambda: len(on.requests) == 2)
        assert on.requests[-1].n == 3


async def test_a_driver_that_ignores_the_directive_to_stop_is_cut_off() -> None:
    """A driver that goes on after it was told to stop gets no further step into the record."""
    went_on: list[int] = []

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        for step in range(50):
            went_on.append(step)
            await say(
                host,
                f"step {step}",
                calls=(ToolCall(id=f"c{step}", name="shell", args={"n": step}, ok=True),),
            )
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=play, set={"turn.max_steps": 3})
        await on.send(sid)
        await on.settle(400)
        assert len(await on.decoded(sid, ev.TurnStep)) == 3
        assert len(went_on) <= 4
        (over,) = await on.decoded(sid, ev.TurnCompleted, ev.TurnInterrupted)
        assert isinstance(over, ev.TurnCompleted)
        assert over.outcome == "step_limit"
        assert (await on.state(sid)).gate.is_open


async def test_what_a_driver_reports_is_cut_to_what_can_be_read_again() -> None:
    """Names, ids and words of a model are of any length; an event that no decoder takes would be poison."""

    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        long = "x" * 5_000
        call = ToolCall(
            id=long, name=long, args={"a": 1}, ok=True, result="fine", error_class=long, tool_class=long
        )
        await host.retrying(attempt=1, cause=long, delay_ms=5)
        await host.intent(call)
        await host.outcome(call, "ok")
        await say(
            host, long * 3, calls=(call,), finish=long, usage=Usage(input_tokens=2**60, output_tokens=-5)
        )
        return TurnEnd(outcome="model_error", cause=long, error=long * 2)

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await on.settle()
        assert len(await on.decoded(sid, ev.TurnStep)) == 1
        async with stage(image=on.store.image(), clock=on.clock) as again:
            await again.call(cm.GateOpen(sid=sid))
            await again.send(sid)
            await again.settle()
            assert (await again.decoded(sid, ev.TurnCompleted))[-1].outcome == "completed"


async def test_text_that_is_not_unicode_does_not_stop_a_session() -> None:
    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        host.delta("half \ud83d")
        call = ToolCall(id="c", name="shell", args={"k\udc00": ["\udc00"]}, ok=True, result="out \udcff")
        await say(host, "lone \ud800 surrogate", calls=(call,))
        return TurnEnd(outcome="completed", error="\ud800")

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await on.settle()
        assert [e.outcome for e in await on.decoded(sid, ev.TurnCompleted)] == ["completed"]
        (step,) = await on.decoded(sid, ev.TurnStep)
        assert step.text == "lone \ufffd surrogate"


# -- what the agent asks -----------------------------------------------------------------------------


async def test_an_agent_that_idles_is_woken_by_its_deadline_and_leaves_its_goal_alone() -> None:
    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        reply = await host.ask(AgentRequest(name="request_idle", args={"max_idle_duration_secs": 600}))
        assert reply.ok
        assert reply.ends_turn
        refused = await host.ask(AgentRequest(name="request_idle", args={"max_idle_duration_secs": 5}))
        assert not refused.ok
        await say(host, "idling")
        return TurnEnd(outcome="idle")

    async with stage() as on:
        sid = await on.new(run=play, goal="win")
        await on.pump_through(2_000)
        assert [h.kind for h in (await on.state(sid)).gate.holds] == ["RequestIdle"]
        await on.pump_through(599_999)
        assert len(on.requests) == 1
        await on.pump_through(2_001)
        assert len(on.requests) == 2
        assert (await on.state(sid)).goal.status == "active"  # type: ignore[union-attr]


async def test_a_degenerating_session_is_stopped_after_five_turns_and_reopened_by_an_envelope() -> None:
    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await say(host, "16/100. Not complete. No action.", usage=Usage(input_tokens=100, output_tokens=9))
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=play, goal="win")
        await on.pump_through(HOUR // 2)
        assert len(on.requests) == 5
        answer = await on.send(sid, caller=CHANNEL)
        assert answer.result["held"] is False
        await on.settle()
        assert len(on.requests) == 6
        assert any(m.source == "system" for m in on.requests[-1].messages), "the model is told"


# -- places ------------------------------------------------------------------------------------------


async def test_at_most_so_many_turns_run_at_once_and_the_others_wait_in_line() -> None:
    gate = Gate()
    async with stage(concurrent_turns=2) as on:
        on.plays["waits"] = waits_at(gate)
        sids = [await on.new("waits") for _ in range(5)]
        for sid in sids:
            await on.send(sid)
        await on.settle()
        assert len(on.active) == 2
        gate.open()
        await on.until(lambda: len(on.requests) == 5)
        await on.settle()
        for sid in sids:
            assert [e.outcome for e in await on.decoded(sid, ev.TurnCompleted)] == ["completed"]


async def test_a_turn_in_line_is_cut_at_once_and_never_driven() -> None:
    gate = Gate()
    async with stage(concurrent_turns=1) as on:
        on.plays["waits"] = waits_at(gate)
        first, second = await on.new("waits"), await on.new("waits")
        await on.send(first)
        await on.send(second)
        await gate.reached.wait()
        with anyio.fail_after(2):
            answer = await on.call(cm.Interrupt(sid=second))
        assert answer.result["stopped"] is True
        gate.open()
        await on.settle()
        assert [r.sid for r in on.requests] == [first]


async def test_a_session_that_ends_while_it_runs_lets_go_of_its_place() -> None:
    gate = Gate()
    async with stage(concurrent_turns=1) as on:
        on.plays["waits"] = waits_at(gate)
        first, second = await on.new("waits"), await on.new()
        await on.send(first)
        await gate.reached.wait()
        await on.send(second)
        await on.call(cm.SessionEnd(sid=first))
        await on.until(lambda: len(on.requests) == 2)


# -- the deadline of a turn belongs to the turn, not to the line -------------------------------------


async def test_waiting_in_line_does_not_count_for_the_deadline_of_a_turn() -> None:
    gate = Gate()
    async with stage(concurrent_turns=1) as on:
        on.plays["waits"] = waits_at(gate)
        first = await on.new("waits")
        second = await on.new(set={"turn.deadline_ms": 20})
        await on.send(first)
        await on.send(second)
        await gate.reached.wait()
        await anyio.sleep(0.05)
        gate.open()
        await on.until(lambda: len(on.requests) == 2)
        await on.settle()
        assert [e.outcome for e in await on.decoded(second, ev.TurnCompleted)] == ["completed"]


async def test_streamed_text_reaches_watchers_with_its_turn() -> None:
    async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
        for piece in ("a", "", "b"):
            host.delta(piece)
        await host.step(StepDone(text="ab"))
        return TurnEnd(outcome="completed")

    async with stage() as on:
        sid = await on.new(run=play)
        await on.send(sid)
        await on.settle()
        assert on.deltas == [(sid, 1, "a"), (sid, 1, "b")]
