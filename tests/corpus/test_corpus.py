"""The corpus holds what it promises, and the hardened rules hold what they promise on it."""

from __future__ import annotations

import functools
import io
import json
import statistics
from pathlib import Path

import msgspec
import pytest

from loopd.core.judge import LoggedStep
from loopd.core.settings import settings_of
from loopd.transcripts.logs import Begin, Fault
from loopd.transcripts.reading import read
from tests.bench.bench_detection import Said, _pairs_told_apart, by_family, judged, wilson
from tests.corpus import incidents as told_incidents
from tests.corpus import lookalikes as told_lookalikes
from tests.corpus.cases import LOOP_STEPS, Case
from tests.corpus.grafts import grafts, runs
from tests.corpus.incidents import DRIVES, ONSETS, PLAIN_FAMILIES, TELLINGS, incidents
from tests.corpus.lookalikes import LOOKALIKES, lookalikes
from tests.corpus.pairs import PAIRS, pairs
from tests.corpus.write import lines

HARDENED = settings_of("hardened", {})
SEED = 20
"""Not the one that the rules were looked at with."""


@functools.cache
def every_incident() -> tuple[Case, ...]:
    return tuple(incidents(SEED))


@functools.cache
def some_incidents() -> tuple[Case, ...]:
    """Each telling once, disguises, drives and onsets by turns, and no long way before the loop."""
    made = []
    for number, telling in enumerate(TELLINGS):
        drives = telling.drives or tuple(drive for drive, _, _ in DRIVES)
        disguise = telling.disguises[number % len(telling.disguises)]
        made.append(
            told_incidents.told(telling, disguise, drives[number % len(drives)], ONSETS[number % 3], SEED)
        )
    return tuple(made)


@functools.cache
def judged_incidents() -> tuple[Said, ...]:
    return tuple(judged(case, HARDENED) for case in some_incidents())


@functools.cache
def judged_lookalikes() -> tuple[Said, ...]:
    return tuple(
        judged(told_lookalikes.told(telling, SEED, after=number % 3 * 7, clock=number % 2 == 0), HARDENED)
        for number, telling in enumerate(LOOKALIKES)
    )


@functools.cache
def judged_pairs() -> tuple[Said, ...]:
    return tuple(judged(case, HARDENED) for case in pairs(SEED))


def shown(said: list[Said]) -> str:
    return "\n".join(
        f"{each.case.id}: {[(f.rule, f.level, f.verdict, f.step) for f in each.judgement.findings[:4]]}"
        for each in said
        if each.judgement is not None
    )


def encoded(cases: tuple[Case, ...] | list[Case]) -> bytes:
    return msgspec.json.encode(cases)


def test_the_same_seed_tells_the_same_stories() -> None:
    assert encoded(some_incidents()[:60]) == encoded(
        [
            told_incidents.told(
                telling,
                telling.disguises[number % len(telling.disguises)],
                (telling.drives or tuple(drive for drive, _, _ in DRIVES))[
                    number % len(telling.drives or DRIVES)
                ],
                ONSETS[number % 3],
                SEED,
            )
            for number, telling in enumerate(TELLINGS[:60])
        ]
    )
    assert encoded(pairs(3)) == encoded(pairs(3))
    assert encoded(lookalikes(3)[:40]) == encoded(lookalikes(3)[:40])


def test_another_seed_tells_other_stories() -> None:
    assert encoded(pairs(3)) != encoded(pairs(4))


@pytest.mark.long
def test_all_of_it_is_a_function_of_the_seed() -> None:
    assert encoded(incidents(5)) == encoded(incidents(5))


@pytest.mark.long
def test_every_disguise_onset_and_drive_occurs() -> None:
    variants = [case.variant for case in every_incident()]
    for onset in ONSETS:
        assert sum(variant.endswith(f"from {onset}") for variant in variants) > 100
    for drive, _, _ in DRIVES:
        assert sum(f", {drive}, " in variant for variant in variants) > 100
    for telling in TELLINGS:
        for disguise in telling.disguises:
            assert any(variant.startswith(f"{telling.variant}, {disguise}, ") for variant in variants)


def test_an_incident_goes_on_for_sixty_steps_behind_its_onset() -> None:
    for case in some_incidents():
        assert case.label == "stuck"
        assert case.onset is not None
        assert len(case.steps) - case.onset + 1 == LOOP_STEPS


def test_steps_are_numbered_from_one_and_moments_do_not_go_back() -> None:
    for case in (*some_incidents(), *pairs(SEED)):
        assert [step.n for step in case.steps] == list(range(1, len(case.steps) + 1))
        moments = [step.at_ms for step in case.steps]
        assert moments == sorted(moments)


def test_each_case_has_a_name_of_its_own() -> None:
    names = [case.id for case in (*some_incidents(), *lookalikes(SEED), *pairs(SEED))]
    assert len(names) == len(set(names))


def test_a_look_alike_has_no_onset() -> None:
    assert {(case.label, case.onset) for case in lookalikes(SEED)} == {("healthy", None)}


def test_both_halves_of_a_pair_begin_with_the_same_steps() -> None:
    halves = pairs(SEED)
    assert len(halves) == 2 * len(PAIRS)
    for stuck, healthy in zip(halves[::2], halves[1::2], strict=True):
        assert (stuck.pair, stuck.label, healthy.label) == (healthy.pair, "stuck", "healthy")
        assert stuck.onset is not None
        before = stuck.onset - 1
        first = [(step.text, step.calls) for step in stuck.steps[: min(before, 9)]]
        assert first == [(step.text, step.calls) for step in healthy.steps[: min(before, 9)]]


def test_what_is_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    cases = [
        *(
            case
            for n, case in enumerate(some_incidents())
            if n % 9 == 0 or case.family == "compaction thrash"
        ),
        *pairs(SEED)[:6],
    ]
    out = io.StringIO()
    for line in lines(cases):
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
    path = tmp_path / "corpus.jsonl"
    path.write_text(out.getvalue(), encoding="utf-8")
    found: dict[str, list[LoggedStep]] = {}
    for item in read(path):
        assert not isinstance(item, Fault)
        if isinstance(item, Begin):
            found[item.id] = here = []
        else:
            here.append(item)
    assert list(found) == [case.id for case in cases]
    for case in cases:
        for there, wrote in zip(found[case.id], case.steps, strict=True):
            assert (there.n, there.text, there.trigger, there.at_ms, there.compacted) == (
                wrote.n,
                wrote.text,
                wrote.trigger,
                wrote.at_ms,
                wrote.compacted,
            )
            assert [(c.name, c.args, c.result, c.ok) for c in there.calls] == [
                (c.name, c.args, c.result, c.ok) for c in wrote.calls
            ]


def test_a_loop_is_grafted_behind_a_third_of_a_real_run(tmp_path: Path) -> None:
    work = told_lookalikes.told(next(each for each in LOOKALIKES if each.family == "work"), 1)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines([work])), encoding="utf-8")
    (run,) = runs(path)
    made = grafts(run, SEED)
    assert {case.variant for case in made} > {"own last step", "own last three steps"}
    for case in made:
        assert case.onset is not None
        assert len(run.steps) // 3 < case.onset <= 2 * len(run.steps) // 3 + 1
        assert case.steps[: case.onset - 1] == run.steps[: case.onset - 1]
        said = judged(case, HARDENED)
        assert said.soft is not None, shown([said])
        assert said.hard is not None, shown([said])


def test_an_interval_of_wilson() -> None:
    low, high = wilson(0, 158)
    assert (low, round(high, 4)) == (0.0, 0.0237)
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


def test_every_incident_is_caught() -> None:
    missed = [each for each in judged_incidents() if each.soft is None]
    assert not missed, shown(missed)


def test_every_incident_reaches_the_hard_level_within_sixty_steps() -> None:
    missed = [each for each in judged_incidents() if each.hard is None]
    assert not missed, shown(missed)


def test_nothing_is_said_before_a_loop_begins() -> None:
    early = [each for each in judged_incidents() if each.early]
    assert not early, shown(early)


def test_texts_noops_and_identical_calls_are_noticed_within_five_steps_in_the_median() -> None:
    delays = [each.delay for each in judged_incidents() if each.case.family in PLAIN_FAMILIES and each.delay]
    assert statistics.median(delays) <= 5


@pytest.mark.parametrize("family", sorted(PLAIN_FAMILIES))
def test_each_plain_family_is_noticed_within_five_steps_in_the_median(family: str) -> None:
    group = by_family(judged_incidents())[family]
    assert statistics.median(each.delay or LOOP_STEPS for each in group) <= 5, shown(group)


def test_all_incidents_are_noticed_within_ten_steps_in_the_median() -> None:
    assert statistics.median(each.delay or LOOP_STEPS for each in judged_incidents()) <= 10


def test_no_look_alike_is_ever_halted() -> None:
    halted = [each for each in judged_lookalikes() if each.hard is not None]
    assert not halted, shown(halted)


def test_no_look_alike_is_nudged_but_those_with_a_burst_of_the_same_error() -> None:
    nudged = [each for each in judged_lookalikes() if each.soft is not None and not each.case.nudge_allowed]
    assert not nudged, shown(nudged)


@pytest.mark.parametrize("name", [each.name for each in PAIRS])
def test_one_thing_flips_the_verdict(name: str) -> None:
    halves = [each for each in judged_pairs() if each.case.pair == name]
    assert _pairs_told_apart(halves) == (1, 1), shown(halves)


@pytest.mark.long
def test_every_incident_in_every_disguise_is_caught_and_stopped() -> None:
    said = [judged(case, HARDENED) for case in every_incident()]
    missed = [each for each in said if each.soft is None or each.hard is None or each.early]
    assert not missed, shown(missed)


@pytest.mark.long
def test_every_look_alike_is_left_alone_however_it_is_told() -> None:
    said = [judged(case, HARDENED) for case in lookalikes(SEED)]
    wrong = [
        each
        for each in said
        if each.hard is not None or (each.soft is not None and not each.case.nudge_allowed)
    ]
    assert not wrong, shown(wrong)
