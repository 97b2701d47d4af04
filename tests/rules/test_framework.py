"""The framework: serialisation, broken rules, purity of what it hands out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.records import StepRecord, TurnRecord
from loopd.core.rules import (
    RULES,
    Failure,
    Rule,
    RuleSettings,
    RulesState,
    begin_turn,
    framework,
    lanes,
    observe_step,
    observe_turn,
    rearm,
    restart_scope,
)
from tests.rules.making import call_to, feed, step, turn

CALLS = st.builds(
    lambda name, args, ok, result: call_to(name, args, ok=ok, result=result),
    st.sampled_from(["bash", "Read", "edit_file", "x"]),
    st.dictionaries(
        st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=2
    ),
    st.sampled_from([True, False, None]),
    st.one_of(st.none(), st.text(max_size=80)),
)
STEPS = st.builds(
    lambda calls, text, tokens, state, withheld: step(
        *calls, text=text, tokens=tokens, state_fingerprint=state, tools_withheld=withheld
    ),
    st.lists(CALLS, max_size=3),
    st.text(max_size=20),
    st.integers(0, 1_000),
    st.sampled_from([None, "a", "b"]),
    st.booleans(),
)
TURNS = st.builds(
    lambda text, calls, outcome: turn(text, calls=calls, outcome=outcome),
    st.one_of(st.sampled_from(["a", ""]), st.text(max_size=10)),
    st.integers(0, 2),
    st.sampled_from(["completed", "empty", "idle", "model_error", "interrupted", "failed", "deadline"]),
)
RESETS = st.sampled_from(["restart_scope", "begin_turn", "rearm"])
SETTINGS = RuleSettings()


def _apply(state: RulesState, what: StepRecord | TurnRecord | str) -> tuple[RulesState, tuple[Any, ...]]:
    match what:
        case StepRecord():
            verdicts = observe_step(state, SETTINGS, what)
        case TurnRecord():
            verdicts = observe_turn(state, SETTINGS, what)
        case "restart_scope":
            return restart_scope(state), ()
        case "begin_turn":
            return begin_turn(state), ()
        case _:
            return rearm(state, "repeated_text"), ()
    assert verdicts.failures == ()
    return verdicts.state, verdicts.findings


@given(inputs=st.lists(st.one_of(STEPS, TURNS, RESETS), max_size=50))
def test_a_state_that_was_stored_and_read_after_each_input_judges_the_same(
    inputs: list[StepRecord | TurnRecord | str],
) -> None:
    live, json, packed = RulesState(), RulesState(), RulesState()
    for what in inputs:
        json = msgspec.json.decode(msgspec.json.encode(json), type=RulesState)
        packed = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=RulesState)
        live, found = _apply(live, what)
        json, found_json = _apply(json, what)
        packed, found_packed = _apply(packed, what)
        assert found == found_json == found_packed
        assert live == json == packed


@given(inputs=st.lists(st.one_of(STEPS, TURNS), max_size=30))
def test_observing_never_changes_the_state_it_was_given(inputs: list[StepRecord | TurnRecord]) -> None:
    state = RulesState()
    for what in inputs:
        before = msgspec.json.encode(state)
        after, _ = _apply(state, what)
        assert msgspec.json.encode(state) == before
        state = after


def test_a_state_stays_small_however_long_the_session() -> None:
    def record(n: int) -> StepRecord:
        return step(*(call_to(f"tool{n}{m}", {"n": n}, result=f"{n}:{m}" + "x" * 80) for m in range(4)), n=n)

    state, _ = feed(record(n) for n in range(200))
    middle = len(msgspec.json.encode(state))
    state, _ = feed((record(n) for n in range(200, 2_000)), state=state)
    assert len(msgspec.json.encode(state)) < middle + 200 < 8_000


def test_an_untouched_state_serialises_to_nothing() -> None:
    assert msgspec.json.encode(RulesState()) == b"{}"
    state, _ = feed([turn()] * 5 + [step(call_to("x"))] * 3)
    state = begin_turn(restart_scope(rearm(state, "repeated_text")))
    assert state.tool_repetition is RulesState().tool_repetition
    assert msgspec.json.decode(msgspec.json.encode(state), type=RulesState) == state


def _broken(error: BaseException) -> Rule:
    def observe(state: Any, parameters: Any, record: Any) -> Any:
        raise error

    return Rule(id="tool_repetition", on_step=observe, on_turn=observe)


def _with(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    monkeypatch.setattr(framework, "RULES", tuple(rule if row.id == rule.id else row for row in RULES))


def test_a_rule_that_raises_is_reported_and_skipped_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with(monkeypatch, _broken(KeyError("x" * 5_000)))
    state = RulesState()
    for _ in range(8):
        verdicts = observe_step(state, SETTINGS, step(call_to("bash", result="short")))
        [failure] = verdicts.failures
        assert isinstance(failure, Failure)
        assert failure.rule == "tool_repetition"
        assert failure.error.startswith("KeyError")
        assert len(failure.error) <= 500
        assert verdicts.state.tool_repetition == state.tool_repetition
        state = verdicts.state
    assert [finding.rule for finding in verdicts.findings] == ["progress_stall"]
    assert observe_turn(state, SETTINGS, turn()).state.repeated_text.run == 1


def test_a_rule_that_returns_nonsense_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, Rule(id="tool_repetition", on_step=lambda state, parameters, record: None))  # type: ignore[arg-type,return-value]
    assert [failure.rule for failure in observe_step(RulesState(), SETTINGS, step()).failures] == [
        "tool_repetition"
    ]


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), KeyboardInterrupt()])
def test_what_concerns_the_whole_process_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    _with(monkeypatch, _broken(error))
    with pytest.raises(type(error)):
        observe_step(RulesState(), SETTINGS, step())


def test_each_rule_has_parameters_and_a_state_of_its_own_name() -> None:
    names = [rule.id for rule in RULES]
    assert set(names) <= set(RulesState.__struct_fields__)
    assert set(lanes.IDS) == set(lanes.Lane.__struct_fields__) - {"trail"}
    assert {*names, *lanes.IDS, "chanting"} == set(RuleSettings.__struct_fields__)
