"""A real coding agent on a real small model, with a goal that it cannot reach; and what loopd does about it."""

from __future__ import annotations

import time
from typing import Any, Protocol

from loopd.demo.live_model import GAP_MS, GOAL
from loopd.demo.stage import Stage, StoryFailed, check, describe, one_line
from loopd.drivers import marks

TURNS_AT_MOST = 15
QUIET_S = 3.0
GONE_S = 7.0
"""What the agent and its tools get to end: five seconds of grace, and two."""
CONTEXT_TOKENS = 8_192
"""The window of the small model."""


class Counts(Protocol):
    """A relay that counts; see `loopd.testing.demo_real.Relay`."""

    requests: int
    url: str


def play(stage: Stage, *, agent: str, relay: Counts, model: str) -> None:
    """Host the agent on the model, with default settings but for the gaps between turns.

    Raises:
        StoryFailed: it was not warned, not stopped in `TURNS_AT_MOST` turns, or went on afterwards.
    """
    stage.chapter(f"a real agent ({agent}) on the same model, with the same goal")
    workspace = stage.data / "work"
    workspace.mkdir(exist_ok=True)
    before = relay.requests
    stage.command(
        f"loopctl new --driver acp --agent {agent} --base-url {relay.url} --model {model} --goal '{GOAL}'"
    )
    created = stage.client.call(
        {
            "t": "session.create",
            "driver": {
                "kind": "acp",
                "agent": agent,
                "base_url": relay.url,
                "model": model,
                "context_tokens": CONTEXT_TOKENS,
            },
            "name": "agent",
            "goal": GOAL,
            "workspace": str(workspace),
            # The pauses that default settings make between turns without a tool call would take hours here.
            "set": {"continuation.min_gap_ms": GAP_MS, "continuation.backoff_s": []},
        }
    )
    stage.turn_to(created["sid"])

    def closed(seen: list[dict[str, Any]]) -> bool:
        if sum(event["k"] == "turn.started" for event in seen) > TURNS_AT_MOST:
            raise StoryFailed(f"the agent was not stopped in {TURNS_AT_MOST} turns; its answers are above")
        ended = any(event["k"] in {"turn.completed", "turn.interrupted"} for event in seen[-4:])
        return ended and any(e["b"]["verdict"] == "close" for e in seen if e["k"] == "degeneration.detected")

    stage.expect("the agent goes in circles and is stopped", describe, closed)
    found = [event["b"] for event in stage.events if event["k"] == "degeneration.detected"]
    turns = sum(event["k"] == "turn.started" for event in stage.events)
    steps = sum(event["k"] == "turn.step" for event in stage.events)
    stage.chapter(f"caught after {turns} turns")
    check(found[0]["verdict"] != "close", "the agent was warned before it was stopped")
    for line in found[-1]["evidence"]:
        stage.say(f"   evidence: {one_line(line, 100)}")

    asked = relay.requests
    time.sleep(QUIET_S)
    later = stage.watch(describe)
    check(not [e for e in later if e["k"] == "turn.started"], "no turn starts while the gate is closed")
    check(relay.requests == asked, f"no request reaches the model afterwards, not {relay.requests - asked}")
    session = stage.ask("session.get")
    tokens = session["tokens"]
    stage.say(
        f"   warned             by {found[0]['rule']} ({found[0]['score']} {found[0].get('unit', 'turns')})"
    )
    stage.say(
        f"   stopped            by {found[-1]['rule']} ({found[-1]['score']} {found[-1].get('unit', 'turns')})"
    )
    stage.say(f"   turns, steps       {turns:>9,} {steps:>6,}")
    stage.say(f"   requests           {asked - before:>9,}   at the model, side calls of the agent included")
    stage.say(
        f"   tokens used        {tokens['input'] + tokens['output']:>9,}   of them for nothing: {tokens['barren']:,}"
    )

    mark = f"LOOPD_SESSION={stage.sid}".encode()
    running = _processes(mark)
    stage.command("loopctl end agent")
    stage.ask("session.end", reason="the demonstration is over")
    limit = time.monotonic() + GONE_S
    while _processes(mark) and time.monotonic() < limit:
        time.sleep(0.05)
    check(not _processes(mark), f"no process of the agent is left {GONE_S:g} s later")
    stage.say(f"   processes of the agent: {len(running)}, after its end 0", "good")
    check(stage.client.call({"t": "verify"})["ok"], "the whole journal verifies")


def _processes(mark: bytes) -> list[int]:
    return marks.marked(lambda variables: mark in variables)
