"""Suspension with proof, raced against turn ends; what waits meanwhile comes as one batch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from loopd.client import CallFailed
from loopd.testing.endpoint import say
from tests.e2e.audit import Journal, suspension_holds
from tests.e2e.harness import NO_RULES, Daemon, House, endpoint, working

pytestmark = pytest.mark.process
RACED_AGAINST = ("turn.started", "turn.step", "turn.completed")
MODES = ("after_turn", "after_turn", "interrupt", "kill")


def race(house: House, daemon: Daemon, rounds: int, seed: int) -> None:
    """Suspend and unsuspend while turns end as fast as they can; then judge the journal."""
    dice = random.Random(seed)
    settings = {"continuation.min_gap_ms": 0, **NO_RULES}
    sid = daemon.scripted(house.script(working()), goal="write", set=settings)
    answers: list[tuple[int, dict[str, Any]]] = []
    running = 0
    stream = daemon.follow(sid, kinds=["turn.*"], within_s=600)
    for _ in range(rounds):
        # Strike right behind an event of a turn, so that its end and the command meet.
        wanted = dice.choice(RACED_AGAINST)
        last = answers[-1][0] if answers else 0
        for event in stream:
            if event["seq"] > last and event["k"] == wanted:
                break
        for _ in range(dice.randrange(3)):
            next(stream)
        suspended = daemon.call("suspend", sid, mode=dice.choice(MODES), reason="race")
        assert suspended["gate"] == "closed"
        running += suspended["turn"] is not None
        answers.append((suspended["seq"], suspended))
        lifted = daemon.call("unsuspend", sid)
        assert lifted["removed"] == ["UserSuspend"]
    daemon.call("suspend", sid, mode="interrupt")
    stream.close()  # type: ignore[attr-defined]

    journal = Journal(daemon.data / "journal.sqlite")
    journal.check()
    events = journal.of(sid)
    for seq, _ in answers:
        assert suspension_holds(events, seq) is not None
    assert running > rounds // 20, f"only {running} of {rounds} suspensions met a running turn"
    for seq, _ in dice.sample(answers, 12):
        proof = daemon.verified(sid, since=seq)["proof"]
        assert proof["turns_after"] == 0
        assert seq - 1 <= proof["suspend_seq"] <= seq, "the hold and, with it, the cut turn"
    daemon.verified()


def test_no_turn_starts_behind_an_answered_suspend_however_they_race(house: House, daemon: Daemon) -> None:
    race(house, daemon, 200, seed=1)


@pytest.mark.long
def test_no_turn_starts_behind_an_answered_suspend_2000_times(house: House, daemon: Daemon) -> None:
    race(house, daemon, 2_000, seed=2)


def test_a_suspended_session_stays_suspended_across_restarts_and_the_proof_goes_on(
    house: House, daemon: Daemon
) -> None:
    settings = {"continuation.min_gap_ms": 0, **NO_RULES}
    sid = daemon.scripted(house.script(working()), goal="write", set=settings)
    daemon.until(sid, "turn.completed", count=3)
    seq = daemon.ctl("suspend", sid, "--reason", "cost review")["seq"]
    daemon.kill()
    daemon.start()
    why = daemon.call("why", sid)
    assert [(h["kind"], h["until_ms"], h["reason"]) for h in why["holds"]] == [
        ("UserSuspend", None, "cost review")
    ]
    daemon.terminate()
    daemon.start()
    other = daemon.scripted(house.script(working()), goal="write", set=settings)
    daemon.until(other, "turn.completed", count=10)
    proof = daemon.verified(sid, since=seq)["proof"]
    assert proof["turns_after"] == 0
    assert proof["checked_through"] > seq
    assert suspension_holds(Journal(daemon.data / "journal.sqlite").of(sid), seq) is None


def test_48_cron_fires_during_a_suspension_are_one_delivery_and_48_accounts(
    house: House, daemon: Daemon
) -> None:
    with endpoint([say("Looked at it.")]) as (model, _):
        sid = daemon.chat(model.base_url, name="sleeper")
        daemon.ctl("cron", "put", "sleeper", "hourly", "0 * * * *", "check the build")
        daemon.ctl("suspend", "sleeper", "--reason", "night")
        fired = [daemon.call("cron.run", sid, job="hourly") for _ in range(46)]
        fired += [daemon.ctl("cron", "run", "sleeper", "hourly") for _ in range(2)]
        assert all(fire["held"] and fire["by"] == ["UserSuspend"] for fire in fired)
        (waiting,) = daemon.ctl("inbox", "sleeper")["envelopes"]
        assert (waiting["id"], waiting["count"]) == (fired[-1]["envelope"], 48)
        assert not model.requests
        assert [w["count"] for w in daemon.ctl("why", sid)["held_back"]] == [48]

        daemon.ctl("unsuspend", "sleeper")
        turn = daemon.until(sid, "turn.completed")
        started = daemon.events(sid, "turn.started")
        assert [(s["b"]["trigger"], s["b"]["envelopes"]) for s in started] == [
            ("cron", [fired[-1]["envelope"]])
        ]
        assert turn["b"]["outcome"] == "completed"
        assert len(model.requests) == 1
        occurrences = daemon.ctl("cron", "history", "sleeper", "hourly", "-n", "100")["occurrences"]
        assert len(occurrences) == 48
        assert sorted(o["result"] for o in occurrences) == ["coalesced"] * 47 + ["late"]
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()


def test_a_human_message_lifts_the_suspension_and_all_that_waited_is_one_turn(daemon: Daemon) -> None:
    with endpoint([say("I see.")]) as (model, _):
        sid = daemon.chat(model.base_url)
        daemon.call("cron.put", sid, job="nightly", expr="0 3 * * *", text="check the build")
        first = daemon.call("suspend", sid)
        held = daemon.call("cron.run", sid, job="nightly")
        sent = daemon.ctl("send", sid, "look at this first")
        assert sent["held"] is False
        daemon.until(sid, "turn.completed")
        (started,) = daemon.events(sid, "turn.started")
        assert started["b"]["trigger"] == "human"
        assert sorted(started["b"]["envelopes"]) == sorted([held["envelope"], sent["id"]])
        (lifted,) = [e for e in daemon.events(sid, "gate.changed") if e["seq"] > first["seq"]]
        assert (lifted["b"]["cause"], lifted["b"]["envelope"]) == ("envelope", sent["id"])
        accepted = next(e for e in daemon.events(sid, "envelope.accepted") if e["b"]["id"] == sent["id"])
        assert accepted["seq"] == sent["seq"] - 3 or accepted["seq"] < lifted["seq"] < started["seq"]
        assert len(model.requests) == 1
    daemon.verified()


def test_in_quarantine_a_human_message_waits_as_well(daemon: Daemon) -> None:
    with endpoint([say("I see.")]) as (model, _):
        sid = daemon.chat(model.base_url)
        daemon.ctl("suspend", sid, "--quarantine")
        sent = daemon.ctl("send", sid, "hello?")
        assert (sent["held"], sent["by"]) == (True, ["UserSuspend"])
        daemon.call("unsuspend", sid)
        daemon.until(sid, "turn.completed")
        (started,) = daemon.events(sid, "turn.started")
        assert started["b"]["envelopes"] == [sent["id"]]
        assert len(model.requests) == 1


def test_a_suspension_until_a_moment_ends_by_itself_with_nobody_connected(daemon: Daemon) -> None:
    sid_why = daemon.call
    with endpoint([say("I see.")]) as (model, portal):
        sid = daemon.chat(model.base_url)
        daemon.call("cron.put", sid, job="nightly", expr="0 3 * * *", text="check the build")
        until = sid_why("daemon.status")["uptime_ms"] * 0 + int(daemon.events(sid)[-1]["ts"]) + 700
        daemon.call("suspend", sid, until_ms=until)
        daemon.call("cron.run", sid, job="nightly")
        daemon.hang_up()
        portal.call(model.wait_for_requests, 1)
        (opened,) = [e for e in daemon.events(sid, "gate.changed") if e["b"]["cause"] == "deadline"]
        assert opened["ts"] == until + opened["b"]["late_ms"]
        assert opened["b"]["late_ms"] < 1_000


def test_an_unsuspend_leaves_the_other_holds_alone(daemon: Daemon) -> None:
    with endpoint([say("16/100. Not complete. No action.")]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", set={"continuation.min_gap_ms": 0})
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection")
        daemon.call("suspend", sid)
        lifted = daemon.call("unsuspend", sid)
        assert lifted["gate"] == "closed"
        assert [h["until_ms"] for h in lifted["holds"]] == [closed["b"]["added"]["until_ms"]]
        assert daemon.call("unsuspend", sid)["removed"] == []
        with pytest.raises(CallFailed, match="conflict"):
            daemon.call("gate.open", sid, kind="UserSuspend")
        assert len(model.requests) == 5


def test_an_inbox_over_its_cap_drops_the_oldest_and_says_so(house: House, daemon: Daemon) -> None:
    sid = daemon.scripted(house.script(working()))
    daemon.call("suspend", sid, quarantine=True)
    sent = [daemon.call("send", sid, text=f"note {n}")["id"] for n in range(105)]
    assert [w["id"] for w in daemon.ctl("why", sid)["held_back"]] == sent[5:]
    dropped = daemon.events(sid, "envelope.dropped")
    assert [(e["b"]["id"], e["b"]["reason"]) for e in dropped] == [(i, "inbox_full") for i in sent[:5]]
    daemon.call("unsuspend", sid)
    started = daemon.until(sid, "turn.started")
    assert started["b"]["envelopes"] == sent[5:]
    daemon.verified()


def test_more_sessions_than_stay_in_memory_keep_what_they_know(house: House, daemon: Daemon) -> None:
    script = house.script(working())
    sids = [daemon.scripted(script) for _ in range(300)]
    for word in ("first", "second"):
        for sid in sids:
            daemon.call("send", sid, text=word)
    for sid in sids[::30]:
        daemon.until(sid, "turn.completed", lambda b: b["n"] >= 1)
    seen: set[str] = set()
    for event in daemon.follow(kinds=["turn.completed"]):
        seen.add(event["sid"])
        if len(seen) == 300:
            break
    texts: dict[str, set[str]] = {sid: set() for sid in sids}
    for event in daemon.events(None, "envelope.accepted"):
        texts[event["sid"]].add(event["b"]["text"])
    assert all(found == {"first", "second"} for found in texts.values())
    assert len(daemon.ctl("ps")["sessions"]) == 300
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()
