"""The main job: an agent that goes in circles is stopped, and stays stopped until something happens."""

from __future__ import annotations

import pytest

from loopd.testing.endpoint import Call, ask, say
from tests.e2e.audit import Journal
from tests.e2e.harness import FILLER, Daemon, House, endpoint, working

pytestmark = pytest.mark.process
HOUR_MS = 3_600_000


def let_others_work(daemon: Daemon, house: House, turns: int) -> None:
    """Several continuation gaps pass: another session of the same daemon takes so many turns."""
    sid = daemon.scripted(
        house.script(working()), goal="write", set={"continuation.min_gap_ms": 0}, name="witness"
    )
    daemon.until(sid, "turn.completed", count=turns)
    daemon.call("session.end", sid)


def test_a_model_that_repeats_itself_is_stopped_after_five_turns_and_asked_no_more(
    house: House, daemon: Daemon
) -> None:
    with endpoint([say(FILLER)]) as (model, _):
        sid = daemon.ctl(
            *("new", "--driver", "chat", "--base-url", model.base_url, "--model", "test"),
            *("--preset", "published"),
            *("--goal", "write the report", "--name", "filler", "--set", "continuation.min_gap_ms=0"),
            *("--preset", "published"),
        )["sid"]
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection")
        (hold,) = closed["b"]["holds"]
        assert (hold["kind"], hold["rule"]) == ("Degeneration", "repeated_text")
        assert hold["until_ms"] == closed["ts"] + HOUR_MS
        assert hold.get("relapse", 0) == 0

        turns = daemon.events(sid, "turn.completed")
        assert [turn["b"]["n"] for turn in turns] == [1, 2, 3, 4, 5]
        assert {step["b"]["text"] for step in daemon.events(sid, "turn.step")} == {FILLER}
        (found,) = daemon.events(sid, "degeneration.detected")
        assert (found["b"]["score"], found["b"]["threshold"]) == (5, 5)
        assert turns[-1]["seq"] < found["seq"] < closed["seq"]

        let_others_work(daemon, house, 30)
        assert len(model.requests) == 5
        why = daemon.ctl("why", sid)
        assert why["gate"] == "closed"
        assert [(h["kind"], h["until_ms"]) for h in why["holds"]] == [("Degeneration", hold["until_ms"])]
        assert why["next"] == {"what": "hold_ends", "at_ms": hold["until_ms"]}
        assert why["goal"]["status"] == "active", "detection never changes the goal"

        # An envelope reopens it; the loop comes back, and so does the gate: a relapse.
        sent = daemon.ctl("send", sid, "please look at chapter 2")
        assert sent["held"] is False
        again = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", after=closed["seq"])
        assert again["b"]["added"]["relapse"] == 1
        assert len(daemon.events(sid, "turn.completed")) == 10
        assert len(model.requests) == 10
        let_others_work(daemon, house, 5)
        assert len(model.requests) == 10

        # The model was told about it on its first turn after the gate had opened.
        said = [m["content"] for m in model.requests[5].json["messages"] if m["role"] != "assistant"]
        assert any("repeated_text" in str(text) or "same" in str(text) for text in said), said
        assert any("chapter 2" in str(text) for text in said)
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()


def test_differing_words_without_any_action_are_stopped_after_fifty_turns(
    house: House, daemon: Daemon
) -> None:
    with endpoint([say("Still thinking about it, thought number {n}.")]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", set={"continuation.min_gap_ms": 0})
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection")
        (hold,) = closed["b"]["holds"]
        assert (hold["kind"], hold["rule"]) == ("Degeneration", "barren_streak")
        assert hold["until_ms"] == closed["ts"] + HOUR_MS
        assert len(daemon.events(sid, "turn.completed")) == 50
        let_others_work(daemon, house, 5)
        assert len(model.requests) == 50
        assert daemon.call("session.get", sid)["barren_streak"] == 50
    daemon.verified()


def test_at_its_deadline_a_degenerated_session_goes_on_by_itself_and_may_relapse(daemon: Daemon) -> None:
    settings = {"continuation.min_gap_ms": 0, "rules.repeated_text.wake_after_s": 1}
    with endpoint([say(FILLER)]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", set=settings)
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection")
        opened = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "deadline")
        assert opened["b"]["removed"] == ["Degeneration"]
        assert opened["ts"] - closed["b"]["added"]["until_ms"] == opened["b"]["late_ms"] <= 1_000
        again = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", count=2)
        assert again["b"]["added"]["relapse"] == 1
        assert len(model.requests) == 10


def test_a_tool_loop_is_found_and_the_model_is_told(house: House, daemon: Daemon) -> None:
    workspace = house.folder / "work"
    workspace.mkdir()
    (workspace / "notes.txt").write_text("nothing new\n")
    with endpoint([ask(Call("read_file", {"path": "notes.txt"}), text="I look again.")]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", workspace=str(workspace))
        ended = daemon.until(sid, "session.ended")
        assert (ended["b"]["status"], ended["b"]["stop_reason"]) == ("aborted_stuck", "tool_repetition")
        nudge, stop = daemon.events(sid, "degeneration.detected")
        assert (nudge["b"]["verdict"], stop["b"]["verdict"]) == ("nudge", "terminate")
        assert stop["b"]["evidence"]
        assert len(model.requests) == 4
        assert "read_file" in str(model.requests[3].json["messages"][-1]), "it was warned before it was ended"
        let_others_work(daemon, house, 5)
        assert len(model.requests) == 4
    daemon.verified()


def test_a_hardened_session_lets_cron_pass_once_and_stays_closed(house: House, daemon: Daemon) -> None:
    with endpoint([say(FILLER)]) as (model, _):
        sid = daemon.chat(
            model.base_url,
            goal="write",
            preset="hardened",
            set={"continuation.min_gap_ms": 0, "continuation.backoff_s": []},
        )
        daemon.call("cron.put", sid, job="hourly", expr="0 * * * *", text="check the build")
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", within_s=60)
        asked = len(model.requests)
        first = daemon.call("cron.run", sid, job="hourly")
        assert first["held"] is False, "one automatic turn passes"
        passed = daemon.until(sid, "turn.started", lambda b: b.get("passing", False))
        assert passed["b"]["envelopes"][-1] == first["envelope"]
        daemon.until(sid, "turn.completed", after=passed["seq"])
        second = daemon.call("cron.run", sid, job="hourly")
        assert (second["held"], second["by"]) == (True, ["Degeneration"]), "but one in a minute"
        let_others_work(daemon, house, 10)
        assert len(model.requests) == asked + 1
        (hold,) = [h for h in daemon.call("why", sid)["holds"] if h["kind"] == "Degeneration"]
        assert hold["until_ms"] >= closed["b"]["added"]["until_ms"], "the deadline stands"
        sent = daemon.call("send", sid, text="a person speaks")
        assert sent["held"] is False, "a person opens it"
        started = daemon.until(sid, "turn.started", after=passed["seq"])
        assert {sent["id"], second["envelope"]} <= set(started["b"]["envelopes"])
        daemon.call("suspend", sid, mode="kill")
    daemon.verified()
