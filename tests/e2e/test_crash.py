"""`kill -9` at random moments under load: nothing acknowledged is lost, nothing runs twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from loopd.client import CallFailed, Client
from loopd.testing.endpoint import say
from tests.e2e.audit import Journal, turns_alternate
from tests.e2e.harness import FILLER, NO_RULES, Daemon, House, call, endpoint, now_ms, working

pytestmark = pytest.mark.process
BUSY = {"continuation.min_gap_ms": 0, "gate.inbox_cap": 10_000, **NO_RULES}
HOUR_MS = 3_600_000


class Hand:
    """One operator: sends, suspends, fires crons and sets goals until the daemon is gone.

    What was acknowledged is remembered here; the one command whose answer was lost is asked again
    with its key after the restart.
    """

    def __init__(self, number: int, seed: int, workers: list[str], own: str) -> None:
        self.number = number
        self.dice = random.Random(seed)
        self.workers = workers
        self.own = own
        self.acknowledged: dict[str, str] = {}
        self.suspended: bool | None = False
        self.goal: str | None = None
        self.fired = 0
        self.count = 0
        self.uncertain: tuple[str, dict[str, Any]] | None = None
        self.thread: threading.Thread | None = None
        self.refused: list[CallFailed] = []

    def command(self) -> dict[str, Any]:
        """What to do next."""
        self.count += 1
        dice = self.dice.random()
        if dice < 0.70:
            sid = self.dice.choice([*self.workers, self.own])
            return {"t": "send", "sid": sid, "text": f"note {self.number}.{self.count}"}
        if dice < 0.80:
            return {"t": "suspend", "sid": self.own, "quarantine": True, "reason": str(self.count)}
        if dice < 0.88:
            return {"t": "unsuspend", "sid": self.own}
        if dice < 0.96:
            return {"t": "cron.run", "sid": self.own, "job": "job"}
        return {"t": "goal.set", "sid": self.own, "text": f"goal {self.number}.{self.count}"}

    def done(self, command: dict[str, Any], result: dict[str, Any]) -> None:
        """Remember what was acknowledged."""
        match command["t"]:
            case "send":
                self.acknowledged[result["id"]] = command["sid"]
            case "suspend":
                self.suspended = True
            case "unsuspend":
                self.suspended = False
            case "cron.run":
                self.acknowledged[result["envelope"]] = command["sid"]
                self.fired += 1
            case "goal.set":
                self.goal = command["text"]

    def work(self, client: Client, tick: Callable[[], None]) -> None:
        """Go on until the connection is lost."""
        try:
            while True:
                command = self.uncertain[1] if self.uncertain else self.command()
                key = self.uncertain[0] if self.uncertain else f"h{self.number}.{self.count}"
                self.uncertain = (key, command)
                result = client.call(command, key=key)
                self.uncertain = None
                self.done(command, result)
                tick()
        except CallFailed as error:
            if error.code not in {"timeout", "unavailable"}:
                self.refused.append(error)


class Ticks:
    """Counts acknowledgements and lets somebody wait for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.changed = threading.Condition()

    def __call__(self) -> None:
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def reach(self, count: int) -> None:
        """Wait for so many."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, timeout=30), self.count


@contextmanager
def at_work(daemon: Daemon, hands: list[Hand]) -> Iterator[Ticks]:
    """All hands work until the daemon is gone."""
    ticks = Ticks()
    clients = [daemon.client() for _ in hands]
    for hand, client in zip(hands, clients, strict=True):
        hand.thread = threading.Thread(target=hand.work, args=(client, ticks), daemon=True)
        hand.thread.start()
    yield ticks
    for hand in hands:
        assert hand.thread is not None
        hand.thread.join(30)
        assert not hand.thread.is_alive()
        assert not hand.refused, hand.refused


def quiet_sessions(daemon: Daemon, house: House) -> list[str]:
    """Sessions that nothing moves: degenerated, idle, suspended with a deadline, paused, complete."""
    fast = {"continuation.min_gap_ms": 0}
    degenerated = daemon.scripted(house.script([FILLER], "filler.jsonl"), goal="write", set=fast)
    daemon.until(degenerated, "gate.changed", lambda b: b["cause"] == "detection")
    idle = house.script(
        [{"text": "", "calls": [call("request_idle", max_idle_duration_secs=7_200, reason="tests run")]}],
        "idle.jsonl",
    )
    idling = daemon.scripted(idle, goal="wait", set=fast)
    daemon.until(idling, "gate.changed", lambda b: b["cause"] == "request_idle")
    daemon.until(idling, "turn.completed")
    suspended = daemon.scripted(house.script(working(), "more.jsonl"), set=fast)
    daemon.call("suspend", suspended, until_ms=now_ms() + HOUR_MS, quarantine=True, reason="until later")
    for text in ("first", "second"):
        daemon.call("send", suspended, text=text)
    paused = daemon.scripted(house.script(working(), "more.jsonl"), goal="later", set=BUSY)
    daemon.until(paused, "turn.completed", count=7)
    daemon.call("goal.pause", paused)
    daemon.ctl("wait", paused, "--until", "idle")
    return [degenerated, idling, suspended, paused]


def portrait(daemon: Daemon, sid: str) -> list[Any]:
    """All that a restart must not change: the answers to `why`, and the stored state, byte for byte."""
    why = daemon.call("why", sid)
    stored = daemon.sql("SELECT state FROM session WHERE sid = ?", sid)
    inbox = daemon.call("inbox.list", sid)
    return [why, stored, inbox, daemon.call("session.get", sid)]


def storm(house: House, kills: int, seed: int) -> None:
    """20 sessions under load, killed again and again."""
    dice = random.Random(seed)
    daemon = house.daemon(config="[recovery]\ncrash_loop_boots = 0\n").start()
    with endpoint([say("Chapter {n} is done, now the next. " * 8, gap_ms=2)]) as (model, _):
        quiet = quiet_sessions(daemon, house)
        script = house.script(working(60))
        workers = [daemon.scripted(script, goal="write", delay_ms=3, set=BUSY) for _ in range(10)]
        workers += [daemon.chat(model.base_url, goal="write", set=BUSY) for _ in range(3)]
        own = [daemon.scripted(script, delay_ms=2, set=BUSY) for _ in range(3)]
        for sid in own:
            daemon.call("cron.put", sid, job="job", expr="0 0 1 1 *", text="a happy new year")
        assert len({*quiet, *workers, *own}) == 20
        before = {sid: portrait(daemon, sid) for sid in quiet}
        hands = [Hand(n, dice.randrange(10**9), workers, sid) for n, sid in enumerate(own)]
        acknowledged: dict[str, str] = {}

        for number in range(kills):
            with at_work(daemon, hands) as ticks:
                ticks.reach(dice.randrange(20, 160))
                daemon.kill()
            for hand in hands:
                acknowledged |= hand.acknowledged
            daemon.start()
            boot = daemon.sql("SELECT boots FROM meta")[0][0]
            if number % 5 == 0:  # reading it all takes as long as it is
                journal = Journal(daemon.data / "journal.sqlite")
                journal.acknowledged(acknowledged)
                interrupted_turns_are_marked(journal, boot)
            for hand in hands:
                as_acknowledged(daemon, hand)
            for sid in quiet:
                assert portrait(daemon, sid) == before[sid], f"kill {number}: {sid}"
            if number % 10 == 0:
                daemon.verified()

        # The commands whose answers were lost are asked again: carried out once in all.
        for hand in hands:
            if hand.uncertain is not None:
                key, command = hand.uncertain
                hand.done(command, daemon.client().call(command, key=key))
                acknowledged |= hand.acknowledged
        for sid in (*workers, *own):
            daemon.call("suspend", sid, mode="kill")
        daemon.verified()
    journal = Journal(daemon.data / "journal.sqlite")
    journal.check()
    interrupted_turns_are_marked(journal, boot)
    journal.acknowledged(acknowledged)
    journal.texts_are_unique("note ")
    assert len(acknowledged) > 15 * kills
    for hand in hands:
        fires = [
            e
            for e in journal.of(hand.own)
            if e["k"] == "cron.occurrence" and e["b"]["result"] == "due" and e["b"]["manual"]
        ]
        assert len(fires) == hand.fired, "every acknowledged `cron run` is one occurrence"
        accounts = daemon.call("cron.history", hand.own, job="job", limit=1_000)["occurrences"]
        waiting = [e for e in daemon.call("inbox.list", hand.own)["envelopes"] if e["job"] == "job"]
        final = [a for a in accounts if a["result"] not in {"due", "held"}]
        assert len(final) + len(waiting) == len(accounts)


def interrupted_turns_are_marked(journal: Journal, boot: int) -> None:
    """No turn of an earlier boot is still open; those that were are marked by this boot."""
    for sid in journal.sids:
        running: dict[str, Any] | None = None
        for event in journal.of(sid):
            if event["k"] == "turn.started":
                running = event
            elif event["k"] in {"turn.completed", "turn.interrupted"}:
                assert running is not None
                if event["boot"] != running["boot"]:
                    assert (event["k"], event["b"]["cause"]) == ("turn.interrupted", "crash")
                    assert event["b"]["boot"] == event["boot"] == running["boot"] + 1
                running = None
        assert running is None or running["boot"] == boot, f"{sid}: turn {running} is open since a crash"


def as_acknowledged(daemon: Daemon, hand: Hand) -> None:
    """Suspension and goal of the operator's own session are what was acknowledged last."""
    pending = hand.uncertain[1]["t"] if hand.uncertain else ""
    session = daemon.call("session.get", hand.own)
    kinds = [hold["kind"] for hold in session["holds"]]
    if pending not in {"suspend", "unsuspend"}:
        assert ("UserSuspend" in kinds) == hand.suspended, (kinds, hand.suspended, hand.uncertain)
    if pending != "goal.set":
        goal = session["goal"]
        assert (goal["text"] if goal else None) == hand.goal


def test_six_kills_under_load_lose_and_double_nothing(house: House) -> None:
    storm(house, kills=6, seed=6)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_sixty_kills_under_load_lose_and_double_nothing(house: House) -> None:
    storm(house, kills=60, seed=60)


def test_a_session_that_the_daemon_always_dies_in_is_held(house: House) -> None:
    daemon = house.daemon().start()
    with endpoint([say("endless ", endless=True, gap_ms=5)]) as (model, portal):
        sid = daemon.chat(model.base_url, goal="write", set=BUSY)
        other = daemon.scripted(house.script(working()))
        for boot in range(1, 4):
            portal.call(model.wait_for_requests, boot)
            daemon.call("send", sid, text=f"more {boot}")  # waits behind the running turn
            daemon.kill()
            daemon.start()
        why = daemon.ctl("why", sid)
        (hold,) = why["holds"]
        assert (hold["kind"], hold["boots"]) == ("CrashLoop", 3)
        marks = daemon.events(sid, "turn.interrupted")
        assert [m["b"]["cause"] for m in marks] == ["crash"] * 3
        assert hold["until_ms"] == marks[-1]["ts"] + HOUR_MS
        assert len(model.requests) == 3
        assert [w["by"] for w in why["held_back"]] == [["CrashLoop"]]
        assert daemon.call("why", other)["gate"] == "open"
        held = daemon.call("send", sid, text="are you there?")
        assert (held["held"], held["by"]) == (True, ["CrashLoop"])
        opened = daemon.ctl("gate", "open", sid)
        assert opened["removed"] == ["CrashLoop"]
        portal.call(model.wait_for_requests, 4)
        started = daemon.events(sid, "turn.started")[-1]
        assert held["id"] in started["b"]["envelopes"]
        daemon.call("suspend", sid, mode="kill")
    daemon.verified()


def test_a_deadline_that_passed_while_the_daemon_was_down_fires_once_at_boot(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()))
    until = now_ms() + 300
    daemon.call("suspend", sid, until_ms=until, quarantine=True)
    held = daemon.call("send", sid, text="wake up")
    assert held["held"]
    daemon.kill()
    while now_ms() <= until:
        threading.Event().wait(0.05)
    daemon.start()
    opened = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "deadline")
    assert opened["b"]["late_ms"] == opened["ts"] - until
    assert opened["b"]["late_ms"] <= 10_000, "spread over at most 5 s"
    daemon.until(sid, "turn.completed")
    daemon.kill()
    daemon.start()
    opens = [e for e in daemon.events(sid, "gate.changed") if e["b"]["cause"] == "deadline"]
    assert len(opens) == 1
    started = daemon.events(sid, "turn.started")
    assert [s["b"]["envelopes"] for s in started] == [[held["id"]]]
    daemon.verified()


def test_a_freeze_survives_a_crash_and_unfreezing_delivers_what_waited(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.until(sid, "turn.completed", count=3)
    frozen = daemon.ctl("freeze", "--reason", "provider outage", "--interrupt")
    daemon.kill()
    daemon.start()
    assert daemon.ctl("status")["frozen"] is True
    held = daemon.call("send", sid, text="still there?")
    assert (held["held"], held["by"]) == (True, ["freeze"])
    late = [e for e in daemon.events(sid, "turn.started") if e["seq"] > frozen["seq"]]
    assert late == []
    assert daemon.call("why", sid)["house"] == "freeze"
    daemon.ctl("unfreeze")
    started = daemon.until(sid, "turn.started", after=frozen["seq"])
    assert started["b"]["envelopes"] == [held["id"]]
    daemon.verified()


def degenerating(house: House, daemon: Daemon, kills: int, seed: int) -> None:
    """Hardened sessions that go in circles in four ways, killed while rules and ladder work."""
    dice = random.Random(seed)
    look = {"text": "I look again.", "calls": [call("read_file", path="a.txt", result="the same")]}
    scripts = [
        house.script(working(80), "works.jsonl"),
        house.script([FILLER], "repeats.jsonl"),
        house.script([[look, look, look]], "looks.jsonl"),
        house.script([f"I am thinking about option {n} now." for n in range(30)], "thinks.jsonl"),
    ]
    sids: list[str] = []
    for _ in range(kills):
        settings = {"continuation.min_gap_ms": 0}
        sids += [daemon.scripted(s, goal="write", preset="hardened", set=settings) for s in scripts]
        target = daemon.head() + dice.randrange(40, 200)
        for event in daemon.follow(within_s=60):
            if event["seq"] >= target:
                break
        daemon.kill()
        daemon.start()
        daemon.verified()
        for sid in sids:
            try:
                daemon.call("send", sid, text="go on, please")
            except CallFailed as refused:
                if refused.code != "session_terminal":  # many are ended, as they should
                    raise
    journal = Journal(daemon.data / "journal.sqlite")
    for sid in sids:
        turns_alternate(sid, journal.of(sid))
        journal.envelopes_have_one_fate(sid, journal.of(sid))
    found = {e["b"]["rule"] for e in journal.events if e["k"] == "degeneration.detected"}
    assert len(found) >= 2, found


def test_hardened_sessions_verify_wherever_a_kill_meets_rules_and_ladder(house: House) -> None:
    daemon = house.daemon(config="[recovery]\ncrash_loop_boots = 0\n").start()
    degenerating(house, daemon, kills=3, seed=3)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_hardened_sessions_verify_after_twenty_kills(house: House) -> None:
    daemon = house.daemon(config="[recovery]\ncrash_loop_boots = 0\n").start()
    degenerating(house, daemon, kills=20, seed=20)
