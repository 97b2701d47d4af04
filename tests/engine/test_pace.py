"""Turns go on a few at a time: whatever else the loop has to do comes in between."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from loopd.engine.pace import AT_ONCE, Pace
from loopd.engine.questions import Place

pytestmark = pytest.mark.anyio

TURNS = 40


async def test_few_turns_go_on_in_one_step_of_the_loop_and_in_their_order() -> None:
    pace, went, seen = Pace(), [], []

    async def turn(n: int) -> None:
        await pace.take()
        went.append(n)

    async with anyio.create_task_group() as tasks:
        for n in range(TURNS):
            tasks.start_soon(turn, n)
        with anyio.fail_after(5):
            while len(went) < TURNS:
                await checkpoint()
                seen.append(len(went))
    assert went == list(range(TURNS))
    # A command that waits for nothing but its place in the loop is never behind more turns than these.
    between = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(between) <= AT_ONCE
    assert sum(between) == TURNS


async def test_a_turn_alone_never_waits() -> None:
    pace = Pace()
    for _ in range(10):
        with anyio.CancelScope() as scope:
            scope.cancel()  # whatever waits now is cancelled
            await pace.take()
        assert not scope.cancelled_caught
        for _ in range(3):
            await checkpoint()


async def test_a_turn_that_is_cut_while_it_waits_holds_nobody_up_and_leaves_its_place() -> None:
    limiter, pace, went = anyio.CapacityLimiter(2 * TURNS), Pace(), []

    async def turn(n: int, scope: anyio.CancelScope) -> None:
        with scope:
            async with Place(limiter, pace) as place:
                await place.breathe()
                went.append(n)

    scopes = [anyio.CancelScope() for _ in range(TURNS)]
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for n, scope in enumerate(scopes):
                tasks.start_soon(turn, n, scope)
            await checkpoint()
            await checkpoint()
            for scope in scopes[TURNS // 2 :]:
                scope.cancel()
    assert went == list(range(TURNS // 2))
    assert limiter.borrowed_tokens == 0


async def test_a_turn_that_was_cut_before_it_began_takes_no_place() -> None:
    limiter, pace = anyio.CapacityLimiter(1), Pace()
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with Place(limiter, pace):
            pytest.fail("it went on")
    assert scope.cancelled_caught
    assert limiter.borrowed_tokens == 0


async def test_a_place_is_waited_for_when_all_are_taken() -> None:
    limiter, pace, went = anyio.CapacityLimiter(1), Pace(), []

    async def turn(n: int) -> None:
        async with Place(limiter, pace):
            went.append((n, limiter.borrowed_tokens))
            await checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                tasks.start_soon(turn, n)
    assert went == [(n, 1) for n in range(5)]
