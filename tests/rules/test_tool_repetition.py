"""ToolRepetition."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.rules import (
    RepetitionVerdict,
    RuleSettings,
    RulesState,
    begin_turn,
    observe_step,
    rearm,
    restart_scope,
)
from loopd.core.rules.findings import MAX_EVIDENCE
from loopd.core.rules.tool_repetition import ToolRepetitionParameters, check
from tests.rules.making import call_to, feed, rule_settings, step

READ = call_to("read_file", {"path": "a.py"})
GREP = call_to("grep", {"pattern": "x"})


def _only(found: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(index, finding) for index, finding in found if finding.rule == "tool_repetition"]


def test_the_third_identical_call_is_corrected_and_the_fourth_terminates() -> None:
    state, found = feed(step(READ, n=n, tokens=100) for n in range(1, 5))
    (first, nudge), (second, end) = _only(found)
    assert (first, second) == (2, 3)
    assert (nudge.verdict, nudge.level, nudge.unit, nudge.score, nudge.threshold) == (
        "nudge", "soft", "permille", 666, 600,
    )  # fmt: skip
    assert (end.verdict, end.level, end.note) == ("terminate", "hard", None)
    assert nudge.onset_tokens == 300
    assert end.onset_tokens == 400
    assert nudge.loop_id == end.loop_id
    assert state.tool_repetition.corrections == 1


def test_the_correction_names_the_call_and_its_count_and_offers_three_exits() -> None:
    _, found = feed([step(READ)] * 3)
    note = _only(found)[0][1].note
    for part in ('read_file({"path":"a.py"}) 3 times', "(1)", "(2)", "(3)", "request_idle"):
        assert part in note


def test_text_only_steps_are_dropped_but_their_tokens_are_counted() -> None:
    steps = [
        step(READ, tokens=1),
        step(tokens=10),
        step(READ, tokens=1),
        step(tokens=10),
        step(READ, tokens=1),
    ]
    _, found = feed(steps)
    assert [(index, finding.onset_tokens) for index, finding in _only(found)] == [(4, 23)]


def test_a_cycle_fires_below_the_ratio_and_is_measured_in_laps() -> None:
    settings = rule_settings(tool_repetition__repetition_threshold=1)
    _, found = feed([step(READ), step(GREP)] * 2, settings)
    [(index, finding)] = _only(found)
    assert (index, finding.unit, finding.score, finding.threshold) == (3, "laps", 2, 2)


def test_the_order_of_parallel_calls_does_not_matter() -> None:
    settings = rule_settings(tool_repetition__repetition_threshold=1)
    other = call_to("ls")
    _, found = feed([step(READ, GREP), step(other), step(GREP, READ), step(other)], settings)
    assert [index for index, _ in _only(found)] == [3]


def test_what_was_spent_before_the_loop_began_is_not_on_its_bill() -> None:
    before = [step(call_to("ls", {"path": path}), tokens=1_000) for path in "abc"]
    _, found = feed([*before, step(tokens=500), *[step(READ, tokens=1)] * 4])
    assert [(index, finding.onset_tokens) for index, finding in _only(found)] == [(7, 4)]


def test_each_rotation_of_a_cycle_is_the_same_loop() -> None:
    settings = rule_settings(tool_repetition__window_size=4)
    _, one = feed([step(READ), step(GREP)] * 2, settings)
    _, other = feed([step(GREP), step(READ)] * 2, settings)
    _, else_ = feed([step(GREP), step(call_to("ls"))] * 2, settings)
    assert _only(one)[0][1].loop_id == _only(other)[0][1].loop_id != _only(else_)[0][1].loop_id


def test_a_human_envelope_restarts_window_and_counter_and_nothing_else_does() -> None:
    state, _ = feed([step(READ)] * 3)
    for kept in (begin_turn(state), rearm(state, "repeated_text"), rearm(state, "")):
        assert kept.tool_repetition == state.tool_repetition
    fresh = restart_scope(state)
    assert fresh.tool_repetition == RulesState().tool_repetition
    _, found = feed([step(READ)] * 3, state=fresh)
    assert [(index, finding.verdict) for index, finding in _only(found)] == [(2, "nudge")]


def test_the_counter_survives_a_crash() -> None:
    state, _ = feed([step(READ)] * 3)
    again = msgspec.json.decode(msgspec.json.encode(state), type=RulesState)
    _, found = feed([step(READ)], state=again)
    assert [finding.verdict for _, finding in _only(found)] == ["terminate"]


def test_in_shadow_mode_the_story_is_told_as_it_would_have_gone() -> None:
    _, found = feed([step(READ)] * 4, rule_settings(tool_repetition__mode="shadow"))
    assert [(finding.verdict, finding.shadow) for _, finding in _only(found)] == [
        ("nudge", True),
        ("terminate", True),
    ]


def test_disabled_it_is_quiet() -> None:
    _, found = feed([step(READ)] * 9, rule_settings(tool_repetition__enabled=False))
    assert _only(found) == []
    assert check([("a:1",)] * 9, 0, ToolRepetitionParameters(enabled=False)) == RepetitionVerdict()


def test_evidence_is_short_whatever_the_agent_calls() -> None:
    calls = [call_to(f"tool{n}", {"x": "y" * 9_000}) for n in range(40)]
    _, found = feed([step(*calls, n=n) for n in range(1, 4)])
    finding = _only(found)[0][1]
    assert len(finding.evidence) == MAX_EVIDENCE
    assert all(len(line) < 200 for line in finding.evidence)
    assert len(finding.note) < 1_500


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": "inject_prompt"},
        {"verdict": "inject_prompt", "message": ""},
        {"verdict": "terminate", "message": "m"},
        {"verdict": "no_stagnation", "message": "m"},
        {"verdict": "no_stagnation", "reason": "r"},
        {"verdict": "stop"},
        {"repetition_ratio": Fraction(-1, 2)},
        {"repetition_ratio": Fraction(3, 2)},
        {"cycle_length": 1},
        {"cycle_length": 0},
    ],
)
def test_a_verdict_that_contradicts_itself_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown verdict"):
        RepetitionVerdict(**fields)


def test_a_verdict_is_frozen_and_keeps_its_own_copy_of_the_details() -> None:
    details: dict[str, Any] = {"calls": ["a"], "inner": {"n": 1}}
    verdict = RepetitionVerdict(verdict="terminate", reason="r", details=details)
    details["calls"].append("b")
    details["inner"]["n"] = 2
    details["more"] = True
    assert verdict.details == {"calls": ("a",), "inner": {"n": 1}}
    with pytest.raises(AttributeError):
        verdict.reason = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        verdict.details["calls"] = ()  # type: ignore[index]
    with pytest.raises(TypeError):
        verdict.details["inner"]["n"] = 3


HISTORIES = st.lists(st.lists(st.sampled_from(["a:1", "b:2", "c:3"]), max_size=3).map(sorted), max_size=40)
PARAMETERS = st.builds(
    lambda window, threshold, cycles, most, least: ToolRepetitionParameters(
        window_size=window,
        repetition_threshold=threshold,
        cycle_detection=cycles,
        max_corrections=most,
        min_tool_turns=min(least, window),
    ),
    st.integers(2, 12),
    st.sampled_from([0, 0.25, 0.4, 0.5, 0.6, 0.6667, 0.75, 1]),
    st.booleans(),
    st.integers(0, 3),
    st.integers(1, 4),
)


def _naive(history: list[list[str]], corrections: int, settings: ToolRepetitionParameters) -> tuple[Any, ...]:
    """The published text, word by word, over the whole history."""
    tool_turns = [turn for turn in history if len(turn) > 0]
    window = tool_turns[max(0, len(tool_turns) - settings.window_size) :]
    if len(window) < settings.min_tool_turns:
        return "no_stagnation", Fraction(0), None
    calls = [call for turn in window for call in turn]
    ratio = Fraction(len(calls) - len(Counter(calls)), len(calls))
    cycle = None
    if settings.cycle_detection:
        for k in range(2, len(window)):
            if (
                2 * k <= len(window)
                and window[len(window) - k :] == window[len(window) - 2 * k : len(window) - k]
            ):
                cycle = k
                break
    thousandths = Fraction(round(settings.repetition_threshold * 10_000), 10_000)
    if ratio < thousandths and cycle is None:
        return "no_stagnation", ratio, None
    return "inject_prompt" if corrections < settings.max_corrections else "terminate", ratio, cycle


@given(history=HISTORIES, settings=PARAMETERS, breaks=st.sets(st.integers(0, 39)))
def test_step_by_step_equals_the_naive_reading_of_the_whole_history(
    history: list[list[str]], settings: ToolRepetitionParameters, breaks: set[int]
) -> None:
    names = {None: "no_stagnation", "nudge": "inject_prompt", "terminate": "terminate"}
    state, scope, corrections = RulesState(), list[list[str]](), 0
    for index, fingerprints in enumerate(history):
        if index in breaks:
            state, scope, corrections = restart_scope(state), [], 0
        scope.append(fingerprints)
        calls = [call_to("t", {"f": fingerprint}) for fingerprint in fingerprints]
        calls = [
            msgspec.structs.replace(call, fingerprint=f) for call, f in zip(calls, fingerprints, strict=True)
        ]
        verdicts = observe_step(
            state, RuleSettings(tool_repetition=settings), step(*reversed(calls), n=index + 1)
        )
        assert verdicts.failures == ()
        state = verdicts.state
        expected = _naive(scope, corrections, settings)
        found = [finding.verdict for finding in verdicts.findings if finding.rule == "tool_repetition"]
        if fingerprints:
            assert names[found[0] if found else None] == expected[0]
            judged = check([each.calls for each in state.tool_repetition.steps], corrections, settings)
            assert (judged.verdict, judged.repetition_ratio, judged.cycle_length) == expected
            corrections += expected[0] == "inject_prompt"
        else:
            assert found == []
        assert state.tool_repetition.corrections == corrections
        assert len(state.tool_repetition.steps) <= settings.window_size


@given(history=HISTORIES, settings=PARAMETERS, corrections=st.integers(0, 5))
def test_every_verdict_keeps_its_invariants(
    history: list[list[str]], settings: ToolRepetitionParameters, corrections: int
) -> None:
    verdict = check(history, corrections, settings)
    assert (verdict.message is not None) == (verdict.verdict == "inject_prompt")
    assert (verdict.reason is None) == (verdict.verdict == "no_stagnation")
    assert 0 <= verdict.repetition_ratio <= 1
    assert verdict.cycle_length is None or verdict.cycle_length >= 2
    assert verdict == check([turn for turn in history if turn], corrections, settings)
