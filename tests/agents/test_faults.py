"""A model that fails behind a real agent: the turn's record names it, and no rule takes it for work or for a loop.

Agents hide their model's failures: behind `end_turn` without a word, behind prose, behind minutes of silence.
loopd's loopback proxy stands between agent and endpoint and sees what really happened.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from loopd.testing.endpoint import Reply, fail, say
from tests.agents.stage import Stage, marked, on_stage, wait_for
from tests.e2e.harness import House

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(300)]

TURNS = 3
STRICT: dict[str, Any] = {
    "rules.repeated_text.threshold": 2,
    "rules.barren_streak.threshold": 2,
    "rules.progress_stall.threshold": 2,
    "gate.provider_backoff_ms": 100,
    "gate.provider_backoff_max_ms": 100,
}
"""Two equal or barren turns close the gate: three failed ones must not."""
SILENCE_S = 12
OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in "
        "9000 tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, and the names that the record may give to it."""

    reply: Reply
    causes: frozenset[str]
    turns: int = TURNS


CASES: dict[str, Case] = {
    "hang": Case(
        reply=Reply(hang_after=0, text="x"),
        causes=frozenset({"silence", "timeout"}),
        turns=2,
    ),
    "500": Case(reply=fail(500), causes=frozenset({"unavailable", "server_error", "overloaded"}), turns=2),
    "401": Case(reply=fail(401, message="Incorrect API key provided"), causes=frozenset({"auth"})),
    "overflow": Case(
        reply=Reply(status=400, body=json.dumps(OVERFLOW)), causes=frozenset({"context_overflow"})
    ),
    "prose": Case(
        reply=say("We're currently experiencing high demand, please try again later."),
        causes=frozenset({"error_prose", "overloaded"}),
    ),
}


def failing(stage: Stage, reply: Reply, turns: int, **fields: Any) -> tuple[str, list[dict[str, Any]]]:
    """A session with a goal, whose first turn works and whose next ones meet the failure."""
    sid = stage.session(
        preset="published", driver={"proxy": True, "silence_s": SILENCE_S}, set={**STRICT, **fields}
    )
    assert stage.turn_of(sid, "Begin.")["b"]["outcome"] == "completed"
    assert barren(stage, sid) == 1, "its first turn said something, and did nothing"
    stage.brain.dead = reply
    return sid, [stage.turn_of(sid, f"Go on, part {n}.", within_s=120)["b"] for n in range(turns)]


def barren(stage: Stage, sid: str) -> int:
    """Turns in a row that came to nothing."""
    return int(stage.daemon.call("session.get", sid)["barren_streak"])


@pytest.mark.parametrize("name", CASES)
def test_a_failing_model_is_named_and_is_neither_progress_nor_a_loop(
    agent: str, house: House, name: str
) -> None:
    case = CASES[name]
    with on_stage(agent, house) as stage:
        sid, ends = failing(stage, case.reply, case.turns)
        assert {end["outcome"] for end in ends} == {"model_error"}, ends
        assert {end["cause"] for end in ends} <= case.causes, ends
        assert not stage.daemon.events(sid, "degeneration.detected")
        assert barren(stage, sid) == 1, "what failed counts neither for nor against it"
        stage.brain.dead = None
        stage.brain.rest = say("It works again.")
        assert stage.turn_of(sid, "And now?")["b"]["outcome"] == "completed"
        stage.daemon.verified(sid)


def test_429_with_retry_after_closes_the_gate_for_that_long(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        sid = stage.session(
            goal="write the report", preset="published", driver={"proxy": True, "silence_s": 30}
        )
        stage.daemon.until(sid, "turn.completed", within_s=60)
        stage.brain.dead = fail(429, retry_after="120", message="Rate limit reached for requests")
        closed = stage.daemon.until(sid, "gate.changed", lambda b: b["cause"] == "provider", within_s=120)
        hold = closed["b"]["added"]
        assert hold["kind"] == "ProviderBackoff", hold
        assert hold["until_ms"] - closed["ts"] > 60_000, hold
        last = stage.daemon.events(sid, "turn.completed")[-1]["b"]
        assert (last["outcome"], last["cause"]) == ("model_error", "rate_limited"), last
        assert stage.quiet(sid) == 0, "nobody asks again before the time"
        assert not stage.daemon.events(sid, "degeneration.detected")


def test_an_empty_answer_that_was_billed_is_barren(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        sid, ends = failing(stage, Reply(text="", output_tokens=7), 2)
        assert {end["outcome"] for end in ends} == {"empty"}, ends
        found = [event["b"]["rule"] for event in stage.daemon.events(sid, "degeneration.detected")]
        assert found, "two barren turns close this gate"


def test_an_empty_answer_that_nobody_billed_is_a_fault_of_the_model(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        sid, ends = failing(stage, Reply(text="", output_tokens=0), TURNS)
        assert {end["outcome"] for end in ends} == {"model_error"}, ends
        assert not stage.daemon.events(sid, "degeneration.detected")


def test_an_agent_that_ignores_its_cancellation_is_killed(agent: str, house: House) -> None:
    with on_stage(agent, house) as stage:
        sid = stage.session(driver={"silence_s": 600})
        assert stage.turn_of(sid, "Begin.")["b"]["outcome"] == "completed"
        # Some agents sleep through a cancellation while they wait for what Retry-After asked for.
        stage.brain.dead = fail(429, retry_after="120")
        requests = len(stage.model.requests)
        stage.daemon.call("send", sid, text="Go on.")
        wait_for(lambda: len(stage.model.requests) > requests, 60, "the agent asks its model")
        stage.daemon.call("suspend", sid, mode="interrupt", reason="enough")
        wait_for(lambda: not marked(sid), 7, "the agent is gone")
        stage.daemon.verified(sid)
