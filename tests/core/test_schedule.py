"""Cron expressions in time zones, daylight saving both ways, and what becomes of missed moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core import schedule
from loopd.core.evolution import evolve
from loopd.core.inputs import CronChangeRequested, CronPutRequested, SuspendRequested
from loopd.core.session import next_deadline
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from tests.core.world import START_MS, World

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def at(text: str, tz: str = "UTC") -> int:
    """Milliseconds of a local wall time."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp() * 1_000)


def shown(ms: int | None, tz: str = "UTC") -> str:
    assert ms is not None
    return datetime.fromtimestamp(ms / 1_000, ZoneInfo(tz)).strftime("%Y-%m-%d %H:%M %z")


# -- when -----------------------------------------------------------------------------------------


def test_a_moment_is_strictly_after_the_one_that_is_asked_for() -> None:
    due = at("2026-03-01 10:00")
    assert schedule.next_due("0 10 * * *", "UTC", due - 1) == due
    assert schedule.next_due("0 10 * * *", "UTC", due) == due + DAY


@pytest.mark.parametrize(
    ("tz", "utc"),
    [
        ("UTC", "09:00"),
        ("Europe/Berlin", "08:00"),
        ("Asia/Kolkata", "03:30"),
        ("America/New_York", "14:00"),
        ("Pacific/Kiritimati", "19:00"),
    ],
)
def test_an_expression_is_read_in_the_time_zone_of_its_job(tz: str, utc: str) -> None:
    due = schedule.next_due("0 9 * * *", tz, at("2026-01-10 00:00", tz))
    assert shown(due)[11:16] == utc
    assert shown(due, tz)[11:16] == "09:00"


def test_a_job_in_the_hour_that_spring_leaves_out_runs_once_that_day() -> None:
    """Berlin, 2026-03-29: 02:00 to 03:00 does not exist."""
    due = schedule.upcoming("30 2 * * *", "Europe/Berlin", at("2026-03-28 12:00", "Europe/Berlin"), 2)
    days = [shown(ms, "Europe/Berlin")[:10] for ms in due]
    assert days == ["2026-03-29", "2026-03-30"]
    assert shown(due[1], "Europe/Berlin") == "2026-03-30 02:30 +0200"


def test_a_job_in_the_hour_that_autumn_repeats_runs_once_that_day() -> None:
    """Berlin, 2026-10-25: 02:00 to 03:00 comes twice."""
    due = schedule.upcoming("30 2 * * *", "Europe/Berlin", at("2026-10-24 12:00", "Europe/Berlin"), 2)
    assert [shown(ms, "Europe/Berlin")[:10] for ms in due] == ["2026-10-25", "2026-10-26"]


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)],
    ids=["spring", "autumn", "plain"],
)
def test_a_job_of_every_hour_follows_the_clock_through_a_change(day: str, hours: int) -> None:
    start = at(f"{day} 00:00", "Europe/Berlin")
    following = (datetime.fromisoformat(day) + timedelta(days=1)).date().isoformat()
    end = at(f"{following} 00:00", "Europe/Berlin")
    due = [ms for ms in schedule.upcoming("0 * * * *", "Europe/Berlin", start - 1, 40) if ms < end]
    assert len(due) == hours
    assert all(later - earlier == HOUR for earlier, later in pairwise(due))


def test_moments_never_go_back_over_the_changes_of_a_year() -> None:
    for tz in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC"):
        for expr in ("0 2 * * *", "15,45 * * * *", "0 */6 * * *", "0 0 1 * *"):
            due = schedule.upcoming(expr, tz, START_MS, 250)
            assert all(later > earlier for earlier, later in pairwise(due)), (tz, expr)


CHANGES = [
    ("Europe/Berlin", "2026-10-25 01:00"),
    ("Europe/Berlin", "2026-03-29 01:00"),
    ("America/New_York", "2026-11-01 06:00"),
    ("Australia/Lord_Howe", "2026-04-04 15:00"),
    ("Australia/Lord_Howe", "2026-10-03 15:30"),
]
"""When clocks change, in UTC; on Lord Howe Island by half an hour."""


@given(
    change=st.sampled_from(CHANGES),
    expr=st.sampled_from(["30 2 * * *", "*/15 * * * *", "5 */2 * * *", "30 1 * * *", "*/7 1,2 * * *"]),
    minutes=st.floats(-360, 360),
)
def test_the_next_moment_does_not_depend_on_where_one_begins_to_look(
    change: tuple[str, str], expr: str, minutes: float
) -> None:
    tz, changed = change
    after = at(changed) + round(minutes * MINUTE)
    known = schedule.upcoming(expr, tz, at(changed) - 2 * DAY, 400)
    assert schedule.next_due(expr, tz, after) == next(moment for moment in known if moment > after)


@pytest.mark.parametrize("expr", ["0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_an_expression_that_never_comes_due_is_refused_as_a_job(expr: str) -> None:
    with pytest.raises(Refused) as refused:
        World().apply(CronPutRequested(by="uid:1", job="j", expr=expr, text="x"))
    assert (refused.value.code, refused.value.path) == ("invalid", "$.expr")


def test_the_29th_of_february_comes_when_there_is_one() -> None:
    assert shown(schedule.next_due("0 0 29 2 *", "UTC", at("2026-01-01 00:00"))) == "2028-02-29 00:00 +0000"


@pytest.mark.parametrize("expr", ["", "* * * *", "61 * * * *", "a b c d e", "* * * * * * * *", "@hourlyish"])
def test_what_is_no_expression_is_refused_with_the_expression(expr: str) -> None:
    with pytest.raises(Refused) as refused:
        schedule.next_due(expr, "UTC", START_MS)
    assert (refused.value.code, refused.value.path) == ("invalid", "$.expr")
    assert repr(expr) in refused.value.message


@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "Europe/\0", "x" * 5_000]
)
def test_what_is_no_time_zone_is_refused(tz: str) -> None:
    with pytest.raises(Refused) as refused:
        schedule.next_due("* * * * *", tz, START_MS)
    assert (refused.value.code, refused.value.path) == ("invalid", "$.tz")


def test_upcoming_gives_as_many_as_asked_for() -> None:
    assert schedule.upcoming("*/10 * * * *", "UTC", START_MS, 3) == [
        START_MS + i * 10 * MINUTE for i in (1, 2, 3)
    ]
    assert schedule.upcoming("*/10 * * * *", "UTC", START_MS, 0) == []


@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "0 9 * * 1-5", "30 2 * * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    st.integers(START_MS, START_MS + 400 * DAY),
    st.integers(0, 2 * DAY),
)
def test_due_between_lists_what_stepping_one_by_one_finds(expr: str, tz: str, start: int, span: int) -> None:
    first = schedule.next_due(expr, tz, start)
    assert first is not None
    now = first + span
    due, following, cut = schedule.due_between(expr, tz, first, now)
    assert not cut
    expected = [first]
    while (after := schedule.next_due(expr, tz, expected[-1])) is not None and after <= now:
        expected.append(after)
    assert due == expected
    assert following == after


def test_enumeration_is_bounded_and_keeps_the_newest_moment() -> None:
    now = START_MS + 30 * DAY + 1_234
    due, following, cut = schedule.due_between("* * * * *", "UTC", START_MS, now)
    assert cut
    assert len(due) == schedule.ENUMERATED
    assert due[0] == START_MS
    assert due[:-1] == [START_MS + i * MINUTE for i in range(schedule.ENUMERATED - 1)]
    assert due[-1] == START_MS + 30 * DAY, "the newest is the one that a policy may still deliver"
    assert due == sorted(set(due))
    assert following == START_MS + 30 * DAY + MINUTE


def test_the_moments_of_a_week_of_minutes_are_all_listed_but_for_the_last_few() -> None:
    assert schedule.ENUMERATED >= 7 * 24 * 60 - 100
    due, _, cut = schedule.due_between(
        "* * * * *", "UTC", START_MS, START_MS + (schedule.ENUMERATED - 1) * MINUTE
    )
    assert (len(due), cut) == (schedule.ENUMERATED, False)


# -- missed ---------------------------------------------------------------------------------------


def down(missed: str, hours: float, *, catchup_ms: int = DAY, expr: str = "0 * * * *") -> World:
    """A session whose daemon was down for some hours, looked at again."""
    world = World()
    world.apply(
        CronPutRequested(by="uid:1", job="j", expr=expr, text="x", missed=missed, catchup_ms=catchup_ms)
    )
    world.crash()
    world.tick(START_MS + round(hours * HOUR))
    return world


def results(world: World) -> list[str]:
    return list(world.audit.occurrences.values())


def test_policy_skip_accounts_for_missed_moments_and_delivers_none() -> None:
    world = down("skip", 5.5)
    assert results(world) == ["missed"] * 5
    assert world.session.turn is None


def test_policy_one_delivers_the_newest_missed_moment() -> None:
    world = down("one", 5.5)
    assert results(world) == ["missed"] * 4 + ["late"]
    (started,) = world.of(ev.TurnStarted)
    assert len(started.envelopes) == 1
    (delivered,) = [o for o in world.of(ev.CronOccurrence) if o.result == "late"]
    assert (delivered.due_ms, delivered.late_ms) == (START_MS + 5 * HOUR, HOUR // 2)


def test_policy_all_delivers_every_missed_moment_in_one_batch() -> None:
    world = down("all", 5.5)
    assert results(world) == ["late"] * 5
    (started,) = world.of(ev.TurnStarted)
    assert len(started.envelopes) == 5


def test_policy_all_behind_a_closed_gate_is_one_envelope_that_stands_for_all() -> None:
    world = World()
    world.apply(CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="x", missed="all"))
    world.apply(SuspendRequested(by="uid:1"))
    world.tick(START_MS + 5 * HOUR + HOUR // 2)
    (waiting,) = world.session.inbox
    assert (waiting.count, waiting.due_ms) == (5, START_MS + 5 * HOUR)
    assert results(world) == ["coalesced"] * 4 + ["held"]


def test_policy_all_delivers_no_more_than_the_inbox_holds() -> None:
    world = World({"gate.inbox_cap": 3})
    world.apply(CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="x", missed="all"))
    world.tick(START_MS + 5 * HOUR + HOUR // 2)
    assert results(world) == ["coalesced"] * 2 + ["late"] * 3


def test_a_job_that_is_put_again_after_the_clock_went_back_repeats_no_moment() -> None:
    world = World()
    put = CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="x")
    world.apply(put)
    world.tick(START_MS + 2 * HOUR)
    world.whole_turn()
    assert list(world.audit.occurrences) == [("j", START_MS + HOUR, False), ("j", START_MS + 2 * HOUR, False)]
    world.apply(CronChangeRequested(by="uid:1", job="j", change="removed"))
    world.now = START_MS + HOUR // 2  # the auditor sees every account that comes twice
    world.apply(put)
    assert next_deadline(world.session, world.house()) == START_MS + 3 * HOUR
    world.tick_through(START_MS + 3 * HOUR)
    assert results(world) == ["missed", "fired", "fired"]


def test_a_job_that_is_put_again_in_the_hour_that_comes_twice_repeats_no_moment() -> None:
    """Berlin, 2026-10-25: 02:30 comes at 00:30 UTC and once more at 01:30 UTC."""
    world = World()
    world.now = at("2026-10-24 12:00")
    put = CronPutRequested(by="uid:1", job="j", expr="30 2 * * *", text="x", tz="Europe/Berlin")
    world.apply(put)
    world.tick_through(at("2026-10-25 01:10"))
    assert results(world) == ["fired"]
    world.whole_turn()
    world.apply(put)  # a script that sets up all of its jobs each hour
    world.tick_through(at("2026-10-25 23:00"))
    assert list(world.audit.occurrences) == [("j", at("2026-10-25 00:30"), False)]
    assert next_deadline(world.session, world.house()) == at("2026-10-26 01:30")


@pytest.mark.parametrize("missed", ["one", "all"])
def test_nothing_older_than_the_catch_up_bound_is_delivered(missed: str) -> None:
    world = down(missed, 5.5, catchup_ms=20 * MINUTE)
    assert results(world) == ["missed"] * 5
    assert world.session.turn is None


def test_policy_all_reaches_back_as_far_as_the_catch_up_bound() -> None:
    world = down("all", 10.5, catchup_ms=3 * HOUR)
    assert results(world) == ["missed"] * 7 + ["late"] * 3


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_a_moment_that_is_looked_at_within_a_minute_is_on_time_under_any_policy(missed: str) -> None:
    on_time = down(missed, 1 + 60 / 3_600)
    assert results(on_time) == ["fired"]
    late = down(missed, 1 + 60.001 / 3_600)
    assert results(late) == (["missed"] if missed == "skip" else ["late"])


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_after_weeks_of_minutes_the_newest_moment_is_still_judged_by_the_policy(missed: str) -> None:
    world = down(missed, 24 * 30 + 0.001, expr="* * * * *")
    accounted = world.audit.occurrences
    assert len(accounted) == schedule.ENUMERATED
    assert [due for _, due, _ in accounted][:2] == [START_MS + MINUTE, START_MS + 2 * MINUTE]
    (_, newest, _), result = list(accounted.items())[-1]
    assert newest == START_MS + 30 * DAY
    assert result == "fired" if missed == "skip" else "late"
    assert world.session.turn is not None
    (cut,) = [o for o in world.of(ev.CronOccurrence) if o.uncounted]
    assert cut.due_ms == newest
    assert next_deadline(world.session, world.house()) == newest + MINUTE


def test_moments_of_a_paused_job_are_skipped_and_it_goes_on_from_the_next() -> None:
    world = World()
    world.apply(CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="x"))
    world.apply(CronChangeRequested(by="uid:1", job="j", change="paused"))
    world.tick_through(START_MS + 3 * HOUR)
    assert results(world) == ["skipped"] * 3
    world.apply(CronChangeRequested(by="uid:1", job="j", change="resumed"))
    world.tick_through(START_MS + 4 * HOUR)
    assert results(world) == ["skipped"] * 3 + ["fired"]


def test_a_job_whose_expression_runs_out_is_never_looked_at_again() -> None:
    """cronsim looks 50 years ahead; the last 29th of February in reach is the last."""
    world = World(now=at("2026-01-01 00:00"))
    world.apply(CronPutRequested(by="uid:1", job="j", expr="0 0 29 2 *", text="x", missed="skip"))
    world.tick(at("2028-02-29 00:00"))
    assert results(world) == ["fired"]
    world.whole_turn()
    assert next_deadline(world.session, world.house()) == at("2032-02-29 00:00")


def test_a_session_has_at_most_a_hundred_jobs() -> None:
    world = World()
    for i in range(100):
        world.apply(CronPutRequested(by="uid:1", job=f"j{i}", expr="0 * * * *", text="x"))
    with pytest.raises(Refused, match="100 cron jobs"):
        world.apply(CronPutRequested(by="uid:1", job="one-more", expr="0 * * * *", text="x"))
    world.apply(CronPutRequested(by="uid:1", job="j7", expr="0 0 2 1 *", text="y"))


@given(st.lists(st.integers(1, 3 * HOUR), min_size=1, max_size=12), st.sampled_from(["skip", "one", "all"]))
def test_however_late_it_is_looked_at_every_moment_is_accounted_for_once(
    naps: list[int], missed: str
) -> None:
    world = World()
    world.apply(CronPutRequested(by="uid:1", job="j", expr="*/15 * * * *", text="x", missed=missed))
    for nap in naps:
        world.tick(world.now + nap)
        if world.session.turn is not None:
            world.whole_turn(f"turn {world.now}")
    passed = (world.now - START_MS) // (15 * MINUTE)
    assert sorted(due for _, due, _ in world.audit.occurrences) == [
        START_MS + i * 15 * MINUTE for i in range(1, passed + 1)
    ]
    assert set(results(world)) <= {"fired", "late", "missed", "coalesced"}


def test_local_midnight_of_utc_plus_14_is_the_day_before_in_utc() -> None:
    due = schedule.next_due("0 0 * * *", "Pacific/Kiritimati", at("2026-06-01 12:00"))
    assert datetime.fromtimestamp((due or 0) / 1_000, UTC).isoformat() == "2026-06-02T10:00:00+00:00"


def test_a_time_zone_that_is_gone_pauses_its_job_and_nothing_else() -> None:
    """The zone was renamed by an upgrade, or the journal came to a machine without it."""
    world = World()
    gone = ev.CronChanged(
        job="j", change="put", expr="0 * * * *", tz="Nowhere/Atlantis", text="x", next_ms=START_MS + HOUR
    )
    world.session = evolve(world.session, gone, ss=world.session.ss + 1, at_ms=START_MS)
    world._record([gone])
    world.apply(CronPutRequested(by="uid:1", job="k", expr="30 * * * *", text="y"))
    world.apply(SuspendRequested(by="uid:1", until_ms=START_MS + HOUR))
    world.tick(START_MS + HOUR)
    assert world.session.gate.is_open
    assert [(job.job, job.paused) for job in world.session.crons] == [("k", False), ("j", True)]
    assert next_deadline(world.session, world.house()) == START_MS + HOUR + HOUR // 2
    with pytest.raises(Refused, match="Nowhere/Atlantis"):
        world.apply(CronChangeRequested(by="uid:1", job="j", change="resumed"))
    world.apply(CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="x"))
    assert next_deadline(world.session, world.house()) == START_MS + HOUR + HOUR // 2


def test_a_wake_up_that_is_not_understood_any_more_comes_once_and_blocks_nothing() -> None:
    world = World()
    strange = ev.WakeSet(id="wk_1_1", due_ms=START_MS + HOUR, expr="whenever", note="up")
    world.session = evolve(world.session, strange, ss=world.session.ss + 1, at_ms=START_MS)
    world._record([strange])
    world.apply(SuspendRequested(by="uid:1", until_ms=START_MS + HOUR))
    world.tick(START_MS + HOUR)
    assert world.session.gate.is_open
    assert world.session.wakes == ()
    assert len(world.of(ev.TurnStarted)) == 1
