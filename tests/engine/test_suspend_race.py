"""Contract 3: suspend raced against the ends and beginnings of turns, judged by the journal."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from tests.engine.stage import AGENT, CHANNEL, HUMAN, Stage, say, stage

pytestmark = pytest.mark.anyio
MODES = ("after_turn", "interrupt", "kill")


async def race(on: Stage, sid: str, dice: random.Random) -> int:
    """Work comes in from all sides while somebody suspends; then all is let go again. Returns the proof."""
    mode = dice.choice(MODES)

    async def later(steps: int, command: cm.Command, caller: object = HUMAN) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await on.call(command, caller)  # type: ignore[arg-type]

    async def time_passes(steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
            await on.pump(1)

    proofs: list[tuple[int, int | None]] = []

    async def suspends(steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        answer = await on.call(cm.Suspend(sid=sid, mode=mode, quarantine=True))  # type: ignore[arg-type]
        turn = answer.result["turn"]
        proofs.append((answer.seq, None if turn is None else turn["n"]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            later, dice.randrange(12), cm.Send(sid=sid, text="x"), dice.choice([HUMAN, AGENT, CHANNEL])
        )
        tasks.start_soon(later, dice.randrange(12), cm.CronRun(sid=sid, job="j"))
        tasks.start_soon(time_passes, dice.randrange(1, 8))
        tasks.start_soon(suspends, dice.randrange(12))
    await on.settle(dice.randrange(3, 25))
    await on.pump(1)
    (seq, in_flight) = proofs[0]
    after = await on.store.page(
        sid=sid, after=seq, before=None, limit=500, kinds=("turn.started", "gate.changed")
    )
    started = [e for e in after if e.kind == "turn.started"]
    assert started == [], f"a turn began behind seq {seq} while suspended ({mode})"
    if mode != "after_turn":
        assert (await on.state(sid)).turn is None
        assert sid not in on.active
    elif in_flight is not None:
        await on.until(lambda: sid not in on.active)
        await on.settle(6)
        assert (await on.state(sid)).turn is None
    await on.call(cm.Unsuspend(sid=sid))
    return seq


async def run(races: int, seed: int) -> None:
    dice = random.Random(seed)
    done = 0
    while done < races:
        async with stage() as on:

            async def play(request: TurnRequest, host: TurnHost) -> TurnEnd:
                for _ in range(dice.randrange(6)):
                    await anyio.lowlevel.checkpoint()
                host.delta("partial")
                await say(host, f"turn {request.n} {dice.random()}")
                return TurnEnd(outcome="completed")

            settings = {"continuation.min_gap_ms": 1, "rules.barren_streak.threshold": 0}
            sid = await on.new(run=play, goal="win", set=settings, preset="published")
            await on.call(cm.CronPut(sid=sid, job="j", expr="0 0 1 1 *", text="tick"))
            for _ in range(min(100, races - done)):
                seq = await race(on, sid, dice)
                done += 1
            proof = await on.store.verify(sid=sid, suspended_since=seq)
            assert [f for f in proof["findings"] if f["check"] == "contract 3"] == []
            assert proof["proof"]["turns_after"] == 0
            suspended = [e for e in await on.decoded(sid, ev.GateChanged) if e.cause == "suspend"]
            assert len(suspended) >= min(100, races)


async def test_suspend_raced_against_turns_three_hundred_times_never_lets_one_through() -> None:
    await run(300, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 7))
async def test_suspend_raced_against_turns_two_thousand_times(seed: int) -> None:
    await run(2_000, seed)
