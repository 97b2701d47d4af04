"""Real coding agents, unattended: they work, go in circles, are stopped, suspended and killed."""

from __future__ import annotations

import pytest

from loopd.testing.endpoint import Reply
from tests.agents.stage import GRACE_S, Stage, ask, marked, on_stage, say, wait_for
from tests.e2e.harness import FILLER, House

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(300)]


def test_it_writes_a_file_through_a_tool_and_the_journal_tells_what_it_did(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        path = stage.workspace / "hello.txt"
        stage.brain.queue = [
            ask(stage.tools.write(str(path), "hi there\n"), text="I will write it."),
            ask(stage.tools.shell("cat hello.txt; exit 3")),
            say("It is written."),
        ]
        sid = stage.session()
        done = stage.turn_of(sid, "Write hello.txt.")
        assert done["b"]["outcome"] == "completed", done
        assert path.read_text() == "hi there\n"

        steps = [event["b"] for event in stage.daemon.events(sid, "turn.step")]
        assert len(steps) == 3 == len(stage.brain.asked), steps
        assert (steps[0]["text"], steps[2]["text"]) == ("I will write it.", "It is written.")
        (write,) = steps[0]["calls"]
        assert (write["ok"], write["tool_class"]) == (True, "edit"), write
        assert str(path) in str(write["args"]), write
        (shell,) = steps[1]["calls"]
        assert (shell["ok"], shell["tool_class"]) == (False, "exec"), shell
        assert shell["args"]["command"] == "cat hello.txt; exit 3", shell
        assert "hi there" in shell["result"], shell
        assert steps[2].get("calls", []) == []
        assert stage.daemon.call("session.get", sid)["tokens"]["input"] > 0
        stage.daemon.verified()


def test_filler_is_stopped_at_the_threshold_and_nothing_is_asked_until_a_person_writes(
    agent: str, house: House
) -> None:
    with on_stage(agent, house, say(FILLER)) as stage:
        sid = stage.session(goal="write the report", preset="published")
        closed = stage.daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", within_s=120)
        (hold,) = closed["b"]["holds"]
        assert (hold["kind"], hold["rule"]) == ("Degeneration", "repeated_text")
        assert [event["b"]["n"] for event in stage.daemon.events(sid, "turn.completed")] == [1, 2, 3, 4, 5]
        assert {event["b"]["text"] for event in stage.daemon.events(sid, "turn.step")} == {FILLER}
        assert len(stage.brain.asked) == 5
        assert stage.quiet(sid) == 0

        stage.brain.rest = say("Chapter 2 has 14 pages.")
        stage.daemon.call("goal.pause", sid)
        assert stage.quiet(sid) == 0
        assert stage.turn_of(sid, "How long is chapter 2?")["b"]["outcome"] == "completed"
        assert len(stage.brain.asked) == 6
        said = stage.brain.asked[-1].body.decode()
        assert "How long is chapter 2?" in said
        assert "same text" in said, "the agent is told what was found"
        stage.daemon.verified()


def test_default_settings_warn_it_before_they_stop_it(agent: str, house: House) -> None:
    with on_stage(agent, house, say(FILLER)) as stage:
        sid = stage.session(goal="write the report", set={"continuation.backoff_s": []})
        stage.daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", within_s=200)
        verdicts = [event["b"]["verdict"] for event in stage.daemon.events(sid, "degeneration.detected")]
        assert verdicts[0] == "nudge", verdicts
        assert verdicts[-1] == "close", verdicts
        assert len(stage.daemon.events(sid, "turn.started")) <= 10
        assert stage.quiet(sid) == 0


def no_ops(stage: Stage, request: int) -> Reply:
    """Calls that look busy: never the same twice in a row, and none does anything."""
    calls = [stage.tools.shell(":"), stage.tools.shell("true")]
    if stage.tools.read is not None:
        calls.append(stage.tools.read("/dev/null"))
    return ask(calls[request % len(calls)], text=f"Working on part {request}.")


def test_calls_that_do_nothing_are_caught(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        stage.brain.rest = lambda request: no_ops(stage, request)
        sid = stage.session(goal="write the report", set={"continuation.backoff_s": []})
        stage.daemon.until(
            sid, "gate.changed", lambda b: b["cause"] == "detection" and b["gate"] == "closed", within_s=150
        )
        found = [event["b"] for event in stage.daemon.events(sid, "degeneration.detected")]
        assert "noop_calls" in {finding["rule"] for finding in found}, found
        assert found[-1]["verdict"] == "close", found
        assert len(stage.brain.asked) <= 24, "the hard threshold is eight, and each rung may cost one answer"
        assert stage.quiet(sid) == 0
        assert stage.daemon.call("session.get", sid)["turn"] is None


def test_a_suspension_ends_a_running_tool_and_its_agent(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        stage.brain.queue = [ask(stage.tools.shell("sleep 987 & sleep 987; echo over"))]
        sid = stage.session()
        stage.daemon.call("send", sid, text="Sleep a little.")
        wait_for(lambda: sum("sleep 987" in c for c in marked(sid).values()) >= 2, 60, "the tool runs")
        requests = len(stage.model.requests)
        stage.daemon.call("suspend", sid, mode="interrupt", reason="enough")
        took = wait_for(lambda: not marked(sid), GRACE_S + 2, f"processes are gone; left {marked(sid)}")
        assert took <= GRACE_S + 2
        stage.daemon.until(sid, "turn.interrupted", lambda b: b["cause"] in {"suspend", "interrupt"})
        assert stage.quiet(sid) == 0
        assert len(stage.model.requests) == requests
        assert stage.daemon.call("session.get", sid)["turn"] is None
        stage.daemon.verified(sid)


def test_after_kill_9_no_orphan_lives_and_the_session_goes_on_with_its_context(
    agent: str, house: House
) -> None:
    with on_stage(agent, house) as stage:
        stage.brain.queue = [say("I remember the word heliotrope-41.")]
        sid = stage.session()
        assert stage.turn_of(sid, "Remember a word.")["b"]["outcome"] == "completed"
        stage.brain.queue = [ask(stage.tools.shell("sleep 988; echo over"))]
        stage.daemon.call("send", sid, text="Sleep a little.")
        wait_for(lambda: any("sleep 988" in c for c in marked(sid).values()), 60, "the tool runs")
        old = set(marked(sid))
        requests = len(stage.model.requests)

        stage.daemon.kill()
        stage.daemon.start()
        assert not (old & set(marked(sid))), f"of the old boot live {marked(sid)}"
        (cut,) = stage.daemon.events(sid, "turn.interrupted")
        assert cut["b"]["cause"] == "crash", cut
        assert len(stage.model.requests) == requests, "nobody asked for it"

        stage.brain.rest = say("It was heliotrope-41.")
        done = stage.turn_of(sid, "Which word was it?")
        assert done["b"]["outcome"] == "completed", done
        body = stage.brain.asked[-1].body.decode()
        assert "heliotrope-41" in body, "the old conversation is in the request"
        assert "Which word was it?" in body
        stage.daemon.verified()
