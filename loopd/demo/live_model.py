"""The main job on real input: a real model, left alone with a goal, and what loopd does about it."""

from __future__ import annotations

import time

from loopd.demo.stage import Stage, StoryFailed, check, describe, one_line

GOAL = "Fix the failing tests of the project until all 100 pass."
GAP_MS = 200
TURNS_AT_MOST = 60
QUIET_S = 3.0
"""Fifteen continuation gaps in which no further request may reach the model."""


def play(stage: Stage, *, base_url: str, model: str, api_key_env: str | None, temperature_milli: int) -> None:
    """Host a chat session on the endpoint and follow it until its gate closes.

    Raises:
        StoryFailed: nothing was detected in `TURNS_AT_MOST` turns, or a turn started afterwards.
    """
    stage.say(f"A real model ({model}) with the goal {GOAL!r}.")
    stage.say("Nobody watches it. Its answers are its own.")
    stage.chapter("turn after turn")
    created = stage.client.call(
        {
            "t": "session.create",
            "driver": {
                "kind": "chat",
                "base_url": base_url,
                "model": model,
                "api_key_env": api_key_env,
                "temperature_milli": temperature_milli,
                "max_tokens": 200,
                "context_bytes": 12_000,
                "tools": False,
            },
            "name": "live",
            "goal": GOAL,
            "preset": "published",
            "set": {"continuation.min_gap_ms": GAP_MS},
        }
    )
    stage.sid = created["sid"]

    def closed(seen: list[dict[str, object]]) -> bool:
        if sum(event["k"] == "turn.started" for event in seen) > TURNS_AT_MOST:
            raise StoryFailed(f"the model did not degenerate in {TURNS_AT_MOST} turns; its answers are above")
        return (
            any(event["k"] == "degeneration.detected" for event in seen) and seen[-1]["k"] != "turn.started"
        )

    stage.expect("the model degenerates and is caught", describe, closed)
    found = next(e["b"] for e in stage.events if e["k"] == "degeneration.detected")
    stage.chapter("caught")
    for line in found["evidence"]:
        stage.say(f"   evidence: {one_line(line, 100)}")
    why = stage.ask("why")
    hold = next(h for h in why["holds"] if h["kind"] == "Degeneration")
    minutes = (hold["until_ms"] - hold["since_ms"]) / 60_000
    stage.say(f"   gate {why['gate']}: {hold['kind']} by {hold['by']}, for {minutes:.0f} min", "bad")

    stage.chapter(f"{QUIET_S:g} s later: no further request has reached the model")
    turns = sum(e["k"] == "turn.started" for e in stage.events)
    time.sleep(QUIET_S)
    later = stage.watch(describe)
    check(not [e for e in later if e["k"] == "turn.started"], "no turn starts while the gate is closed")
    session = stage.ask("session.get")
    check(session["turns"] == turns and session["turn"] is None, "nothing runs while the gate is closed")
    verified = stage.client.call({"t": "verify"})
    check(verified["ok"], "the whole journal verifies")
    tokens = session["tokens"]
    stage.say(f"   turns run          {turns:>9,}")
    stage.say(
        f"   tokens used        {tokens['input'] + tokens['output']:>9,}   of them for nothing: {tokens['barren']:,}"
    )
    stage.say(f"   last answer        {one_line(_last_text(stage), 100)!r}")


def _last_text(stage: Stage) -> str:
    steps = [e["b"] for e in stage.events if e["k"] == "turn.step"]
    return str(steps[-1].get("text", "")) if steps else ""
