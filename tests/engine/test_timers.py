"""All deadlines in one heap: exact, once, whatever is armed again, taken back, or done to the clock."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.engine import timers as timers_module
from loopd.engine.clock import ManualClock, SystemClock
from loopd.engine.timers import Timers

KEYS = st.sampled_from([f"s{i}" for i in range(8)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), KEYS, st.one_of(st.none(), st.integers(0, 200))),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 200)),
    ),
    max_size=300,
)


@given(STEPS)
def test_it_agrees_with_a_sorted_list_whatever_is_armed_and_disarmed(
    steps: list[tuple[str, str, int | None]],
) -> None:
    clock = ManualClock(0)
    timers = Timers(clock)
    model: dict[str, int] = {}
    for what, key, moment in steps:
        if what == "arm":
            timers.arm(key, moment)
            model.pop(key, None)
            if moment is not None:
                model[key] = moment
        else:
            assert moment is not None
            assert timers.overdue_ms(moment) == max([0, *(moment - m for m in model.values())])
            popped = timers.pop_due(moment)
            assert sorted(popped) == sorted(k for k, m in model.items() if m <= moment)
            assert [model[k] for k in popped] == sorted(model[k] for k in popped), "earliest first"
            for k in popped:
                del model[k]
        assert len(timers) == len(model)
        assert timers.next_ms() == min(model.values(), default=None)
        assert all(timers.deadline_of(k) == m for k, m in model.items())
    assert sorted(timers.pop_due(1_000)) == sorted(model)


def test_arming_again_and_again_does_not_grow_the_heap() -> None:
    timers = Timers(ManualClock(0))
    for moment in range(20_000):
        for key in ("a", "b", "c"):
            timers.arm(key, moment)
    assert len(timers._heap) <= 64 + timers_module.STALE_FRACTION * 3 + 1
    assert sorted(timers.pop_due(20_000)) == ["a", "b", "c"]


def test_a_key_that_comes_back_to_an_earlier_deadline_fires_once() -> None:
    timers = Timers(ManualClock(0))
    for moment in (10, 20, 10, 20, 10):
        timers.arm("a", moment)
    assert timers.pop_due(100) == ["a"]
    timers.arm("a", 10)
    assert timers.pop_due(100) == ["a"]
    assert timers.pop_due(100) == []


class Bell:
    """Collects what was fired."""

    def __init__(self) -> None:
        self.fired: list[str] = []
        self.rang = anyio.Event()

    async def __call__(self, due: list[str]) -> None:
        self.fired += due
        self.rang.set()
        self.rang = anyio.Event()


@pytest.mark.anyio
@pytest.mark.parametrize("jump", [10_000, 10**9])
async def test_a_jump_of_the_wall_clock_is_noticed_within_a_nap(
    jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "NAP_MS", 20)
    clock, bell = ManualClock(), Bell()
    timers = Timers(clock)
    timers.arm("a", clock.now_ms() + 10_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run, bell)
        await anyio.lowlevel.checkpoint()
        rang = bell.rang
        clock.jump(jump)
        with anyio.fail_after(5):
            await rang.wait()
        tasks.cancel_scope.cancel()
    assert bell.fired == ["a"]


@pytest.mark.anyio
async def test_an_earlier_deadline_wakes_a_task_that_sleeps_for_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers_module, "NAP_MS", 60_000)
    clock, bell = SystemClock(), Bell()
    timers = Timers(clock)
    timers.arm("late", clock.now_ms() + 50_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timers.run, bell)
        await anyio.lowlevel.checkpoint()
        rang = bell.rang
        timers.arm("soon", clock.now_ms() + 5)
        with anyio.fail_after(5):
            await rang.wait()
        tasks.cancel_scope.cancel()
    assert bell.fired == ["soon"]
    assert timers.stalled_ms() < 5_000


@pytest.mark.anyio
async def test_more_and_more_that_is_due_at_once_does_not_starve_the_rest_of_the_loop() -> None:
    clock = ManualClock()
    timers = Timers(clock)
    ran = 0

    async def fire(due: list[str]) -> None:
        nonlocal ran
        ran += 1
        for key in due:
            timers.arm(key, clock.now_ms())  # due again at once

    async with anyio.create_task_group() as tasks:
        timers.arm("a", clock.now_ms())
        tasks.start_soon(timers.run, fire)
        with anyio.fail_after(5):
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert 0 < ran < 1_000
