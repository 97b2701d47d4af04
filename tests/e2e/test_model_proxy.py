"""A real daemon between sessions and a model endpoint: exact bytes in the journal, budgets before calls, clean stops."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from loopd.testing.endpoint import Call, Recorded, Reply, ask, fail, say
from tests.e2e.audit import Journal
from tests.e2e.harness import NO_RULES, Daemon, House, endpoint, gone
from tests.e2e.hosting import hosted

pytestmark = pytest.mark.process
APIS = ("chat-completions", "messages", "responses")


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    """One daemon for all: each test makes sessions of its own."""
    return shared


def chat(daemon: Daemon, base_url: str, **spec: object) -> str:
    """A chat session whose calls go through the proxy."""
    driver = {"kind": "chat", "base_url": base_url, "model": "m-1", "proxy": True, **spec}
    return str(daemon.call("session.create", driver=driver, preset="published", set=dict(NO_RULES))["sid"])


@pytest.mark.parametrize("api", APIS)
def test_every_call_is_in_the_journal_with_its_exact_bytes(daemon: Daemon, api: str) -> None:
    with endpoint([ask(Call("report_phase", {"name": "a"})), say("fine", output_tokens=5)]) as (model, _):
        sid = chat(daemon, model.base_url, api=api)
        daemon.call("send", sid, text="hello")
        daemon.until(sid, "turn.completed")
        sent = [(r.sha256, r.body) for r in model.requests]
    calls = [event["b"] for event in daemon.events(sid, "model.called")]
    assert [(c["request_sha256"], c.get("outcome", "ok"), c["status"], c["api"]) for c in calls] == [
        (sha, "ok", 200, api) for sha, _ in sent
    ]
    for call, (sha, body) in zip(calls, sent, strict=True):
        kept = daemon.sql("SELECT len FROM blob WHERE sha = ?", bytes.fromhex(sha))
        assert kept == [(len(body),)]
        assert daemon.sql("SELECT 1 FROM blob WHERE sha = ?", bytes.fromhex(call["response_sha256"])) == [
            (1,)
        ]
    steps = [event["b"] for event in daemon.events(sid, "turn.step")]
    assert [s["request_sha256"] for s in steps] == [sha for sha, _ in sent]
    assert [s["usage"] for s in steps] == [c["usage"] for c in calls], (
        "what it cost is what the endpoint said"
    )
    for step in (1, 2):
        shown = daemon.ctl("show", f"{sid}@1", "--prompt", "--step", str(step))["prompt"]
        assert shown["request_sha256"] == shown["recorded_sha256"] == sent[step - 1][0]
    whole = daemon.ctl("show", f"{sid}@1", "--calls")["calls"]
    assert [call["request"].encode() for call in whole] == [body for _, body in sent]
    assert "fine" in whole[1]["response"]
    table = daemon.loopctl("show", f"{sid}@1", "--calls").stdout.splitlines()
    assert len(table) == 3
    assert f"{api}  m-1  ok  HTTP 200" in table[0]
    daemon.verified(sid)


@pytest.mark.parametrize(
    ("reply", "cause", "backoff_s"),
    [
        (fail(500), "server_error", 1),
        (fail(429, retry_after="900"), "rate_limited", 900),
        (fail(401), "auth", 1),
        (Reply(output_tokens=0), "bad_response", 1),
        (say("API Error: overloaded"), "error_prose", 1),
    ],
    ids=["500", "429", "401", "empty", "prose"],
)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxied"])
def test_a_failure_is_named_in_the_turn_and_backs_off(
    daemon: Daemon, reply: Reply, cause: str, backoff_s: int, api: str, proxy: bool
) -> None:
    with endpoint([reply]) as (model, _):
        sid = chat(daemon, model.base_url, api=api, proxy=proxy, limits={"retries": 1, "base_ms": 5})
        daemon.call("send", sid, text="hello")
        ended = daemon.until(sid, "turn.completed")["b"]
        closed = daemon.until(sid, "gate.changed")["b"]
    assert (ended["outcome"], ended["cause"]) == ("model_error", cause)
    assert ended.get("steps", 0) == 0
    hold = closed["added"]
    assert (hold["kind"], hold["cause"]) == ("ProviderBackoff", cause)
    assert hold["until_ms"] - hold["since_ms"] >= backoff_s * 1_000
    assert daemon.events(sid, "degeneration.detected") == []
    assert daemon.events(sid, "turn.step") == [], "no rule has seen it, as progress or as stagnation"
    if proxy:
        assert {e["b"].get("outcome", "ok") for e in daemon.events(sid, "model.called")} <= {"ok", "error"}


def test_a_budget_stops_the_next_call_before_it_leaves(daemon: Daemon) -> None:
    with endpoint([ask(Call("report_phase", {"name": "{n}"}), output_tokens=400)]) as (model, _):
        sid = chat(daemon, model.base_url)
        daemon.call("budget.set", sid, kind="output_tokens", limit=1_000)
        daemon.call("send", sid, text="work")
        daemon.until(sid, "session.ended")
        count = len(model.requests)
    assert count == 3, "400, 800, 1200: the fourth call may not leave"
    assert len(daemon.events(sid, "model.called")) == 3


@pytest.mark.parametrize("api", APIS)
def test_what_a_hosted_agent_asked_its_model_is_shown_as_the_endpoint_received_it(
    house: House, shared: Daemon, api: str
) -> None:
    path = {"chat-completions": "/chat/completions"}.get(api, f"/{api}")
    asked = [
        {
            "model": "m-1",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": f"{n}: ünïcode \u2028 {{}}"}],
        }
        for n in range(3)
    ]
    if api == "responses":
        asked = [{"model": "m-1", "input": str(body["messages"])} for body in asked]
    model_env = '[model]\nrequired = ["base_url"]\n[model.env]\nMODEL_BASE = "${base_url}"\nMODEL_KEY = "${api_key}"\n'
    with endpoint([say("one"), say("two"), say("three")]) as (model, _):
        agent = hosted(
            house, shared, name=f"caller-{api}",
            turns=[
                [{"call": {"path": path, "body": asked[0]}}, {"call": {"path": path, "body": asked[1]}}, {"say": "a"}],
                [{"call": {"path": path, "body": asked[2]}}, {"say": "b"}],
            ],
            spec={"base_url": model.base_url, "model": "m-1"}, kind={"capabilities": model_env},
        )  # fmt: skip
        for count, text in enumerate(("go", "on"), 1):
            shared.call("send", agent.sid, text=text)
            shared.until(agent.sid, "turn.completed", count=count)
        received = [(request.sha256, request.body, request.api) for request in model.requests]
    assert [each["called"]["status"] for each in agent.told("called")] == [200, 200, 200]
    shown = [call for n in (1, 2) for call in shared.ctl("show", f"{agent.sid}@{n}", "--calls")["calls"]]
    assert [(c["request_sha256"], c["request"].encode(), c["api"]) for c in shown] == received
    prompt = shared.ctl("show", f"{agent.sid}@2", "--prompt")["prompt"]
    frames = json.dumps(prompt)
    assert "session/prompt" in frames, "and the raw frames are beside them"
    shared.call("session.end", agent.sid)


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("api", ["messages", "responses"])
def test_every_request_is_rebuilt_behind_a_compaction_on_every_api(
    house: House, shared: Daemon, api: str, proxied: bool
) -> None:
    def script(asked: Recorded) -> Reply:
        if b"Sum up the conversation" in asked.body:
            return say(f"SUMMARY {asked.number}: all was looked at.")
        return say(f"Chapter {asked.number} says something new, at some length. " * 8)

    with endpoint(script) as (model, _):
        sid = chat(shared, model.base_url, api=api, proxy=proxied, context_bytes=6_000)
        for n in range(1, 13):
            shared.call("send", sid, text=f"write chapter {n}, and remember what the ones before it said")
            shared.until(sid, "turn.completed", count=n)
        received = {request.sha256: request.body for request in model.requests}
    assert shared.events(sid, "context.compacted"), "else nothing is shown by this test"
    for event in shared.events(sid, "turn.step"):
        step = event["b"]
        prompt = shared.call("turn.get", sid, n=step["n"], prompt=True, step=step["step"])["prompt"]
        assert prompt["missing"] == []
        assert prompt["request_sha256"] == prompt["recorded_sha256"] == step["request_sha256"]
        assert prompt["request"].encode() == received[step["request_sha256"]]


def test_context_is_compacted_recorded_and_rebuilt_also_after_a_crash(house: House) -> None:
    def script(asked: Recorded) -> Reply:
        if b"Sum up the conversation" in asked.body:
            return say(f"SUMMARY {asked.number}: all files were looked at.")
        if asked.number % 3:
            return ask(Call("shell", {"command": f"seq {asked.number} {asked.number + 700}"}), text="looking")
        return say(f"turn done at {asked.number}")

    daemon = house.daemon().start()
    workspace = house.folder / "w"
    workspace.mkdir()
    with endpoint(script) as (model, _):
        driver = {"kind": "chat", "base_url": model.base_url, "model": "m", "context_bytes": 24_000}
        sid = daemon.call(
            "session.create",
            driver=driver,
            workspace=str(workspace),
            preset="published",
            set={**NO_RULES, "stop.enabled": False},
        )["sid"]
        for n in range(1, 13):
            if n == 8:
                daemon.kill()
                daemon.start()
            daemon.call("send", sid, text=f"look at part {n}")
            daemon.until(sid, "turn.completed", count=n)
        received = {request.sha256: request.body for request in model.requests}
    compactions = daemon.events(sid, "context.compacted")
    assert len(compactions) >= 2
    assert any(
        event["b"].get("upto_ss") and event["b"]["summary"].startswith("SUMMARY") for event in compactions
    )
    assert all(e["b"]["after_bytes"] < e["b"]["before_bytes"] for e in compactions)
    assert all(e["b"]["before_sha256"] != e["b"]["after_sha256"] for e in compactions)
    marked = [e["b"]["n"] for e in daemon.events(sid, "turn.step") if e["b"].get("compacted")]
    assert marked == [e["b"]["n"] for e in compactions], "the step behind a compaction says so"
    for event in daemon.events(sid, "turn.step"):
        step = event["b"]
        shown = daemon.ctl("show", f"{sid}@{step['n']}", "--prompt", "--step", str(step["step"]))["prompt"]
        assert shown["missing"] == []
        assert shown["request_sha256"] == step["request_sha256"], (step["n"], step["step"])
        assert shown["request"].encode() == received[step["request_sha256"]]
        assert len(received[step["request_sha256"]]) < 24_000 * 1.2
    daemon.verified(sid)
    daemon.terminate()
    Journal(daemon.data / "journal.sqlite").check()


def test_mcp_tools_work_in_a_daemon_and_none_of_their_processes_survives_its_kill(house: House) -> None:
    server = Path(__file__).parents[1] / "drivers" / "mcp_demo_server.py"
    daemon = house.daemon().start()
    script = [ask(Call("demo__add", {"a": 40, "b": 2})), ask(Call("demo__leave_behind", {})), say("done")]
    with endpoint(script) as (model, _):
        sid = daemon.ctl(
            "new", "--driver", "chat", "--base-url", model.base_url, "--model", "m", "--api", "messages",
            "--proxy", "--mcp", f"demo={sys.executable} {server}",
        )["sid"]  # fmt: skip
        daemon.call("send", sid, text="add")
        daemon.until(sid, "turn.completed")
        first, second = (event["b"]["calls"] for event in daemon.events(sid, "turn.step")[:2])
        assert first[0]["result"] == "42"
        child = int(second[0]["result"])
        shown = daemon.ctl("show", f"{sid}@1", "--prompt", "--step", "2")["prompt"]
        assert shown["request_sha256"] == shown["recorded_sha256"], "with the schemas as they were offered"
        assert "demo__add" in shown["request"]
    assert Path(f"/proc/{child}").exists()
    daemon.kill()
    daemon.start()
    assert gone(child)
    marked = [
        path
        for path in Path("/proc").glob("[0-9]*/environ")
        if f"LOOPD_SESSION={sid}".encode() in readable(path).split(b"\0")
    ]
    assert marked == []


def readable(path: Path) -> bytes:
    """The environment of a process that may be somebody else's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_hanging_model_and_a_full_context_are_named_on_every_way(daemon: Daemon) -> None:
    quick = {"retries": 0, "first_s": 1, "silence_s": 1}
    too_long = fail(400, message="prompt is too long: 9000 tokens > 8192 maximum")
    for reply, cause in ((say("x", hang_after=0), "unreachable"), (too_long, "context_overflow")):
        with endpoint([reply]) as (model, _):
            sids = [
                chat(daemon, model.base_url, api=api, proxy=proxy, limits=quick)
                for api in APIS
                for proxy in (False, True)
            ]
            for sid in sids:
                daemon.call("send", sid, text="hello")
            for sid in sids:
                ended = daemon.until(sid, "turn.completed")["b"]
                assert (ended["outcome"], ended["cause"]) == ("model_error", cause)
                assert daemon.until(sid, "gate.changed")["b"]["added"]["kind"] == "ProviderBackoff"
                assert daemon.events(sid, "turn.step", "degeneration.detected") == []


def test_a_call_that_was_under_way_when_the_daemon_died_is_reported_at_the_next_start(house: House) -> None:
    daemon = house.daemon()
    daemon.start()
    with endpoint([say("never said", hang_after=0)]) as (model, _):
        sid = chat(daemon, model.base_url)
        daemon.call("send", sid, text="hello")
        asked = daemon.until(sid, "model.asked")["b"]
        assert [r.sha256 for r in model.requests] == [asked["request_sha256"]]
        daemon.kill()
        daemon.start()
        (boot,) = daemon.ctl("recover")["boots"]
        assert (boot["calls"], boot["calls_count"], boot["interrupted"]) == ({sid: 1}, 1, {sid: 1})
        words = daemon.loopctl("recover").stdout
        assert "model calls cut    1, what they cost is not known" in words
        assert daemon.events(sid, "model.called") == []
        assert daemon.ctl("replay", sid)["status"] == "same"
    daemon.verified(sid)
