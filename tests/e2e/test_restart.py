"""What a daemon makes of the database that it finds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.e2e.audit import Journal
from tests.e2e.harness import House, now_ms, working
from tests.e2e.making import Making, write

pytestmark = pytest.mark.process
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def test_a_daemon_with_ten_thousand_sessions_gets_ready_and_knows_them_all(house: House) -> None:
    daemon = house.daemon()
    script = house.script(working())
    at = now_ms() - HOUR_MS

    def sessions(count: int) -> list[Making]:
        makings = []
        for num in range(1, count + 1):
            making = Making(num, script, at, labels={"team": "web"} if num % 100 == 0 else {})
            if num % 2 == 0:
                making.goal("write", at + 1).suspend(at + 2, until_ms=at + 48 * HOUR_MS)
            if num % 1_000 == 0:
                making.cron(at + 3, "nightly", "0 0 1 1 *")
            makings.append(making)
        return makings

    write(daemon.data, sessions(10_000))
    began = time.monotonic()
    daemon.start()
    took_s = time.monotonic() - began
    status = daemon.ctl("status")
    assert status["sessions"] == {"live": 10_000, "ended": 0, "running": 0, "closed": 5_000}
    assert status["holds"] == {"UserSuspend": 5_000}
    assert took_s < 10, "the figure is in tests/bench; this only catches a start that got stuck"
    labelled = daemon.ctl("ps", "-l", "team=web")["sessions"]
    assert len(labelled) == 100
    assert {s["gate"] for s in labelled} == {"closed"}
    why = daemon.ctl("why", "s10000")
    assert [h["until_ms"] for h in why["holds"]] == [at + 48 * HOUR_MS]
    daemon.ctl("unsuspend", "s10000")
    daemon.until("s10000", "turn.completed", count=1)


@pytest.mark.parametrize(
    ("missed", "catchup_h", "delivered", "results"),
    [
        ("skip", 48, 0, {"missed": 5}),
        ("one", 48, 1, {"missed": 4, "late": 1}),
        ("all", 48, 1, {"late": 5}),
        ("all", 2, 1, {"missed": 3, "late": 2}),
    ],
)
def test_cron_moments_that_passed_while_down_are_accounted_as_the_job_says(
    house: House, missed: str, catchup_h: int, delivered: int, results: dict[str, int]
) -> None:
    daemon = house.daemon()
    # Five due moments lie between the making and now, the last one ten minutes ago.
    last = (now_ms() - 10 * MINUTE_MS) // MINUTE_MS * MINUTE_MS
    minute = last // MINUTE_MS % 60
    made = last - 4 * HOUR_MS - 30 * MINUTE_MS
    job = Making(1, house.script(working()), made).cron(
        made, "hourly", f"{minute} * * * *", missed=missed, catchup_ms=catchup_h * HOUR_MS
    )
    write(daemon.data, [job])
    daemon.start()
    settled = {"skip": "missed"}.get(missed, "late")
    daemon.until(
        "s1", "cron.occurrence", lambda b: b["result"] == settled and b["due_ms"] == last, within_s=20
    )
    if delivered:
        daemon.until("s1", "turn.completed")
    started = daemon.events("s1", "turn.started")
    assert len(started) == delivered
    accounts = daemon.ctl("cron", "history", "s1", "hourly")["occurrences"]
    assert {a["due_ms"] for a in accounts} == {last - n * HOUR_MS for n in range(5)}
    found: dict[str, int] = {}
    for account in accounts:
        found[account["result"]] = found.get(account["result"], 0) + 1
    assert found == results
    upcoming = daemon.ctl("cron", "list", "s1")["jobs"][0]["next_ms"]
    assert upcoming == last + HOUR_MS
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()


def test_the_next_moment_of_a_job_keeps_to_its_time_zone(house: House) -> None:
    daemon = house.daemon().start()
    daemon.scripted(house.script(working()), name="berlin")
    daemon.ctl("cron", "put", "berlin", "nightly", "30 3 * * *", "check", "--tz", "Europe/Berlin")
    moments = daemon.ctl("cron", "next", "berlin", "nightly", "-n", "3")["next"]
    assert len(moments) == 3
    for moment in moments:
        at_ms = moment if isinstance(moment, int) else moment["at_ms"]
        local = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(ZoneInfo("Europe/Berlin"))
        assert (local.hour, local.minute) == (3, 30)


def test_deadlines_that_passed_while_down_are_all_carried_out_and_spread(house: House) -> None:
    daemon = house.daemon()
    script = house.script(working())
    at = now_ms() - HOUR_MS
    makings = [Making(num, script, at).suspend(at, until_ms=at + 1_000) for num in range(1, 301)]
    write(daemon.data, makings)
    daemon.start()
    opened: dict[str, int] = {}
    for event in daemon.follow(kinds=["gate.changed"]):
        if event["b"]["cause"] == "deadline":
            assert event["sid"] not in opened
            opened[event["sid"]] = event["ts"]
            if len(opened) == 300:
                break
    moments = list(opened.values())
    assert 1_000 < max(moments) - min(moments) < 8_000
    assert daemon.ctl("status")["holds"] == {}
    daemon.verified()
