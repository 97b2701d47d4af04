"""Budgets on a real daemon: a model that always wants to go on, and limits that stop it."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from loopd.testing.endpoint import Recorded
from loopd.testing.replies import Call, Reply, ask, say
from tests.e2e.harness import NO_RULES, Daemon, House, call, endpoint

PRICES = '[costs]\ncurrency = "EUR"\n[costs.prices]\ntest = {input = 1_000_000, output = 2_000_000}\n'
DAY_MS = 86_400_000


def busy(recorded: Recorded) -> Reply:
    """A model that asks for another tool each time and reports 100 tokens of output."""
    return ask(Call("shell", {"command": f"echo {recorded.number}"}), output_tokens=100)


def steps(count: int = 60, tokens: int = 100) -> list[dict[str, Any]]:
    """Turns of a script: each costs so many tokens."""
    return [
        {
            "text": f"part {n} is done",
            "calls": [call("write_file", path=f"p{n}", content=str(n), result=f"wrote {n}")],
            "usage": {"input_tokens": tokens - tokens // 4, "output_tokens": tokens // 4},
        }
        for n in range(count)
    ]


def budget(daemon: Daemon, *words: str) -> dict[str, Any]:
    return {each["which"]: each for each in daemon.ctl("budget", *words)["budgets"]}


@pytest.fixture
def workspace(house: House) -> Path:
    folder = house.folder / "work"
    folder.mkdir()
    return folder


def test_no_request_reaches_the_endpoint_once_a_total_is_spent(house: House, workspace: Path) -> None:
    daemon = house.daemon(config=PRICES, http=True).start()
    with endpoint(busy) as (model, _):
        limits = [{"kind": "output_tokens", "limit": 500}]
        sid = daemon.chat(model.base_url, workspace=str(workspace), set=NO_RULES, budgets=limits)
        daemon.call("send", sid, text="go")
        ended = daemon.until(sid, "session.ended")
        assert (ended["b"]["status"], ended["b"]["stop_reason"]) == ("aborted_constraint", "budget")
        assert len(model.requests) == 5
        completed = daemon.until(sid, "turn.completed")
        assert completed["b"]["outcome"] == "budget"
        found = daemon.ctl("budget", sid)
        assert found["spent"]["output_tokens"] == 500
        assert found["spent"]["cost"] == found["spent"]["input_tokens"] + 2 * 500
        assert found["currency"] == "EUR"
        assert daemon.loopctl("budget", sid).stdout.count("none") == 1
        (listed,) = daemon.ctl("ps", "-a")["sessions"]
        assert listed["cost_micro"] == found["spent"]["cost"]
        report = daemon.ctl("report", sid)
        assert report["spent"]["cost_micro"] == found["spent"]["cost"]
        page = urllib.request.urlopen(f"{daemon.ready['http']}/metrics", timeout=5).read().decode()
        assert f"loopd_cost_micros_total {found['spent']['cost']:.1f}" in page
        assert 'loopd_budget_exhausted_total{kind="output_tokens"} 1.0' in page
        refused = daemon.loopctl("resume", sid)
        assert refused.returncode == 4
        assert "raise it first" in refused.stderr
        daemon.ctl("budget", "set", sid, "output=1k")
        daemon.ctl("resume", sid)
        daemon.call("send", sid, text="go on")
        daemon.until(sid, "session.ended", count=2)
        assert len(model.requests) == 10
        assert daemon.verified()["ok"]


def test_a_spent_window_holds_the_session_over_a_kill_until_it_is_raised(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(
        house.script(steps()),
        goal="win",
        set={**NO_RULES, "continuation.min_gap_ms": 0},
        budgets=[{"kind": "tokens", "limit": 450, "per_ms": DAY_MS}],
    )
    daemon.until(sid, "budget.exhausted")
    before = budget(daemon, sid)["session tokens/86400s"]
    assert (before["used"], before["left"], before["until_ms"] % DAY_MS) == (500, 0, 0)
    turns = daemon.call("session.get", sid)["turns"]
    daemon.kill()
    daemon.start()
    assert budget(daemon, sid)["session tokens/86400s"] == before
    (hold,) = daemon.call("gate.get", sid)["holds"]
    assert (hold["kind"], hold["until_ms"]) == ("Budget", before["until_ms"])
    assert daemon.call("send", sid, text="hello")["by"] == ["Budget"]
    assert daemon.call("session.get", sid)["turns"] == turns
    assert daemon.loopctl("gate", "open", sid, "--kind", "Budget").returncode == 4
    told = daemon.ctl("budget", "set", sid, "tokens=900/1d", "--reason", "a bit more")
    assert told["holds"] == []
    daemon.until(sid, "budget.exhausted", count=2)
    assert budget(daemon, sid)["session tokens/86400s"]["used"] == 900
    assert daemon.verified()["ok"]


def test_a_label_counts_all_its_sessions_over_a_restart_and_ends_them_together(house: House) -> None:
    daemon = house.daemon().start()
    script = house.script(steps())
    first = daemon.scripted(script, labels={"team": "a"}, set=NO_RULES, name="one")
    second = daemon.scripted(script, labels={"team": "a"}, set=NO_RULES, name="two")
    other = daemon.scripted(script, labels={"team": "b"}, set=NO_RULES, name="three")
    for sid in (first, second, other):
        daemon.call("send", sid, text="go")
        daemon.until(sid, "turn.completed")
    told = daemon.ctl("budget", "set", "-l", "team=a", "tokens=500", "turns=100/1d")
    assert told["label"] == "team=a"
    found = budget(daemon, "-l", "team=a")
    assert found["team=a tokens"]["used"] == 200
    assert found["team=a turns/86400s"]["used"] == 2
    daemon.kill()
    daemon.start()
    assert budget(daemon, "-l", "team=a") == found
    for sid in (first, second, other):
        daemon.call("send", sid, text="go")
        daemon.until(sid, "turn.completed", count=2)
    assert budget(daemon, "-l", "team=a")["team=a tokens"]["used"] == 400
    assert budget(daemon, first)["team=a tokens"]["used"] == 400
    daemon.call("send", first, text="go")
    daemon.until(first, "session.ended")
    daemon.until(second, "session.ended")
    assert daemon.call("session.get", other)["status"] == "live"
    (exhausted,) = daemon.events(first, "budget.exhausted")
    assert (exhausted["b"]["which"], exhausted["b"]["used"]) == ("team=a tokens", 500)
    assert daemon.verified()["ok"]


def test_a_label_window_holds_every_member_and_lets_go_of_all_when_it_is_raised(house: House) -> None:
    daemon = house.daemon().start()
    script = house.script(steps())
    daemon.ctl("budget", "set", "-l", "team=a", "tokens=250/1d")
    sids = [daemon.scripted(script, labels={"team": "a"}, set=NO_RULES) for _ in range(2)]
    for _ in range(2):
        daemon.call("send", sids[0], text="go")
    daemon.call("send", sids[0], text="go")
    daemon.until(sids[0], "turn.completed")
    for count in range(2, 4):
        daemon.call("send", sids[0], text="go")
        if daemon.call("session.get", sids[0])["holds"]:
            break
        daemon.until(sids[0], "turn.completed", count=count)
    while budget(daemon, "-l", "team=a")["team=a tokens/86400s"]["left"]:
        daemon.call("send", sids[1], text="go")
        daemon.until(sids[1], "turn.completed")
    assert daemon.call("send", sids[1], text="more")["by"] == ["Budget"]
    held = daemon.call("session.get", sids[1])["turns"]
    daemon.ctl("budget", "set", "-l", "team=a", "tokens=10k/1d")
    daemon.until(sids[1], "turn.completed", count=held + 1)
    assert daemon.call("gate.get", sids[1])["holds"] == []
    daemon.ctl("budget", "remove", "-l", "team=a", "tokens/1d")
    assert daemon.ctl("budget", "-l", "team=a")["budgets"] == []
    assert daemon.loopctl("budget", "remove", "-l", "team=a", "tokens/1d").returncode == 3


def test_children_spend_their_parents_budget_and_stop_with_it(house: House) -> None:
    daemon = house.daemon().start()
    script = house.script(steps())
    limits = [{"kind": "tokens", "limit": 400}, {"kind": "turns", "limit": 50, "per_ms": DAY_MS}]
    parent = daemon.scripted(script, set=NO_RULES, name="parent", budgets=limits)
    daemon.call("send", parent, text="go")
    daemon.until(parent, "turn.completed")
    child = daemon.scripted(script, set=NO_RULES, name="child", parent="parent")
    grandchild = daemon.scripted(script, set=NO_RULES, name="grandchild", parent=child)
    for sid in (child, grandchild):
        daemon.call("send", sid, text="go")
        daemon.until(sid, "turn.completed")
    found = budget(daemon, "parent")
    assert found["session tokens"]["used"] == 300
    assert found["session turns/86400s"]["used"] == 3
    assert budget(daemon, "grandchild")[f"{parent} tokens"]["used"] == 300
    daemon.kill()
    daemon.start()
    assert budget(daemon, "parent") == found
    assert daemon.ctl("budget", "parent")["children"] == sorted([child, grandchild])
    daemon.call("send", grandchild, text="go")
    for sid in (grandchild, child, parent):
        daemon.until(sid, "session.ended")
    assert daemon.call("session.get", parent)["turns"] == 1
    assert daemon.verified()["ok"]


def test_a_model_without_a_price_is_named_and_never_free(house: House, workspace: Path) -> None:
    daemon = house.daemon(config=PRICES.replace("test =", "another =")).start()
    with endpoint(busy) as (model, _):
        limits = [{"kind": "cost", "limit": 1_000}, {"kind": "turns", "limit": 1}]
        sid = daemon.chat(
            model.base_url, workspace=str(workspace), set={**NO_RULES, "turn.max_steps": 2}, budgets=limits
        )
        daemon.call("send", sid, text="go")
        daemon.until(sid, "session.ended")
        assert daemon.events(sid, "budget.unpriced")[0]["b"]["model"] == "test"
        shown = daemon.loopctl("budget", sid).stdout
        assert "warning: no price is known for 'test'" in shown
        assert daemon.ctl("budget", sid)["unpriced"]["test"] > 200
        assert "?" in daemon.loopctl("ps", "-a").stdout


def test_what_makes_no_sense_is_refused_with_a_code(house: House) -> None:
    daemon = house.daemon().start()
    script = house.script(["x"])
    for fields, code in (
        ({"budgets": [{"kind": "tokens", "limit": 0}]}, "invalid"),
        ({"budgets": [{"kind": "token", "limit": 1}]}, "invalid"),
        ({"budgets": [{"kind": "tokens", "limit": 1, "pre_ms": 60_000}]}, "unknown_field"),
        ({"policy": [{"effect": "deny", "comand": "rm"}]}, "unknown_field"),
        ({"parent": "nobody"}, "not_found"),
    ):
        spec = {"kind": "scripted", "script": str(script)}
        assert daemon.refusal("session.create", driver=spec, **fields).code == code
    assert daemon.refusal("budget.set", kind="tokens", limit=1).code == "invalid"
    for words in (("tokens=x",), ("token=5",), ("tokens=5/soon",), ()):
        assert daemon.loopctl("budget", "set", "a", *words).returncode == 2


def test_a_fork_has_the_limits_of_its_parent_and_has_spent_nothing_but_the_turns_it_came_with(
    daemon: Daemon,
) -> None:
    with endpoint([say("alpha")]) as (model, _):
        sid = daemon.chat(model.base_url, name="spender", labels={"team": "forked"})
        daemon.loopctl("budget", "set", "-l", "team=forked", "turns=9")
        daemon.loopctl("budget", "set", "spender", "turns=5", "tokens=1M", "turns=7/1d")
        daemon.call("send", sid, text="first")
        daemon.until(sid, "turn.completed")
        before = budget(daemon, "spender")
        assert before["session tokens"]["used"] > 0
        fork = daemon.ctl("fork", f"{sid}@1", "--name", "spared")["sid"]
        after = budget(daemon, fork)
        assert {which: e["limit"] for which, e in after.items()} == {
            which: e["limit"] for which, e in before.items()
        }
        used = {which: e["used"] for which, e in after.items()}
        assert used.pop("session turns") == 1, "it goes on counting where it was forked"
        assert used.pop("team=forked turns") == 1, "the label has seen one turn, and not two"
        assert set(used.values()) == {0}
