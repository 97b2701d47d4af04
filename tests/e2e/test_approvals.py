"""Approvals on a real daemon: a chat session whose model wants to run commands."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from loopd.testing.acp_quirks import tool
from loopd.testing.replies import Call, Reply, ask, say
from tests.e2e.harness import Daemon, House, endpoint
from tests.e2e.hosting import hosted

POLICY = [
    {"effect": "deny", "command": "git push *", "reason": "people release"},
    {"effect": "allow", "command": "echo *"},
    {"effect": "ask", "tool_class": "exec"},
]


def wants(*commands: str) -> list[Reply]:
    """A model that asks for each command in a step of its own, then says that it is done."""
    return [*(ask(Call("shell", {"command": command})) for command in commands), say("all done {n}")]


@pytest.fixture
def workspace(house: House) -> Path:
    folder = house.folder / "work"
    folder.mkdir()
    return folder


def began(daemon: Daemon, url: str, workspace: Path, **fields: Any) -> str:
    sid = daemon.chat(url, workspace=str(workspace), **{"policy": POLICY, **fields})
    daemon.call("send", sid, text="go")
    return sid


def waiting(daemon: Daemon, sid: str, count: int = 1) -> dict[str, Any]:
    daemon.until(sid, "approval.requested", count=count)
    return dict(daemon.ctl("approvals", sid)["approvals"][-1])


def results(daemon: Daemon, sid: str) -> list[dict[str, Any]]:
    return [call for event in daemon.events(sid, "turn.step") for call in event["b"].get("calls", [])]


def test_an_approved_command_runs_and_a_denied_one_is_a_result_for_the_model(
    house: House, workspace: Path
) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("echo a > one && touch two", "touch three", "git push", "echo free")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        asked = waiting(daemon, sid)
        assert asked["tool"] == "shell"
        assert asked["excerpt"] == "echo a > one && touch two"
        assert asked["subjects"] == ["> one", "touch two"]
        assert not (workspace / "two").exists()
        assert daemon.ctl("why", sid)["holds"][0]["kind"] == "AwaitingApproval"
        told = daemon.ctl("approve", asked["id"], "--reason", "fine")
        assert (told["answer"], told["scope"]) == ("allow", "once")
        asked = waiting(daemon, sid, 2)
        assert (workspace / "two").exists()
        daemon.ctl("deny", asked["id"], "--reason", "not today")
        daemon.until(sid, "turn.completed")
        assert not (workspace / "three").exists()
        first, second, third, fourth = results(daemon, sid)
        assert first["ok"] is True
        assert (second["ok"], second["error_class"]) == (False, "denied")
        assert "a person refused it: not today" in second["result"]
        assert (third["ok"], third["error_class"]) == (False, "denied")
        assert "people release" in third["result"]
        assert fourth["ok"] is True
        assert [e["b"]["rule"] for e in daemon.events(sid, "effect.denied")] == ["deny command='git push *'"]
        again = daemon.loopctl("approve", asked["id"])
        assert again.returncode == 4
        assert "closed" in again.stderr
        assert daemon.ctl("approvals")["approvals"] == []
        assert daemon.verified()["ok"]


def test_nobody_answers_and_at_the_deadline_it_is_denied(house: House, workspace: Path) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("touch late")) as (model, _):
        sid = began(daemon, model.base_url, workspace, set={"approvals.wait_s": 1})
        expired = daemon.until(sid, "approval.expired")
        asked = daemon.events(sid, "approval.requested")[0]
        assert expired["b"]["cause"] == "deadline"
        assert 1_000 <= expired["ts"] - asked["ts"] < 4_000
        daemon.until(sid, "turn.completed")
        assert "nobody approved it within 1 s" in results(daemon, sid)[0]["result"]
        assert not (workspace / "late").exists()
        assert daemon.call("session.get", sid)["gate"] == "open"


def test_an_answer_for_the_session_is_asked_for_once_and_survives_a_kill(
    house: House, workspace: Path
) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("touch one", "touch one", "touch one && touch two")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        daemon.ctl("approve", waiting(daemon, sid)["id"], "--scope", "session")
        asked = waiting(daemon, sid, 2)
        assert asked["excerpt"] == "touch one && touch two"
        assert asked["subjects"] == ["touch two"]
        daemon.kill()
        daemon.start()
        grants = daemon.call("session.get", sid)["grants"]
        assert [(g["effect"], g["command"]) for g in grants] == [("allow", "touch one")]
        assert daemon.verified()["ok"]


def test_a_kill_while_it_waits_loses_the_question_and_runs_nothing(house: House, workspace: Path) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("touch never")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        asked = waiting(daemon, sid)
        daemon.kill()
        daemon.start()
        (expired,) = daemon.events(sid, "approval.expired")
        assert (expired["b"]["id"], expired["b"]["cause"]) == (asked["id"], "turn_over")
        (cut,) = daemon.events(sid, "turn.interrupted")
        assert cut["b"]["cause"] == "crash"
        assert daemon.call("session.get", sid)["gate"] == "open"
        assert daemon.refusal("approval.answer", sid, id=asked["id"], answer="allow").code == "conflict"
        assert not (workspace / "never").exists()
        assert daemon.events(sid, "effect.*") == []
        assert daemon.verified()["ok"]


def test_a_suspension_with_interrupt_ends_a_turn_that_waits(house: House, workspace: Path) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("touch never")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        waiting(daemon, sid)
        begun = time.monotonic()
        answer = daemon.call("suspend", sid, mode="interrupt")
        assert answer["stopped"] is True
        assert time.monotonic() - begun < 5
        assert daemon.ctl("approvals")["approvals"] == []
        kinds = [hold["kind"] for hold in daemon.call("gate.get", sid)["holds"]]
        assert kinds == ["UserSuspend"]
        daemon.verified(sid, answer["seq"])


def test_turns_that_wait_for_people_leave_their_places_to_others(house: House, workspace: Path) -> None:
    daemon = house.daemon(config="[limits]\nconcurrent_turns = 1\n").start()
    with endpoint(wants("touch one")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        asked = waiting(daemon, sid)
        other = daemon.scripted(house.script(["hello"]))
        daemon.call("send", other, text="go")
        daemon.until(other, "turn.completed")
        daemon.ctl("approve", asked["id"])
        daemon.until(sid, "turn.completed")
        assert (workspace / "one").exists()


def test_rules_from_a_file_and_from_options_come_in_order(house: House, workspace: Path) -> None:
    daemon = house.daemon().start()
    file = house.folder / "agent.toml"
    file.write_text(
        'name = "filed"\nbudgets = ["tokens=2M/5h", "cost=4.50"]\n'
        '[driver]\nkind = "chat"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'
        '[[policy]]\neffect = "ask"\ntool_class = "net"\n'
    )
    made = daemon.ctl(
        "new", "-f", str(file), "--deny", "command:git push *", "--allow", "class:edit,path:src/{a,b}"
    )
    session = daemon.call("session.get", made["sid"])
    assert session["policy"] == [
        {"effect": "deny", "command": "git push *"},
        {"effect": "allow", "tool_class": "edit", "path": "src/{a,b}"},
        {"effect": "ask", "tool_class": "net"},
    ]
    budgets = daemon.ctl("budget", "filed")["budgets"]
    assert [(b["kind"], b["limit"], b["per_ms"]) for b in budgets] == [
        ("tokens", 2_000_000, 18_000_000),
        ("cost", 4_500_000, None),
    ]
    wrong = daemon.loopctl(
        "new", "-f", str(file), "--name", "b", "--deny", "class:edit,command:rm *", "-o", "json"
    )
    assert wrong.returncode == 2
    assert json.loads(wrong.stderr)["error"]["code"] == "invalid"


def test_settings_change_for_the_next_turn_and_survive_a_restart(house: House, workspace: Path) -> None:
    daemon = house.daemon().start()
    with endpoint(wants("touch one")) as (model, _):
        sid = began(daemon, model.base_url, workspace)
        asked = waiting(daemon, sid)
        before = daemon.call("session.get", sid)["settings"]
        told = daemon.ctl("set", sid, "turn.max_steps=7", "--deny", "all")
        assert (told["effective"], told["settings"]["turn.max_steps"]) == ("next_turn", 7)
        assert daemon.call("session.get", sid)["settings"] == before
        wrong = daemon.loopctl("set", sid, "turn.max_stepz=7")
        assert wrong.returncode == 2
        assert "turn.max_steps" in wrong.stderr
        daemon.ctl("approve", asked["id"])
        daemon.until(sid, "turn.completed")
        session = daemon.call("session.get", sid)
        assert session["settings"]["turn.max_steps"] == 7
        assert session["policy"] == [{"effect": "deny"}]
        daemon.terminate()
        daemon.start()
        assert daemon.call("session.get", sid)["settings"]["turn.max_steps"] == 7
        (changed,) = daemon.events(sid, "config.changed")
        assert changed["b"]["changed"] == ["turn.max_steps"]
        unset = daemon.ctl("set", sid, "--unset", "turn.max_steps", "--no-policy")
        assert unset["effective"] == "now"
        assert "turn.max_steps" not in unset["settings"]
        assert daemon.verified()["ok"]


def test_the_permissions_that_a_hosted_agent_asks_for_are_decided_by_the_same_rules(house: House) -> None:
    daemon = house.daemon().start()
    wanted = [
        tool(name="shell", ask=True, input={"command": command}, output=f"ran {command}")
        for command in ("git push origin", "echo free", "make all", "make clean")
    ]
    agent = hosted(house, daemon, turns=[[*wanted, {"say": "done"}]], policy=POLICY)
    daemon.call("send", agent.sid, text="go")
    asked = waiting(daemon, agent.sid)
    assert (asked["tool"], asked["excerpt"]) == ("shell", "make all")
    patient = daemon.scripted(
        house.script(["longer than the silence that this agent is allowed"]), delay_ms=4_000
    )
    daemon.call("send", patient, text="go")
    daemon.until(patient, "turn.completed")
    daemon.ctl("approve", asked["id"])
    asked = waiting(daemon, agent.sid, 2)
    daemon.ctl("deny", asked["id"])
    daemon.until(agent.sid, "turn.completed")
    chosen = [line["permission"]["outcome"].get("optionId") for line in agent.told("permission")]
    assert chosen == ["x2", "x3", "x3", "x2"]
    denied = [call["name"] for call in results(daemon, agent.sid) if call.get("error_class") == "denied"]
    assert len(denied) == 2
    assert daemon.verified()["ok"]
