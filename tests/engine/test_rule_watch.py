"""Rules that hang or raise: interrupted in time, named, skipped; the session and its journal go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.core.ladder import SLOW
from loopd.core.rules import lanes
from loopd.engine.ports import TurnHost
from loopd.engine.watch import LIMIT_S, TICK_S, RuleTooSlow, RuleWatch
from loopd_protocol import events as ev
from tests.engine.stage import say, stage

pytestmark = pytest.mark.anyio
STEPS = 3


def inject(monkeypatch: pytest.MonkeyPatch, judge: Any, rule: str = "cycle") -> None:
    judges = tuple((name, judge if name == rule else old) for name, old in lanes.STEP_JUDGES)
    assert judges != lanes.STEP_JUDGES
    monkeypatch.setattr(lanes, "STEP_JUDGES", judges)


def hangs(state: Any, _parameters: Any, _look: Any) -> Any:
    while True:
        state = state and state


def sleeps(_state: Any, _parameters: Any, _look: Any) -> Any:
    time.sleep(60)


def takes_its_time(state: Any, _parameters: Any, _look: Any) -> Any:
    until = time.monotonic() + LIMIT_S * 0.6
    while time.monotonic() < until:
        pass
    return state, None


def raises(_state: Any, _parameters: Any, _look: Any) -> Any:
    raise LookupError("no such state")


async def steps(_request: TurnRequest, host: TurnHost) -> TurnEnd:
    for n in range(STEPS):
        await say(host, f"step {n}")
    return TurnEnd(outcome="completed")


@pytest.mark.parametrize(
    ("judge", "cause"), [(hangs, "slow"), (sleeps, "slow"), (raises, "raised"), (takes_its_time, None)]
)
async def test_a_detector_that_fails_on_each_call_is_skipped_and_the_session_goes_on(
    monkeypatch: pytest.MonkeyPatch, judge: Any, cause: str | None
) -> None:
    inject(monkeypatch, judge)
    async with stage() as on:
        on.plays["steps"] = steps
        sid = await on.new("steps", preset="hardened")
        began = time.monotonic()
        await on.send(sid)
        await on.until(lambda: on.requests and not on.active and not on.router.rows[sid].running)
        took_s = time.monotonic() - began
        events = [ev.decode(stored.body) for stored in await on.events(sid)]
        failed = [e for e in events if isinstance(e, ev.DetectorFailed)]
        seen = [e for e in events if isinstance(e, ev.TurnStep)]
        assert len(seen) == STEPS
        assert any(isinstance(e, ev.TurnCompleted) for e in events)
        if cause is None:
            assert not failed, "a slow rule is no failed rule as long as it stays within its time"
            assert took_s > STEPS * LIMIT_S * 0.5
        else:
            assert [(e.rule, e.cause) for e in failed] == [("cycle", cause)] * STEPS
            assert {e.skipped_rules for e in seen} == {("cycle",)}
            assert took_s < STEPS * LIMIT_S * 1.5 + 5
        if cause is not None:
            monkeypatch.undo()
        # the stage verifies the journal when it closes: folding it again without the fault agrees


def test_what_is_slow_but_is_no_rule_is_left_alone() -> None:
    watch = RuleWatch()
    with watch:
        until = time.monotonic() + 2 * LIMIT_S
        while time.monotonic() < until:
            pass
    assert RuleTooSlow.__name__ == SLOW


def test_a_timer_and_a_handler_of_somebody_else_survive() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with RuleWatch():
            pass
        until = time.monotonic() + 5
        while not rung and time.monotonic() < until:
            pass
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_timer_stops_when_nothing_is_decided_any_more() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        watch = RuleWatch()
        for _ in range(3):
            with watch:
                pass
        assert signal.getitimer(signal.ITIMER_REAL)[1] == TICK_S
        until = time.monotonic() + 5
        while signal.getitimer(signal.ITIMER_REAL)[1] and time.monotonic() < until:
            pass
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) == before[0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before[1])


def test_a_watch_whose_timer_somebody_took_arms_it_anew() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        watch = RuleWatch()
        with watch:
            pass
        signal.setitimer(signal.ITIMER_REAL, 60)  # as the next test's time limit does
        with watch:
            assert signal.getitimer(signal.ITIMER_REAL)[1] == TICK_S
        until = time.monotonic() + 5
        while signal.getitimer(signal.ITIMER_REAL)[1] and time.monotonic() < until:
            pass
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before[1])
        signal.signal(signal.SIGALRM, before[0])


def test_at_the_end_of_a_process_no_timer_is_left_to_kill_it() -> None:
    code = """
import atexit, signal
atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL)))  # runs behind those that come later
from loopd.engine.watch import RuleWatch
with RuleWatch():
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30, check=False, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(0.0, 0.0)\n", "")
