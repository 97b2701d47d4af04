"""A compacted context: the running turn, the next turn, and a session that is loaded again see the same."""

from __future__ import annotations

from typing import Any

import pytest

from loopd.core.compaction import Plan, digest
from loopd.core.conversation import Message, StepDone, TurnEnd, TurnRequest
from loopd.engine import forking, loading
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import Usage
from tests.engine.stage import Stage, stage

pytestmark = pytest.mark.anyio


class Forgetful:
    """Compacts in the turns that it is told to; keeps what it would have sent."""

    def __init__(self, *when: int, summary: str = "all of it in short") -> None:
        self.when = when
        self.summary = summary
        self.sent: dict[int, tuple[Message, ...]] = {}

    async def play(self, request: TurnRequest, host: Any) -> TurnEnd:
        messages = request.messages
        if request.n in self.when:
            steps = [m.ss for m in messages if m.role == "assistant"]
            plan = Plan(
                reason="window", upto_ss=steps[-1], summary=self.summary, usage=Usage(output_tokens=9)
            )
            messages = await host.compacted(plan, messages)
        self.sent[request.n] = messages
        await host.step(StepDone(text=f"answer {request.n}", usage=Usage(output_tokens=1)))
        return TurnEnd(outcome="completed")


async def taken(here: Stage, sid: str, turns: int) -> None:
    for n in range(turns):
        await here.send(sid, f"question {n}")
        await here.until(lambda: not here.router.running())


@pytest.mark.parametrize("summary", ["all of it in short", "long " * 2_000])
async def test_the_summary_stands_in_front_from_then_on(summary: str) -> None:
    async with stage() as here:
        mind = Forgetful(3, summary=summary)
        sid = await here.new(run=mind.play)
        await taken(here, sid, 4)
        texts = [m.text for m in mind.sent[4]]
        assert texts[0].endswith(summary)
        assert texts[1:] == ["question 2", "answer 3", "question 3"]
        (event,) = await here.decoded(sid, ev.ContextCompacted)
        assert event.after_sha256 == digest(mind.sent[3])
        state = await here.state(sid)
        assert state.spent.output == 4 * 1 + 9, "the summary was paid for"
        for n in (3, 4):
            view = (await here.call(cm.TurnGet(sid=sid, n=n, prompt=True))).result["prompt"]
            assert view["missing"] == []
            assert [m["text"] for m in view["messages"]] == [m.text for m in mind.sent[n]]
        image = here.store.image()
    async with stage(image=image) as again:
        again.plays["plain"] = mind.play
        await again.send(sid, "question 4")
        await again.until(lambda: not again.router.running())
        assert [m.text for m in mind.sent[5]] == [*texts, "answer 4", "question 4"]


async def test_a_later_summary_replaces_the_earlier_one() -> None:
    async with stage() as here:
        mind = Forgetful(2, 4)
        sid = await here.new(run=mind.play)
        await taken(here, sid, 5)
        assert [m.source for m in mind.sent[5]] == ["summary", "human", "model", "human"]


async def test_a_summary_that_is_older_than_what_is_read_at_loading_still_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "HISTORY_EVENTS", 8)
    async with stage() as here:
        mind = Forgetful(2)
        sid = await here.new(run=mind.play)
        await taken(here, sid, 6)
        image = here.store.image()
    async with stage(image=image) as again:
        again.plays["plain"] = mind.play
        await again.send(sid, "question 6")
        await again.until(lambda: not again.router.running())
        assert mind.sent[7][0].text.endswith("all of it in short")


async def test_a_turn_that_is_over_compacts_nothing() -> None:
    async with stage() as here:
        hosts: list[Any] = []

        async def play(request: TurnRequest, host: Any) -> TurnEnd:
            hosts.append(host)
            await host.step(StepDone(text="x"))
            return TurnEnd(outcome="completed")

        sid = await here.new(run=play)
        await taken(here, sid, 1)
        with pytest.raises(Refused):
            await hosts[0].compacted(Plan(reason="window", upto_ss=1), ())
        assert await here.decoded(sid, ev.ContextCompacted) == []


async def test_a_summary_from_before_all_that_is_read_again_is_known_to_a_fork_and_to_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (loading, forking):
        monkeypatch.setattr(module, "HISTORY_EVENTS", 8)
    async with stage() as here:
        mind = Forgetful(2)
        sid = await here.new(run=mind.play)
        await taken(here, sid, 2)
        zero = "0" * 64
        loop = await here.router.loop_of(sid)
        loop.note(
            ev.ContextCompacted(
                n=2, reason="window", before_sha256=zero, after_sha256=zero, result_chars=5_000
            )
        )
        await taken(here, sid, 6)
        origin = await forking.origin_of(here.store, await here.state(sid), None)
        assert b"all of it in short" in origin.history
        image = here.store.image()
    async with stage(image=image) as again:
        loop = await again.router.loop_of(sid)
        summary = loop.history.inheritance().summary
        assert summary is not None
        assert summary.text.endswith("all of it in short")
