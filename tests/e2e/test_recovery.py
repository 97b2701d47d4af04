"""What is left when a daemon is gone, and what the next one makes of it, through the real command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from loopd.testing.endpoint import Call, ask, say
from tests.e2e.audit import Journal
from tests.e2e.harness import House, endpoint, gone, now_ms, working

pytestmark = pytest.mark.process
TOP = Path(__file__).parents[2]
TESTING = {"LOOPD_TESTING_ENABLED": "true"}
HOUR_MS = 3_600_000


def test_a_tool_that_ran_when_the_daemon_died_is_uncertain_until_somebody_settles_it(house: House) -> None:
    work = house.folder / "work"
    work.mkdir()
    told = {**TESTING, "LOOPD_TESTING_FAILPOINTS": "tool.after/shell:kill"}
    with endpoint([ask(Call("shell", {"command": "echo sent >> mails"})), say("What was that?")]) as (
        model,
        _,
    ):
        daemon = house.daemon(env=told).start()
        sid = daemon.chat(model.base_url, workspace=str(work), name="mailer")
        daemon.call("send", sid, text="send the mail")
        assert daemon.wait() == -signal.SIGKILL
        assert (work / "mails").read_text() == "sent\n"

        daemon.env.pop("LOOPD_TESTING_FAILPOINTS")
        daemon.start()
        boot = daemon.ctl("recover")["boots"][0]
        assert (boot.get("clean", False), boot["interrupted"], boot["uncertain_count"]) == (
            False,
            {sid: 1},
            1,
        )
        shown = daemon.loopctl("recover").stdout
        assert "after a crash" in shown
        assert "turn 1 of mailer" in shown
        (effect,) = daemon.ctl("effect", "list", "mailer")["effects"]
        assert (effect["tool"], effect["outcome"]) == ("shell", "uncertain")
        assert daemon.ctl("why", "mailer")["uncertain"] == [effect["id"]]
        assert effect["id"] in daemon.loopctl("effect", "list").stdout
        done = daemon.ctl(
            "effect", "resolve", "mailer", effect["id"], "--happened", "--note", "it is in mails"
        )
        assert done["uncertain"] == []
        assert daemon.ctl("effect", "list")["effects"] == []
        assert daemon.ctl("effect", "resolve", "mailer", effect["id"], "--happened", code=3)

        daemon.call("send", sid, text="and now?")
        daemon.until(sid, "turn.completed")
        asked = model.requests[-1].json["messages"]
        call, result = next((m, asked[i + 1]) for i, m in enumerate(asked) if m.get("tool_calls"))
        assert "echo sent" in call["tool_calls"][0]["function"]["arguments"]
        assert result["role"] == "tool"
        assert "outcome unknown" in result["content"]
        assert any("did happen. it is in mails" in str(m["content"]) for m in asked)
    assert (work / "mails").read_text() == "sent\n", "nobody did it again"
    daemon.verified()


def test_one_turn_that_does_not_end_cannot_hold_a_drain(house: House) -> None:
    daemon = house.daemon()
    daemon.data.mkdir(mode=0o700)
    with open(daemon._err, "ab") as err:
        daemon.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.stuck_daemon", str(daemon.data)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            cwd=TOP,
            env=daemon.env,
        )
    assert daemon.process.stdout is not None
    assert b"ready" in daemon.process.stdout.readline()
    sid = daemon.scripted(house.script(working()))
    daemon.call("send", sid, text="go")
    daemon.until(sid, "driver.remembered")
    agent = int((daemon.data / "agent.pid").read_text())
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 15
    assert gone(agent), "who leaves without a turn leaves nothing of it behind"
    assert "leaving without them" in daemon.stderr()
    daemon.start()
    (cut,) = daemon.events(sid, "turn.interrupted")
    assert (cut["b"]["cause"], cut["b"]["partial"]) == ("drain", "half a sentence")
    assert [e["k"] for e in daemon.events(None, "daemon.stopped")] == ["daemon.stopped"]
    assert daemon.ctl("recover")["boots"][0]["clean"] is True
    daemon.verified()


def test_jumps_of_the_wall_clock_lose_and_repeat_no_deadline(house: House) -> None:
    moved = house.folder / "clock"
    moved.write_text("0")
    daemon = house.daemon(env={**TESTING, "LOOPD_TESTING_CLOCK_OFFSET_FILE": str(moved)}).start()
    sid = daemon.scripted(house.script(working()))
    until = now_ms() + HOUR_MS
    daemon.call("suspend", sid, until_ms=until, quarantine=True)
    daemon.call("cron.put", sid, job="hourly", expr="0 * * * *", text="look", missed="all")

    moved.write_text(str(2 * HOUR_MS))  # forward: within a second everything that is due is carried out
    began = time.monotonic()
    opened = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "deadline", within_s=10)
    assert time.monotonic() - began < 8
    assert opened["b"]["late_ms"] >= HOUR_MS - 5_000
    daemon.until(sid, "turn.completed")
    moved.write_text(str(-2 * HOUR_MS))  # back: nothing comes again
    daemon.call("cron.remove", sid, job="hourly")
    daemon.call("cron.put", sid, job="hourly", expr="0 * * * *", text="look", missed="all")
    threading.Event().wait(1.5)
    moved.write_text(str(2 * HOUR_MS))
    threading.Event().wait(1.5)
    daemon.kill()
    daemon.start()
    opens = [e for e in daemon.events(sid, "gate.changed") if e["b"]["cause"] == "deadline"]
    assert len(opens) == 1
    due = [e["b"]["due_ms"] for e in daemon.events(sid, "cron.occurrence") if e["b"]["result"] == "due"]
    assert len(due) == len(set(due)), "a moment was carried out twice"
    Journal(daemon.data / "journal.sqlite").check()
