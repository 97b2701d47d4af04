"""The operator's day with the real `loopctl`: every command, in the shapes that scripts rely on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from loopd.testing.endpoint import say
from tests.e2e.harness import BIN, FILLER, NO_RULES, Daemon, House, endpoint, now_ms, working

pytestmark = pytest.mark.process
BUSY = {"continuation.min_gap_ms": 0, **NO_RULES}
HOUR_MS = 3_600_000


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    """One daemon for all: each test makes sessions of its own."""
    return shared


def new(daemon: Daemon, script: Path, name: str, *more: str) -> str:
    what = ("--driver", "scripted", "--script", str(script), "--preset", "published")
    created = daemon.ctl("new", *what, "--name", name, *more)
    assert set(created) >= {"sid"}
    return str(created["sid"])


def test_new_send_tail_and_ps_have_the_promised_shapes(house: House, daemon: Daemon) -> None:
    script = house.script(working())
    sid = new(daemon, script, "shapes", "-l", "team=web", "-l", "tier=1", "--set", "turn.max_steps=7")
    sent = daemon.ctl("send", "shapes", "hello there")
    assert {"id", "seq", "held", "by"} <= set(sent)
    assert (sent["held"], sent["by"]) == (False, [])
    daemon.ctl("wait", sid, "--until", "turn>0")
    daemon.ctl("wait", sid, "--until", "idle")

    tail = daemon.ctl("tail", sid, "-n", "50")["events"]
    accepted = next(e for e in tail if e["k"] == "envelope.accepted")
    assert (accepted["id"], accepted["text"], accepted["source"]) == (sent["id"], "hello there", "human")
    started = next(e for e in tail if e["k"] == "turn.started")
    assert (started["envelopes"], started["trigger"]) == ([sent["id"]], "human")
    step = next(e for e in tail if e["k"] == "turn.step")
    assert step["text"] == working()[0]["text"]
    assert len(daemon.ctl("tail", sid, "-n", "2")["events"]) == 2
    assert daemon.ctl("tail", sid, "-n", "2")["events"] == tail[-2:]

    listed = daemon.ctl("ps", "-l", "team=web")["sessions"]
    assert [(s["sid"], s["name"], s["labels"]) for s in listed] == [
        (sid, "shapes", {"team": "web", "tier": "1"})
    ]
    assert daemon.ctl("ps", "-l", "team=none")["sessions"] == []
    why = daemon.ctl("why", sid)
    assert {"sid", "gate", "holds", "held_back"} <= set(why)
    assert (why["sid"], why["gate"], why["holds"], why["held_back"]) == (sid, "open", [], [])


def test_options_stand_before_or_after_the_subcommand(daemon: Daemon) -> None:
    for words in (
        ("-o", "json", "status"),
        ("status", "-o", "json"),
        ("--socket", daemon.socket, "status", "-o", "json"),
        ("status", "--socket", daemon.socket, "-o", "json"),
        ("-o", "json", "--socket", daemon.socket, "status"),
    ):
        done = subprocess.run(
            [str(BIN / "loopctl"), *words],
            capture_output=True,
            text=True,
            check=True,
            env={"LOOPD_SOCKET": daemon.socket, "PATH": "/usr/bin:/bin", **_python_path()},
        )
        assert json.loads(done.stdout)["pid"] == daemon.pid


def _python_path() -> dict[str, str]:
    import os  # noqa: PLC0415

    return {key: os.environ[key] for key in ("PYTHONPATH", "HOME") if key in os.environ}


def test_suspend_tells_its_proof_and_verify_confirms_it(house: House, daemon: Daemon) -> None:
    sid = new(daemon, house.script(working()), "proof", "--goal", "write")
    until = now_ms() + 2 * HOUR_MS
    suspended = daemon.ctl("suspend", sid, "--reason", "cost review", "--until", "2h", "--mode", "interrupt")
    assert {"gate", "seq", "turn"} <= set(suspended)
    assert suspended["gate"] == "closed"
    why = daemon.ctl("why", sid)
    (hold,) = why["holds"]
    assert {"kind", "until_ms", "by", "reason"} <= set(hold)
    assert (hold["kind"], hold["reason"]) == ("UserSuspend", "cost review")
    assert abs(hold["until_ms"] - until) < 60_000
    assert hold["by"].startswith("uid:")
    assert daemon.verified(sid, since=suspended["seq"])["proof"]["turns_after"] == 0
    assert daemon.ctl("verify", sid, "--suspended-since", "1", code=1)["ok"] is False
    again = daemon.ctl("suspend", sid)
    assert daemon.ctl("why", sid)["holds"][0]["until_ms"] is None, "a second one replaces `until`"
    assert again["seq"] > suspended["seq"]
    assert daemon.ctl("unsuspend", sid)["removed"] == ["UserSuspend"]


def test_suspend_by_label_touches_only_those_and_dry_run_nobody(house: House, daemon: Daemon) -> None:
    script = house.script(working())
    red = {new(daemon, script, f"red{n}", "-l", "colour=red") for n in range(3)}
    blue = new(daemon, script, "blue", "-l", "colour=blue")
    would = daemon.ctl("suspend", "-l", "colour=red", "--dry-run")["would"]
    assert {session["sid"] for session in would} == red
    assert all(daemon.call("why", sid)["gate"] == "open" for sid in red)
    done = daemon.ctl("suspend", "-l", "colour=red", "--reason", "all red")["results"]
    assert {result["sid"] for result in done} == red
    assert all(result["ok"] and result["seq"] for result in done)
    assert all(daemon.call("why", sid)["gate"] == "closed" for sid in red)
    assert daemon.call("why", blue)["gate"] == "open"
    for result in done:
        daemon.verified(result["sid"], since=result["seq"])
    lifted = daemon.ctl("unsuspend", "-l", "colour=red")["results"]
    assert [result["ok"] for result in lifted] == [True] * 3


def test_goals_gates_and_holds_by_hand(daemon: Daemon) -> None:
    with endpoint([say(FILLER)]) as (model, _):
        sid = daemon.ctl(
            *("new", "--driver", "chat", "--base-url", model.base_url, "--model", "m", "--name", "filler"),
            *("--preset", "published"),
            *("--preset", "published"),
            *("--set", "continuation.min_gap_ms=0", "--set", "rules.repeated_text.threshold=3"),
        )["sid"]
        assert daemon.ctl("goal", "set", sid, "write it")["goal"]["status"] == "active"
        daemon.ctl("wait", sid, "--until", "closed")
        assert len(model.requests) == 3
        (hold,) = daemon.ctl("gate", sid)["holds"]
        later = daemon.ctl("gate", "extend", sid, "Degeneration", "--until", "5h")
        assert later["holds"][0]["until_ms"] > hold["until_ms"]
        assert daemon.ctl("gate", "extend", sid, "--until", "1m", code=2)["error"]["code"] == "invalid"
        assert daemon.ctl("gate", "extend", sid, "Budget", "--until", "5h", code=4)
        for verb, status in (
            ("pause", "paused"),
            ("resume", "active"),
            ("infeasible", "infeasible"),
            ("resume", "active"),
            ("complete", "complete"),
        ):
            assert daemon.ctl("goal", verb, sid)["goal"]["status"] == status
        assert daemon.ctl("goal", "clear", sid)["goal"] is None
        opened = daemon.ctl("gate", "open", sid)
        assert (opened["removed"], opened["gate"]) == (["Degeneration"], "open")
        assert (
            daemon.ctl("gate", "open", sid, "--kind", "degeneration", code=4)["error"]["code"] == "conflict"
        )
        assert len(model.requests) == 3, "no goal, no continuation"


def test_cron_and_inbox_by_hand(house: House, daemon: Daemon) -> None:
    sid = new(daemon, house.script(working()), "jobs")
    put = daemon.ctl("cron", "put", sid, "nightly", "0 3 * * *", "check the build", "--tz", "Asia/Tokyo")
    assert put["job"]["next_ms"] > now_ms()
    assert daemon.ctl("cron", "put", sid, "bad", "99 * * * *", "x", code=2)["error"]["code"] == "invalid"
    assert daemon.ctl("cron", "put", sid, "bad", "0 3 * * *", "x", "--tz", "Mars/Base", code=2)
    assert [job["job"] for job in daemon.ctl("cron", "list", sid)["jobs"]] == ["nightly"]
    assert sid in {job["sid"] for job in daemon.ctl("cron", "list")["jobs"]}
    assert len(daemon.ctl("cron", "next", sid, "nightly", "-n", "4")["next"]) == 4
    assert len(daemon.ctl("cron", "next", "--expr", "*/7 * * * *")["next"]) == 5
    daemon.ctl("cron", "pause", sid, "nightly")
    assert daemon.ctl("cron", "pause", sid, "nightly", code=4)["error"]["code"] == "conflict"
    assert daemon.ctl("cron", "next", sid, "nightly")["next"] == []
    daemon.ctl("cron", "resume", sid, "nightly")
    daemon.ctl("suspend", sid, "--quarantine")
    run = daemon.ctl("cron", "run", sid, "nightly")
    assert (run["held"], run["by"]) == (True, ["UserSuspend"])
    sent = daemon.ctl("send", sid, "later")
    inbox = daemon.ctl("inbox", sid)["envelopes"]
    assert [(e["id"], e["text"]) for e in inbox] == [
        (run["envelope"], "check the build"),
        (sent["id"], "later"),
    ]
    daemon.ctl("inbox", "drop", sid, run["envelope"])
    assert daemon.ctl("inbox", "drop", sid, run["envelope"], code=3)["error"]["code"] == "not_found"
    (account,) = daemon.ctl("cron", "history", sid, "nightly")["occurrences"]
    assert (account["result"], account["manual"]) == ("skipped", True)
    daemon.ctl("cron", "remove", sid, "nightly")
    assert daemon.ctl("cron", "run", sid, "nightly", code=3)


def test_show_watch_and_follow(house: House, daemon: Daemon) -> None:
    sid = new(daemon, house.script(working()), "shown")
    sent = daemon.ctl("send", sid, "look")
    daemon.ctl("wait", sid, "--until", "turn>0")
    daemon.ctl("wait", sid, "--until", "idle")
    shown = daemon.ctl("show", f"{sid}@1")
    assert (shown["n"], shown["trigger"], shown["outcome"]) == (1, "human", "completed")
    assert [e["id"] for e in shown["envelopes"]] == [sent["id"]]
    assert daemon.ctl("show", f"{sid}@9", code=3)["error"]["code"] == "not_found"
    watched = daemon.ctl("watch", sid, "-k", "turn.*", "--after", "0", "-n", "3")["events"]
    assert [e["k"] for e in watched] == ["turn.started", "turn.step", "turn.completed"]
    cursor = house.folder / "cursor.json"
    cursor.write_text(json.dumps({"log": daemon.ctl("status")["log"], "seq": 0}))
    first = daemon.ctl("watch", sid, "-k", "turn.*", "--cursor-file", str(cursor), "-n", "1")["events"]
    second = daemon.ctl("watch", sid, "-k", "turn.*", "--cursor-file", str(cursor), "-n", "1")["events"]
    assert (first[0]["k"], second[0]["k"]) == ("turn.started", "turn.step")

    with subprocess.Popen(
        [str(BIN / "loopctl"), "--socket", daemon.socket, "tail", sid, "-f", "-n", "1", "-o", "ndjson"],
        stdout=subprocess.PIPE,
        text=True,
    ) as follow:
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["k"] == "turn.completed"
        sent = daemon.ctl("send", sid, "again")
        event = json.loads(follow.stdout.readline())
        assert (event["k"], event["id"]) == ("envelope.accepted", sent["id"])
        follow.terminate()


def test_an_ended_session_is_terminal_and_its_name_is_free_again(house: House, daemon: Daemon) -> None:
    script = house.script(working())
    sid = new(daemon, script, "shortlived", "--goal", "write")
    assert daemon.ctl("new", "--driver", "scripted", "--script", str(script), "--name", "shortlived", code=4)
    ended = daemon.ctl("end", sid, "--reason", "done with it")
    assert (ended["status"], ended["stop_reason"]) == ("aborted_constraint", "operator")
    assert daemon.ctl("send", sid, "hello?", code=4)["error"]["code"] == "session_terminal"
    assert daemon.ctl("suspend", sid, code=4)["error"]["code"] == "session_terminal"
    assert sid not in {s["sid"] for s in daemon.ctl("ps")["sessions"]}
    assert sid in {s["sid"] for s in daemon.ctl("ps", "--ended")["sessions"]}
    last = daemon.ctl("tail", sid, "-n", "1")["events"][0]
    assert last["k"] == "session.ended"
    assert new(daemon, script, "shortlived") != sid
    daemon.verified(sid)


def test_freeze_and_unfreeze_hold_the_whole_house(house: House) -> None:
    daemon = house.daemon().start()
    script = house.script(working())
    sids = [daemon.scripted(script, goal="write", set=BUSY, delay_ms=2) for _ in range(3)]
    for sid in sids:
        daemon.until(sid, "turn.completed", count=2)
    frozen = daemon.ctl("freeze", "--reason", "incident", "--interrupt")
    assert frozen["frozen"] is True
    sent = [daemon.ctl("send", sid, "wait for it") for sid in sids]
    assert [(s["held"], s["by"]) for s in sent] == [(True, ["freeze"])] * 3
    assert daemon.ctl("status")["frozen"] is True
    late = [e for e in daemon.events(None, "turn.started") if e["seq"] > frozen["seq"]]
    assert late == []
    daemon.ctl("unfreeze")
    for sid, waited in zip(sids, sent, strict=True):
        started = daemon.until(sid, "turn.started", after=frozen["seq"])
        assert started["b"]["envelopes"] == [waited["id"]]
    daemon.verified()


def test_tables_are_for_people(house: House, daemon: Daemon) -> None:
    sid = new(daemon, house.script(working()), "readable", "--goal", "be read")
    daemon.ctl("suspend", sid, "--reason", "a look")
    for words in (
        ("status",),
        ("ps",),
        ("why", sid),
        ("tail", sid),
        ("gate", sid),
        ("cron", "list"),
        ("verify",),
    ):
        done = daemon.loopctl(*words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert "\x1b[" not in done.stdout, "no colours into a pipe"
    assert "UserSuspend" in daemon.loopctl("ps").stdout or "suspend" in daemon.loopctl("ps").stdout.lower()


def test_large_events_come_in_pages_and_none_is_missing(house: House, daemon: Daemon) -> None:
    sid = new(daemon, house.script(working()), "large")
    daemon.call("suspend", sid, quarantine=True)
    sent = [daemon.call("send", sid, text=f"{n} " + "x" * 900_000)["id"] for n in range(15)]
    page = daemon.call("history.page", sid, limit=1_000)
    assert page["more"] is True
    assert len(page["events"]) < 30, "an answer has an end"
    stored = [e["b"]["id"] for e in daemon.events(sid, "envelope.accepted")]
    assert stored == sent
    tail = daemon.ctl("tail", sid, "-n", "100")["events"]
    assert [e["id"] for e in tail if e["k"] == "envelope.accepted"] == sent
    assert [e["id"] for e in daemon.ctl("tail", sid, "-n", "20", "-k", "envelope.accepted")["events"]] == sent
