"""What the rules cost: `python -m tests.bench.bench_rules`, one JSON line for each figure.

Goals: at most 0.3 ms for a step in the median, and the same with 10,000 steps of history as with 100;
hashing and normalising 2 KB of text in at most 7 µs. All times are of this thread's processor, so that
neighbours disturb little; rounds alternate between the histories.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from loopd.core.masks import mask
from loopd.core.records import TurnRecord, digest, step_record, text_digest
from loopd.core.rules import RulesState, begin_turn, observe_step, observe_turn, streaks
from loopd.core.settings import settings_of
from loopd_protocol.events import ToolCall, TurnStep, Usage
from loopd_protocol.sources import Trigger

HISTORIES = (100, 10_000)
MEASURED = 2_000
ROUNDS = 7
STEPS_PER_TURN = 10
GOAL_US = 300


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


def _run(state: RulesState, numbers: Iterable[int], settings: Any) -> tuple[RulesState, list[float]]:
    """Feed steps as the session does: reduce, observe, and at a turn's end observe the turn."""
    took: list[float] = []
    for n in numbers:
        event = _event(n)
        started = time.thread_time_ns()
        state = observe_step(state, settings, step_record(event, Trigger.CONTINUATION, n)).state
        if event.step == STEPS_PER_TURN:
            state = begin_turn(observe_turn(state, settings, _turn(event)).state)
        took.append((time.thread_time_ns() - started) / 1_000)
    return state, took


def _per_call(work: Callable[[], object], times: int = 5_000) -> float:
    best = []
    for _ in range(5):
        started = time.thread_time_ns()
        for _ in range(times):
            work()
        best.append((time.thread_time_ns() - started) / 1_000 / times)
    return statistics.median(best)


def main() -> int:
    """Print the figures; exit code 1 when a goal is missed."""
    settings = {
        "published": settings_of("published", {}).rules,
        "published, window 50": settings_of("published", {"rules.tool_repetition.window_size": 50}).rules,
    }
    good = True
    for name, rules in settings.items():
        states = {history: _run(RulesState(), range(1, history + 1), rules)[0] for history in HISTORIES}
        rounds: dict[int, list[list[float]]] = {history: [] for history in HISTORIES}
        for _ in range(ROUNDS):
            for history, state in states.items():
                rounds[history].append(_run(state, range(history + 1, history + 1 + MEASURED), rules)[1])
        medians = {}
        for history, state in states.items():
            each_median = [statistics.median(each) for each in rounds[history]]
            medians[history] = statistics.median(each_median)
            took = sorted(value for each in rounds[history] for value in each)
            stored = len(msgspec.json.encode(state))
            assert streaks(state)[1] == 0
            line = {
                "bench": "rules",
                "figure": "cost of a step",
                "rules": name,
                "history_steps": history,
                "median_us": round(medians[history], 1),
                "median_us_min_max": [round(min(each_median), 1), round(max(each_median), 1)],
                "p99_us": round(took[len(took) * 99 // 100], 1),
                "state_bytes": stored,
                "goal_median_us": GOAL_US,
            }
            good = good and medians[history] <= GOAL_US
            print(json.dumps(line))
        ratio = medians[HISTORIES[1]] / medians[HISTORIES[0]]
        good = good and ratio <= 1.2
        print(
            json.dumps(
                {
                    "bench": "rules",
                    "figure": "flatness",
                    "rules": name,
                    "ratio_10000_to_100": round(ratio, 3),
                    "goal_ratio": 1.2,
                }
            )
        )
    text = ("The quick brown fox jumps over 13 lazy dogs. " * 60)[:2_048]
    hashing = _per_call(lambda: (digest(text), text_digest(text)))
    good = good and hashing <= 7
    print(
        json.dumps(
            {
                "bench": "rules",
                "figure": "hash and normalise 2 KB of text",
                "median_us": round(hashing, 2),
                "goal_us": 7,
            }
        )
    )
    output = ("2026-10-01 10:00:00 INFO worker pid 12 did 3 things in 0.3s at 0x7f00\n" * 20)[:1_024]
    print(
        json.dumps(
            {
                "bench": "rules",
                "figure": "mask 1 KB of tool output",
                "median_us": round(_per_call(lambda: mask(output), 500), 1),
            }
        )
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
