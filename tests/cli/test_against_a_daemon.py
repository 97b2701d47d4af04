"""`loopctl` against a real daemon: the shapes that scripts rely on, exit codes, live output."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopd.cli.console import columns
from tests.cli.conftest import Stage, run
from tests.e2e.harness import BIN, FILLER

pytestmark = pytest.mark.process
HOUR_MS = 3_600_000
NASTY = "\x1b[2J\x1b]0;owned\x07 then \u202egnp.exe"


def spawn(stage: Stage, *words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "loopctl"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "LOOPD_SOCKET": stage.daemon.socket}, **options,
    )  # fmt: skip


def lines_of(fd: int, within_s: float = 20.0) -> Iterator[str]:
    """Lines as they come; a long silence is an error."""
    pending = b""
    while True:
        while b"\n" not in pending:
            assert select.select([fd], [], [], within_s)[0], f"nothing for {within_s} s after {pending!r}"
            chunk = os.read(fd, 65_536)
            if not chunk:
                return
            pending += chunk
        line, _, pending = pending.partition(b"\n")
        yield line.decode()


# -- shapes -----------------------------------------------------------------------------------


def test_new_prints_the_sid_in_every_format(stage: Stage) -> None:
    script = stage.house.script([FILLER])
    for words in ([], ["-o", "json"], ["-o", "ndjson"], ["-o", "table"]):
        said = stage.ctl("new", "--driver", "scripted", "--script", str(script), *words)
        assert said.code == 0
        assert said.json["sid"].startswith("ses_")


def test_ps_lists_sessions_with_their_gates(stage: Stage) -> None:
    name = stage.session("-l", "who=ps")
    (session,) = stage.ok("ps", "-l", "who=ps")["sessions"]
    assert (session["name"], session["gate"], session["holds"], session["turn"]) == (name, "open", [], None)
    assert session["labels"] == {"who": "ps"}
    lines = stage.ctl("ps", "-l", "who=ps", "-o", "ndjson").out.splitlines()
    assert [json.loads(line)["sid"] for line in lines] == [session["sid"]]
    assert stage.ctl("ps", "-q", "-l", "who=ps").out == f"{name}\n"


@pytest.mark.parametrize(
    "words",
    [["status"], ["ps"], ["ps", "-q"], ["why", "SID"], ["gate", "get", "SID"], ["tail", "SID"], ["tail"], ["cron", "list"], ["cron", "list", "SID"],
     ["inbox", "SID"], ["verify"], ["verify", "SID"], ["cron", "history", "SID"], ["show", "SID"], ["wait", "SID", "--until", "idle"],
     ["watch", "-n", "1", "--after", "0"], ["suspend", "SID", "--dry-run"], ["cron", "next", "--expr", "* * * * *"]],
)  # fmt: skip
def test_json_is_exactly_one_object(stage: Stage, words: list[str]) -> None:
    name = stage.session()
    stage.ok("send", name, "hello")
    stage.ok("wait", name, "--until", "turn>0")
    stage.ok("wait", name, "--until", "idle")
    said = stage.ctl("-o", "json", *[name if word == "SID" else word for word in words])
    assert (said.code, said.err) == (0, "")
    assert isinstance(said.json, dict)


def test_why_names_kind_deadline_and_author_of_a_detection(stage: Stage) -> None:
    name = stage.degenerated()
    why = stage.ok("why", name)
    assert why["gate"] == "closed"
    (hold,) = why["holds"]
    assert (hold["kind"], hold["by"]) == ("Degeneration", "rule:repeated_text")
    assert 0 < hold["until_ms"] - time.time_ns() // 1_000_000 <= HOUR_MS
    assert hold["reason"]
    assert why["held_back"] == []
    told = stage.ctl("why", name).out
    assert "Degeneration" in told
    assert "in 59m" in told or "in 1h" in told


def test_tail_flattens_events_and_keeps_their_bodies(stage: Stage) -> None:
    name = stage.session()
    sent = stage.ok("send", name, "look at chapter 3")
    stage.ok("wait", name, "--until", "turn>0")
    stage.ok("wait", name, "--until", "idle")
    events = stage.ok("tail", name, "-n", "100")["events"]
    assert [event["ss"] for event in events] == list(range(1, len(events) + 1))
    (accepted,) = [event for event in events if event["k"] == "envelope.accepted"]
    assert (accepted["id"], accepted["text"]) == (sent["id"], "look at chapter 3")
    assert 0 < accepted["seq"] <= sent["seq"]
    (started,) = [event for event in events if event["k"] == "turn.started"]
    assert (started["envelopes"], started["trigger"], started["turn"]) == ([sent["id"]], "human", 1)
    assert all(event["b"]["k"] == event["k"] for event in events)
    assert accepted["b"]["text"] == accepted["text"]
    last = stage.ok("tail", name, "-n", "2")["events"]
    assert [event["seq"] for event in last] == [event["seq"] for event in events[-2:]]
    kinds = {event["k"] for event in stage.ok("tail", name, "-k", "turn.*")["events"]}
    assert kinds == {"turn.started", "turn.step", "turn.completed"}


def test_send_succeeds_once_durable_held_or_not(stage: Stage) -> None:
    name = stage.session()
    free = stage.ok("send", name, "now")
    assert (free["held"], free["by"]) == (False, [])
    stage.ok("suspend", name, "--quarantine")
    held = stage.ok("send", name, "later")
    assert (held["held"], held["by"]) == (True, ["UserSuspend"])
    assert held["seq"] > free["seq"]
    (waiting,) = stage.ok("inbox", name)["envelopes"]
    assert (waiting["id"], waiting["text"]) == (held["id"], "later")
    assert stage.ok("why", name)["held_back"][0]["id"] == held["id"]
    assert "held by UserSuspend" in stage.ctl("send", name, "much later").out
    stage.ok("inbox", "drop", name, held["id"])
    assert len(stage.ok("inbox", name)["envelopes"]) == 1
    assert stage.ctl("inbox", "drop", name, held["id"]).code == 3


def test_send_reads_standard_input(stage: Stage) -> None:
    name = stage.session()
    process = spawn(stage, "send", name, "-", "-o", "json", stdin=subprocess.PIPE)
    out, err = process.communicate("from a pipe\n", timeout=20)
    assert (process.returncode, err) == (0, "")
    events = stage.ok("tail", name, "-k", "envelope.accepted")["events"]
    assert (events[-1]["id"], events[-1]["text"]) == (json.loads(out)["id"], "from a pipe\n")
    empty = spawn(stage, "send", name, "-", stdin=subprocess.PIPE)
    assert "standard input is empty" in empty.communicate("", timeout=20)[1]
    assert empty.returncode == 2


def test_the_same_dedupe_key_is_accepted_once(stage: Stage) -> None:
    name = stage.session()
    stage.ok("suspend", name, "--quarantine")
    first = stage.ok("send", name, "x", "--dedupe", "k1")
    again = stage.ok("send", name, "x", "--dedupe", "k1")
    assert again["id"] == first["id"]
    assert len(stage.ok("inbox", name)["envelopes"]) == 1


def test_a_change_with_the_same_key_is_carried_out_once(stage: Stage) -> None:
    name = stage.session()
    stage.ok("suspend", name, "--quarantine")
    first = stage.ok("--key", "k-once", "send", name, "x")
    again = stage.ok("send", name, "x", "--key", "k-once")
    assert (again["id"], again["dup"]) == (first["id"], True)
    assert len(stage.ok("inbox", name)["envelopes"]) == 1
    assert stage.ctl("send", name, "y", "--key", "k-once").code == 4


def test_a_suspension_is_proven_and_checkable(stage: Stage) -> None:
    name = stage.session(goal="go", texts=tuple(f"step {i}" for i in range(50)))
    answer = stage.ok("suspend", name, "--reason", "cost review", "--until", "2h")
    assert answer["gate"] == "closed"
    (hold,) = [hold for hold in answer["holds"] if hold["kind"] == "UserSuspend"]
    assert hold["reason"] == "cost review"
    assert abs(hold["until_ms"] - time.time_ns() // 1_000_000 - 2 * HOUR_MS) < 60_000
    proof = stage.ok("verify", name, "--suspended-since", str(answer["seq"]))
    assert proof["ok"] is True
    told = stage.ctl("suspend", name).out
    assert "proof: seq " in told
    assert "until unsuspended" in told
    lifted = stage.ok("unsuspend", name)
    assert "UserSuspend" in lifted["removed"]


def test_labels_select_and_a_dry_run_touches_nothing(stage: Stage) -> None:
    one, two = stage.session("-l", "fleet=red"), stage.session("-l", "fleet=red", "-l", "x")
    other = stage.session("-l", "fleet=blue")
    before = [stage.ok("tail", name)["events"][-1]["seq"] for name in (one, two)]
    would = stage.ok("suspend", "-l", "fleet=red", "--dry-run")["would"]
    assert {session["name"] for session in would} == {one, two}
    assert [stage.ok("tail", name)["events"][-1]["seq"] for name in (one, two)] == before
    assert (
        f"would be suspended: 2\n  {one}\n  {two}\n"
        == stage.ctl("suspend", "-l", "fleet=red", "--dry-run").out
    )
    done = stage.ok("suspend", "-l", "fleet=red")["results"]
    assert [result["ok"] for result in done] == [True, True]
    gates = {name: stage.ok("gate", "get", name)["gate"] for name in (one, two, other)}
    assert gates == {one: "closed", two: "closed", other: "open"}
    assert len(stage.ok("unsuspend", one, two)["results"]) == 2
    assert [s["name"] for s in stage.ok("ps", "-l", "fleet=red", "-l", "x")["sessions"]] == [two]


def test_a_batch_fails_with_the_code_of_its_first_failure(stage: Stage) -> None:
    one, two = stage.session("-l", "pair=1"), stage.session("-l", "pair=1")
    stage.ok("goal", "set", two, "go")
    stage.ok("goal", "set", one, "go")
    stage.ok("goal", "clear", one)
    said = stage.ctl("goal", "pause", "-l", "pair=1", "-o", "json")
    assert {result["name"]: result["ok"] for result in said.json["results"]} == {one: False, two: True}
    assert said.code == 4


MANY = [
    "suspend --until 1h", "gate extend --kind UserSuspend --until 3h", "gate open", "suspend", "unsuspend", "interrupt", "goal set text", "goal pause", "goal resume",
    "goal infeasible", "goal complete", "goal clear", "send hello", "set rules.repeated_text.threshold=9", "budget set --each turns=500 tokens=9M",
    "budget remove --each turns", "cron put job 0\u00a03\u00a0*\u00a0*\u00a0* text", "cron pause job", "cron resume job", "cron run job", "cron remove job",
    "retention hold", "retention release", "end", "resume",
]  # fmt: skip


def test_every_change_is_made_to_all_that_a_label_selects_and_to_none_by_a_dry_run(stage: Stage) -> None:
    names = [stage.session("-l", "all=verbs"), stage.session("-l", "all=verbs")]
    other = stage.session("-l", "all=others")
    stage.ok("suspend", other)
    quiet = stage.ok("tail", other)["events"][-1]["seq"]

    def last() -> list[int]:
        return [stage.ok("tail", name)["events"][-1]["seq"] for name in names]

    for line in MANY:
        words = [word.replace("\u00a0", " ") for word in line.split(" ")]
        for name in names:  # a turn that runs would write as well
            if line != "resume":
                stage.ok("wait", name, "--until", "idle")
        before = last()
        would = stage.ok(*words, "-l", "all=verbs", "--dry-run")["would"]
        assert {row["name"] for row in would} == set(names), line
        told = stage.ctl(*words, "-l", "all=verbs", "--dry-run")
        assert (told.code, told.out.splitlines()[0].startswith("would be ")) == (0, True), line
        assert last() == before, line
        results = stage.ok(*words, "-l", "all=verbs")["results"]
        assert {row["name"] for row in results} == set(names), line
        assert all(row["ok"] for row in results), line
    assert stage.ok("tail", other)["events"][-1]["seq"] == quiet


def test_one_that_refuses_is_told_and_the_others_are_changed(stage: Stage) -> None:
    one, two = stage.session("-l", "jobs=1"), stage.session("-l", "jobs=1")
    stage.ok("cron", "put", two, "nightly", "0 3 * * *", "check the build")
    said = stage.ctl("cron", "pause", "-l", "jobs=1", "nightly")
    lines = said.out.splitlines()
    assert (said.code, lines[2]) == (3, "1 of 2 paused")
    assert lines[0].startswith(f"{one}  not_found: ")
    assert lines[1] == f"{two}  paused"
    assert stage.ok("cron", "list", two)["jobs"][0]["paused"] is True
    for name in (one, two):
        stage.ok("budget", "set", "-l", "jobs=1", "turns=90")
        budgets = stage.ok("budget", name)["budgets"]
        assert [each["scope"] for each in budgets] == ["jobs=1"], "without --each they share it"


# -- exit codes -------------------------------------------------------------------------------


def test_exit_codes_of_refusals(stage: Stage) -> None:
    name = stage.session()
    sid = stage.ok("why", name)["sid"]
    assert stage.ctl("why", "nobody").code == 3
    assert stage.ctl("show", f"{name}@999").code == 3
    taken = stage.ctl(
        "new", "--driver", "scripted", "--script", str(stage.house.script([FILLER])), "--name", name
    )
    assert taken.code == 4
    assert stage.ctl("send", name, "x" * 1_000_001).code == 2
    assert stage.ctl("goal", "set", name, "").code == 2
    stage.ok("end", name)
    ended = stage.ctl("suspend", sid)
    assert (ended.code, ended.err.count("\n")) == (4, 1)
    assert ended.err.startswith("loopctl: session_terminal: ")
    error = json.loads(stage.ctl("suspend", sid, "-o", "json").err)["error"]
    assert (error["code"], error["exit"]) == ("session_terminal", 4)


def test_a_script_that_is_no_trajectory_is_refused(stage: Stage, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    said = stage.ctl("new", "--driver", "scripted", "--script", str(bad))
    assert said.code == 2
    assert "line 1" in said.err
    assert stage.ctl("new", "--driver", "scripted", "--script", str(tmp_path / "no")).code in {2, 3}


# -- gate, goal, cron -------------------------------------------------------------------------


def test_gate_verbs(stage: Stage) -> None:
    name = stage.degenerated()
    extended = stage.ok("gate", "extend", name, "--until", "3h")
    (hold,) = extended["holds"]
    assert hold["until_ms"] - time.time_ns() // 1_000_000 > 2 * HOUR_MS
    stage.ok("suspend", name)
    assert "which hold?" in stage.ctl("gate", "extend", name, "--until", "4h").err
    stage.ok("gate", "extend", name, "degeneration", "--until", "4h")
    told = stage.ctl("gate", name, "open").out
    assert "removed Degeneration" in told
    assert "stays closed" in told
    assert [hold["kind"] for hold in stage.ok("gate", name)["holds"]] == ["UserSuspend"]


def test_goal_verbs(stage: Stage) -> None:
    name = stage.session()
    stage.ok("suspend", name)
    assert stage.ok("goal", "set", name, "map it")["goal"]["status"] == "active"
    for verb, status in (
        ("pause", "paused"),
        ("resume", "active"),
        ("complete", "complete"),
        ("infeasible", "infeasible"),
    ):
        assert stage.ok("goal", verb, name)["goal"]["status"] == status
    assert stage.ok("goal", "clear", name)["goal"] is None


def test_cron_verbs(stage: Stage) -> None:
    name = stage.session()
    stage.ok("suspend", name)
    put = stage.ctl("cron", "put", name, "nightly", "0 3 * * *", "check it", "--tz", "Europe/Berlin")
    assert put.out.startswith("nightly put; next ")
    (job,) = stage.ok("cron", "list", name)["jobs"]
    assert (job["job"], job["tz"], job["paused"]) == ("nightly", "Europe/Berlin", False)
    assert job["next_ms"] in stage.ok("cron", "next", name, "nightly", "-n", "2")["next"]
    fired = stage.ok("cron", "run", name, "nightly")
    assert (fired["held"], fired["by"]) == (True, ["UserSuspend"])
    (occurrence,) = stage.ok("cron", "history", name)["occurrences"]
    assert (occurrence["job"], occurrence["result"], bool(occurrence["manual"])) == ("nightly", "held", True)
    assert stage.ctl("cron", "pause", name, "nightly").out == "nightly paused\n"
    assert "paused" in stage.ctl("cron", "list", name).out
    stage.ok("cron", "resume", name, "nightly")
    stage.ok("cron", "remove", name, "nightly")
    assert stage.ctl("cron", "list", name).out == "no jobs\n"
    assert stage.ctl("cron", "run", name, "nightly").code == 3
    assert stage.ctl("cron", "put", name, "bad", "61 * * * *", "x").code == 2


def test_interrupt_says_when_the_session_resumes(stage: Stage) -> None:
    name = stage.session("--delay", "10m", goal="go")
    stage.ok("wait", name, "--until", "turn>0")
    answer = stage.ok("interrupt", name, "--for", "10m")
    assert abs(answer["resumes_ms"] - time.time_ns() // 1_000_000 - 600_000) < 60_000
    assert [hold["kind"] for hold in stage.ok("gate", name)["holds"]] == ["Interrupted"]
    assert "no turn was running; nothing automatic starts until " in stage.ctl("interrupt", name).out


def test_show_gives_the_turn_and_what_the_model_saw(stage: Stage) -> None:
    name = stage.session(texts=("first", "second"))
    for text in ("one", "two"):
        stage.ok("send", name, text)
    stage.ok("wait", name, "--until", "turn>0")
    stage.ok("wait", name, "--until", "idle")
    turn = stage.ok("show", f"{name}@1")
    assert (turn["n"], turn["trigger"], turn["outcome"]) == (1, "human", "completed")
    assert turn["steps"]
    seen = stage.ctl("show", f"{name}@1", "--prompt").out
    assert "[user, human]" in seen
    assert "one" in seen


# -- live -------------------------------------------------------------------------------------


def test_watch_resumes_behind_its_cursor_without_loss_or_repetition(stage: Stage, tmp_path: Path) -> None:
    name = stage.session()
    cursor = tmp_path / "cursor.json"
    head = stage.daemon.head()
    cursor.write_text(
        json.dumps({"log": stage.daemon.ready.get("log") or stage.ok("status")["log"], "seq": head})
    )
    for text in ("a", "b", "c"):
        stage.ok("suspend", name)
        stage.ok("send", name, text)
        stage.ok("wait", name, "--until", "idle")
    wanted = [event["seq"] for event in stage.ok("tail", name, "-n", "200")["events"] if event["seq"] > head]
    got: list[int] = []
    while len(got) < len(wanted):
        said = stage.ctl(
            "watch", name, "-n", "2", "--cursor-file", str(cursor), "-o", "ndjson", "--timeout", "20s"
        )
        got += [json.loads(line)["seq"] for line in said.out.splitlines()]
        if said.code != 0:
            break
    assert got == wanted
    assert json.loads(cursor.read_text())["seq"] == wanted[-1]


def test_a_cursor_of_another_log_is_told_and_starts_over(stage: Stage, tmp_path: Path) -> None:
    cursor = tmp_path / "cursor.json"
    cursor.write_text('{"log": "lg_other", "seq": 5}')
    said = stage.ctl("watch", "-n", "1", "--cursor-file", str(cursor), "-o", "ndjson")
    assert "gap: the cursor" in said.err
    assert json.loads(said.out)["seq"] == 1
    cursor.write_text("[]")
    assert "holds no cursor" in stage.ctl("watch", "-n", "1", "--cursor-file", str(cursor)).err


@pytest.mark.parametrize(
    "words", [["watch", "SID", "-k", "gate.*"], ["tail", "SID", "-n", "1", "-f", "-k", "gate.*"]]
)
def test_live_lines_come_at_once(stage: Stage, words: list[str]) -> None:
    name = stage.session()
    stage.ok("suspend", name)
    words = [name if word == "SID" else word for word in words]
    process = spawn(stage, *words, "-o", "ndjson")
    try:
        assert process.stdout is not None
        pending, deadline = b"", time.monotonic() + 20
        while b'"cause": "unsuspend"' not in pending:
            # Whether it listens already is unknown, so there is always another change to see.
            stage.ok("suspend", name)
            stage.ok("unsuspend", name)
            if select.select([process.stdout], [], [], 0.2)[0]:
                pending += os.read(process.stdout.fileno(), 65_536)
            assert time.monotonic() < deadline
        line = pending.decode().splitlines()[0]
        assert json.loads(line)["k"] == "gate.changed"
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_watch_survives_the_daemon_without_a_hole(stage: Stage) -> None:
    daemon = stage.house.daemon("again").start()
    sid = daemon.scripted(stage.house.script([FILLER], "again.jsonl"))
    process = subprocess.Popen(
        [str(BIN / "loopctl"), "watch", sid, "--reconnect", "-o", "ndjson", "--after", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "LOOPD_SOCKET": daemon.socket},
    )  # fmt: skip
    seen: list[int] = []
    assert process.stdout is not None
    lines = lines_of(process.stdout.fileno())

    def read_until(seq: int) -> None:
        while not seen or seen[-1] < seq:
            seen.append(json.loads(next(lines))["ss"])

    try:
        for restart in (daemon.kill, daemon.terminate, lambda: None):
            daemon.call("send", sid, text="x")
            daemon.call("suspend", sid)
            read_until(daemon.call("session.get", sid)["rev"])
            restart()
            if daemon.process is None:
                daemon.start()
    finally:
        process.kill()
        _, err = process.communicate(timeout=20)
    assert seen == list(range(1, len(seen) + 1))
    assert err == ""


def test_streamed_text_is_shown_when_asked_for(stage: Stage) -> None:
    name = stage.session(texts=tuple(f"text {i}" for i in range(2_000)), goal="go")
    said = stage.ctl("watch", name, "-n", "40", "--deltas", "-o", "ndjson", "--timeout", "20s")
    frames = [json.loads(line) for line in said.out.splitlines()]
    deltas = [frame for frame in frames if frame.get("t") == "delta"]
    assert deltas
    assert all(frame["text"].startswith("text ") for frame in deltas)
    stage.ok("end", name)


def test_wait_returns_on_the_state_and_gives_up_in_time(stage: Stage) -> None:
    name = stage.session()
    late = stage.ctl("wait", name, "--until", "closed", "--timeout", "200ms")
    assert (late.code, late.out) == (7, "")
    assert f"{name} is not closed after 0.2s" in late.err
    process = spawn(stage, "wait", name, "--until", "turn>0", "-o", "json")
    stage.ok("send", name, "go")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(out)["name"] == name
    sid = stage.ok("why", name)["sid"]
    ending = spawn(stage, "wait", sid, "--until", "ended", "-o", "json")
    stage.ok("end", name)
    out, err = ending.communicate(timeout=20)
    assert (ending.returncode, err) == (0, "")
    assert json.loads(out)["status"] == "aborted_constraint"
    assert stage.ok("wait", sid, "--until", "ended")["status"] == "aborted_constraint"
    assert stage.ctl("wait", sid, "--until", "turn>99", "--timeout", "5s").code == 4


def test_a_reader_that_has_seen_enough_is_no_error(stage: Stage) -> None:
    name = stage.degenerated()
    process = spawn(stage, "tail", name, "-n", "100", "-o", "ndjson")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(20) in {0, 120}
    process.stderr.close()


# -- people -----------------------------------------------------------------------------------


def test_agent_text_cannot_act_on_the_terminal(stage: Stage) -> None:
    name = stage.session(texts=(NASTY,))
    stage.ok("send", name, NASTY)
    stage.ok("goal", "set", name, NASTY)
    stage.ok("wait", name, "--until", "turn>0")
    stage.ok("suspend", name, "--reason", NASTY)
    for words in (["tail", name, "-n", "100"], ["why", name], ["ps"], ["show", f"{name}@1"], ["show", f"{name}@1", "--prompt"],
                  ["gate", name], ["inbox", name], ["goal", "pause", name]):  # fmt: skip
        out = stage.ctl(*words).out
        assert not set("\x1b\x07\u202e\x9b") & set(out), words
        assert out
    shown = stage.ok("tail", name, "-k", "envelope.accepted")["events"][0]["text"]
    assert shown == NASTY


def on_a_terminal(stage: Stage, *words: str, **env: str) -> str:
    """Output of `loopctl` on a pseudo-terminal of 90 columns."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [str(BIN / "loopctl"), *words], stdout=child, stderr=child, stdin=subprocess.DEVNULL,
        env={**os.environ, "LOOPD_SOCKET": stage.daemon.socket, "TERM": "xterm", "COLUMNS": "90", **env},
    )  # fmt: skip
    os.close(child)
    chunks = []
    while True:
        try:
            chunk = os.read(parent, 65_536)
        except OSError:  # the end of a pseudo-terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(parent)
    assert process.wait(20) == 0
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_tables_fit_a_terminal_and_colours_can_be_refused(stage: Stage) -> None:
    name = stage.degenerated()
    stage.ok("suspend", name, "--reason", "because " * 40)
    plain = on_a_terminal(stage, "ps", NO_COLOR="1")
    assert "\x1b" not in plain
    assert all(columns(line) <= 90 for line in plain.splitlines())
    (mine,) = [line for line in plain.splitlines() if line.startswith(f"{name} ")]
    assert "UserSuspend by uid:" in mine
    assert " you lift it " in mine
    coloured = on_a_terminal(stage, "ps", NO_COLOR="")
    assert "\x1b[33mclosed" in coloured
    assert on_a_terminal(stage, "why", name, "-o", "json").startswith('{\n  "sid"')


def test_every_verb_has_readable_output(stage: Stage) -> None:
    name = stage.degenerated()
    for words, expected in (
        (["status"], "ready"),
        (["ps", "--sort", "stagnation"], "rule:repeated_text"),
        (["tail", name], "repeated_text → close"),
        (["verify"], "the journal is whole"),
        (["watch", name, "-n", "1", "--after", "0"], "session.created"),
        (["cron", "next", "--expr", "0 0 1 1 *", "-n", "1"], "-01-01 "),
    ):
        said = stage.ctl(*words)
        assert said.code == 0
        assert expected in said.out, words


def test_verify_fails_with_code_1_when_history_was_rewritten(stage: Stage) -> None:
    daemon = stage.house.daemon("forged").start()
    sid = daemon.scripted(stage.house.script([FILLER], "forged.jsonl"))
    daemon.call("suspend", sid, reason="honest")
    with contextlib.closing(sqlite3.connect(daemon.data / "journal.sqlite", timeout=20)) as journal, journal:
        forged = "UPDATE journal SET body = CAST(replace(body, 'honest', 'forged') AS BLOB) WHERE kind = 'gate.changed'"
        for (trigger,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            journal.execute(f"DROP TRIGGER {trigger}")
        assert journal.execute(forged).rowcount == 1
    said = run("verify", "--socket", daemon.socket)
    assert said.code == 1
    assert said.out.startswith("NOT WHOLE\n")
    proof = run("verify", "-o", "json", "--socket", daemon.socket)
    assert (proof.code, proof.err, proof.json["ok"]) == (1, "", False)
    assert proof.json["findings"]


# -- the daemon as a whole --------------------------------------------------------------------


def test_freeze_stops_admission_until_unfreeze(stage: Stage) -> None:
    try:
        stage.ok("freeze", "--reason", "outage")
        assert stage.ok("status")["frozen"] is True
        assert "frozen" in stage.ctl("status").out
        name = stage.session(goal="go")
        assert stage.ok("send", name, "x")["held"] is True
        assert (
            "the whole daemon admits nothing: freeze; `loopctl unfreeze` ends it"
            in stage.ctl("why", name).out
        )
    finally:
        stage.ok("unfreeze")
    assert stage.ok("status")["frozen"] is False
    stage.ok("wait", name, "--until", "turn>0")


@pytest.mark.parametrize("verb", ["stop", "drain"])
def test_stop_and_drain_wait_until_the_daemon_is_gone(stage: Stage, verb: str) -> None:
    daemon = stage.house.daemon(verb).start()
    said = run(verb, "--wait", "--socket", daemon.socket)
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith("gone\n")
    assert daemon.wait() == 0
    assert run("status", "--socket", daemon.socket).code == 6


def test_a_session_file_is_read_relative_to_itself(stage: Stage, tmp_path: Path) -> None:
    stage.house.script([FILLER], "agent.jsonl")
    file = stage.house.folder / "agent.toml"
    file.write_text(
        'goal = "from the file"\npreset = "published"\nworkspace = "."\n[driver]\nkind = "scripted"\nscript = "agent.jsonl"\n'
        "[labels]\nteam = 'a'\n[set]\nrules.repeated_text.threshold = 7\ncontinuation.min_gap_ms = 0\n"
    )
    made = stage.ok("new", "-f", str(file), "-l", "extra=1", "--goal", "from the option")
    session = json.loads(stage.ctl("wait", made["sid"], "--until", "closed", "-o", "json").out)
    assert session["goal"]["text"] == "from the option"
    assert session["labels"] == {"team": "a", "extra": "1"}
    assert session["repeat_streak"] == 7
    assert session["workspace"] == str(stage.house.folder)
    file.write_text('nmae = "x"\n[driver]\nkind = "scripted"\nscript = "agent.jsonl"\n')
    said = stage.ctl("new", "-f", str(file))
    assert said.code == 2
    assert "nmae" in said.err
    assert stage.ctl("new", "-f", str(tmp_path / "no.toml")).code == 3


@pytest.mark.parametrize(
    ("line", "code", "way_out"),
    [
        ("send {} look at this", 3, "loopctl send {} 'look at this'"),
        ("send {} please, look", 2, "loopctl send {} 'please, look'"),
        ("goal set {} it's done", 2, "loopctl goal set {} 'it'\"'\"'s done'"),
        ("suspend {} cost review", 3, "loopctl suspend {} --reason 'cost review'"),
        ("cron put {} job 0 3 * * * check", 2, "loopctl cron put {} JOB '0 3 * * *' 'TEXT'"),
        ("gate open {} nobody", 3, "loopctl gate open {} --reason nobody"),
        ("goal pause {} nobody", 3, ""),
    ],
)
def test_words_without_quotes_change_nothing_and_are_shown_with_quotes(
    stage: Stage, line: str, code: int, way_out: str
) -> None:
    name = stage.session()
    said = stage.ctl(*line.format(name).split())
    assert (said.code, said.out) == (code, "")
    assert way_out.format(name) in said.err
    assert ("quotes" in said.err or "--reason" in said.err) == bool(way_out)
    assert [e["k"] for e in stage.ok("tail", name, "-n", "9")["events"]] == ["session.created"]


def test_a_label_that_nobody_has_is_said_to_select_nobody(stage: Stage) -> None:
    assert stage.ctl("suspend", "-l", "no=such").out == "no session is selected, nothing is suspended\n"


def test_a_webhook_is_made_listed_and_forgotten(stage: Stage) -> None:
    made = stage.ctl("webhook", "create", "unit-hook", "http://127.0.0.1:9/in", "--format", "ntfy")
    assert made.code == 0, made.err
    assert "whsec_" in made.out
    assert "http://127.0.0.1:9\n" in stage.ctl("webhook", "list").out  # the path may be a secret
    assert stage.ctl("webhook", "delete", "unit-hook").code == 0


def test_a_copy_is_refused_where_no_file_can_be_made(stage: Stage) -> None:
    said = stage.ctl("db", "snapshot", str(stage.house.folder / "no-such" / "copy.sqlite"))
    assert (said.code, said.out) == (2, "")
    assert "no-such' on its machine: No such file or directory; expected a folder" in said.err


def test_a_turn_before_the_fork_is_asked_of_the_parent(stage: Stage) -> None:
    name = stage.session()
    stage.ok("send", name, "go")
    stage.ok("wait", name, "--until", "turn>0", "--timeout", "20s")
    stage.ok("wait", name, "--until", "idle", "--timeout", "20s")
    stage.ok("fork", f"{name}@1", "--name", f"{name}-fork")
    said = stage.ctl("show", f"{name}-fork@1")
    assert said.code == 3
    assert (
        f"was taken by {name!r}, from which it was forked behind turn 1; ask for turn 1 of that" in said.err
    )
    assert stage.ctl("show", f"{name}@1").code == 0


def test_a_moment_before_a_session_is_answered_with_the_moment_it_began(stage: Stage) -> None:
    said = stage.ctl("show", stage.session(), "--at", "1d")
    assert said.code == 3
    assert re.search(
        r"did not exist then; its first event is seq \d+ at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said.err
    )


def test_the_first_start_is_neither_after_a_crash_nor_after_a_stop(stage: Stage) -> None:
    assert "boot 1 at " in (said := stage.ctl("recover").out)
    assert ", the first of this journal\n" in said
