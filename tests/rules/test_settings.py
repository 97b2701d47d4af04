"""Settings: one grammar, bounds with numbers, the nearest known key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.settings import ALIASES, Settings, config_revision, setting_keys, settings_of
from loopd_protocol.errors import Refused


def _value(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _refusal(overrides: dict[str, Any], preset: str = "published") -> Refused:
    with pytest.raises(Refused) as refused:
        settings_of(preset, overrides)
    return refused.value


def test_the_published_preset_has_the_published_numbers() -> None:
    met = {key: _value(settings_of("published", {}), key) for key in setting_keys()}
    expected = {
        "rules.repeated_text.threshold": 5,
        "rules.repeated_text.wake_after_s": 3_600,
        "rules.barren_streak.threshold": 50,
        "rules.barren_streak.wake_after_s": 3_600,
        "rules.tool_repetition.window_size": 5,
        "rules.tool_repetition.repetition_threshold": 0.6,
        "rules.tool_repetition.cycle_detection": True,
        "rules.tool_repetition.max_corrections": 1,
        "rules.tool_repetition.min_tool_turns": 2,
        "rules.progress_stall.threshold": 8,
        "rules.progress_stall.min_info_gain_chars": 60,
        "continuation.min_gap_ms": 2_000,
        "continuation.backoff_s": (),
        "gate.inbox_cap": 100,
        "gate.pass_gap_ms": 60_000,
        "gate.interrupt_for_ms": 300_000,
    }
    assert met | expected == met
    published = {"repeated_text", "barren_streak", "tool_repetition", "progress_stall"}
    assert {rule for rule in _rules() if met[f"rules.{rule}.enabled"]} == published
    assert all(met[f"rules.{rule}.mode"] == "act" for rule in _rules())


def _contradicts(key: str, number: int) -> bool:
    """Whether this number alone is within its bounds and yet could never fire or be held."""
    try:
        settings_of("published", {key: number})
    except Refused as refused:
        return refused.path is not None and refused.path.count(".") == 2 and key.startswith("rules.")
    return False


def _rules() -> set[str]:
    return {key.split(".")[1] for key in setting_keys() if key.startswith("rules.")}


def test_dotted_keys_and_nested_tables_are_one_grammar() -> None:
    flat = settings_of("published", {"rules.repeated_text.threshold": 7, "continuation.min_gap_ms": 0})
    nested = settings_of(
        "published", {"rules": {"repeated_text": {"threshold": 7}}, "continuation": {"min_gap_ms": 0}}
    )
    mixed = settings_of("published", {"rules": {"repeated_text.threshold": 7}, "continuation.min_gap_ms": 0})
    assert flat == nested == mixed
    assert flat.rules.repeated_text.threshold == 7


def test_the_published_names_are_aliases() -> None:
    settings = settings_of(
        "published",
        {
            "degeneration_duplicate_text_threshold": 3,
            "rules.degeneration_barren_threshold": 20,
            "degeneration_wake_after_secs": 60,
            "rules": {"progress_stall_threshold": 4},
            "progress_min_info_gain_length": "10",
        },
    )
    rules = settings.rules
    assert (rules.repeated_text.threshold, rules.barren_streak.threshold) == (3, 20)
    assert (rules.repeated_text.wake_after_s, rules.barren_streak.wake_after_s) == (60, 60)
    assert (rules.progress_stall.threshold, rules.progress_stall.min_info_gain_chars) == (4, 10)


def test_every_alias_stands_for_known_keys() -> None:
    assert {target for targets in ALIASES.values() for target in targets} <= setting_keys().keys()


def test_a_key_and_its_alias_may_agree_but_not_differ() -> None:
    both = {"degeneration_barren_threshold": 9, "rules.barren_streak.threshold": 9}
    assert settings_of("published", both).rules.barren_streak.threshold == 9
    refused = _refusal(both | {"degeneration_barren_threshold": 8})
    assert refused.code == "invalid"
    assert "8" in refused.message
    assert "9" in refused.message


@pytest.mark.parametrize(
    ("key", "given_text", "value"),
    [
        ("rules.repeated_text.threshold", "5", 5),
        ("rules.repeated_text.threshold", " 1_000 ", 1_000),
        ("rules.repeated_text.enabled", "false", False),
        ("rules.repeated_text.mode", "shadow", "shadow"),
        ("rules.tool_repetition.repetition_threshold", "0.75", 0.75),
        ("rules.tool_repetition.repetition_threshold", "1", 1.0),
        ("continuation.backoff_s", "[60, 300]", (60, 300)),
        ("continuation.backoff_s", "[]", ()),
        ("continuation.text", "5", "5"),
        ("continuation.text", "Go on: {goal}", "Go on: {goal}"),
    ],
)
def test_texts_from_the_command_line_are_read_as_what_the_key_needs(
    key: str, given_text: str, value: Any
) -> None:
    met = _value(settings_of("published", {key: given_text}), key)
    assert met == value
    assert type(met) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        "x",
        "5\nother = 6",
        "",
        "nan",
        "inf",
        "5.5",
        "true",
        None,
        True,
        5.0,
        [],
        {},
        -1,
        1_000_001,
        2**80,
        "[" * 9_999,
    ],
)
def test_what_is_no_threshold_is_refused_with_what_was_met_and_expected(value: Any) -> None:
    if value == {}:
        assert settings_of("published", {"rules.repeated_text.threshold": value}) == Settings()
        return
    refused = _refusal({"rules.repeated_text.threshold": value})
    assert refused.code == "invalid"
    assert "rules.repeated_text.threshold is " in refused.message
    assert "expected an integer from 0 to 1_000_000" in refused.message
    assert len(refused.message) < 400


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rules.tool_repetition.repetition_threshold", "nan"),
        ("rules.tool_repetition.repetition_threshold", float("nan")),
        ("rules.tool_repetition.repetition_threshold", "0.6x"),
        ("rules.tool_repetition.cycle_detection", 1),
        ("rules.repeated_text.mode", "off"),
        ("rules.repeated_text.wake_after_s", 0),
        ("continuation.backoff_s", [0]),
        ("continuation.backoff_s", [True]),
        ("continuation.backoff_s", [1] * 17),
        ("continuation.backoff_s", 60),
        ("continuation.text", ""),
        ("continuation.text", 5),
        ("continuation.text", "x" * 10_001),
        ("continuation.min_gap_ms", 86_400_001),
        ("gate.inbox_cap", 0),
        ("turn.max_steps", 0),
    ],
)
def test_out_of_bounds_is_refused(key: str, value: Any) -> None:
    refused = _refusal({key: value})
    assert refused.code == "invalid"
    assert refused.path == f"$.{key}"
    assert "expected" in refused.message


@given(key=st.sampled_from(sorted(setting_keys())), value=st.integers())
def test_each_integer_is_accepted_iff_it_is_within_the_bounds_that_the_reference_shows(
    key: str, value: int
) -> None:
    setting = setting_keys()[key]
    if setting.kind not in {"integer", "number"}:
        return
    assert setting.minimum is not None
    assert setting.maximum is not None
    for number in (
        value,
        int(setting.minimum),
        int(setting.maximum),
        int(setting.minimum) - 1,
        int(setting.maximum) + 1,
    ):
        overrides: dict[str, Any] = {key: number}
        if key.endswith("min_tool_turns"):
            overrides["rules.tool_repetition.window_size"] = 50
        if setting.minimum <= number <= setting.maximum and _contradicts(key, number):
            assert str(number) in _refusal(overrides).message
            continue
        if key.endswith("window_size"):
            overrides["rules.tool_repetition.min_tool_turns"] = 1
        if key == "stop.no_progress":
            overrides["stop.no_progress_correction"] = 0
        if key == "stop.no_progress_correction":
            overrides["stop.no_progress"] = 0
        if key == "gate.provider_backoff_ms":
            overrides["gate.provider_backoff_max_ms"] = 86_400_000
        if key == "gate.provider_backoff_max_ms":
            overrides["gate.provider_backoff_ms"] = 1
        if setting.minimum <= number <= setting.maximum:
            assert _value(settings_of("published", overrides), key) == number
        else:
            assert str(number) in _refusal(overrides).message


def test_settings_that_contradict_each_other_are_refused_with_both_numbers() -> None:
    refused = _refusal({"rules.tool_repetition.window_size": 3, "rules.tool_repetition.min_tool_turns": 4})
    assert "min_tool_turns is 4" in refused.message
    assert "window_size, which is 3" in refused.message
    refused = _refusal({"gate.provider_backoff_ms": 500, "gate.provider_backoff_max_ms": 400})
    assert "500" in refused.message
    assert "400" in refused.message


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("rules.repeated_txt.threshold", "rules.repeated_text.threshold"),
        ("rules.tool_repetition.windowsize", "rules.tool_repetition.window_size"),
        ("continuation.min_gap", "continuation.min_gap_ms"),
        ("degeneration_baren_threshold", "degeneration_barren_threshold"),
        ("inbox_cap", "gate.inbox_cap"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    refused = _refusal({key: 1})
    assert refused.code == "unknown_field"
    assert repr(nearest) in refused.message


@pytest.mark.parametrize("key", ["", "x", "…", "rules.rules.rules", "a" * 100_000])
def test_an_unknown_key_of_any_kind_is_refused(key: str) -> None:
    refused = _refusal({key: 1})
    assert refused.code == "unknown_field"
    assert len(refused.message) < 400


def test_a_table_is_no_value() -> None:
    assert "is a table" in _refusal({"rules.repeated_text": 5}).message
    assert "is a table" in _refusal({"rules": "5"}).message


def test_what_is_too_deep_or_no_key_is_refused() -> None:
    deep: dict[str, Any] = {"x": 1}
    for _ in range(50):
        deep = {"x": deep}
    assert "deeper than" in _refusal(deep).message
    assert "no text" in _refusal({5: 1}).message  # type: ignore[dict-item]


def test_an_unknown_preset_is_refused_and_says_what_is_available() -> None:
    refused = _refusal({}, preset="nonsense")
    assert refused.code == "invalid"
    assert "'published', 'hardened'" in refused.message


def test_the_revision_changes_iff_a_setting_changes() -> None:
    base = settings_of("published", {})
    revisions = {config_revision(base)}
    for key, setting in setting_keys().items():
        other: Any
        match setting.kind:
            case "boolean":
                other = not setting.default
            case "choice":
                other = next(word for word in setting.choices if word != setting.default)
            case "text":
                other = "something else"
            case "integers":
                other = (1,)
            case _:
                other = setting.default + 1 if setting.kind == "integer" else 0.5
        revisions.add(config_revision(settings_of("published", {key: other})))
    assert len(revisions) == 1 + len(setting_keys())
    assert config_revision(settings_of("published", {"continuation.min_gap_ms": "2000"})) == config_revision(
        base
    )


def test_settings_survive_json() -> None:
    settings = settings_of(
        "published", {"continuation.backoff_s": [1, 2], "rules.progress_stall.mode": "shadow"}
    )
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
