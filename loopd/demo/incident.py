"""The incident: "16/100. Not complete. No action.", 1,395 times in eleven hours, replayed in fast time.

No clock is scaled: the gap between continuations is 50 ms by configuration, the cron job is fired by
`cron run`, and the turns come from a trajectory file that this module writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loopd.demo.stage import Stage, check, describe, one_line

FILLER = "16/100. Not complete. No action."
INCIDENT_TURNS = 1_395
INCIDENT_HOURS = "10 h 53 m"
GAP_MS = 50
TURN_TOKENS = {"input_tokens": 2_900, "output_tokens": 13}
"""What a turn of the script reports; the saving is counted in these."""
FIRST_RUN = SECOND_RUN = 5
CRON_WAKES_WHILE_SUSPENDED = 3


def script(path: Path) -> None:
    """Write the trajectory that the agent plays: two runs of the filler, then an answer to a person."""
    lines: list[dict[str, Any]] = [
        {
            "t": "trajectory",
            "v": 1,
            "id": "incident",
            "source": "loopd demo",
            "task": "raise the benchmark score to 100/100",
            "outcome": "unknown",
            "label": "stuck",
            "steps": FIRST_RUN + SECOND_RUN + 1,
        }
    ]
    for n in range(1, FIRST_RUN + SECOND_RUN + 1):
        trigger = "cron" if n == FIRST_RUN + 1 else "continuation"
        lines.append(
            {"t": "step", "n": n, "trigger": trigger, "text": FILLER, "calls": [], "usage": TURN_TOKENS}
        )
    give_up = {
        "id": "c1",
        "name": "update_goal",
        "args": {"status": "infeasible", "note": "16/100 is what this machine can reach"},
        "ok": True,
        "result": "noted",
    }
    lines.append(
        {
            "t": "step",
            "n": FIRST_RUN + SECOND_RUN + 1,
            "trigger": "human",
            "text": "You are right: this machine cannot reach 100. I close the goal as infeasible.",
            "calls": [give_up],
            "usage": TURN_TOKENS,
        }
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def count(events: list[dict[str, Any]], kind: str) -> int:
    """How many events of a kind there are."""
    return sum(event["k"] == kind for event in events)


def play(stage: Stage) -> None:
    """Play the incident and hold it to its promises.

    Raises:
        StoryFailed: something did not happen.
    """
    path = stage.data / "incident.jsonl"
    script(path)
    stage.say(f"The real incident: an agent answered {FILLER!r}")
    stage.say(
        f"{INCIDENT_TURNS:,} times in {INCIDENT_HOURS}, one model call each. Here it is again, under loopd."
    )

    stage.chapter("an agent with a goal that it cannot reach")
    stage.command(
        "loopctl new --driver scripted --script incident.jsonl --preset published --goal … "
        f"--set continuation.min_gap_ms={GAP_MS}"
    )
    created = stage.client.call(
        {
            "t": "session.create",
            "driver": {"kind": "scripted", "script": str(path)},
            "name": "benchmark",
            "goal": "raise the benchmark score to 100/100",
            "preset": "published",
            "set": {"continuation.min_gap_ms": GAP_MS},
        }
    )
    stage.sid = created["sid"]
    stage.expect("the gate closes", describe, lambda seen: count(seen, "gate.changed") == 1)
    found = next(e["b"] for e in stage.events if e["k"] == "degeneration.detected")
    check(
        found["rule"] == "repeated_text" and found["score"] == FIRST_RUN,
        "caught after exactly 5 identical turns",
    )
    check(count(stage.events, "turn.started") == FIRST_RUN, "no further turn after the fifth")
    for line in found["evidence"]:
        stage.say(f"          evidence: {one_line(line)}", "quiet")

    stage.chapter("why does it stand still, and until when?")
    stage.command("loopctl why benchmark")
    why = stage.ask("why")
    hold = why["holds"][0]
    check(hold["kind"] == "Degeneration" and hold["until_ms"], "the hold has a deadline")
    minutes = (hold["until_ms"] - hold["since_ms"]) / 60_000
    stage.say(
        f"   gate {why['gate']}: {hold['kind']} by {hold['by']}, for {minutes:.0f} min ({hold['reason']})"
    )

    stage.chapter("a cron job wakes it: the gate opens, and the agent relapses")
    stage.command(
        "loopctl cron put benchmark nightly '0 3 * * *' 'Check the score.' ; loopctl cron run benchmark nightly"
    )
    stage.ask("cron.put", job="nightly", expr="0 3 * * *", text="Check the score.")
    stage.ask("cron.run", job="nightly")
    stage.expect("the relapse is detected", describe, lambda seen: count(seen, "degeneration.detected") == 2)
    stage.expect("the gate closes again", describe, lambda seen: count(seen, "gate.changed") == 3)
    relapse = [e["b"] for e in stage.events if e["k"] == "degeneration.detected"][1]
    check(relapse["relapse"] == 1, "the second time counts as a relapse of the same loop")

    stage.chapter("kill -9 in the middle of it: nothing is forgotten")
    before = stage.ask("why")
    pid = stage.kill_and_restart()
    after = stage.ask("why")
    check(after["holds"] == before["holds"], "the hold and its deadline survive kill -9")
    check(after["goal"] == before["goal"], "the goal survives kill -9")
    stage.say(f"   daemon {pid} killed, started again: same hold, same deadline, same goal", "good")

    stage.chapter("an operator suspends it, with proof")
    stage.command('loopctl suspend benchmark --reason "cost review"')
    suspended = stage.ask("suspend", reason="cost review")
    for _ in range(CRON_WAKES_WHILE_SUSPENDED):
        stage.ask("cron.run", job="nightly")
    stage.watch(describe)
    stage.command(f"loopctl verify benchmark --suspended-since {suspended['seq']}")
    proof = stage.ask("verify", suspended_since=suspended["seq"])
    check(proof["ok"], "the journal proves that no turn started since the suspension")
    stage.say(
        f"   proof: since event {suspended['seq']} no turn has started, although cron fired "
        f"{CRON_WAKES_WHILE_SUSPENDED} times",
        "good",
    )

    stage.chapter("a person writes: the suspension is lifted, all that waited is one turn")
    stage.command("loopctl send benchmark 'It cannot be reached here. Close the goal.'")
    started = count(stage.events, "turn.started")
    stage.ask("send", text="It cannot be reached here. Close the goal.")
    stage.expect(
        "the agent closes its goal",
        describe,
        lambda seen: (
            any(e["k"] == "goal.changed" and e["b"]["status"] == "infeasible" for e in seen)
            and count(seen, "turn.completed") == count(seen, "turn.started")
        ),
    )
    check(count(stage.events, "turn.started") == started + 1, "exactly one turn for everything that waited")
    last = [e["b"] for e in stage.events if e["k"] == "turn.started"][-1]
    check(last["trigger"] == "human", "the person's message leads the batch")

    stage.chapter("the numbers")
    verified = stage.client.call({"t": "verify"})
    check(verified["ok"], "the whole journal verifies")
    turns = count(stage.events, "turn.started")
    saved = (INCIDENT_TURNS - turns) * sum(TURN_TOKENS.values())
    stage.say(f"   turns run          {turns:>9,}   of {INCIDENT_TURNS:,} in the incident")
    stage.say(
        f"   tokens saved       {saved:>9,}   at {sum(TURN_TOKENS.values()):,} a turn, as the script reports them"
    )
    stage.say(f"   journal            {verified['head']:>9,}   events, hash chain verified")
    check(turns == FIRST_RUN + SECOND_RUN + 1, "11 turns instead of 1,395")
