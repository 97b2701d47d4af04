"""What the rules cost: `python -m tests.bench.bench_rules`, one JSON line for each figure.

Goals: at most 0.3 ms for a step in the median, and the same with 10,000 steps of history as with 100;
hashing and normalising 2 KB of text in at most 7 µs. All times are of this thread's processor, so that
neighbours disturb little; rounds alternate between the histories.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import msgspec

from loopd.core.masks import mask
from loopd.core.records import TurnRecord, digest, step_record, text_digest
from loopd.core.rules import (
    LadderSettings,
    RuleSettings,
    RulesState,
    begin_turn,
    observe_step,
    observe_turn,
    streaks,
    wants_mask,
)
from loopd.core.settings import settings_of
from loopd_protocol.events import ToolCall, TurnStep, Usage
from loopd_protocol.sources import Trigger
from tests.bench.figures import report

HISTORIES = (100, 10_000)
MEASURED = 2_000
ROUNDS = 7
STEPS_PER_TURN = 10
GOAL_US = 300
LADDER = LadderSettings()


def _event(n: int) -> TurnStep:
    """A step as a coding agent takes it: one or two calls, 1 KB of result, half of them seen before."""
    calls = [
        ToolCall(
            id=f"c{n}{index}",
            name=("bash", "read_file")[index],
            args={"command": f"grep -n word_{n % 7} file_{n % 50}.py", "timeout": 30},
            ok=True,
            result=f"{n % (20 + 30 * index)}: " + "a line of output with some words in it\n" * 25,
        )
        for index in range(1 + n % 2)
    ]
    return TurnStep(
        n=n // STEPS_PER_TURN + 1,
        step=n % STEPS_PER_TURN + 1,
        total=n,
        text=f"I will look at file {n} next, because the test still fails there. " * 8,
        calls=tuple(calls),
        usage=Usage(input_tokens=5_000, output_tokens=200),
        state_fingerprint=f"{n // 3:064x}",
    )


def _turn(event: TurnStep) -> TurnRecord:
    return TurnRecord(
        n=event.n,
        trigger=Trigger.CONTINUATION,
        at_ms=0,
        outcome="completed",
        text=event.text,
        calls=STEPS_PER_TURN,
        steps=STEPS_PER_TURN,
        tokens=50_000,
    )


def _run(state: RulesState, numbers: Iterable[int], settings: RuleSettings) -> tuple[RulesState, list[float]]:
    """Feed steps as the session does: reduce, observe, and at a turn's end observe the turn."""
    took: list[float] = []
    for n in numbers:
        event = _event(n)
        started = time.thread_time_ns()
        masked = wants_mask(state, settings, Trigger.CONTINUATION)
        record = step_record(event, Trigger.CONTINUATION, n, masked=masked)
        state = observe_step(state, settings, record, ladder=LADDER).state
        if event.step == STEPS_PER_TURN:
            state = begin_turn(observe_turn(state, settings, _turn(event), ladder=LADDER).state)
        took.append((time.thread_time_ns() - started) / 1_000)
    return state, took


def _per_call(work: Callable[[], object], times: int = 5_000) -> list[float]:
    """Microseconds for each call, once for each round."""
    took = []
    for _ in range(ROUNDS):
        started = time.thread_time_ns()
        for _ in range(times):
            work()
        took.append((time.thread_time_ns() - started) / 1_000 / times)
    return took


def _steps(name: str, rules: RuleSettings) -> None:
    """The cost of a step after short and long histories, round by round."""
    states = {history: _run(RulesState(), range(1, history + 1), rules)[0] for history in HISTORIES}
    rounds: dict[int, list[list[float]]] = {history: [] for history in HISTORIES}
    for _ in range(ROUNDS):
        for history, state in states.items():
            rounds[history].append(_run(state, range(history + 1, history + 1 + MEASURED), rules)[1])
    medians = {history: [statistics.median(took) for took in each] for history, each in rounds.items()}
    for history, state in states.items():
        assert streaks(state)[1] == 0
        after = f"rules: {name}: a step after {history:,}"
        note = f"{MEASURED} steps a round; state {len(msgspec.json.encode(state))} bytes"
        report(after, medians[history], "µs", goal=GOAL_US, note=note)
        p99 = [statistics.quantiles(took, n=100)[98] for took in rounds[history]]
        report(f"{after}, p99", p99, "µs")
    few, many = (medians[history] for history in HISTORIES)
    flatness = [long / short for short, long in zip(few, many, strict=True)]
    report(f"rules: {name}: {HISTORIES[1]:,} steps against {HISTORIES[0]}", flatness, "x", goal=1.2)


def main() -> None:
    """Print the figures."""
    _steps("published", settings_of("published", {}).rules)
    _steps("hardened", settings_of("hardened", {}).rules)
    window = {"rules.tool_repetition.window_size": 50}
    _steps("published, window 50", settings_of("published", window).rules)
    text = ("The quick brown fox jumps over 13 lazy dogs. " * 60)[:2_048]
    hashing = _per_call(lambda: (digest(text), text_digest(text)))
    report("rules: hash and normalise 2 KB of text", hashing, "µs", goal=7)
    output = ("2026-10-01 10:00:00 INFO worker pid 12 did 3 things in 0.3s at 0x7f00\n" * 20)[:1_024]
    report("rules: mask 1 KB of tool output", _per_call(lambda: mask(output), 500), "µs")


if __name__ == "__main__":
    main()
