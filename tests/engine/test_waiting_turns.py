"""Turns that wait for a person, and turns that may not call their model."""

from __future__ import annotations

import anyio
import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol import policy_commands as pc
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.policy import BudgetLimitSpec, PolicyRuleSpec
from tests.engine.stage import Stage, say, stage

pytestmark = pytest.mark.anyio

ASK = (PolicyRuleSpec(effect="ask", tool_class="exec"),)


class Worker:
    """Runs commands, and remembers what it was told."""

    def __init__(self, *commands: str, permit: bool = False) -> None:
        self.commands = commands
        self.permit = permit
        self.told: list[str] = []

    async def __call__(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        calls = []
        for number, command in enumerate(self.commands):
            call = ToolCall(id=f"c{number}", name="shell", args={"command": command}, tool_class="exec")
            try:
                if self.permit:
                    await host.permit(call)
                await host.intent(call)
                await host.outcome(call, "ok")
                self.told.append("ran")
            except Refused as refused:
                self.told.append(f"{refused.code}: {refused.message}")
            calls.append(call)
        await say(host, f"turn {request.n}", calls=tuple(calls))
        return TurnEnd(outcome="completed")


async def asked(here: Stage, sid: str, count: int = 1) -> str:
    await here.settle()
    found = await here.decoded(sid, pe.ApprovalRequested)
    assert len(found) == count
    return str(found[-1].id)


async def answer(here: Stage, sid: str, approval: str, how: str = "allow", **more: str) -> None:
    await here.call(pc.ApprovalAnswer(sid=sid, id=approval, answer=how, **more))  # type: ignore[arg-type]
    await here.settle()


async def test_an_intent_waits_for_the_answer_and_is_written_behind_it() -> None:
    async with stage() as here:
        worker = Worker("make")
        sid = await here.new("w", run=worker, policy=ASK)
        await here.send(sid)
        approval = await asked(here, sid)
        assert worker.told == []
        assert await here.decoded(sid, ev.EffectIntent) == []
        await answer(here, sid, approval)
        assert worker.told == ["ran"]
        kinds = [e.kind for e in await here.events(sid)]
        assert kinds.index("approval.answered") < kinds.index("effect.intent") < kinds.index("turn.completed")


async def test_permit_and_intent_of_one_call_are_one_question() -> None:
    async with stage() as here:
        worker = Worker("make", "make", permit=True)
        sid = await here.new("w", run=worker, policy=ASK)
        await here.send(sid)
        await answer(here, sid, await asked(here, sid))
        await answer(here, sid, await asked(here, sid, 2), "deny", reason="once is enough")
        assert worker.told == [
            "ran",
            "forbidden: a person refused it: once is enough. Do not try the same again; go on without it.",
        ]


async def test_without_a_policy_nothing_is_asked_and_nothing_is_written() -> None:
    async with stage() as here:
        worker = Worker("make", permit=True)
        sid = await here.new("w", run=worker)
        await here.send(sid)
        await here.settle()
        assert worker.told == ["ran"]
        kinds = {e.kind for e in await here.events(sid)}
        assert not {kind for kind in kinds if kind.startswith("approval.")}


async def test_the_deadline_denies_by_itself_and_the_turn_goes_on() -> None:
    async with stage() as here:
        worker = Worker("make")
        sid = await here.new("w", run=worker, policy=ASK, set={"approvals.wait_s": 600})
        await here.send(sid)
        await asked(here, sid)
        await here.pump_through(600_000)
        assert worker.told == [
            "forbidden: nobody approved it within 600 s. Do not try the same again; go on without it."
        ]
        assert (await here.state(sid)).gate.holds == ()


async def test_a_waiting_turn_leaves_its_place_and_takes_one_again() -> None:
    async with stage(concurrent_turns=1) as here:
        worker = Worker("make")
        sid = await here.new("w", run=worker, policy=ASK)
        await here.send(sid)
        approval = await asked(here, sid)
        other = await here.new()
        await here.send(other)
        await here.settle()
        assert (await here.state(other)).turns == 1
        assert (await here.state(other)).turn is None
        await answer(here, sid, approval)
        assert (await here.state(sid)).turn is None
        third = await here.new()
        await here.send(third)
        await here.settle()
        assert (await here.state(third)).turn is None


async def test_an_interrupt_ends_a_waiting_turn_at_once_even_where_the_driver_shields_its_intent() -> None:
    async with stage() as here:

        async def shielded(request: TurnRequest, host: TurnHost) -> TurnEnd:
            with anyio.CancelScope(shield=True):
                await Worker("make")(request, host)
            return TurnEnd(outcome="completed")

        sid = await here.new("w", run=shielded, policy=ASK)
        await here.send(sid)
        await asked(here, sid)
        with anyio.fail_after(5):
            told = await here.call(cm.Interrupt(sid=sid))
        assert told.result["stopped"] is True
        assert (await here.state(sid)).permits.pending == ()


async def test_a_write_that_fails_while_somebody_is_asked_leaves_no_turn_behind() -> None:
    async with stage() as here:
        worker = Worker("make")
        sid = await here.new("w", run=worker, policy=ASK)
        await here.send(sid)
        approval = await asked(here, sid)
        here.store.refuse = Refused("storage_full", "no room")
        with pytest.raises(Refused):
            await answer(here, sid, approval)
        here.store.refuse = None
        await here.settle()
        assert here.active == set()
        await here.pump(2_000)
        await here.settle()
        (cut,) = await here.decoded(sid, ev.TurnInterrupted)
        assert cut.cause == "crash"
        with pytest.raises(Refused) as refused:
            await answer(here, sid, approval)
        assert refused.value.code == "conflict"


async def test_two_answers_at_once_are_one_answer_and_one_conflict() -> None:
    async with stage() as here:
        worker = Worker("make")
        sid = await here.new("w", run=worker, policy=ASK)
        await here.send(sid)
        approval = await asked(here, sid)
        results: list[str] = []

        async def try_it(how: str) -> None:
            try:
                await answer(here, sid, approval, how)
                results.append("ok")
            except Refused as refused:
                results.append(refused.code)

        async with anyio.create_task_group() as tasks:
            for how in ("allow", "deny", "allow"):
                tasks.start_soon(try_it, how)
        assert sorted(results) == ["conflict", "conflict", "ok"]
        assert len(await here.decoded(sid, pe.ApprovalAnswered)) == 1
        assert worker.told == ["ran"]


async def test_the_same_key_answers_once_and_says_so_again() -> None:
    async with stage() as here:
        sid = await here.new("w", run=Worker("make"), policy=ASK)
        await here.send(sid)
        command = pc.ApprovalAnswer(sid=sid, id=await asked(here, sid), answer="allow")
        first = await here.call(command, key="k")
        again = await here.call(command, key="k")
        assert (first.dup, again.dup) == (False, True)
        assert again.result == first.result


async def test_no_call_is_made_once_nothing_is_left() -> None:
    async with stage() as here:
        calls = 0

        async def greedy(_request: TurnRequest, host: TurnHost) -> TurnEnd:
            nonlocal calls
            while True:
                await host.afford()
                calls += 1
                # no tool call in it, so the step itself does not stop the turn: `afford` has to
                await say(host, f"call {calls}", usage=Usage(input_tokens=100))

        limit = BudgetLimitSpec(kind="tokens", limit=450)
        sid = await here.new("g", run=greedy, budgets=(limit,), set={"rules.repeated_text.enabled": False})
        await here.send(sid)
        await here.settle()
        assert calls == 5
        (completed,) = await here.decoded(sid, ev.TurnCompleted)
        assert completed.outcome == "budget"
        assert (await here.state(sid)).status == "aborted_constraint"
