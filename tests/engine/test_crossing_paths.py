"""Two things of one kind that meet: questions of one turn, limits that are set twice, acks and deletions."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from loopd.core.account import total_of
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import access_commands as ac
from loopd_protocol import policy_commands as pc
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.policy import PolicyRuleSpec
from tests.engine.stage import Gate, Stage, say, stage

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000
ASK = (PolicyRuleSpec(effect="ask", tool_class="exec"),)


# -- questions of one turn ------------------------------------------------------------------------------


async def asks(host: TurnHost, name: str, done: list[str]) -> None:
    call = ToolCall(id=name, name="shell", args={"command": name}, tool_class="exec")
    await host.intent(call)
    await host.outcome(call, "ok")
    done.append(name)


async def question(here: Stage, sid: str, count: int) -> str:
    await here.settle()
    asked = await here.decoded(sid, pe.ApprovalRequested)
    assert len(asked) == count
    return str(asked[-1].id)


class Crossing:
    """A turn that asks, and asks again when `more` is set; another one has the only place until `busy` opens."""

    def __init__(self) -> None:
        self.more, self.busy = anyio.Event(), Gate()
        self.done: list[str] = []

    async def twice(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        async def later() -> None:
            await self.more.wait()
            await asks(host, "second", self.done)

        async with anyio.create_task_group() as calls:
            calls.start_soon(asks, host, "first", self.done)
            calls.start_soon(later)
        await say(host)
        return TurnEnd(outcome="completed")

    async def holds(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        await self.busy.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    async def answered(self, here: Stage) -> tuple[str, str]:
        """The first question is answered while the other turn has the only place; returns both sessions."""
        sid = await here.new("twice", run=self.twice, policy=ASK)
        await here.send(sid)
        first = await question(here, sid, 1)
        other = await here.new("holds", run=self.holds)
        await here.send(other)
        await self.busy.reached.wait()
        await here.call(pc.ApprovalAnswer(sid=sid, id=first, answer="allow"))
        await here.settle()
        return sid, other


async def test_a_turn_that_waits_for_its_place_may_ask_again_and_be_answered_meanwhile() -> None:
    crossing = Crossing()
    async with stage(concurrent_turns=1) as here:
        sid, other = await crossing.answered(here)  # and waits for the only place
        crossing.more.set()
        second = await question(here, sid, 2)
        await here.call(pc.ApprovalAnswer(sid=sid, id=second, answer="allow"))
        await here.settle()
        crossing.busy.open()
        await here.settle(200)
        assert sorted(crossing.done) == ["first", "second"]
        assert (await here.state(sid)).turn is None
        await here.send(other)
        await here.settle()
        assert (await here.state(other)).turns == 2


async def test_a_turn_that_was_given_its_place_while_it_asks_again_leaves_it_to_others() -> None:
    crossing = Crossing()
    async with stage(concurrent_turns=1) as here:
        sid, _ = await crossing.answered(here)
        crossing.more.set()
        second = await question(here, sid, 2)
        crossing.busy.open()
        await here.settle(200)
        assert crossing.done == ["first"]
        third = await here.new()
        await here.send(third)
        await here.settle()
        assert ((await here.state(third)).turns, (await here.state(third)).turn) == (1, None)
        await here.call(pc.ApprovalAnswer(sid=sid, id=second, answer="allow"))
        await here.settle()
        assert (await here.state(sid)).turn is None


# -- shared limits ------------------------------------------------------------------------------------------


async def spends(request: TurnRequest, host: TurnHost) -> TurnEnd:
    await say(host, str(request.n), usage=Usage(input_tokens=60, output_tokens=40))
    return TurnEnd(outcome="completed")


def counted(here: Stage) -> dict[str, int]:
    return {p.which: p.used for p in here.router.treasury.of_label("team=a", here.clock.now_ms())}


async def test_what_was_spent_is_counted_also_when_the_next_write_of_the_session_fails() -> None:
    async with stage() as here:
        sid = await here.new("spends", run=spends, labels={"team": "a"})
        for per_ms in (None, HOUR_MS):
            await here.call(pc.BudgetSet(kind="tokens", limit=10**6, per_ms=per_ms, label="team=a"))
        reached = Gate()

        async def pauses(request: TurnRequest, host: TurnHost) -> TurnEnd:
            await reached.wait()
            return await spends(request, host)

        here.plays["spends"] = pauses
        await here.send(sid)
        await reached.reached.wait()
        here.store.held = True
        reached.open()
        await here.settle()  # the step is on its way to the journal
        here.store.refuse = Refused("overloaded", "busy")
        with pytest.raises(Refused):
            await here.send(sid, "lost")
        here.store.refuse = None
        here.store.release()
        await here.settle()
        await here.pump(2_000)
        await here.settle()
        spent = total_of(await here.state(sid)).of("tokens")
        assert spent == 100
        assert counted(here) == {"team=a tokens": spent, f"team=a tokens/{HOUR_MS // 1_000}s": spent}


async def test_a_limit_that_is_set_twice_at_once_counts_nothing_twice() -> None:
    async with stage() as here:
        sids = [await here.new("spends", run=spends, labels={"team": "a"}) for _ in range(3)]
        for sid in sids:
            await here.send(sid)
            await here.settle()
        page = here.store.page

        async def slow(**given: Any) -> Any:
            found = await page(**given)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            return found

        here.store.page = slow  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for amount in (10**6, 10**6 + 1):
                tasks.start_soon(
                    here.call, pc.BudgetSet(kind="tokens", limit=amount, per_ms=HOUR_MS, label="team=a")
                )
        await here.settle(100)
        assert set(counted(here).values()) == {300}


# -- consumers ------------------------------------------------------------------------------------------------


async def test_a_consumer_that_is_deleted_while_it_acknowledges_is_gone_for_good() -> None:
    async with stage() as here:
        await here.call(ac.ConsumerCreate(name="c", after=0))
        here.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.call, ac.ConsumerDelete(name="c"))
            await here.settle()

            async def acknowledges() -> None:
                try:
                    await here.call(ac.ConsumerAck(name="c", seq=1))
                except Refused as refused:
                    assert refused.code == "not_found"  # noqa: PT017

            tasks.start_soon(acknowledges)
            await here.settle()
            here.store.release()
        assert "c" not in await here.store.house("consumer")


# -- tokens ---------------------------------------------------------------------------------------------------


async def test_a_token_that_is_revoked_while_it_is_rotated_has_no_grace() -> None:
    async with stage() as here:
        made = await here.call(ac.TokenNew(scopes=("read",)))
        kid, token = made.result["kid"], made.result["token"]
        here.store.held = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.call, ac.TokenRotate(kid=kid, grace_ms=60_000))
            await here.settle()
            tasks.start_soon(here.call, ac.TokenRevoke(kid=kid))
            await here.settle()
            here.store.release()
        with pytest.raises(Refused) as refused:
            here.dispatcher.keyring.authenticate(token)
        assert refused.value.code == "unauthenticated"
