"""May a model call leave? Only inside a running turn of an open session; and what became of it is kept."""

from __future__ import annotations

import hashlib
from typing import Any

import anyio
import pytest

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd.core.inputs import HoldRequested
from loopd.engine.model_witness import ModelWitness
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ModelCalled, Usage
from loopd_protocol.holds import Maintenance
from loopd_protocol.policy_commands import BudgetSet
from tests.engine.stage import Stage, stage

pytestmark = pytest.mark.anyio
REQ, RES = hashlib.sha256(b"req").hexdigest(), hashlib.sha256(b"res").hexdigest()


class Agent:
    """A hosted agent: it calls its model whenever the test says so, also when its turn is over."""

    def __init__(self, here: Stage) -> None:
        self.here = here
        self.witness = ModelWitness(here.router)
        self.running = anyio.Event()
        self.go_on = anyio.Event()
        self.host: Any = None
        self.cuts = 0

    async def play(self, request: Any, host: Any) -> TurnEnd:
        self.host = host
        self.running.set()
        await self.go_on.wait()
        await host.step(StepDone(text="done"))
        return TurnEnd(outcome="completed")

    def cut(self) -> None:
        self.cuts += 1

    async def ask(self, sid: str) -> str | int:
        try:
            return await self.witness.admit(sid, 100, self.cut)
        except Refused as refused:
            return refused.message


async def test_a_call_may_leave_while_its_turn_runs_and_at_no_other_time() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        assert await agent.ask(sid) == "No turn of this session runs now."
        await here.send(sid)
        await agent.running.wait()
        assert await agent.ask(sid) == 1
        agent.go_on.set()
        await here.until(lambda: not here.router.running())
        await here.settle()
        assert agent.cuts == 1, "what still ran at the end of the turn is broken off"
        assert await agent.ask(sid) == "No turn of this session runs now."


@pytest.mark.parametrize("mode", ["interrupt", "kill"])
async def test_no_call_leaves_after_a_suspension_cut_the_turn(mode: Any) -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        await here.send(sid)
        await agent.running.wait()
        assert await agent.ask(sid) == 1
        await here.call(cm.Suspend(sid=sid, mode=mode))
        assert agent.cuts == 1
        assert await agent.ask(sid) == "No turn of this session runs now."


async def test_a_suspension_that_lets_the_turn_end_lets_its_calls_go_on() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        await here.send(sid)
        await agent.running.wait()
        await here.call(cm.Suspend(sid=sid))
        assert await agent.ask(sid) == 1
        agent.go_on.set()
        await here.until(lambda: not here.router.running())
        assert await agent.ask(sid) == "No turn of this session runs now."


async def test_an_agent_that_asked_to_idle_calls_its_model_no_more() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play, goal="work")
        await here.send(sid)
        await agent.running.wait()
        assert await agent.ask(sid) == 1
        await agent.host.ask(
            AgentRequest(name="request_idle", args={"max_idle_duration_secs": 600, "reason": "r"})
        )
        assert await agent.ask(sid) == "The agent asked to idle."
        agent.go_on.set()
        await here.until(lambda: not here.router.running())


async def test_a_hold_that_came_in_the_turn_stops_its_next_call() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        await here.send(sid)
        await agent.running.wait()
        assert await agent.ask(sid) == 1
        loop = await here.router.loop_of(sid)
        hold = Maintenance(by="daemon", until_ms=here.clock.now_ms() + 60_000)
        await loop.apply(HoldRequested(hold=hold, cause="maintenance")).committed()
        assert await agent.ask(sid) == "The session is held: Maintenance."
        agent.go_on.set()
        await here.until(lambda: not here.router.running())


async def test_a_used_up_budget_stops_the_next_call() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        await here.call(BudgetSet(sid=sid, kind="output_tokens", limit=100))
        await here.send(sid)
        await agent.running.wait()
        assert await agent.ask(sid) == 1
        call = ModelCalled(n=1, api="messages", usage=Usage(input_tokens=10, output_tokens=150))
        await agent.witness.called(sid, call, request=None, response=None)
        refused = await agent.ask(sid)
        assert isinstance(refused, str)
        assert "output_tokens" in refused or "output tokens" in refused
        agent.go_on.set()
        await here.until(lambda: not here.router.running())


async def test_what_passed_is_kept_with_its_bytes_also_behind_the_turn() -> None:
    async with stage() as here:
        agent = Agent(here)
        sid = await here.new(run=agent.play)
        await here.send(sid)
        await agent.running.wait()
        agent.go_on.set()
        await here.until(lambda: not here.router.running())
        call = ModelCalled(
            n=1,
            api="responses",
            outcome="cut",
            request_sha256=REQ,
            response_sha256=RES,
            stored=True,
            request_bytes=3,
        )
        await agent.witness.called(sid, call, request=b"req", response=b"res")
        (kept,) = await here.decoded(sid, ev.ModelCalled)
        assert (kept.n, kept.outcome, kept.request_bytes) == (1, "cut", 3)
        assert await here.store.blob(REQ) == b"req"
        assert await here.store.blob(RES) == b"res"
