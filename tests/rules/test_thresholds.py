"""Each number of the table of rules, exactly: one less is quiet, and the rule stays quiet where it must."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from loopd.core.rules import RuleSettings, lanes
from loopd.core.settings import settings_of
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Trigger
from tests.rules.agents import call, fired, judged, log, read, sh


def first(rule: str, steps: list[Any], level: str, **more: Any) -> int | None:
    """The step at which the rule alone first reaches a level; the ladder never closes meanwhile."""
    given = {"only": rule, "ladder__skip_within_steps": 0} | more
    found = judged(steps, attended=bool(given.pop("attended", False)), **given)
    return next(iter(fired(found, rule, level)), None)


def same(n: int, text: str = "nothing to commit, working tree clean", **more: Any) -> list[Any]:
    return [call("vcs", {"cmd": "status"}, text, **more)] * n


def timed(n: int) -> list[Any]:
    return [call("vcs", {"cmd": "status"}, f"2026-01-01T10:00:{i:02}Z nothing to commit") for i in range(n)]


def texts(n: int) -> list[str]:
    return [f"{i}/100. Not complete. No action." for i in range(n)]


def turns(n: int) -> list[Any]:
    words = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
    ]
    return log(
        *(f"{words[i % 14]} {i}" for i in range(n)), triggers=dict.fromkeys(range(1, n + 1), "continuation")
    )


def asked(n: int) -> list[Any]:
    return [call("search_docs", {"q": f"word{i}"}, "No documents found.") for i in range(n)]


def failing(n: int) -> list[Any]:
    return [call("edit_file", {"old": f"x{i}"}, "error: old text not found", ok=False) for i in range(n)]


def failing_anew(n: int) -> list[Any]:
    return [
        call("edit_file", {"old": f"x{i}"}, f"error: {'abcdefghijklmnopqrstuvwxyz'[i]} not found", ok=False)
        for i in range(n)
    ]


def spaced_noops(n: int, every: int) -> list[Any]:
    return [sh("true") if i % every == 0 else read(f"f{i}", f"new {i}") for i in range(n)]


def laps(n: int, period: int = 2) -> list[Any]:
    return [call(f"t{i % period}", {}, f"result {i % period}") for i in range(n * period)]


def apart(n: int, gap: int = 1) -> list[Any]:
    made: list[Any] = []
    for i in range(n):
        made += [
            sh("npm run build", "error TS2304: no foo"),
            *(read(f"n{i}{j}", f"new {i} {j}") for j in range(gap)),
        ]
    return made


def swept(n: int) -> list[Any]:
    return [read("log", f"line {i % 40}", offset=i % 40) for i in range(40 + n)]


def edges(n: int) -> list[Any]:
    """Research and reading in turn with new words and nothing new: `search->read` from step 2 on."""
    pair = [lambda i: call("grep", {"p": f"w{i}"}, "known"), lambda i: read(f"f{i}", "known")]
    return [pair[i % 2](i) for i in range(2 * n)]


def ghosts(n: int) -> list[Any]:
    return [call("magic", {"n": i}, "there is no tool 'magic'", ok=False) for i in range(n)]


def compactions(n: int) -> list[Any]:
    return [{"calls": (read(f"f{i}", f"new {i}"),), "compacted": i % 2 == 0} for i in range(2 * n)]


EXACT: list[tuple[str, list[Any], str, int]] = [
    ("exact_repeat", timed(20), "soft", 4),
    ("exact_repeat", same(20), "soft", 3),
    ("exact_repeat", timed(20), "hard", 8),
    ("cycle", laps(10), "soft", 6),
    ("cycle", laps(10), "hard", 10),
    ("cycle", laps(6, 8), "soft", 24),
    ("cycle", laps(6, 8), "hard", 40),
    ("interleaved_repeat", apart(12), "soft", 7),
    ("interleaved_repeat", apart(12), "hard", 15),
    ("same_result", asked(20), "soft", 6),
    ("same_result", asked(20), "hard", 12),
    ("error_streak", failing(20), "soft", 4),
    ("error_streak", failing(20), "hard", 12),
    ("error_streak", failing_anew(20), "soft", 8),
    ("error_streak", failing_anew(20), "hard", 12),
    ("noop_calls", [sh("true")] * 20, "soft", 3),
    ("noop_calls", [sh("true")] * 20, "hard", 8),
    ("noop_calls", spaced_noops(40, 3), "soft", 16),
    ("near_duplicate_text", texts(20), "soft", 3),
    ("near_duplicate_text", texts(20), "hard", 10),
    ("toolless_streak", turns(30), "soft", 8),
    ("toolless_streak", turns(30), "hard", 12),
    ("barren_score", same(30), "soft", 9),
    ("barren_score", same(30), "hard", 13),
    ("poll_unchanged", [call("job_status", {}, "exited with code 1")] * 30, "soft", 5),
    ("sweep", swept(100), "soft", 64),
    ("sweep", swept(100), "hard", 100),
    ("compaction_thrash", compactions(9), "soft", 3),
    ("compaction_thrash", compactions(9), "hard", 5),
    ("edge_loop", edges(12), "soft", 12),
    ("edge_loop", edges(12), "hard", 16),
    ("unresolved_tool", ghosts(10), "soft", 3),
    ("unresolved_tool", ghosts(10), "hard", 5),
]


@pytest.mark.parametrize(
    ("rule", "steps", "level", "at"), EXACT, ids=[f"{rule}-{level}-{at}" for rule, _, level, at in EXACT]
)
def test_each_rule_fires_at_exactly_this_step(rule: str, steps: list[Any], level: str, at: int) -> None:
    made = steps if rule == "toolless_streak" else log(*steps)
    assert (
        first(rule, made, level, **{f"{rule}__soft": 0} if level == "hard" and rule != "noop_calls" else {})
        == at
    )
    assert first(rule, made[: at - 1], level) is None


def test_text_is_judged_more_patiently_while_a_person_is_there() -> None:
    assert first("near_duplicate_text", log(*texts(20)), "soft", attended=True) == 5


def test_a_text_is_compared_with_the_last_six() -> None:
    words = ["red", "blue", "green", "black", "white", "grey", "pink"]
    five = [f"alpha beta gamma delta epsilon {w} {w}{w} {w}{w}{w}" if w == "red" else w for w in words[:6]]
    six = [f"alpha beta gamma delta epsilon {w} {w}{w} {w}{w}{w}" if w == "red" else w for w in words]
    assert first("near_duplicate_text", log(*five, *five, *five), "soft") is not None
    assert first("near_duplicate_text", log(*six, *six, *six), "soft") is None


def test_polls_are_hard_only_after_20_looks_at_a_dead_task_in_30_minutes() -> None:
    dead = [call("job_status", {}, "exited with code 1")] * 40
    assert first("poll_unchanged", log(*dead, gap_ms=120_000), "hard", poll_unchanged__soft=0) == 20
    assert first("poll_unchanged", log(*dead, gap_ms=60_000), "hard", poll_unchanged__soft=0) == 31
    assert first("poll_unchanged", log(*dead), "hard", poll_unchanged__soft=0) == 20
    alive = [call("job_status", {}, "running")] * 40
    assert first("poll_unchanged", log(*alive, gap_ms=120_000), "hard") is None
    found = judged(log(*alive, gap_ms=120_000), only="poll_unchanged")
    assert {f.verdict for f in found.findings} == {"warn"}
    assert fired(found, "poll_unchanged")[0] == 5


def test_wakes_are_a_storm_from_three_in_30_seconds_on() -> None:
    def wakes(gap_ms: int, source: str = "agent") -> list[int]:
        steps = log(
            *(read(f"f{n}", f"r{n}") for n in range(9)),
            triggers=dict.fromkeys(range(1, 10), source),
            gap_ms=gap_ms,
        )
        found = judged(steps, only="wake_storm")
        assert {f.verdict for f in found.findings} <= {"warn"}
        return fired(found, "wake_storm")

    assert wakes(14_999)[0] == 3
    assert wakes(15_000) == []
    assert wakes(1_000, "human") == []
    assert wakes(1_000, "continuation") == []


def test_a_sudden_storm_is_seen_by_the_usual_interval() -> None:
    moments = [*range(0, 6 * 3_600, 3_600), *range(6 * 3_600, 6 * 3_600 + 300, 60)]
    steps = [
        {
            "calls": (read(f"f{n}", f"r{n}"),),
            "at_ms": 1_767_225_600_000 + at * 1_000,
            "trigger": Trigger.CHANNEL,
        }
        for n, at in enumerate(moments)
    ]
    assert fired(judged(log(*steps), only="wake_storm"), "wake_storm")[0] == 10


def test_interleaved_repetition_is_forgotten_after_30_steps() -> None:
    assert first("interleaved_repeat", log(*apart(8, 9)), "soft") is None
    assert first("interleaved_repeat", log(*apart(8, 8)), "soft") == 28


def test_what_was_answered_differently_or_changed_in_between_is_not_repetition() -> None:
    other = [*apart(3), sh("npm run build", "ok now"), *apart(3)]
    assert first("interleaved_repeat", log(*other), "soft") is None
    written = [*apart(3), call("edit_file", {"p": 1}, "ok"), *apart(3)]
    assert first("interleaved_repeat", log(*written), "soft") is None


def test_six_no_ops_count_only_within_twenty_steps() -> None:
    assert first("noop_calls", log(*spaced_noops(200, 4)), "soft") is None
    assert first("noop_calls", log(*[*spaced_noops(15, 3), *([sh("true"), read("q", "q1")])]), "soft") == 16


def test_compactions_with_three_steps_of_progress_between_them_are_fine() -> None:
    steps = [{"calls": (read(f"f{n}", f"new {n}"),), "compacted": n % 3 == 0} for n in range(30)]
    assert first("compaction_thrash", log(*steps), "soft") is None
    steps = [{"calls": (read(f"f{n}", f"new {n}"),), "compacted": n % 2 == 0} for n in range(30)]
    assert first("compaction_thrash", log(*steps), "soft") == 3


def test_neutral_steps_count_a_third_and_never_more_than_barren_ones() -> None:
    silent = [call("poke", {"n": n}, "") for n in range(90)]
    assert first("barren_score", log(*silent), "soft") is None
    mixed = list(
        itertools.chain(*([*silent[3 * n : 3 * n + 3], call("poke", {"n": 0}, "")] for n in range(20)))
    )
    assert first("barren_score", log(*mixed), "soft") == 16


def test_a_missing_result_is_unknown_and_never_the_same() -> None:
    assert first("exact_repeat", log(*same(20, text=None)), "soft") is None  # type: ignore[arg-type]
    assert first("cycle", log(*(call(f"t{n % 2}", {}, None) for n in range(20))), "soft") is None


def test_calls_that_were_answered_with_withheld_tools_are_not_judged() -> None:
    found = judged(
        log(*failing(3), {"calls": tuple(failing(1)), "text": ""}, *failing(1)), only="error_streak"
    )
    assert fired(found, "error_streak") == [4]


CONTRADICTIONS = [
    ({"rules.exact_repeat.soft": 9}, ("exact_repeat.soft is 9", "8")),
    ({"rules.exact_repeat.soft_identical": 9}, ("soft_identical is 9", "8")),
    ({"rules.exact_repeat.hard": 129}, ("hard is 129", "128")),
    ({"rules.cycle.soft": 1}, ("soft is 1", "at least 2")),
    ({"rules.cycle.hard": 17}, ("17 laps", "136", "128")),
    ({"rules.cycle.max_period": 16, "rules.cycle.hard": 9}, ("144", "128")),
    ({"rules.interleaved_repeat.window": 7}, ("hard is 8", "at most 7", "window is 7")),
    ({"rules.noop_calls.window": 5}, ("soft_window is 6", "window, which is 5")),
    ({"rules.toolless_streak.hard": 65}, ("65 turns", "64")),
    ({"rules.wake_storm.soft": 17}, ("soft is 17", "16")),
    ({"rules.sweep.soft": 61}, ("soft is 61", "60")),
]


@pytest.mark.parametrize(("overrides", "words"), CONTRADICTIONS)
def test_what_could_never_fire_or_be_held_is_refused_with_the_numbers(
    overrides: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(Refused) as refused:
        settings_of("hardened", overrides)
    assert refused.value.code == "invalid"
    assert all(word in refused.value.message for word in words), refused.value.message


@pytest.mark.parametrize("off", [{"enabled": False}, {"soft": 0, "hard": 0, "soft_identical": 0}])
def test_a_rule_can_be_switched_off(off: dict[str, Any]) -> None:
    given = {f"exact_repeat__{key}": value for key, value in off.items()}
    found = judged(log(*same(20)), **({"only": "exact_repeat"} | given if "soft" in off else given))
    assert fired(found, "exact_repeat") == []


def test_the_two_presets_share_no_rule() -> None:
    def on(preset: str) -> set[str]:
        rules: RuleSettings = settings_of(preset, {}).rules
        return {name for name in rules.__struct_fields__ if getattr(rules, name).enabled}

    published = {"repeated_text", "barren_streak", "tool_repetition", "progress_stall"}
    assert on("published") == published
    assert on("hardened") == {*lanes.IDS, "chanting"}
    assert settings_of("hardened", {}).continuation.backoff_s == (60, 300, 900, 3_600)
    assert settings_of("hardened", {}).continuation.backoff_after == 5


def test_the_hardened_preset_has_the_numbers_of_the_table() -> None:
    rules = settings_of("hardened", {}).rules
    table = {
        "exact_repeat": (4, 8, {"soft_identical": 3}),
        "cycle": (3, 5, {"max_period": 8}),
        "interleaved_repeat": (4, 8, {"window": 30}),
        "same_result": (6, 12, {}),
        "error_streak": (4, 12, {"soft_any": 8}),
        "noop_calls": (3, 8, {"soft_window": 6, "window": 20}),
        "near_duplicate_text": (3, 10, {"soft_attended": 5, "similarity_permille": 600, "memory": 6}),
        "toolless_streak": (8, 12, {}),
        "barren_score": (8, 12, {}),
        "poll_unchanged": (5, 20, {"hard_after_s": 1_800}),
        "sweep": (24, 60, {}),
        "compaction_thrash": (2, 3, {"progress_steps": 3}),
        "edge_loop": (6, 8, {}),
        "unresolved_tool": (3, 5, {}),
    }
    assert set(table) == set(lanes.IDS) - {"wake_storm"}
    for rule, (soft, hard, more) in table.items():
        parameters = getattr(rules, rule)
        assert (parameters.soft, parameters.hard) == (soft, hard), rule
        assert {name: getattr(parameters, name) for name in more} == more
        assert parameters.mode == "act"
    assert (rules.wake_storm.soft, rules.wake_storm.burst_s, rules.wake_storm.factor) == (3, 30, 2)
    chanting = rules.chanting
    assert (chanting.window_chars, chanting.novelty_permille, chanting.words) == (4_000, 20, 8)


def test_the_windows_are_exact() -> None:
    other = iter(range(1_000))

    def filled(length: int, at: set[int], made: Any) -> list[Any]:
        return [
            made if n in at else read(f"f{next(other)}", f"new {next(other)}") for n in range(1, length + 1)
        ]

    build = sh("npm run build", "error TS2304: no foo")
    assert first("interleaved_repeat", log(*filled(30, {1, 11, 21, 30}, build)), "soft") == 30
    assert first("interleaved_repeat", log(*filled(31, {1, 11, 21, 31}, build)), "soft") is None
    assert first("noop_calls", log(*filled(20, {1, 3, 5, 7, 9, 20}, sh("true"))), "soft") == 20
    assert first("noop_calls", log(*filled(21, {1, 3, 5, 7, 9, 21}, sh("true"))), "soft") is None
    dead = [call("job_status", {}, "exited with code 1")] * 40
    assert first("poll_unchanged", log(*dead, gap_ms=59_999), "hard", poll_unchanged__soft=0) == 32


def test_texts_of_exactly_six_tenths_are_alike() -> None:
    alike = [
        "one two three four five six seven eight",
        "one two three four five six nine ten",
        "one two three four five six nine ten",
    ]
    assert first("near_duplicate_text", log(*alike), "soft") == 3
    apart_ = [
        "one two three four five six seven",
        "one two three four five eight nine",
        "one two three four ten eleven twelve",
    ]
    assert first("near_duplicate_text", log(*apart_), "soft") is None
