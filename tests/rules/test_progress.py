"""Progress: the one definition, kind by kind, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core import progress
from loopd.core.progress import ProgressState
from loopd.core.records import StepRecord, step_record
from loopd.core.rules import trail
from loopd_protocol.events import ToolCall, TurnStep
from loopd_protocol.sources import Trigger
from tests.rules.agents import call, read, sh


def record(n: int, *calls: ToolCall, fingerprint: str | None = None, withheld: bool = False) -> StepRecord:
    event = TurnStep(
        n=1, step=n, total=n, calls=calls, state_fingerprint=fingerprint, tools_withheld=withheld
    )
    return step_record(event, Trigger.CONTINUATION, n * 1_000, masked=lambda each: each.short)


def run(*records: StepRecord) -> tuple[ProgressState, list[tuple[str, ...]]]:
    state, ring, made = progress.FRESH, trail.FRESH, []
    for each in records:
        ring, results = trail.results_of(ring, each)
        state, step = progress.observe(state, each, results)
        made.append(step.reasons)
    return state, made


def reasons(*steps: Any) -> list[tuple[str, ...]]:
    """Steps as calls or (calls, fingerprint)."""
    records = []
    for n, each in enumerate(steps, start=1):
        calls, fingerprint = each if isinstance(each, tuple) else (each, None)
        records.append(record(n, *(calls if isinstance(calls, list) else [calls]), fingerprint=fingerprint))
    return run(*records)[1]


def test_a_state_never_seen_is_progress_and_an_old_one_is_an_oscillation() -> None:
    quiet = call("poke", {}, "")
    state, made = run(*(record(n, quiet, fingerprint=f) for n, f in enumerate("aabab", start=1)))
    assert made == [(), (), ("state",), (), ()]
    assert state.oscillations == 2
    assert (state.last, state.last_ms) == (3, 3_000)


def test_sixty_four_states_are_remembered() -> None:
    quiet = call("poke", {}, "")
    names = [f"s{n}" for n in range(65)]
    _, made = run(*(record(n, quiet, fingerprint=f) for n, f in enumerate([*names, "s1", "s0"], start=1)))
    assert made[1:65] == [("state",)] * 64
    assert made[65] == ()
    assert made[66] == ("state",)


def test_a_successful_new_change_is_progress_only_where_no_sensor_looks() -> None:
    write = [call("edit_file", {"n": n}, "") for n in range(3)]
    assert reasons(write[0], write[1], write[1]) == [("write",), ("write",), ()]
    assert reasons((write[0], "a"), (write[1], "a"), (write[2], "b")) == [(), (), ("state",)]
    assert reasons(call("edit_file", {"n": 1}, "", ok=False)) == [()]


def test_a_sensor_that_fails_is_unknown_and_after_a_while_given_up() -> None:
    write = [call("edit_file", {"n": n}, "") for n in range(40)]
    made = reasons((write[0], "a"), *write[1:20])
    assert made[1:15] == [()] * 14
    assert made[16] == ("write",)


def test_a_check_that_passes_for_the_first_time_at_this_state_is_progress() -> None:
    red, green = sh("pytest -q", "FAILED a", ok=False), sh("pytest -q", "FAILED a")
    assert reasons((red, "a"), (green, "a"), (red, "a"), (green, "a")) == [("result",), ("check",), (), ()]
    assert reasons((red, "a"), (green, "a"), (red, "b"), (green, "b"))[3] == ("check",)


def test_fewer_failing_checks_than_ever_are_progress() -> None:
    def tests(failing: int, n: int) -> ToolCall:
        return sh("pytest -q", f"{failing} failed" if n < 3 else f"{failing}  failed", ok=False)

    assert reasons(tests(5, 0), tests(3, 1), tests(4, 2), tests(3, 3), tests(2, 4)) == [
        ("result",),
        ("failing", "result"),
        ("result",),
        (),
        ("failing", "result"),
    ]


@pytest.mark.parametrize(
    "second",
    [
        call("look", {}, "12:00:01 all fine"),
        call("look", {}, "ok"),
        call("look", {}, ""),
        call("look", {}, None),
        call(
            "say", {"text": "a long enough text that is given back"}, "a long enough text that is given back"
        ),
        sh("echo done", "done"),
        sh("date", "Thu Jan  1 00:00:00"),
        call("fetch", {}, "429 Too Many Requests", ok=False),
    ],
    ids=["masked", "two characters", "silent", "missing", "echo", "no-op", "date", "overloaded"],
)
def test_what_is_no_new_result(second: ToolCall) -> None:
    assert reasons(call("look", {}, "12:00:00 all fine"), second)[1] == ()


@pytest.mark.parametrize("ok", [True, False, None])
def test_a_new_result_is_progress_whether_it_is_a_success_or_a_failure(ok: bool | None) -> None:
    assert reasons(
        call("look", {}, "first"), call("look", {}, "other", ok=ok), call("look", {}, "first")
    ) == [
        ("result",),
        ("result",),
        (),
    ]


def test_results_of_withheld_tools_are_unknown() -> None:
    _, made = run(record(1, call("look", {}, "denied: no tools"), withheld=True))
    assert made == [()]


def test_the_same_long_result_with_another_time_in_it_is_new_once_more_at_most() -> None:
    long = "a line of the log that is always the same\n" * 40
    ring, state, made = trail.FRESH, progress.FRESH, []
    for n in range(1, 6):
        event = TurnStep(n=1, step=n, total=n, calls=(sh("cat log", f"10:00:0{n} {long}"),))
        each = step_record(event, Trigger.CONTINUATION, 0, masked=lambda one: trail.wants_mask(ring, one))  # noqa: B023
        ring, results = trail.results_of(ring, each)
        state, step = progress.observe(state, each, results)
        made.append(step.made)
    assert made == [True, True, False, False, False]


def test_a_reported_metric_counts_when_it_beats_its_best() -> None:
    state, better = progress.reported(progress.FRESH, "passing", 3_000_000, 10, 1)
    assert not better
    assert progress.reported(state, "passing", 3_000_000, 10, 1)[1] is False
    state, better = progress.reported(state, "passing", 3_000_001, 20, 2)
    assert better
    assert (state.last, state.last_ms) == (2, 20)
    state, step = progress.observe(state, record(3, call("poke", {}, "")), (b"x" * 6,))
    assert step.reasons == ("metric",)
    assert progress.observe(state, record(4, call("poke", {}, "")), (b"x" * 6,))[1].reasons == ()
    for n in range(40):
        state, _ = progress.reported(state, f"m{n}", 1, 0, 0)
    assert len(state.best) == progress.METRICS


def test_human_input_and_a_closed_item_are_progress() -> None:
    assert progress.human(progress.FRESH, 7, 3).last == 3
    state = progress.closed(progress.closed(progress.FRESH, 9, 4), 9, 4)
    assert progress.observe(state, record(5), ())[1].reasons == ("item",)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["", "ok", "one", "two", None]),
            st.sampled_from([None, "x", "y"]),
        ),
        max_size=60,
    )
)
def test_progress_is_what_a_naive_reading_of_the_history_says(
    steps: list[tuple[str, str | None, str | None]],
) -> None:
    results: set[str] = set()
    states: list[str] = []
    naive: list[bool] = []
    for _, result, fingerprint in steps:
        new = result is not None and len(result) >= 3 and result not in results
        if result is not None:
            results.add(result)
        moved = fingerprint is not None and bool(states) and fingerprint not in states
        if fingerprint is not None:
            states.append(fingerprint)
        naive.append(new or moved)
    records = [
        record(n, call("look", {"at": at}, result), fingerprint=fingerprint)
        for n, (at, result, fingerprint) in enumerate(steps, start=1)
    ]
    assert [bool(each) for each in run(*records)[1]] == naive


def test_memory_is_bounded() -> None:
    state, _ = run(*(record(n, read(f"f{n}", f"result {n}"), fingerprint=f"s{n}") for n in range(1, 2_000)))
    assert len(state.results) == progress.RESULTS * 6
    assert len(state.identities) == progress.IDENTITIES * 6
    assert len(state.fingerprints) == progress.FINGERPRINTS * 6
