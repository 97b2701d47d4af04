"""The judge: the same code as live, no matter how the log is cut; no input makes it fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopd.core.conversation import StepDone
from loopd.core.judge import Judge, LoggedStep, judge
from loopd.core.records import StepRecord
from loopd.core.rules import RulesState, observe_step
from loopd.core.rules import exact_repeat as exact_repeat_rule
from loopd.core.rules.lanes import STEP_JUDGES, Lane
from loopd.core.settings import settings_of
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger
from tests.core.world import World
from tests.rules.agents import call, fired, judged, log, read, sh

HARDENED = settings_of("hardened", {})
PUBLISHED = settings_of("published", {})

CALLS = st.builds(
    call,
    st.sampled_from(["bash", "read_file", "edit_file", "get_status", "magic", "grep", "", "é" * 50]),
    st.one_of(
        st.none(),
        st.sampled_from(
            ["x", 3, [1], {"command": "true"}, {"command": "sleep 5"}, {"path": "a", "n": 3}, {"command": 5}]
        ),
        st.dictionaries(
            st.sampled_from(["command", "path", "request_id", "q"]), st.text(max_size=8), max_size=3
        ),
    ),
    st.one_of(
        st.none(),
        st.text(max_size=20),
        st.sampled_from(["ok", "3 failed", "429 too many requests", "Error: x", "x" * 9_000]),
    ),
    st.sampled_from([True, False, None]),
    exit_code=st.sampled_from([None, 0, 1]),
    error_class=st.sampled_from([None, "infra", "schema", "denied", "tool", "none"]),
)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.sampled_from(
                [
                    "",
                    "same text",
                    "1/100. Not complete.",
                    "the quick brown fox jumps over it",
                    "\ud800",
                    "日本語のテキスト",
                ]
            ),
            "calls": st.lists(CALLS, max_size=3).map(tuple),
            "usage": st.sampled_from([None, Usage(input_tokens=5, output_tokens=0), Usage(output_tokens=9)]),
            "trigger": st.sampled_from([None, None, None, *Trigger]),
            "state_fingerprint": st.sampled_from([None, "a", "b"]),
            "compacted": st.booleans(),
            "at_ms": st.sampled_from([0, 0, 5, 10**12]),
        }
    ),
    max_size=40,
)


def logged(steps: list[dict[str, Any]], repeat: int = 1) -> list[LoggedStep]:
    return [LoggedStep(n=n, **step) for n, step in enumerate(steps * repeat, start=1)]


@given(STEPS, st.sampled_from([1, 4]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_log_makes_a_rule_fail_and_levels_follow_from_verdicts(
    steps: list[dict[str, Any]], repeat: int, attended: bool
) -> None:
    for preset in (HARDENED, PUBLISHED):
        judgement = judge(logged(steps, repeat), preset, attended=attended)
        assert judgement.failures == ()
        assert judgement.steps == len(steps) * repeat
        acted = [f.step for f in judgement.findings if f.verdict != "warn"]
        assert judgement.first_soft == (min(acted) if acted else None)
        hard = [
            f.step for f in judgement.findings if f.level == "hard" or f.verdict in {"close", "terminate"}
        ]
        assert judgement.first_hard == (min(hard) if hard else None)
        assert all(
            f.evidence and len(f.evidence) <= 8 and all(len(e) <= 4_000 for e in f.evidence)
            for f in judgement.findings
        )
        msgspec.json.encode(judgement)


@given(STEPS, st.integers(0, 60), st.sampled_from(["json", "msgpack"]))
@settings(max_examples=100, deadline=None)
def test_a_state_that_is_stored_and_read_again_judges_the_same(
    steps: list[dict[str, Any]], cut: int, how: str
) -> None:
    whole = judge(logged(steps, 3), HARDENED)
    stored = Judge(HARDENED)
    for n, step in enumerate(logged(steps, 3)):
        stored.step(step)
        if n == cut:
            codec: Any = getattr(msgspec, how)
            stored._state = codec.decode(codec.encode(stored._state), type=RulesState)
    assert stored.judgement() == whole


def test_live_and_offline_find_the_same() -> None:
    steps = log(
        *(read(f"f{n}", f"part {n}") for n in range(5)),
        *[sh("make lint", "3 problems", exit_code=1)] * 4,
        *(call("search_docs", {"q": f"w{n}"}, "No documents found.") for n in range(7)),
        *(sh("true") for _ in range(5)),
        read("g", "something new"),
        *[[sh("cat a", "x = 1"), sh("cat b", "y = 2")]] * 4,
    )
    offline = Judge(HARDENED)
    for step in steps:
        offline.step(step)
    world = World(goal="win", preset="hardened")
    world.tick_through(world.now + 5_000)
    for step in steps:
        if world.session.turn is None or world.session.turn.stopping:
            break
        world.step(**msgspec.structs.asdict(StepDone(text=step.text, calls=step.calls, usage=step.usage)))
    live = [(d.rule, d.level, d.verdict, d.loop_id) for d in world.of(ev.DegenerationDetected)]
    made = [(f.rule, f.level, f.verdict, f.loop_id) for f in offline.judgement().findings]
    assert len(live) >= 3
    assert live == made[: len(live)]


@given(st.lists(st.sampled_from("aab"), max_size=80), st.integers(2, 6), st.integers(0, 4))
def test_exact_repeat_is_what_a_naive_count_says(names: list[str], soft: int, more: int) -> None:
    found = judged(
        log(*(call("t", {"k": name}, f"result {name}") for name in names)),
        only="exact_repeat",
        exact_repeat__soft=soft,
        exact_repeat__soft_identical=soft,
        exact_repeat__hard=soft + more,
    )
    runs = [1 if n == 0 or names[n] != names[n - 1] else 0 for n in range(len(names))]
    length, first = 0, None
    for n, begins in enumerate(runs, start=1):
        length = 1 if begins else length + 1
        if length >= soft and first is None:
            first = n
    assert (fired(found, "exact_repeat") or [None])[0] == first


@given(st.lists(st.sampled_from("abc"), max_size=70))
def test_cycle_is_what_a_naive_search_says(names: list[str]) -> None:
    found = judged(log(*(call("t", {"k": name}, f"result {name}") for name in names)), only="cycle")
    first = None
    for end in range(1, len(names) + 1):
        for period in range(1, 9):
            if end >= 2 * period and names[end - 2 * period : end - period] == names[end - period : end]:
                laps = (
                    names[max(0, end - 3 * period) : end - period] == names[end - 2 * period : end]
                    if end >= 3 * period
                    else False
                )
                if period > 1 and laps and first is None:
                    first = end
                break
    assert (fired(found, "cycle") or [None])[0] == first


def test_nothing_is_judged_behind_the_end_of_a_session() -> None:
    found = judged(log(*[sh("make lint", "3 problems")] * 300))
    assert found.verdict == "terminate"
    assert found.findings[-1].verdict == "terminate"
    assert found.rungs[-1][1] == 4
    assert found.steps == 300


def test_tokens_after_the_first_soft_step_are_those_that_could_have_been_saved() -> None:
    found = judged(log(*[sh("make lint", "3 problems")] * 10))
    assert (found.first_soft, found.tokens_after_first_soft) == (3, 7 * 110)
    bare = [LoggedStep(n=n, calls=(sh("make lint", "3 problems"),)) for n in range(1, 11)]
    assert judged(bare).tokens_after_first_soft is None


def test_a_cron_run_starts_clean_and_leaves_the_main_loop_as_it_was() -> None:
    noisy = [sh("make lint", "3 problems")] * 2
    found = judged(
        log(*noisy, *noisy, *noisy, triggers={1: "continuation", 3: "cron", 5: "continuation"}),
        only="exact_repeat",
    )
    assert fired(found, "exact_repeat") == [5]


def test_a_rule_that_raises_is_skipped_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no")

    judges = tuple((rule, broken if rule == "cycle" else observe) for rule, observe in STEP_JUDGES)
    monkeypatch.setattr("loopd.core.rules.lanes.STEP_JUDGES", judges)
    watching = Judge(HARDENED)
    for step in log(*[sh("make lint", "3 problems")] * 4):
        watching.step(step)
    assert watching.judgement().failures == ("cycle: ValueError: no",) * 4
    assert watching.judgement().first_soft == 3


def test_running_out_of_memory_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("loopd.core.rules.lanes.STEP_JUDGES", ((exact_repeat_rule.ID, hungry),))
    with pytest.raises(MemoryError):
        Judge(HARDENED).step(LoggedStep(n=1))


def test_the_state_of_a_long_session_stays_small() -> None:
    watching = Judge(HARDENED)
    for n in range(1, 3_000):
        calls: tuple[ToolCall, ...] = (
            sh(f"cat file{n % 300}", f"content {n}"),
            read(f"f{n}", "x" * 600 + str(n)),
        )
        watching.step(
            LoggedStep(n=n, text=f"step {n} of many, going on with it", calls=calls if n % 3 else ())
        )
    assert len(msgspec.msgpack.encode(watching._state)) < 14_000
    assert Lane() == RulesState().main
    assert observe_step(RulesState(), HARDENED.rules, _empty()).failures == ()


def _empty() -> Any:
    return StepRecord(n=1, turn=1, trigger=Trigger.CONTINUATION, at_ms=0)
