"""Every number of the stop rules: it fires there and not one step before; profiles only ever make it sooner."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.progress import Progress
from loopd.core.records import StepRecord, step_record
from loopd.core.settings import settings_of
from loopd.core.stops import counting, following, phases, precedence
from loopd.core.stops.counting import Reached, StopState, observe, reached
from loopd.core.stops.limits import SCALED, StopSettings, limits_of, scaled
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall
from loopd_protocol.sources import Trigger

STRICT = StopSettings(enabled=True, edge_counts="since_progress")
NONE = Progress()
PROGRESS = Progress(reasons=("result",))


def a_step(n: int, *calls: ToolCall, trigger: Trigger = Trigger.CONTINUATION, **given: Any) -> StepRecord:
    event = ev.TurnStep(n=given.pop("turn", 1), step=n, total=n, calls=calls, **given)
    return step_record(event, trigger, 0)


def a_call(name: str, result: str = "done", *, ok: bool = True, **args: Any) -> ToolCall:
    return ToolCall(id="c", name=name, args=args, result=result, ok=ok)


def red(command: str = "npm test", result: str = "FAIL: 1 != 2") -> ToolCall:
    call = a_call("bash", result, ok=False, command=command)
    return msgspec.structs.replace(call, exit_code=1)


def missing(n: int) -> ToolCall:
    return a_call("frobnicate", "no such tool: frobnicate", ok=False, n=n)


def an_edit(n: int) -> ToolCall:
    return a_call("edit_file", "ok", path="a", new=f"v{n}")


def follow(
    steps: list[tuple[StepRecord, Progress]], limits: StopSettings = STRICT
) -> list[tuple[Reached, ...]]:
    """What each step reaches, when nobody acts on it."""
    state, made = StopState(), []
    for ss, (record, progress) in enumerate(steps, 1):
        state = observe(state, record, progress, ss)
        made.append(reached(state, limits))
    return made


def first(found: list[tuple[Reached, ...]], rule: str, level: str = "hard") -> tuple[int, Reached] | None:
    for n, limits in enumerate(found, 1):
        for limit in limits:
            if (limit.rule, limit.level) == (rule, level):
                return n, limit
    return None


STEPS: dict[str, tuple[Any, str, int, int]] = {
    "same_error": (lambda n: (a_step(n, red()), NONE), "hard", 3, 0),
    "noop_edit": (lambda n: (a_step(n, an_edit(n), state_fingerprint="f"), NONE), "hard", 3, 1),
    "unresolved_tools": (lambda n: (a_step(n, missing(n)), NONE), "hard", 5, 0),
    "no_progress": (lambda n: (a_step(n, text="hm"), NONE), "hard", 40, 0),
    "max_steps": (lambda n: (a_step(n, text="hm"), NONE), "hard", 100, 0),
}
"""Rule → what each step is, the level, its default, and steps before the first that counts."""


@pytest.mark.parametrize("rule", STEPS)
def test_a_limit_is_reached_at_its_number_and_not_one_step_before(rule: str) -> None:
    make, level, default, before = STEPS[rule]
    assert getattr(settings_of("hardened", {}).stop, rule) == default
    for number in (default - 1, default, default + 1):
        limits = msgspec.structs.replace(STRICT, **{rule: number})
        found = first(follow([make(n) for n in range(1, 130)], limits), rule, level)
        assert found is not None
        assert found[0] == number + before
        assert (found[1].score, found[1].threshold) == (number, number)
    off = msgspec.structs.replace(STRICT, **{rule: 0})
    assert first(follow([make(n) for n in range(1, 130)], off), rule, level) is None


def test_the_defaults_are_those_of_the_design() -> None:
    stop = settings_of("hardened", {}).stop
    assert stop == StopSettings(
        enabled=True,
        profile="strict",
        edge_counts="since_progress",
        max_steps=100,
        extension_steps=50,
        max_extensions=3,
        extension_window=10,
        park_s=86_400,
        edge_loop=8,
        same_error=3,
        same_error_edited=6,
        noop_edit=3,
        no_progress_correction=25,
        no_progress=40,
        unresolved_tools=5,
        end_on_complete=False,
        issue_file="",
    )
    published = settings_of("published", {}).stop
    assert (published.enabled, published.edge_counts) == (False, "lifetime")


def to_and_fro(count: int, progress_at: int = 0) -> list[tuple[StepRecord, Progress]]:
    return [
        (a_step(n, phase=("plan", "research")[n % 2]), PROGRESS if n == progress_at else NONE)
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("number", [7, 8, 9])
def test_an_edge_is_capped_since_the_last_progress_or_over_the_lifetime(number: int) -> None:
    limits = msgspec.structs.replace(STRICT, edge_loop=number)
    at, limit = first(follow(to_and_fro(60), limits), "edge_loop") or (0, None)
    assert at == 2 * number  # step 2 is the first passage, each edge is taken at every second step
    assert limit is not None
    assert limit.loop == ("research", "plan")
    late, _ = first(follow(to_and_fro(60, progress_at=10), limits), "edge_loop") or (0, None)
    assert late == 2 * number + 9
    lifetime = msgspec.structs.replace(limits, edge_counts="lifetime")
    again, _ = first(follow(to_and_fro(60, progress_at=10), lifetime), "edge_loop") or (0, None)
    assert again == at


@pytest.mark.parametrize("number", [24, 25, 26])
def test_the_correction_comes_at_its_number_and_once(number: int) -> None:
    limits = msgspec.structs.replace(STRICT, no_progress_correction=number)
    steps = [(a_step(n, text="hm"), NONE) for n in range(1, 39)]
    found = first(follow(steps, limits), "no_progress", "soft")
    assert found is not None
    assert found[0] == number
    state = StopState()
    for n in range(1, number + 1):
        state = observe(state, a_step(n, text="hm"), NONE, n)
    (limit,) = reached(state, limits)
    told = ev.DegenerationDetected(
        rule=limit.rule, verdict="nudge", level=limit.level, score=limit.score, threshold=limit.threshold
    )
    state = observe(following.found(state, told), a_step(number + 1, text="hm"), NONE, number + 1)
    assert reached(state, limits) == ()
    state = observe(state, a_step(99, text="hm"), PROGRESS, 99)
    assert not state.main.corrected, "after progress it may be told again"


@pytest.mark.parametrize("number", [5, 6, 7])
def test_edits_between_failures_move_the_limit_and_make_it_soft(number: int) -> None:
    limits = msgspec.structs.replace(STRICT, same_error_edited=number)
    steps = []
    for n in range(1, 31):
        made = Progress(reasons=("state",)) if n % 2 else NONE
        steps.append((a_step(n, *([an_edit(n)] if n % 2 else [red()])), made))
    found = follow(steps, limits)
    assert first(found, "same_error") is None
    at, _ = first(found, "same_error", "soft") or (0, None)
    assert at == 2 * number


@pytest.mark.parametrize(("window", "parks"), [(9, False), (10, True), (11, True)])
def test_the_ceiling_asks_for_progress_in_its_window(window: int, parks: bool) -> None:
    limits = msgspec.structs.replace(STRICT, extension_window=window, max_steps=20)
    steps = [(a_step(n, text="hm"), PROGRESS if n == 11 else NONE) for n in range(1, 21)]
    found = follow(steps, limits)
    assert (first(found, "max_steps", "soft") is not None) == parks
    assert (first(found, "max_steps", "hard") is not None) == (not parks)


def test_extensions_move_the_ceiling_by_their_steps() -> None:
    lane = counting.Counters(extensions=2)
    assert counting.ceiling(lane, STRICT) == 200
    assert counting.ceiling(lane, msgspec.structs.replace(STRICT, max_steps=0)) == 0


@pytest.mark.parametrize("reason", ["check", "item", "metric"])
def test_a_verified_milestone_restarts_the_ceiling_and_other_progress_does_not(reason: str) -> None:
    state = StopState()
    for n in range(1, 8):
        state = observe(state, a_step(n, text="hm"), PROGRESS, n)
    assert state.main.steps == 7
    state = observe(state, a_step(8, text="hm"), Progress(reasons=(reason,)), 8)
    assert (state.main.steps, state.milestones, state.milestone_step) == (0, 1, 8)


def test_waiting_and_a_failing_service_are_no_steps() -> None:
    state = StopState()
    poll = a_call("check_job", "still running", id=4)
    busy = msgspec.structs.replace(a_call("fetch", "429 too many requests", ok=False), error_class="infra")
    for n, call in enumerate((poll, busy) * 60, 1):
        state = observe(state, a_step(n, call), NONE, n)
        assert reached(state, STRICT) == ()
    assert (state.main.steps, state.main.since) == (0, 0)


def test_each_cron_run_counts_for_itself() -> None:
    state = StopState()
    for run in range(1, 49):
        for n in (1, 2, 3):
            record = a_step(3 * run + n, text="no change", trigger=Trigger.CRON, turn=run)
            state = observe(state, record, NONE, 3 * run + n)
            assert reached(state, STRICT) == ()
    assert state.main == StopState().main


# -- edges ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 99), min_size=2, max_size=400))
def test_edges_are_bounded_and_none_is_lost(names: list[int]) -> None:
    edges: phases.Edges = {}
    before, passages = "", 0
    for ss, name in enumerate(names):
        edge = phases.edge_of(edges, before, f"p{name}")
        if edge:
            edges = phases.passed(edges, edge, ss)
            passages += 1
        before = f"p{name}"
    assert len(edges) <= phases.EDGES
    assert sum(edge.lifetime for edge in edges.values()) == passages
    assert all(len(edge.marks) <= phases.MARKS for edge in edges.values())


@pytest.mark.parametrize(
    ("calls", "phase"),
    [
        ([a_call("read_file", path="a"), an_edit(1)], "edit"),
        ([a_call("grep", q="a"), a_call("read_file", path="a")], "search"),
        ([a_call("bash", command="npm test")], "test"),
        ([a_call("bash", command="ls")], "exec"),
        ([a_call("todo", text="a")], "plan"),
        ([a_call("frob_the_thing")], "other"),
        ([missing(1), an_edit(1)], "unresolved"),
        ([], ""),
    ],
)
def test_the_phase_of_a_step_is_its_strongest_tool(calls: list[ToolCall], phase: str) -> None:
    assert phases.phase_of(a_step(1, *calls)) == phase
    assert phases.phase_of(a_step(1, *calls, phase="mine")) == "mine"


# -- profiles, precedence, settings ----------------------------------------------------------------------


@given(st.integers(0, 1_000_000))
def test_yolo_is_never_more_patient_than_strict(value: int) -> None:
    assert scaled(value, "strict") == value
    halved = scaled(value, "yolo")
    assert halved <= value
    assert (halved == 0) == (value == 0)
    assert halved >= min(value, 2)
    if value >= 4:
        assert halved == value // 2


STOPS = st.builds(StopSettings, **{name: st.integers(0, 60) for name in SCALED})
KINDS = st.sampled_from(["red", "edit", "missing", "text", "read", "green"])


@given(STOPS, st.lists(st.tuples(KINDS, st.booleans()), max_size=60))
def test_whatever_happens_strict_ends_no_sooner_than_yolo(
    settings: StopSettings, played: list[tuple[str, bool]]
) -> None:
    steps = []
    for n, (kind, progress) in enumerate(played, 1):
        calls = {
            "red": [red()],
            "edit": [an_edit(0)],
            "missing": [missing(n)],
            "text": [],
            "read": [a_call("read_file", path="a")],
            "green": [a_call("bash", "fine", command="npm test")],
        }[kind]
        steps.append((a_step(n, *calls), PROGRESS if progress else NONE))
    ends = {}
    for profile in ("strict", "yolo"):
        limits = limits_of(msgspec.structs.replace(settings, profile=profile))
        hard = [
            n
            for n, found in enumerate(follow(steps, limits), 1)
            if any(limit.level == "hard" or limit.rule == "max_steps" for limit in found)
        ]
        ends[profile] = min(hard, default=len(steps) + 1)
    assert ends["strict"] >= ends["yolo"]


def test_yolo_scales_every_threshold() -> None:
    limits = limits_of(msgspec.structs.replace(STRICT, profile="yolo"))
    assert [getattr(limits, name) for name in SCALED] == [50, 25, 2, 4, 2, 3, 2, 12, 20, 2]


def test_precedence_is_that_of_the_design() -> None:
    order = ["budget", "unresolved_tool", "same_error", "noop_edit", "edge_loop", "cycle", "no_progress"]
    order = ["constraint", "operator", "shutdown", *order, "max_steps", "success"]
    mixed = sorted(order)
    assert sorted(mixed, key=precedence.rank) == order
    assert precedence.strongest(["max_steps", "cycle", "same_error"]) == "same_error"
    assert precedence.strongest([]) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stop.no_progress": 25}, ("25", "no_progress_correction")),
        ({"stop.issue_file": "/etc/x"}, ("workspace",)),
        ({"stop.issue_file": "a/../../x"}, ("workspace",)),
        ({"stop.max_steps": -1}, ("-1",)),
        ({"stop.profile": "bold"}, ("strict, yolo",)),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        settings_of("hardened", given)
    assert all(word in refused.value.message for word in words)


@pytest.mark.parametrize(
    ("verdict", "kept"), [("close", True), ("terminate", True), ("nudge", False), ("warn", False)]
)
def test_what_closed_the_gate_or_ended_the_turn_is_a_reason_until_the_next_turn(
    verdict: str,
    kept: bool,
) -> None:
    told = ev.DegenerationDetected(rule="cycle", verdict=verdict, level="hard", score=5, threshold=5)
    state = following.found(StopState(), told)
    assert [fired.rule for fired in state.fired] == ["cycle"] * kept
    assert following.begun(state).fired == ()
    assert state.corrections == (verdict == "nudge")


def test_the_state_survives_its_encoding() -> None:
    state = StopState()
    for n, (record, progress) in enumerate(to_and_fro(20, progress_at=7), 1):
        state = observe(state, record, progress, n)
    state = observe(state, a_step(21, red(), an_edit(1), text="because"), NONE, 21)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=StopState)
    assert again == state
