"""Durations and moments are read as people write them, and never as something else."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.cli import instants
from loopd.cli.instants import DAY, HOUR, MINUTE, SECOND, clock, duration_ms, moment_ms, span, until

NOW = 1_795_338_000_000  # 2026-11-22 09:00 UTC, a Sunday
UNITS = st.sampled_from([("ms", 1), ("s", SECOND), ("m", MINUTE), ("h", HOUR), ("d", DAY)])


@pytest.fixture(autouse=True)
def berlin() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("5m", 300_000), ("1h30m", 5_400_000), ("2d", 2 * DAY), ("250ms", 250), ("1w", 7 * DAY), ("0s", 0)],
)  # fmt: skip
def test_durations_have_units(text: str, ms: int) -> None:
    assert duration_ms(text) == ms
    assert duration_ms(f" {text.upper()} ") == ms


@given(st.lists(st.tuples(st.integers(0, 9_999), UNITS), min_size=1, max_size=5))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, tuple[str, int]]]) -> None:
    assert duration_ms("".join(f"{n}{unit}" for n, (unit, _) in parts)) == sum(n * ms for n, (_, ms) in parts)


@pytest.mark.parametrize(
    "text", ["", "90", "s", "1.5h", "-5m", "5 m", "5mm", "5x", "٣s", "1h30", "99999999999999w"]
)
def test_a_text_that_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"no duration; expected|longer than"):
        duration_ms(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert duration_ms(text) >= 0


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+30m", NOW + 30 * MINUTE),
        ("2h", NOW + 2 * HOUR),
        ("@1795338060", NOW + MINUTE),
        ("2026-11-22T09:01Z", NOW + MINUTE),
        ("2026-11-22T10:01", NOW + MINUTE),
        ("2026-11-22T10:01:30+01:00", NOW + 90 * SECOND),
        ("2026-11-23", NOW + 14 * HOUR),
        ("11:00", NOW + HOUR),
        ("09:00", NOW + 23 * HOUR),
        ("10:00:01", NOW + SECOND),
        ("today 18:00", NOW + 8 * HOUR),
        ("tomorrow 09:00", NOW + 23 * HOUR),
        ("tomorrow", NOW + 14 * HOUR),
        ("monday 10:00", NOW + DAY),
        ("Sunday 09:59", NOW + 7 * DAY - MINUTE),
        ("sunday 10:01", NOW + MINUTE),
    ],
)
def test_moments_are_local_unless_they_say_otherwise(text: str, moment: int) -> None:
    assert moment_ms(text, NOW) == moment


@pytest.mark.parametrize(
    "text",
    ["", "3", "soon", "25:00", "11:60", "@", "@x", "2026-13-01", "2026-11-22T", "tomorrow noon", "today", "friday 9", "1e9"],
)  # fmt: skip
def test_a_text_that_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is no moment; expected a moment such as"):
        moment_ms(text, NOW)


@pytest.mark.parametrize("text", ["@1795337999", "2026-11-22T09:00Z", "today 09:59", "2020-01-01", "0s"])
def test_a_moment_that_is_over_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ago; expected a moment to come"):
        moment_ms(text, NOW)


def test_tomorrow_is_a_calendar_day_also_when_the_clock_changes() -> None:
    before_change = 1_792_803_600_000  # 2026-10-24 03:00 CEST; the clock goes back on the 25th
    assert moment_ms("tomorrow 03:00", before_change) == before_change + 25 * HOUR


@given(st.text(max_size=25), st.integers(0, 4_000_000_000_000))
def test_any_text_is_a_coming_moment_or_an_error(text: str, now: int) -> None:
    with contextlib.suppress(ValueError):
        assert now < moment_ms(text, now) <= instants.MAX_MS


@given(st.integers(0, 10_000 * DAY))
def test_a_span_is_short_and_within_its_last_unit_of_the_truth(ms: int) -> None:
    said = span(ms)
    assert len(said) <= 9
    if "." not in said:
        read = duration_ms(said.replace(" ", ""))
        coarsest = SECOND if ms < HOUR else MINUTE if ms < DAY else HOUR
        assert 0 <= ms - read < coarsest or ms < 10 * SECOND


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0s"), (400, "0.4s"), (9_999, "10s"), (59_999, "59s"), (200_000, "3m 20s"), (7_500_000, "2h 5m"), (DAY, "1d"), (-MINUTE, "-1m")],
)  # fmt: skip
def test_spans_for_people(ms: int, said: str) -> None:
    assert span(ms) == said


def test_a_deadline_says_when_and_how_long_still() -> None:
    assert until(NOW + 58 * MINUTE, NOW) == "10:58 (in 58m)"
    assert until(NOW - 12 * SECOND, NOW) == "09:59 (12s overdue)"
    assert until(None, NOW) == "you lift it"
    assert clock(NOW + 2 * DAY, NOW) == "2026-11-24 10:00"
    assert until(instants.MAX_MS, NOW).startswith("9999-12-3")


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("8h", 8 * HOUR),
        ("09:30", 30 * MINUTE),  # it is 10:00 in Berlin
        ("18:00", 16 * HOUR),
        ("yesterday 18:00", 16 * HOUR),
        ("today", 10 * HOUR),
        ("sunday 09:00", HOUR),
        ("sunday 11:00", 7 * DAY - HOUR),
        ("saturday", DAY + 10 * HOUR),
        ("2026-11-22T08:00Z", HOUR),
        ("@1795334400", HOUR),
    ],
)
def test_moments_behind_us_are_the_last_ones(text: str, ago_ms: int) -> None:
    assert NOW - instants.past_ms(text, NOW) == ago_ms


@pytest.mark.parametrize(
    ("text", "words"),
    [("soon", "no moment; expected"), ("", "no moment"), ("2026-11-22T12:00", "still to come in 2h")],
)
def test_what_does_not_lie_behind_us_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        instants.past_ms(text, NOW)
