"""ProgressStall."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.records import StepRecord
from loopd.core.rules import RulesState, begin_turn, restart_scope
from loopd.core.rules.progress_stall import BLIND_STEPS
from tests.rules.making import call_to, feed, rule_settings, step

LONG = "x" * 60
OFF: dict[str, Any] = {"tool_repetition__enabled": False}


def idle(**given: Any) -> StepRecord:
    """A step that brings nothing: a short result."""
    return step(call_to("read_file", result="short"), **given)


def _at(steps: list[StepRecord], state: RulesState | None = None, **overrides: Any) -> list[int]:
    _, found = feed(steps, rule_settings(**OFF, **overrides), state)
    assert all(finding.rule == "progress_stall" for _, finding in found)
    return [index for index, _ in found]


def test_the_eighth_step_without_anything_new_withholds_the_tools_once() -> None:
    steps = [idle(n=n, tokens=5) for n in range(1, 9)]
    _, [(index, finding)] = feed(steps, rule_settings(**OFF))
    assert (index, finding.verdict, finding.level, finding.unit) == (7, "text_only", "soft", "steps")
    assert (finding.score, finding.threshold, finding.onset_tokens) == (8, 8, 40)
    assert "steps 1 to 8" in finding.evidence[0]
    assert "read_file 8 times" in finding.evidence
    for part in ("last 8 steps", "no tools", "(1)", "(2)", "(3)"):
        assert part in str(finding.note)


def test_it_fires_again_after_eight_more_and_the_text_only_step_itself_does_not_count() -> None:
    steps = [idle()] * 8 + [step(tools_withheld=True)] + [idle()] * 8
    assert _at(steps) == [7, 16]


def test_a_new_successful_result_of_sixty_characters_is_progress_and_the_same_again_is_not() -> None:
    new = step(call_to("read_file", result=LONG))
    assert _at([idle()] * 7 + [new] + [idle()] * 7) == []
    assert _at([new] + [new] * 8) == [8]
    assert _at([idle()] * 7 + [step(call_to("read_file", result=LONG[:-1]))]) == [7]
    assert _at([idle()] * 7 + [step(call_to("read_file", result="  " + LONG[:-1] + "\n"))]) == [7]


def test_a_failed_result_is_no_progress_and_one_of_unknown_success_is() -> None:
    assert _at([idle()] * 7 + [step(call_to("bash", result=LONG, ok=False))]) == [7]
    assert _at([idle()] * 7 + [step(call_to("bash", result=LONG, ok=None))]) == []


def test_what_was_seen_in_an_earlier_turn_is_new_again() -> None:
    settings = rule_settings(**OFF)
    new = step(call_to("read_file", result=LONG))
    state, _ = feed([new, *[idle()] * 7], settings)
    _, found = feed([idle()] * 7 + [new] + [idle()] * 7, settings, begin_turn(state))
    assert found == []


def test_a_turn_that_begins_and_not_a_human_envelope_restarts_the_run() -> None:
    settings = rule_settings(**OFF)
    state, _ = feed([idle()] * 7, settings)
    assert feed([idle()], settings, begin_turn(state))[1] == []
    assert len(feed([idle()], settings, restart_scope(state))[1]) == 1


@pytest.mark.parametrize("name", ["edit_file", "Write", "apply_patch", "str_replace_editor"])
def test_a_successful_edit_always_counts_and_a_failed_one_never(name: str) -> None:
    assert _at([idle()] * 7 + [step(call_to(name, result="ok"))] + [idle()] * 7) == []
    assert _at([idle()] * 7 + [step(call_to(name, result="ok", ok=False))]) == [7]


def test_a_change_outside_is_progress_in_whatever_direction() -> None:
    same = [idle(state_fingerprint="a")] * 7
    assert _at([*same, idle(state_fingerprint="a")]) == [7]
    assert _at([*same, idle(state_fingerprint="b"), *[idle(state_fingerprint="b")] * 7]) == []


def test_a_change_between_two_turns_is_seen_by_the_next() -> None:
    settings = rule_settings(**OFF, progress_stall__threshold=1)
    state, _ = feed([step(call_to("Edit"), state_fingerprint="a")], settings)
    assert feed([idle(state_fingerprint="b")], settings, begin_turn(state))[1] == []
    assert len(feed([idle(state_fingerprint="a")], settings, begin_turn(state))[1]) == 1


def test_a_sensor_that_fails_neither_counts_nor_excuses() -> None:
    same, unknown = idle(state_fingerprint="a"), idle()
    assert _at([same] * 7 + [unknown] * (BLIND_STEPS - 1)) == []
    assert _at([same] * 7 + [unknown] * (BLIND_STEPS - 1) + [same]) == [7 + BLIND_STEPS - 1]


def test_a_sensor_that_is_gone_for_good_does_not_switch_the_rule_off() -> None:
    assert _at([idle(state_fingerprint="a")] + [idle()] * 40)[0] == BLIND_STEPS + 6


def test_the_sensor_stays_failed_from_turn_to_turn() -> None:
    settings = rule_settings(**OFF, progress_stall__threshold=2)
    state, _ = feed([idle(state_fingerprint="a")], settings)
    fired = 0
    for _ in range(BLIND_STEPS + 2):
        once = step(call_to("read_file", result=LONG))
        state, found = feed([once, idle(), idle()], settings, begin_turn(state))
        fired += len(found)
    assert fired > 0


def test_without_a_sensor_the_results_decide() -> None:
    assert _at([idle()] * 8) == [7]


def test_a_step_without_calls_counts() -> None:
    assert _at([step()] * 8) == [7]


@pytest.mark.parametrize("off", [{"progress_stall__threshold": 0}, {"progress_stall__enabled": False}])
def test_zero_and_disabled_switch_it_off(off: dict[str, Any]) -> None:
    assert _at([idle()] * 99, **off) == []


def test_the_length_is_configurable() -> None:
    assert (
        _at(
            [step(call_to("ls", result="s" * n)) for n in range(1, 30)], progress_stall__min_info_gain_chars=1
        )
        == []
    )


RESULTS = st.sampled_from(["short", LONG, LONG + "a", LONG + "b"])
STEPS = st.lists(
    st.one_of(
        st.builds(lambda text, ok: step(call_to("ls", result=text, ok=ok)), RESULTS, st.booleans()),
        st.builds(lambda outside: idle(state_fingerprint=outside), st.sampled_from(["p", "q", None])),
        st.just(step(call_to("Edit", result=""))),
        st.just(step(tools_withheld=True)),
    ),
    max_size=40,
)


@given(steps=STEPS, threshold=st.integers(1, 5), turns=st.sets(st.integers(0, 39)))
def test_firings_are_those_of_a_naive_reading_of_the_turn(
    steps: list[StepRecord], threshold: int, turns: set[int]
) -> None:
    settings = rule_settings(**OFF, progress_stall__threshold=threshold)
    state, run, outside = RulesState(), 0, None
    seen: set[str] = set()
    unknown = 0
    for index, record in enumerate(steps):
        if index in turns:
            state, run, seen = begin_turn(state), 0, set()
        state, found = feed([record], settings, state)
        fresh = {
            call.result
            for call in record.calls
            if call.ok and call.result_chars >= 60 and call.result not in seen
        }
        known = record.state_fingerprint
        progress = bool(fresh) or any(call.ok and call.name == "Edit" for call in record.calls)
        progress |= known is not None and outside is not None and known != outside
        unknown = unknown + 1 if known is None and outside is not None else 0
        if unknown == BLIND_STEPS:
            outside, unknown, blind = None, 0, False
        else:
            blind = unknown > 0
        seen |= {result for result in fresh if result}
        outside = known or outside
        if progress:
            run = 0
        elif not blind and not record.tools_withheld:
            run += 1
        assert bool(found) == (run >= threshold and not progress and not blind and not record.tools_withheld)
        if found:
            run = 0


def test_the_default_thresholds_are_the_published_ones() -> None:
    stall = rule_settings().progress_stall
    assert (stall.threshold, stall.min_info_gain_chars) == (8, 60)
