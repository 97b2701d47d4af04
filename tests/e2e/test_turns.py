"""Cutting a turn short: the stream ends at once, its text is kept, nothing of it runs on."""

from __future__ import annotations

import os
import time

import pytest

from loopd.testing.endpoint import Call, ask, fail, say
from tests.e2e.audit import Journal
from tests.e2e.harness import NO_RULES, Daemon, House, endpoint, free_port, gone, working

pytestmark = pytest.mark.process
BUSY = {"continuation.min_gap_ms": 0, **NO_RULES}
STORY = "Once upon a time there was a slow endpoint. "


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    """One daemon for all: each test makes sessions of its own."""
    return shared


def streaming(daemon: Daemon, sid: str) -> str:
    """Wait until text of the running turn was shown live, and return it."""
    client = daemon.client(deltas=True)
    for frame in client.subscribe(sids=[sid], timeout_s=20):
        if frame["t"] == "delta" and frame.get("text"):
            client.close()
            return str(frame["text"])
    raise AssertionError("no live text")


@pytest.mark.parametrize(
    ("command", "cause", "hold"),
    [
        (("interrupt",), "interrupt", "Interrupted"),
        (("suspend", "--mode", "interrupt"), "suspend", "UserSuspend"),
        (("suspend", "--mode", "kill"), "kill", "UserSuspend"),
    ],
)
def test_a_slow_stream_is_cut_at_once_and_its_text_is_kept(
    daemon: Daemon, command: tuple[str, ...], cause: str, hold: str
) -> None:
    with endpoint([say(STORY, endless=True, gap_ms=20)]) as (model, _):
        sid = daemon.chat(model.base_url, goal="tell a story", set=BUSY)
        streaming(daemon, sid)
        began = time.monotonic()
        cut = daemon.ctl(command[0], sid, *command[1:])
        assert time.monotonic() - began < 3
        assert cut["stopped"] is True
        assert cut["turn"]["n"] == 1
        mark = daemon.until(sid, "turn.interrupted")
        assert (mark["b"]["cause"], mark["b"]["phase"]) == (cause, "model")
        assert (STORY * 40).startswith(mark["b"]["partial"])
        assert mark["b"]["partial"]
        why = daemon.ctl("why", sid)
        assert [h["kind"] for h in why["holds"]] == [hold]
        assert why["turn"] is None
        wait_for(lambda: model.open_streams == 0)
        assert (model.disconnects, len(model.requests)) == (1, 1)
        if cause == "interrupt":
            assert cut["resumes_ms"] == why["holds"][0]["until_ms"] == mark["ts"] + 300_000

        # The next turn's model sees what was said before it was cut off.
        model.script = [say("The end.")]
        daemon.call("send", sid, text="go on, please")
        daemon.until(sid, "turn.completed")
        seen = str(model.requests[1].json["messages"])
        assert mark["b"]["partial"][:20] in seen
        assert "interrupted" in seen.lower()
        daemon.call("suspend", sid, mode="kill")
    daemon.verified(sid)
    Journal(daemon.data / "journal.sqlite").check()


def wait_for(test: object, within_s: float = 5.0) -> None:
    """Look at something outside of loopd, which tells nobody when it changes."""
    deadline = time.monotonic() + within_s
    while not test():  # type: ignore[operator]
        assert time.monotonic() < deadline
        os.sched_yield()


def test_after_an_interrupt_cron_waits_and_a_human_goes_through(daemon: Daemon) -> None:
    with endpoint([say(STORY, endless=True, gap_ms=20), say("Yes.")]) as (model, _):
        sid = daemon.chat(model.base_url, set=BUSY)
        daemon.call("cron.put", sid, job="job", expr="0 0 1 1 *", text="tick")
        daemon.call("send", sid, text="tell me")
        streaming(daemon, sid)
        daemon.ctl("interrupt", sid, "--for", "10m")
        fired = daemon.call("cron.run", sid, job="job")
        assert (fired["held"], fired["by"]) == (True, ["Interrupted"])
        assert len(model.requests) == 1
        sent = daemon.call("send", sid, text="what now?")
        assert sent["held"] is False
        started = daemon.until(sid, "turn.started", lambda b: b["n"] == 2)
        assert set(started["b"]["envelopes"]) >= {fired["envelope"], sent["id"]}
        daemon.until(sid, "turn.completed")


def test_a_running_shell_command_dies_with_all_its_children(house: House, daemon: Daemon) -> None:
    work = house.folder / "work"
    work.mkdir()
    script = "echo $$ > shell.pid; sleep 600 & echo $! > child.pid; echo ready > ready; wait"
    with endpoint([ask(Call("shell", {"command": script}))]) as (model, _):
        sid = daemon.chat(model.base_url, goal="wait", workspace=str(work), set=BUSY)
        daemon.until(sid, "effect.intent")
        wait_for((work / "ready").exists)
        pids = [int((work / name).read_text()) for name in ("shell.pid", "child.pid")]
        cut = daemon.ctl("suspend", sid, "--mode", "interrupt")
        assert cut["stopped"] is True
        assert all(gone(pid) for pid in pids)
        mark = daemon.until(sid, "turn.interrupted")
        assert mark["b"]["phase"] == "tool"
    daemon.verified(sid)


def test_a_shell_command_does_not_outlive_a_drained_daemon(house: House) -> None:
    daemon = house.daemon(config="[drain]\nbudget_ms = 200\n").start()
    work = house.folder / "work"
    work.mkdir()
    with endpoint([ask(Call("shell", {"command": "echo $$ > pid; echo > ready; sleep 600"}))]) as (model, _):
        sid = daemon.chat(model.base_url, goal="wait", workspace=str(work), set=BUSY)
        wait_for((work / "ready").exists, 15)
        pid = int((work / "pid").read_text())
        assert daemon.terminate() == 0
        assert gone(pid)
    daemon.start()
    marks = daemon.events(sid, "turn.interrupted")
    assert [m["b"]["cause"] for m in marks] == ["drain"]


def test_files_outside_of_the_workspace_stay_out_of_reach(house: House, daemon: Daemon) -> None:
    work = house.folder / "work"
    work.mkdir()
    (house.folder / "secret").write_text("the secret")
    (work / "link").symlink_to(house.folder / "secret")
    calls = [
        Call("read_file", {"path": path}) for path in ("../secret", "link", str(house.folder / "secret"))
    ]
    with endpoint([ask(*calls), say("Nothing.")]) as (model, _):
        sid = daemon.chat(model.base_url, workspace=str(work), set=BUSY)
        daemon.call("send", sid, text="read it")
        daemon.until(sid, "turn.completed")
        done = [c for step in daemon.events(sid, "turn.step") for c in step["b"].get("calls", ())]
        assert [c["ok"] for c in done] == [False] * 3
        assert "the secret" not in str([r.json for r in model.requests])


# -- a model that is not well -------------------------------------------------------------------


def test_a_dead_endpoint_closes_the_gate_and_at_its_deadline_the_session_goes_on(daemon: Daemon) -> None:
    port = free_port()
    settings = {**BUSY, "gate.provider_backoff_ms": 200, "gate.provider_backoff_max_ms": 400}
    sid = daemon.chat(f"http://127.0.0.1:{port}/v1", goal="write", set=settings)
    closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "provider", within_s=60)
    (hold,) = closed["b"]["holds"]
    assert (hold["kind"], hold["cause"]) == ("ProviderBackoff", "unreachable")
    assert hold["until_ms"] == closed["ts"] + 200
    failed = daemon.events(sid, "turn.completed")[0]
    assert failed["b"]["outcome"] == "model_error"
    assert daemon.events(sid, "provider.retrying"), "it was tried again inside the turn first"
    with endpoint([say("I am back, and so are you.")], port=port) as (model, _):
        turn = daemon.until(sid, "turn.completed", lambda b: b["outcome"] == "completed", within_s=60)
        assert model.requests
        opened = [e for e in daemon.events(sid, "gate.changed") if e["b"]["cause"] == "deadline"]
        assert opened[0]["seq"] < turn["seq"]
        assert daemon.call("session.get", sid)["goal"]["status"] == "active"
        daemon.call("suspend", sid, mode="kill")
    daemon.verified(sid)


def test_a_chanting_stream_is_cancelled_and_asked_again_once(daemon: Daemon) -> None:
    chant = "and so it goes on and on, round and round again.\n" * 2_000
    settings = {**BUSY, "gate.provider_backoff_ms": 60_000}
    with endpoint([say(chant), say(chant), say("never asked for")]) as (model, _):
        sid = daemon.chat(model.base_url, preset="hardened", set=settings)
        daemon.call("send", sid, text="sing")
        ended = daemon.until(sid, "turn.completed", within_s=60)
        assert ended["b"]["outcome"] == "model_error"
        found = daemon.events(sid, "degeneration.detected")
        assert [(e["b"]["rule"], e["b"]["verdict"]) for e in found] == [("chanting", "warn")] * 2
        assert [e["b"]["cause"] for e in daemon.events(sid, "provider.retrying")] == ["chanting"]
        assert len(model.requests) == 2
        kinds = {hold["cause"] for hold in daemon.call("why", sid)["holds"]}
        assert kinds == {"chanting"}
        first, second = found
        assert first["seq"] < second["seq"] < ended["seq"]
    daemon.verified(sid)


def test_an_answer_that_only_starts_alike_is_left_alone(daemon: Daemon) -> None:
    varied = "".join(
        f"line {n} says what no other of these {n * 7} lines says: {n * n}\n" for n in range(600)
    )
    with endpoint([say(varied)]) as (model, _):
        sid = daemon.chat(model.base_url, preset="hardened", set=BUSY)
        daemon.call("send", sid, text="count")
        ended = daemon.until(sid, "turn.completed", within_s=60)
        assert ended["b"]["outcome"] == "completed"
        assert daemon.events(sid, "degeneration.detected") == []
        assert len(model.requests) == 1
    daemon.verified(sid)


def test_retry_after_is_honoured_by_the_gate(daemon: Daemon) -> None:
    with endpoint([fail(429, retry_after="120"), say("ok")]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", set=BUSY)
        closed = daemon.until(sid, "gate.changed", lambda b: b["cause"] == "provider")
        (hold,) = closed["b"]["holds"]
        assert hold["until_ms"] >= closed["ts"] + 120_000
        assert hold["cause"] == "rate_limited"
        held = daemon.ctl("send", sid, "hello?")
        assert (held["held"], held["by"]) == (True, ["ProviderBackoff"])
        assert len(model.requests) == 1
        assert daemon.ctl("gate", "open", sid)["removed"] == ["ProviderBackoff"]
        daemon.until(sid, "turn.completed", lambda b: b["outcome"] == "completed")


def test_an_unanswered_human_message_is_answered_when_the_model_is_back(daemon: Daemon) -> None:
    settings = {"gate.provider_backoff_ms": 100}
    with endpoint([fail(400, message="no such model"), say("Here I am.")]) as (model, _):
        sid = daemon.chat(model.base_url, set=settings)
        daemon.call("send", sid, text="are you there?")
        daemon.until(sid, "turn.completed", lambda b: b["outcome"] == "completed")
        assert "are you there?" in str(model.requests[1].json)


@pytest.mark.parametrize("seconds", [59, 0, -5, 86_401, 1e300, "soon", None, True])
def test_an_idle_that_is_out_of_range_is_refused_and_the_model_is_told_the_bounds(
    daemon: Daemon, seconds: object
) -> None:
    idle = Call("request_idle", {"max_idle_duration_secs": seconds, "reason": "tired"})
    with endpoint([ask(idle), say("Then I go on.")]) as (model, _):
        sid = daemon.chat(model.base_url)
        daemon.call("send", sid, text="rest if you like")
        turn = daemon.until(sid, "turn.completed")
        assert turn["b"]["outcome"] == "completed"
        (call,) = daemon.events(sid, "turn.step")[0]["b"]["calls"]
        assert call["ok"] is False
        assert "60" in call["result"]
        assert "86" in call["result"]
        assert daemon.call("why", sid)["gate"] == "open"
        assert "86" in str(model.requests[1].json["messages"][-1])


@pytest.mark.parametrize("seconds", [60, 86_400])
def test_an_idle_within_bounds_ends_the_turn_and_leaves_the_goal_alone(daemon: Daemon, seconds: int) -> None:
    idle = Call("request_idle", {"max_idle_duration_secs": seconds, "reason": "tests run"})
    with endpoint([ask(idle), say("Never asked for.")]) as (model, _):
        sid = daemon.chat(model.base_url, goal="wait for the tests", set=BUSY)
        turn = daemon.until(sid, "turn.completed")
        assert turn["b"]["outcome"] == "idle"
        (hold,) = daemon.ctl("why", sid)["holds"]
        assert (hold["kind"], hold["reason"]) == ("RequestIdle", "tests run")
        asked = daemon.events(sid, "gate.changed")[0]
        assert hold["until_ms"] == asked["ts"] + seconds * 1_000
        assert daemon.call("session.get", sid)["goal"]["status"] == "active"
        assert len(model.requests) == 1


def test_what_the_model_saw_is_rebuilt_byte_for_byte(house: House, daemon: Daemon) -> None:
    work = house.folder / "work"
    work.mkdir()
    (work / "long.txt").write_text("a long line of text\n" * 2_000)
    replies = [ask(Call("read_file", {"path": "long.txt"})), say("I read it."), say("Nothing else.")]
    with endpoint(replies) as (model, _):
        sid = daemon.chat(model.base_url, workspace=str(work), system="You are careful.", set=BUSY)
        daemon.call("send", sid, text="read the long file")
        daemon.until(sid, "turn.completed")
        daemon.call("send", sid, text="and now?")
        daemon.until(sid, "turn.completed", count=2)
        for turn, step, number in ((1, 1, 0), (1, 2, 1), (2, 1, 2)):
            shown = daemon.ctl("show", f"{sid}@{turn}", "--prompt", "--step", str(step))["prompt"]
            assert shown["request_sha256"] == shown["recorded_sha256"] == model.requests[number].sha256
            assert shown["missing"] == []


def test_every_prompt_of_a_long_session_is_rebuilt_also_across_a_restart(house: House) -> None:
    daemon = house.daemon("long").start()
    with endpoint([say("Chapter {n} says something new, at some length. " * 3)]) as (model, _):
        spec = {"kind": "chat", "base_url": model.base_url, "model": "m", "context_bytes": 2_000}
        sid = daemon.call("session.create", driver=spec, goal="write", preset="published", set=BUSY)["sid"]
        daemon.until(sid, "turn.completed", count=20)
        daemon.kill()
        daemon.start()
        daemon.call("send", sid, text="a question in between")
        daemon.until(sid, "turn.completed", count=45)
        daemon.call("suspend", sid, mode="kill")
        seen = {request.sha256 for request in model.requests}
    done = [e["b"]["n"] for e in daemon.events(sid, "turn.completed")]
    for n in done:
        shown = daemon.call("turn.get", sid, n=n, prompt=True)["prompt"]
        assert shown["missing"] == []
        assert shown["request_sha256"] == shown["recorded_sha256"], f"turn {n}"
        assert shown["recorded_sha256"] in seen
    sizes = daemon.sql("SELECT length(data) FROM blob")
    assert max(size for (size,) in sizes) < 4_000, "a manifest does not grow with its session"
    daemon.verified()


def test_a_turn_that_waits_for_its_place_is_cut_at_once_and_never_asks_the_model(house: House) -> None:
    daemon = house.daemon("narrow", config="[limits]\nconcurrent_turns = 1\n").start()
    with endpoint([say(STORY, endless=True, gap_ms=20)]) as (model, _):
        first = daemon.chat(model.base_url, goal="tell a story", set=BUSY)
        streaming(daemon, first)
        second = daemon.chat(model.base_url, goal="tell another", set=BUSY)
        daemon.until(second, "turn.started")
        began = time.monotonic()
        cut = daemon.ctl("suspend", second, "--mode", "interrupt")
        assert cut["stopped"] is True
        assert time.monotonic() - began < 3
        assert len(model.requests) == 1
        third = daemon.chat(model.base_url, goal="and a third", set=BUSY)
        daemon.until(third, "turn.started")
        daemon.call("suspend", first, mode="kill")
        streaming(daemon, third)
        assert len(model.requests) == 2
        daemon.call("suspend", third, mode="kill")
    daemon.verified()


def test_a_script_that_went_away_closes_the_gate_instead_of_spinning(house: House) -> None:
    daemon = house.daemon("gone").start()
    script = house.script(working(), "gone.jsonl")
    sid = daemon.scripted(script, goal="write", set=BUSY)
    daemon.until(sid, "turn.completed", count=2)
    daemon.call("suspend", sid, mode="kill")
    script.unlink()
    daemon.kill()
    daemon.start()
    daemon.call("unsuspend", sid)
    failed = daemon.until(sid, "turn.completed", lambda b: b["outcome"] == "failed")
    assert "gone.jsonl" in failed["b"]["error"]
    assert [h["kind"] for h in daemon.call("why", sid)["holds"]] == ["ProviderBackoff"]
    daemon.verified()
