"""Notes of a session: in their place, replayed as they are, left out when there is no room."""

from __future__ import annotations

from typing import Any

import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.core.replay import Row, replay
from loopd.engine.ports import TurnHost
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall
from tests.engine.stage import Stage, say, stage

pytestmark = pytest.mark.anyio
REPEATS: dict[str, Any] = {
    "rules.exact_repeat.enabled": True,
    "rules.exact_repeat.soft": 6,
    "rules.exact_repeat.soft_identical": 6,
    "rules.exact_repeat.hard": 9,
    "rules.barren_score.enabled": False,
    "rules.same_result.enabled": False,
    "rules.noop_calls.enabled": False,
}


async def again_and_again(request: TurnRequest, host: TurnHost) -> TurnEnd:
    for n in range(5):
        call = ToolCall(id=f"c{n}", name="probe", args={"path": "a"}, ok=True, result="the same")
        await say(host, f"I look once more, {n}.", calls=(call,))
    return TurnEnd(outcome="completed")


async def near(on: Stage) -> str:
    sid = await on.new("again", run=again_and_again, preset="hardened", set=REPEATS)
    await on.send(sid, "go")
    await on.until(lambda: len(on.requests) == 1 and not on.active)
    await on.settle()
    return sid


async def test_a_rule_that_comes_near_is_noted_once_behind_the_step_that_brought_it_there() -> None:
    async with stage() as on:
        sid = await near(on)
        events = [(stored, ev.decode(stored.body)) for stored in await on.events(sid)]
        noted = [event for _, event in events if isinstance(event, ev.DetectorNear)]
        (told,) = [event for event in noted if event.rule == "exact_repeat"]
        assert (told.n, told.score, told.soft, told.unit) == (1, 5, 6, "steps")
        assert told.given == {"t": "Noted"}
        place = [event for _, event in events].index(told)
        before = [event for _, event in events[:place] if isinstance(event, ev.TurnStep)][-1]
        assert before.total == told.step
        (ended,) = [event for _, event in events if isinstance(event, ev.TurnCompleted)]
        assert ended.near_misses["exact_repeat"] == 1
        rows = [Row(s.seq, s.ss, s.at_ms, s.kind, s.body) for s, _ in events]
        outcome = replay(rows)
        assert (outcome.status, outcome.facts) == ("same", 1 + len(noted)), outcome.difference


async def test_a_journal_that_has_enough_to_do_gets_no_notes_and_misses_nothing_else() -> None:
    async with stage() as on:
        on.store.takes_lazy = lambda: False  # type: ignore[method-assign]
        sid = await near(on)
        kinds = [stored.kind for stored in await on.events(sid)]
        assert "detector.near" not in kinds
        assert kinds.count("turn.step") == 5
        assert (await on.state(sid)).ss == len(kinds)
