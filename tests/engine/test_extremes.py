"""Numbers as large as they may be, from models and operators: what is written can be read again."""

from __future__ import annotations

import pytest

from loopd.core.account import Price
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.core.prices import Prices
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.bounds import MAX_INT
from loopd_protocol.events import Usage
from loopd_protocol.policy import BudgetLimit
from loopd_protocol.policy_commands import BudgetSet
from tests.engine.stage import HUMAN, Stage, say, stage

pytestmark = pytest.mark.anyio
HUGE = Usage(input_tokens=MAX_INT, output_tokens=MAX_INT)
KINDS = ("tokens", "input_tokens", "output_tokens", "cost")


async def boasts(request: TurnRequest, host: TurnHost) -> TurnEnd:
    for n in range(4):
        done = await say(host, f"{request.n}.{n}", usage=HUGE, model="m")
        if done.stop:
            break
    return TurnEnd(outcome="completed")


async def readable(on: Stage, sid: str) -> None:
    for stored in await on.events(sid):
        assert ev.decode(stored.body)
    await on.call(cm.SessionGet(sid=sid))
    await on.call(cm.Why(sid=sid))
    async with stage(image=on.store.image(), clock=on.clock) as again:
        await again.send(sid, "still there?")
        await again.settle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_ms", [None, 60_000])
async def test_a_model_that_reports_absurd_numbers_breaks_no_session_with_a_budget(
    kind: str, per_ms: int | None
) -> None:
    prices = Prices({"m": Price(input=9_000_000, output=9_000_000)})
    async with stage(prices=prices) as on:
        limit = BudgetLimit(kind=kind, limit=MAX_INT, per_ms=per_ms)  # type: ignore[arg-type]
        sid = await on.new("boasts", run=boasts, budgets=(limit,), labels={"a": "b"})
        await on.call(BudgetSet(label="a=b", kind=kind, limit=MAX_INT, per_ms=per_ms), HUMAN)  # type: ignore[arg-type]
        for _ in range(3):
            await on.send(sid)
            await on.settle()
            await on.pump(100)
        await readable(on, sid)


async def test_a_model_that_reports_absurd_numbers_for_long_breaks_no_session() -> None:
    async def on_and_on(request: TurnRequest, host: TurnHost) -> TurnEnd:
        for n in range(1_100):
            await say(host, f"{request.n}.{n}", usage=HUGE, model="m")
        return TurnEnd(outcome="completed")

    async with stage(prices=Prices({"m": Price(input=9_000_000, output=9_000_000)})) as on:
        sid = await on.new("long", run=on_and_on, set={"turn.max_steps": 10_000})
        await on.send(sid)
        await on.until(lambda: on.requests and sid not in on.active)
        await on.settle()
        assert len(await on.decoded(sid, ev.TurnCompleted)) == 1
        await readable(on, sid)
