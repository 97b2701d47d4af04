"""RepeatedText and BarrenStreak."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.rules import RuleSettings, RulesState, observe_turn, rearm, restart_scope, streaks
from loopd.core.rules.findings import MAX_EVIDENCE
from loopd_protocol.sources import Trigger
from tests.rules.making import FILLER, feed, rule_settings, turn


def test_the_fifth_identical_text_closes_the_gate_for_an_hour() -> None:
    _, found = feed(turn(n=n, tokens=10) for n in range(1, 6))
    [(index, finding)] = found
    assert index == 4
    assert (finding.rule, finding.verdict, finding.level) == ("repeated_text", "close", "hard")
    assert (finding.score, finding.threshold, finding.unit, finding.window) == (5, 5, "turns", 5)
    assert finding.close_ms == 3_600_000
    assert finding.onset_tokens == 50
    assert finding.shadow is False
    assert 0 < len(finding.evidence) <= MAX_EVIDENCE
    assert "turns 1 to 5" in finding.evidence[0]
    assert finding.note is not None
    for part in ("5 turns in a row", FILLER, "(1)", "(2)", "(3)", "blocked", "infeasible", "request_idle"):
        assert part in finding.note


def test_four_identical_texts_are_left_alone_and_a_different_one_begins_a_new_run() -> None:
    texts = ["a"] * 4 + ["b"] + ["a"] * 4
    state, found = feed(turn(text) for text in texts)
    assert found == []
    assert streaks(state) == (4, 9)


def test_texts_that_differ_in_one_space_are_different() -> None:
    _, found = feed(turn(text) for text in ["a", "a "] * 10)
    assert found == []


def test_a_silenced_rule_says_nothing_until_it_is_armed_again_and_then_counts_from_zero() -> None:
    state, found = feed(turn() for _ in range(40))
    assert [index for index, _ in found] == [4]
    assert streaks(state)[0] == 5
    state = rearm(state, "repeated_text")
    assert streaks(state)[0] == 0
    state, again = feed((turn() for _ in range(5)), state=state)
    assert [(index, finding.rule) for index, finding in again] == [(4, "repeated_text")]


def test_an_envelope_does_not_shorten_a_run_that_has_not_fired() -> None:
    state, _ = feed(turn() for _ in range(4))
    state = restart_scope(state)
    _, found = feed([turn(trigger=Trigger.HUMAN)], state=state)
    assert [finding.rule for _, finding in found] == ["repeated_text"]


@pytest.mark.parametrize("outcome", ["model_error", "interrupted", "failed"])
def test_a_turn_that_was_cut_off_neither_extends_nor_ends_a_run(outcome: str) -> None:
    state, found = feed(
        [turn(tokens=1)] * 4 + [turn("something else", outcome=outcome, calls=3, tokens=7)] * 9
    )
    assert found == []
    assert streaks(state) == (4, 4)
    _, found = feed([turn(tokens=1)], state=state)
    assert [(finding.score, finding.onset_tokens) for _, finding in found] == [(5, 5 + 63)]


@pytest.mark.parametrize("outcome", ["completed", "empty", "idle", "deadline", "stopped_by_rule"])
def test_any_other_outcome_is_judged(outcome: str) -> None:
    _, found = feed([turn("", outcome=outcome)] * 5)
    assert [(index, finding.rule) for index, finding in found] == [(4, "repeated_text")]
    assert "(empty)" in str(found[0][1].note)


def test_calling_tools_without_a_word_is_no_text_and_ends_a_run() -> None:
    state, found = feed([turn("", calls=1, outcome="idle")] * 20)
    assert found == []
    state, found = feed([turn()] * 4 + [turn("", calls=1)] + [turn()] * 4, state=state)
    assert found == []
    assert streaks(state) == (4, 4)


def test_the_fiftieth_turn_without_a_tool_call_closes_the_gate() -> None:
    _, found = feed(turn(f"thought {n}", n=n, tokens=2) for n in range(1, 51))
    [(index, finding)] = found
    assert (index, finding.rule, finding.verdict, finding.level) == (49, "barren_streak", "close", "hard")
    assert (finding.score, finding.threshold, finding.onset_tokens) == (50, 50, 100)
    assert "thought 50" in str(finding.note)


def test_one_tool_call_ends_a_barren_streak() -> None:
    turns = [turn(f"{n}", calls=int(n == 30)) for n in range(79)]
    state, found = feed(turns)
    assert found == []
    assert streaks(state)[1] == 48


def test_both_rules_may_fire_with_the_same_turn_and_one_hold_arms_both() -> None:
    settings = rule_settings(repeated_text__threshold=3, barren_streak__threshold=3)
    state, found = feed([turn()] * 3, settings)
    assert [finding.rule for _, finding in found] == ["repeated_text", "barren_streak"]
    state, found = feed([turn()] * 3, settings, rearm(state, "barren_streak"))
    assert [finding.rule for _, finding in found] == ["repeated_text", "barren_streak"]


def test_arming_one_rule_leaves_the_run_of_another_that_has_not_fired() -> None:
    state, _ = feed([turn()] * 5)
    assert streaks(rearm(state, "repeated_text")) == (0, 5)
    assert rearm(RulesState(), "no_such_rule") == RulesState()


@pytest.mark.parametrize("off", [{"repeated_text__threshold": 0}, {"repeated_text__enabled": False}])
def test_zero_and_disabled_switch_a_rule_off(off: dict[str, Any]) -> None:
    state, found = feed([turn()] * 20, rule_settings(**off))
    assert found == []
    assert state.repeated_text == RulesState().repeated_text


def test_the_wake_time_is_configurable() -> None:
    _, found = feed([turn()] * 5, rule_settings(repeated_text__wake_after_s=7))
    assert found[0][1].close_ms == 7_000


def test_the_loop_keeps_its_identity_over_a_relapse_and_another_text_has_another() -> None:
    state, [(_, first)] = feed([turn()] * 5)
    state, [(_, again)] = feed([turn()] * 5, state=rearm(state, "repeated_text"))
    _, [(_, other)] = feed([turn("else")] * 5, state=rearm(state, "repeated_text"))
    assert first.loop_id == again.loop_id != other.loop_id


def test_a_rule_in_shadow_mode_tells_and_arms_itself_when_its_hold_would_have_gone() -> None:
    settings = rule_settings(repeated_text__mode="shadow", repeated_text__wake_after_s=60)
    state, found = feed([turn(at_ms=1_000)] * 30, settings)
    assert [(index, finding.shadow) for index, finding in found] == [(4, True)]
    _, by_time = feed([turn(at_ms=61_000)] * 5, settings, state)
    assert [index for index, _ in by_time] == [4]
    early, none = feed([turn(at_ms=60_999)] * 5, settings, state)
    assert none == []
    _, by_envelope = feed(
        [turn(at_ms=2_000, trigger=Trigger.CRON)] + [turn(at_ms=2_000)] * 4, settings, early
    )
    assert [index for index, _ in by_envelope] == [4]


def test_text_of_an_agent_cannot_break_out_of_its_line() -> None:
    _, found = feed([turn("a\n\x1b[2J\u202e\tb" + "x" * 5_000)] * 5)
    finding = found[0][1]
    for line in (*finding.evidence, str(finding.note)):
        assert line.isprintable()
        assert len(line) < 1_000


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", ""]),
        st.integers(0, 1),
        st.sampled_from(["completed", "completed", "completed", "model_error", "interrupted", "idle"]),
        st.booleans(),
    ),
    max_size=60,
)


def _expected_runs(history: list[tuple[str, int, str]]) -> tuple[int, int]:
    """Both runs, computed from the whole history since the rule was armed last."""
    judged = [
        (text, calls) for text, calls, outcome in history if outcome not in {"model_error", "interrupted"}
    ]
    repeat = barren = 0
    for text, calls in reversed(judged):
        if (text, calls) == ("", 1) or text != judged[-1][0]:
            break
        repeat += 1
    for _, calls in reversed(judged):
        if calls:
            break
        barren += 1
    return repeat, barren


@given(turns=TURNS, repeat_at=st.integers(1, 4), barren_at=st.integers(1, 6))
def test_streaks_and_firings_are_those_of_a_naive_reading_of_the_history(
    turns: list[tuple[str, int, str, bool]], repeat_at: int, barren_at: int
) -> None:
    settings = rule_settings(repeated_text__threshold=repeat_at, barren_streak__threshold=barren_at)
    state = RulesState()
    histories: dict[str, list[tuple[str, int, str]]] = {"repeated_text": [], "barren_streak": []}
    silenced = {"repeated_text": False, "barren_streak": False}
    for text, calls, outcome, arm in turns:
        verdicts = observe_turn(state, settings, turn(text, calls=calls, outcome=outcome))
        state = verdicts.state
        fired = {finding.rule for finding in verdicts.findings}
        for index, (rule, threshold) in enumerate(
            (("repeated_text", repeat_at), ("barren_streak", barren_at))
        ):
            if silenced[rule]:
                assert rule not in fired
                continue
            histories[rule].append((text, calls, outcome))
            run = _expected_runs(histories[rule])[index]
            assert streaks(state)[index] == run
            judged = outcome not in {"model_error", "interrupted"}
            assert (rule in fired) == (judged and run >= threshold)
            silenced[rule] = rule in fired
        if arm and any(silenced.values()):
            state = rearm(state, next(rule for rule, quiet in silenced.items() if quiet))
            for rule, quiet in silenced.items():
                if quiet:
                    histories[rule], silenced[rule] = [], False


def test_the_default_thresholds_are_the_published_ones() -> None:
    settings = RuleSettings()
    assert (settings.repeated_text.threshold, settings.repeated_text.wake_after_s) == (5, 3_600)
    assert (settings.barren_streak.threshold, settings.barren_streak.wake_after_s) == (50, 3_600)
