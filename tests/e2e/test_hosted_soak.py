"""Many hosted agents for a long time: nothing grows, nothing is lost, nothing stays behind.

`make soak-agents MINUTES=30` runs it for half an hour; LOOPD_SOAK_MINUTES is the same by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from loopd.testing.acp_quirks import Json, tool
from tests.e2e.audit import Journal
from tests.e2e.harness import NO_RULES, CallFailed, Daemon, House
from tests.e2e.hosting import Hosted, hosted, marked, soon

pytestmark = [pytest.mark.process, pytest.mark.long]
AGENTS = 20
MINUTES = float(os.environ.get("LOOPD_SOAK_MINUTES", "2"))
SETTLED = 0.25
"""The part of the run after which memory must not grow any more."""
GROWTH_BYTES = 24 * 1024 * 1024
TURNS: list[list[Json]] = [
    [
        {"say": "looking at it"},
        tool(run="sleep 0.1", input={"command": "make"}, output="made"),
        {"say": "made"},
    ],
    [{"think": "hm"}, tool(run="sleep 0.3", setsid=True, input={"command": "make test"}), {"say": "tested"}],
    [{"stderr": 20_000}, {"say": "noted"}],
    [{"long": 200_000}, tool(ask=True, input={"command": "git push"}, output="pushed"), {"say": "pushed"}],
    [{"raw": "some banner"}, {"say": "as ever"}, {"after": [{"say": "too late"}]}],
    [tool("read_file", kind="read", input={"path": "a"}, output="x" * 9_000), {"say": "read"}],
    [tool(run="sleep 3", setsid=True, input={"command": "sleep 3"}), {"say": "slept"}],
]
SETTINGS = {"continuation.min_gap_ms": 2_000, "stop.enabled": False, **NO_RULES}


def test_twenty_hosted_agents_run_flat_with_crons_and_suspensions_and_lose_nothing(house: House) -> None:
    daemon = house.daemon(env={"LOOPD_LOG_LEVEL": "warning"}).start()
    agents = [
        hosted(
            house,
            daemon,
            name=f"agent{n}",
            turns=TURNS[n % 7 :] + TURNS[: n % 7],
            preset="published",
            set=SETTINGS,
        )
        for n in range(AGENTS)
    ]
    for agent in agents[::4]:
        daemon.call("goal.set", agent.sid, text="keep the house in order")
    for agent in agents:
        daemon.call("cron.put", agent.sid, job="minute", expr="* * * * *", text="a minute has passed")
    sent = _churn(daemon, agents, random.Random(7))
    _quiet(daemon, agents)
    for agent, texts in sent.items():
        heard = "\n".join(agent.prompts())
        assert [text for text in texts if text not in heard] == [], agent.sid
    failed = [e["b"] for e in daemon.events(None, "turn.completed") if e["b"]["outcome"] == "failed"]
    assert failed == []
    for agent in agents:
        daemon.call("session.end", agent.sid)
    assert soon(lambda: not marked("LOOPD_BOOT=*", f"LOOPD_SESSION={agents[0].sid}"), within_s=30)
    assert soon(lambda: not [pid for agent in agents for pid in agent.processes()], within_s=60)
    assert soon(lambda: not _zombies(daemon.pid), within_s=120)
    proof = daemon.client(timeout_s=900).call({"t": "verify"})
    assert proof["ok"] is True, proof
    Journal(daemon.data / "journal.sqlite").check()


def _churn(daemon: Daemon, agents: list[Hosted], dice: random.Random) -> dict[Hosted, list[str]]:
    """Send, suspend, cut and cron until the time is over; returns what was sent to whom."""
    sent: dict[Hosted, list[str]] = {agent: [] for agent in agents}
    suspended: set[str] = set()
    began, samples = time.monotonic(), []
    while (passed := time.monotonic() - began) < MINUTES * 60:
        agent = dice.choice(agents)
        match dice.random():
            case p if p < 0.45:
                text = f"update {sum(map(len, sent.values()))}."
                daemon.call("send", agent.sid, text=text)
                sent[agent].append(text)
                suspended.discard(agent.sid)
            case p if p < 0.65:
                daemon.call("suspend", agent.sid, mode=dice.choice(["after_turn", "interrupt", "kill"]))
                suspended.add(agent.sid)
            case p if p < 0.85 and suspended:
                daemon.call("unsuspend", sid := dice.choice(sorted(suspended)))
                suspended.discard(sid)
            case p if p < 0.95:
                daemon.call("cron.run", agent.sid, job="minute")
            case _:
                daemon.call("interrupt", agent.sid, for_ms=1_000)
        samples.append((passed, _rss(daemon.pid), _descriptors(daemon.pid)))
        time.sleep(0.1)
    settled = [each for each in samples if each[0] > SETTLED * MINUTES * 60]
    first, last = settled[: len(settled) // 4], settled[-len(settled) // 4 :]
    before, after = (sorted(rss for _, rss, _ in part)[len(part) // 2] for part in (first, last))
    files = [max(count for _, _, count in part) for part in (first, last)]
    print(  # the figures of a long run are its result
        f"\n{AGENTS} hosted agents, {MINUTES:g} min: {sum(map(len, sent.values()))} messages, "
        f"{len(daemon.events(None, 'turn.completed'))} turns completed, "
        f"{len(daemon.events(None, 'turn.interrupted'))} interrupted, RSS {before >> 20} → {after >> 20} MiB, "
        f"descriptors {files[0]} → {files[1]}"
    )
    assert after - before < GROWTH_BYTES, (before, after)
    assert files[1] <= files[0] + AGENTS * 8
    return sent


def _quiet(daemon: Daemon, agents: list[Hosted]) -> None:
    """Lift all suspensions and wait until every envelope has had its turn."""
    for agent in agents:
        daemon.call("cron.remove", agent.sid, job="minute")
        daemon.call("goal.clear", agent.sid) if agent in agents[::4] else None
        with contextlib.suppress(CallFailed):  # not suspended
            daemon.call("unsuspend", agent.sid)
        daemon.call("send", agent.sid, text="that was all")

    def done() -> bool:
        rows = daemon.call("session.list")["sessions"]
        return all(row["inbox"] == 0 and row["turn"] is None for row in rows)

    soon(done, within_s=180)


def _rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _zombies(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, owner = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(owner) == parent:
                found.append(int(entry))
    return found
