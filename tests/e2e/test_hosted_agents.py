"""Hosted agents under a real daemon: stopped when they go in circles, and never outliving anything."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd.testing.acp_quirks import tool
from tests.e2e.audit import Journal
from tests.e2e.harness import FILLER, Daemon, House, gone
from tests.e2e.hosting import hosted, kind_file, marked, soon

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _ended(request: pytest.FixtureRequest, house: House) -> Iterator[None]:
    """The sessions of a test end with it: their agents' folders go."""
    yield
    if "shared" in request.fixturenames:
        daemon: Daemon = request.getfixturevalue("shared")
        for session in daemon.call("session.list")["sessions"]:
            daemon.call("session.end", session["sid"])


QUICK = {"continuation.min_gap_ms": 0}


def test_a_hosted_agent_that_fills_is_stopped_at_the_threshold_and_prompted_no_more(
    house: House, shared: Daemon
) -> None:
    agent = hosted(house, shared, "filler", goal="write the report", preset="published", set=QUICK)
    closed = shared.until(agent.sid, "gate.changed", lambda b: b["cause"] == "detection")
    assert closed["b"]["holds"][0]["rule"] == "repeated_text"
    assert {step["b"]["text"] for step in shared.events(agent.sid, "turn.step")} == {FILLER}
    assert len(agent.prompts()) == 5
    assert all("[loopd: continuation]\n" in prompt for prompt in agent.prompts())
    assert agent.prompts()[0].startswith("[loopd: instructions]\nYour goal: write the report")
    assert "[loopd: instructions]" not in agent.prompts()[1]
    other = hosted(house, shared, name="witness", goal="go on", preset="published", set=QUICK, turns=[
        [{"say": f"step {n} is done"}, tool(input={"command": f"make {n}"}, output=f"made {n}")] for n in range(40)
    ])  # fmt: skip
    shared.until(other.sid, "turn.completed", count=8)
    assert len(agent.prompts()) == 5
    shared.call("send", agent.sid, text="please look at chapter 2")
    shared.until(agent.sid, "turn.completed", count=6)
    assert agent.prompts()[5].startswith("[loopd: note]\n")
    assert agent.prompts()[5].endswith("please look at chapter 2")
    shared.call("session.end", other.sid)
    assert soon(lambda: not other.processes())
    shared.verified()
    Journal(shared.data / "journal.sqlite").check()


def test_a_hosted_agent_that_only_looks_busy_is_stopped_within_its_turn(house: House, shared: Daemon) -> None:
    calls = [*(tool(input={"command": c}) for c in ["true", ":", "true"] * 20), {"say": "busy"}]
    agent = hosted(
        house,
        shared,
        turns=[calls, [{"say": "you are right, I have nothing to do"}]],
        goal="tidy up",
        set=QUICK,
    )
    found = shared.until(agent.sid, "degeneration.detected", lambda b: b["rule"] == "noop_calls")
    assert found["b"]["score"] == 3
    shared.until(agent.sid, "turn.step", lambda b: "right" in b.get("text", ""))
    # The note reached the model in the middle of the prompt: it was cut, and prompted with the marker.
    assert agent.told("cancel")
    assert agent.prompts()[1].startswith("[loopd: note]\n")
    assert len(shared.events(agent.sid, "turn.started")) == 1
    shared.call("session.end", agent.sid)
    shared.verified()


def test_a_suspension_in_a_running_tool_leaves_no_process_within_grace_and_two_seconds(
    house: House, shared: Daemon
) -> None:
    agent = hosted(house, shared, "ignored_cancel", "setsid_tool")
    shared.call("send", agent.sid, text="sleep")
    (line,) = soon(lambda: agent.told("tool_pid"))
    assert line["tool_pid"] in agent.processes()
    started = time.monotonic()
    shared.call("suspend", agent.sid, mode="kill")
    assert soon(lambda: not agent.processes(), within_s=1 + 2)
    assert time.monotonic() - started < 1 + 2
    assert gone(line["tool_pid"])
    (cut,) = shared.events(agent.sid, "turn.interrupted")
    assert cut["b"]["cause"] in {"suspend", "kill"}
    outcomes = [event["b"]["outcome"] for event in shared.events(agent.sid, "effect.outcome")]
    assert outcomes in (["cancelled"], ["uncertain"])
    shared.verified()


def test_a_killed_daemon_leaves_no_agent_behind_and_the_session_goes_on_with_its_context(
    house: House, daemon: Daemon
) -> None:
    turns = [
        [{"say": "hello"}],
        [tool(run="sleep 300", setsid=True, input={"command": "sleep 300"})],
        [{"recall": True}],
    ]
    agent = hosted(house, daemon, turns=turns)
    idle = hosted(house, daemon, "plain", name="idle")
    daemon.call("send", agent.sid, text="remember the number 41")
    daemon.call("send", idle.sid, text="hi")
    daemon.until(agent.sid, "turn.completed")
    daemon.until(idle.sid, "turn.completed")
    daemon.call("send", agent.sid, text="now sleep")
    soon(lambda: agent.told("tool_pid"))
    old = [*agent.processes(), *idle.processes()]
    assert len(old) >= 3
    daemon.kill()
    assert [pid for pid in old if not ended(pid)], "the agents outlive the daemon, that is the point"
    daemon.start()
    assert marked(f"LOOPD_SESSION={agent.sid}") == []
    assert marked(f"LOOPD_SESSION={idle.sid}") == []
    (cut,) = daemon.events(agent.sid, "turn.interrupted")
    assert cut["b"]["cause"] == "crash"
    daemon.call("send", agent.sid, text="what do you remember?")
    daemon.until(agent.sid, "turn.completed", count=2)
    (step,) = daemon.call("turn.get", agent.sid, n=3)["steps"]
    assert "remember the number 41" in step["text"]
    assert "now sleep" in step["text"]
    assert agent.told("resume")
    assert "interrupted" in agent.prompts()[-1]
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_an_agent_that_forgot_its_session_is_told_what_was_said(house: House, shared: Daemon) -> None:
    agent = hosted(house, shared, "plain", "cannot_resume", kind={"idle_s": 1})
    shared.call("send", agent.sid, text="remember the number 41")
    shared.until(agent.sid, "turn.completed")
    assert soon(lambda: not agent.processes()), "an idle agent is ended after a while"
    shared.call("send", agent.sid, text="and now?")
    shared.until(agent.sid, "turn.completed", count=2)
    last = agent.prompts()[-1]
    assert last.startswith("[loopd: earlier conversation]")
    assert "User: remember the number 41\nYou: hello" in last
    assert last.endswith("and now?")


def test_an_idle_agent_is_resumed_without_a_word_about_the_past(house: House, shared: Daemon) -> None:
    agent = hosted(house, shared, "plain", "loads_only", kind={"idle_s": 1})
    shared.call("send", agent.sid, text="one")
    shared.until(agent.sid, "turn.completed")
    soon(lambda: not agent.processes())
    shared.call("send", agent.sid, text="two")
    shared.until(agent.sid, "turn.completed", count=2)
    assert agent.prompts() == ["one", "two"]
    assert agent.told("load") == [{"pid": agent.told("load")[0]["pid"], "load": "s1"}]
    turn = shared.call("turn.get", agent.sid, n=2, prompt=True)
    assert [step["text"] for step in turn["steps"]] == ["hello"]
    assert not [row for row in turn["prompt"]["frames"] if "old answer" in row["frame"]]


def test_the_agent_uses_loopds_own_tools_through_its_mcp_server_and_an_idle_ends_its_turn(
    house: House, shared: Daemon
) -> None:
    idle = {
        "own": {"name": "request_idle", "args": {"max_idle_duration_secs": 600, "reason": "nothing to do"}}
    }
    agent = hosted(
        house,
        shared,
        turns=[[{"say": "waiting"}, idle, {"say": "on and on"}, {"hang": True}]],
        goal="wait",
        set=QUICK,
    )
    done = shared.until(agent.sid, "turn.completed")
    assert done["b"]["outcome"] == "idle"
    why = shared.call("why", agent.sid)
    assert [hold["kind"] for hold in why["holds"]] == ["RequestIdle"]
    (result,) = agent.told("own")
    assert not result["own"].get("isError")
    assert len(agent.prompts()) == 1


def test_frames_are_shown_as_what_the_model_saw(house: House, shared: Daemon) -> None:
    agent = hosted(house, shared, "plain")
    shared.call("send", agent.sid, text="what is seen")
    shared.until(agent.sid, "turn.completed")
    frames = shared.ctl("show", f"{agent.sid}@1", "--prompt")["prompt"]["frames"]
    sent = [json.loads(row["frame"]) for row in frames if row["way"] == "sent"]
    assert sent[-1]["params"]["prompt"] == [{"type": "text", "text": "what is seen"}]
    assert any("hello" in row["frame"] or "hel" in row["frame"] for row in frames if row["way"] == "received")
    assert "LOOPD_AGENT_TOKEN" in json.dumps(sent)
    assert not [row for row in frames if "lat_" in row["frame"]]
    text = shared.loopctl("show", f"{agent.sid}@1", "--prompt").stdout
    assert "→ {" in text
    assert "what is seen" in text


def test_an_agent_that_calls_tools_in_a_text_only_step_climbs_to_a_closed_gate(
    house: House, shared: Daemon
) -> None:
    calls = [*(tool(input={"command": "true"}) for _ in range(30))]
    agent = hosted(house, shared, turns=[calls], goal="tidy up", set={**QUICK, "ladder.skip_within_steps": 0})
    closed = shared.until(agent.sid, "gate.changed", lambda b: b["cause"] == "detection")
    assert closed["b"]["holds"][0]["kind"] == "Degeneration"
    found = [event["b"] for event in shared.events(agent.sid, "degeneration.detected")]
    said = [each["verdict"] for each in found if each["rule"] == closed["b"]["holds"][0]["rule"]]
    assert said == ["nudge", "text_only", "close"]
    steps = [event["b"] for event in shared.events(agent.sid, "turn.step")]
    assert (steps[-1]["finish"], steps[-1]["tools_withheld"]) == ("defied", True)
    assert [call["error_class"] for call in steps[-1]["calls"]] == ["denied"]
    shared.verified()


# -- bad input ------------------------------------------------------------------------------------


def test_an_agent_that_is_not_installed_is_refused_with_how_to_get_it(house: House, shared: Daemon) -> None:
    path, _ = kind_file(house, "absent", head='install = "npm install -g absent"')
    path.write_text(path.read_text().replace(json.dumps(sys.executable), '"no-such-agent"'))
    refused = shared.refusal("session.create", driver={"kind": "acp", "agent": str(path)})
    assert refused.code == "not_found"
    assert "npm install -g absent" in refused.message
    assert "no-such-agent" in refused.message


@pytest.mark.parametrize(
    ("driver", "code", "says"),
    [
        ({"agent": "nosuchkind"}, "not_found", "expected one of claude, codex, goose"),
        ({"agent": "goose", "command": ["x"]}, "invalid", "either agent or command"),
        ({}, "invalid", "either agent or command"),
        ({"agent": "/nowhere/x.toml"}, "not_found", "/nowhere/x.toml"),
        ({"command": ["/no/such/program"]}, "not_found", "not installed"),
        ({"agent": "goose", "base_url": "ftp://x"}, "invalid", "base_url"),
    ],
)
def test_a_driver_that_cannot_work_is_refused_at_creation(
    shared: Daemon, driver: dict[str, object], code: str, says: str
) -> None:
    refused = shared.refusal("session.create", driver={"kind": "acp", **driver})
    assert refused.code == code, refused
    assert says in refused.message, refused


def test_a_kind_with_a_mistake_is_refused_naming_the_key(house: House, shared: Daemon) -> None:
    path = house.folder / "own.toml"
    for text, says in (
        ('name = "own"\ncommand = ["x"]\n[capabilities]\nresumes = true\n', "resumes"),
        ('name = "own"\n', "command"),
        ('name = "own"\ncommand = "x"\n', "$.command"),
        ('name = "own"\ncommand = ["x"]\nerror_prose = ["("]\n', "error_prose[0]"),
        ('name = "own"\ncommand = ["x"]\n[env]\nA = "${modle}"\n', "env.A"),
        ("name = ", "not TOML"),
    ):
        path.write_text(text)
        refused = shared.refusal("session.create", driver={"kind": "acp", "agent": str(path)})
        assert refused.code == "invalid", refused
        assert says in refused.message, (says, refused.message)
        assert "own.toml" in refused.message


@pytest.mark.parametrize(
    "quirk", ["garbage_only", "never_initializes", "exits_at_once", "endless_line", "endless_line_first"]
)
def test_a_broken_agent_holds_its_session_with_a_reason_and_others_go_on(
    house: House, shared: Daemon, quirk: str
) -> None:
    agent = hosted(house, shared, quirk, kind={"start_s": 2})
    other = hosted(house, shared, "plain", name="other")
    started = time.monotonic()
    shared.call("send", agent.sid, text="hello?")
    shared.call("send", other.sid, text="hello")
    assert shared.until(other.sid, "turn.completed")["b"]["outcome"] == "completed"
    ended = shared.until(agent.sid, "turn.completed")
    assert time.monotonic() - started < 15
    assert ended["b"]["outcome"] == "failed"
    assert ended["b"]["error"]
    (hold,) = soon(lambda: shared.call("why", agent.sid)["holds"])
    assert hold["kind"] == "ProviderBackoff"
    assert soon(lambda: not agent.processes())
    assert shared.events(agent.sid, "degeneration.detected") == []


def test_loopctl_lists_the_agents_and_says_which_are_there(shared: Daemon) -> None:
    rows = {row["name"]: row for row in shared.ctl("agents")["agents"]}
    assert {"claude", "codex", "goose", "kimi-code", "opencode", "pi"} <= set(rows)
    assert all(row["install"] for row in rows.values())
    assert "goose" in shared.loopctl("agents").stdout


def test_a_command_line_is_enough_to_host_an_agent(house: House, shared: Daemon) -> None:
    path, state = kind_file(house, "unused")
    del path
    python = sys.executable
    made = shared.ctl(
        "new",
        "--driver",
        "acp",
        "--agent-command",
        f"{python} -m loopd.testing.acp_agent --state {state}",
        "--name",
        "bare",
    )
    shared.call("send", made["sid"], text="hi")
    assert shared.until(made["sid"], "turn.completed")["b"]["outcome"] == "completed"


def test_a_suspended_session_keeps_no_agent_and_goes_on_with_its_context(
    house: House, shared: Daemon
) -> None:
    agent = hosted(house, shared, turns=[[{"say": "hello"}], [{"recall": True}]])
    shared.call("send", agent.sid, text="remember 41")
    shared.until(agent.sid, "turn.completed")
    assert agent.processes()
    shared.call("suspend", agent.sid)
    assert soon(lambda: not agent.processes())
    shared.call("unsuspend", agent.sid)
    shared.call("send", agent.sid, text="and?")
    shared.until(agent.sid, "turn.completed", count=2)
    assert "remember 41" in shared.call("turn.get", agent.sid, n=2)["steps"][0]["text"]


def test_a_policy_is_asked_before_a_hosted_agents_tool_runs_and_a_person_decides(
    house: House, shared: Daemon
) -> None:
    asks = [tool(ask=True, input={"command": "rm -r build"}, output="removed"), {"say": "well"}]
    agent = hosted(house, shared, turns=[asks], set={"approvals.default": "ask"})
    for verb, chosen, ok in (("deny", "x2", False), ("approve", "x3", True)):
        before = len(agent.told("permission"))
        shared.call("send", agent.sid, text=f"{verb} this")
        asked = shared.until(agent.sid, "approval.requested", count=before + 1)["b"]
        assert "rm -r build" in asked["excerpt"]
        assert len(agent.told("permission")) == before
        assert shared.call("why", agent.sid)["holds"][0]["kind"] == "AwaitingApproval"
        shared.ctl(verb, asked["id"])
        shared.until(agent.sid, "turn.completed", count=before + 1)
        answer = agent.told("permission")[-1]["permission"]["outcome"]
        assert answer == {"outcome": "selected", "optionId": chosen}
        (call,) = shared.call("turn.get", agent.sid, n=before + 1)["steps"][0]["calls"]
        assert call["ok"] is ok
    assert [e["b"]["outcome"] for e in shared.events(agent.sid, "effect.outcome")] == ["ok"]


def test_a_kind_in_the_users_folder_is_found_by_name_and_listed(house: House) -> None:
    path, _ = kind_file(house, "mine", "--quirk", "plain")
    folder = house.folder / "config" / "loopd" / "agents"
    folder.mkdir(parents=True)
    path.rename(folder / "mine.toml")
    daemon = house.daemon(env={"XDG_CONFIG_HOME": str(house.folder / "config")}).start()
    (row,) = [row for row in daemon.ctl("agents")["agents"] if row["name"] == "scripted"]
    assert row["found"] is True
    sid = daemon.ctl("new", "--driver", "acp", "--agent", "mine")["sid"]
    daemon.call("send", sid, text="hi")
    assert daemon.until(sid, "turn.completed")["b"]["outcome"] == "completed"


def test_the_folder_of_a_forgotten_session_goes_and_that_of_an_ended_one_stays(house: House) -> None:
    daemon = house.daemon().start()
    agent = hosted(house, daemon, "plain")
    daemon.call("send", agent.sid, text="hi")
    daemon.until(agent.sid, "turn.completed")
    daemon.call("session.end", agent.sid)
    daemon.terminate()
    agents = daemon.data / "agents"
    (agents / "ses_forgotten" / "home").mkdir(parents=True)
    daemon.start()
    assert soon(lambda: os.listdir(agents) == [agent.sid])
