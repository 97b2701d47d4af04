"""Limits that sessions share: counted once, the same behind every restart, and while everything goes on."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopd.core.account import Purse, total_of
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.clock import ManualClock
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import policy_commands as pc
from loopd_protocol.errors import Refused
from loopd_protocol.events import Usage
from loopd_protocol.policy import BudgetLimitSpec
from tests.engine.stage import AGENT, Stage, say, stage

HOUR_MS = 3_600_000


async def spends(request: TurnRequest, host: TurnHost) -> TurnEnd:
    """A turn of two calls, each asked for first."""
    for number in range(2):
        await host.afford()
        await say(host, f"{request.n}.{number}", usage=Usage(input_tokens=60, output_tokens=40))
    return TurnEnd(outcome="completed")


def limit(kind: str, amount: int, per_ms: int | None = None) -> BudgetLimitSpec:
    return BudgetLimitSpec(kind=kind, limit=amount, per_ms=per_ms)  # type: ignore[arg-type]


async def turn(here: Stage, sid: str) -> None:
    before = (await here.state(sid)).turns
    await here.send(sid)
    await here.settle()
    session = await here.state(sid)
    assert session.turns == before + 1 or session.gate.holds or session.status != "live"


def purses(here: Stage) -> dict[str, Purse]:
    """All shared limits as they are counted now."""
    treasury, now = here.router.treasury, here.clock.now_ms()
    found = {p.which: p for label in treasury.labels() for p in treasury.of_label(label, now)}
    for sid in {*treasury.parents.values()}:
        loop = here.router.durable(sid)
        if loop is not None:
            found |= {f"{sid}: {p.which}": p for p in treasury.purses(loop, now) if p.scope == "session"}
    return found


@pytest.mark.anyio
async def test_what_is_counted_while_it_happens_is_what_a_restart_counts() -> None:
    async with stage() as here:
        parent = await here.new(
            "spends", run=spends, budgets=(limit("tokens", 10**6), limit("turns", 99, HOUR_MS))
        )
        child = await here.new("spends", parent=parent, labels={"team": "a"})
        other = await here.new("spends", labels={"team": "a"})
        await turn(here, other)
        for kind, per_ms in (("tokens", None), ("wall", None), ("tokens", HOUR_MS), ("turns", HOUR_MS)):
            await here.call(pc.BudgetSet(kind=kind, limit=10**6, per_ms=per_ms, label="team=a"))  # type: ignore[arg-type]
        for sid in (parent, child, other, child):
            await here.pump(1_000)
            await turn(here, sid)
        found = purses(here)
        assert found["team=a tokens"].used == 800
        assert found["team=a tokens/3600s"].used == 800
        assert found["team=a turns/3600s"].used == 4
        assert found[f"{parent}: session tokens"].used == 600
        assert found[f"{parent}: session turns/3600s"].used == 3
        image = here.store.image()
        clock = here.clock
    async with stage(image=image, clock=clock) as again:
        again.plays["spends"] = spends
        await again.router.loop_of(parent)
        assert purses(again) == found
        clock.advance(HOUR_MS)
        assert purses(again)["team=a tokens/3600s"].used == 0
        assert purses(again)["team=a tokens"].used == 800


@pytest.mark.anyio
async def test_a_limit_that_is_set_while_its_members_spend_misses_nothing_and_counts_nothing_twice() -> None:
    async with stage() as here:
        here.store.slow_reads = True
        sids = [await here.new("spends", run=spends, labels={"team": "a"}) for _ in range(3)]
        for sid in sids:
            await turn(here, sid)
        async with anyio.create_task_group() as tasks:
            for sid in sids:
                tasks.start_soon(here.send, sid)
            for per_ms in (None, HOUR_MS):
                tasks.start_soon(
                    here.call, pc.BudgetSet(kind="tokens", limit=10**6, per_ms=per_ms, label="team=a")
                )
        await here.settle(200)
        for sid in sids:
            await turn(here, sid)
        spent = sum([total_of(await here.state(sid)).of("tokens") for sid in sids])
        assert spent == 1_800
        assert {p.used for p in purses(here).values()} == {spent}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 3)),
        st.tuples(st.just("pass"), st.sampled_from([1_000, HOUR_MS // 2, HOUR_MS])),
        st.tuples(st.just("label"), st.sampled_from([None, HOUR_MS])),
        st.tuples(st.just("parent"), st.sampled_from([None, HOUR_MS])),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("drop"), st.sampled_from([None, HOUR_MS])),
    ),
    max_size=12,
)


@given(actions=ACTIONS)
@settings(max_examples=25, deadline=None)
def test_in_any_order_shared_counts_are_the_sum_of_their_members(actions: list[tuple[str, Any]]) -> None:
    anyio.run(_in_any_order, actions)


async def _in_any_order(actions: list[tuple[str, Any]]) -> None:
    image: bytes | None = None
    clock: ManualClock | None = None
    sids: list[str] = []
    pending = [*actions]
    while True:
        async with stage(image=image, clock=clock) as here:
            here.plays["spends"] = spends
            if not sids:
                parent = await here.new("spends", labels={"team": "a"})
                sids = [parent, await here.new("spends", parent=parent)]
                sids += [
                    await here.new("spends", parent=sids[1], labels={"team": "a"}),
                    await here.new("spends"),
                ]
            clock = here.clock
            while pending:
                what, value = pending.pop(0)
                if what == "turn":
                    await turn(here, sids[value])
                elif what == "pass":
                    await here.pump(value)
                elif what == "label":
                    await here.call(pc.BudgetSet(kind="tokens", limit=10**9, per_ms=value, label="team=a"))
                elif what == "parent":
                    await here.call(pc.BudgetSet(kind="tokens", limit=10**9, per_ms=value, sid=sids[0]))
                elif what == "drop":
                    name = f"team=a tokens/{value // 1_000}s" if value else "team=a tokens"
                    if name in purses(here):
                        await here.call(pc.BudgetSet(kind="tokens", per_ms=value, label="team=a"))
                else:
                    break
                await _check(here, sids)
            if not pending:
                return
            image = here.store.image()


async def _check(here: Stage, sids: list[str]) -> None:
    totals = [total_of(await here.state(sid)).of("tokens") for sid in sids]
    await here.router.loop_of(sids[0])
    for name, purse in purses(here).items():
        if purse.per_ms is None:
            members = [0, 2] if name.startswith("team") else [0, 1, 2]
            assert purse.used == sum(totals[i] for i in members), name
        else:
            assert purse.used <= sum(totals)
            assert purse.until_ms == (here.clock.now_ms() // purse.per_ms + 1) * purse.per_ms


@pytest.mark.anyio
async def test_no_member_is_admitted_once_the_sum_is_spent() -> None:
    async with stage() as here:
        sids = [await here.new("spends", run=spends, labels={"team": "a"}) for _ in range(3)]
        await here.call(pc.BudgetSet(kind="tokens", limit=500, per_ms=HOUR_MS, label="team=a"))
        for sid in sids:
            await turn(here, sid)
        spent = [total_of(await here.state(sid)).of("tokens") for sid in sids]
        assert spent == [200, 200, 100]
        for sid in sids:
            await here.send(sid)
        await here.settle()
        assert [(await here.state(sid)).turn for sid in sids] == [None] * 3
        held = [await here.state(sid) for sid in sids]
        assert {hold.kind for session in held for hold in session.gate.holds} == {"Budget"}


@pytest.mark.anyio
async def test_agents_set_no_budgets_answer_nothing_and_change_no_settings() -> None:
    async with stage() as here:
        sid = await here.new("spends", run=spends)
        for command in (
            pc.BudgetSet(kind="tokens", limit=1, sid=sid),
            pc.BudgetSet(kind="tokens", limit=1, label="team=a"),
            pc.ApprovalAnswer(sid=sid, id="apr_1_1", answer="allow"),
            pc.SessionSet(sid=sid, set={"approvals.default": "allow"}),
        ):
            with pytest.raises(Refused) as refused:
                await here.call(command, AGENT)
            assert refused.value.code == "forbidden"


@pytest.mark.anyio
async def test_a_parent_has_to_live() -> None:
    async with stage() as here:
        sid = await here.new("spends", run=spends)
        await here.call(cm.SessionEnd(sid=sid))
        with pytest.raises(Refused) as refused:
            await here.new("spends", parent=sid)
        assert refused.value.code == "session_terminal"


@pytest.mark.anyio
async def test_what_a_count_has_read_from_the_journal_is_not_followed_again() -> None:
    async with stage() as here:
        sid = await here.new("spends", run=spends, labels={"team": "a"})
        await turn(here, sid)
        before = await here.state(sid)
        await turn(here, sid)
        after = await here.state(sid)
        await here.call(pc.BudgetSet(kind="tokens", limit=10**6, per_ms=HOUR_MS, label="team=a"))
        treasury, now, head = here.router.treasury, here.clock.now_ms(), here.store.head
        treasury.follow(before, after, now, seq=head - 1)
        assert purses(here)["team=a tokens/3600s"].used == 400
        treasury.follow(before, after, now, seq=head + 1)
        assert purses(here)["team=a tokens/3600s"].used == 600
