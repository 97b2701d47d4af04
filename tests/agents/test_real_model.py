"""A small real model, which degenerates by itself: alone and inside a real agent, it is warned and then stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopd.testing import realmodel
from loopd.testing.realagents import bin_folder
from tests.agents.conftest import ASKED, need
from tests.agents.stage import GAP_MS
from tests.e2e.harness import Daemon, House

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(600)]

TOP = Path(__file__).resolve().parents[2]
GOALS = (
    "make all tests pass",
    "Fix the failing tests of the project until all 100 pass.",
    "write the report",
)
PACE = {"continuation.min_gap_ms": GAP_MS, "continuation.backoff_s": []}
"""Default rules; without the pauses of up to an hour between turns that call no tool."""


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The server of the small model; its `base_url`."""
    if not os.environ.get(ASKED):
        pytest.skip("needs a real model: run `make test-agents`")
    folder = TOP / realmodel.FOLDER
    if not (folder / "installed").exists():
        pytest.skip("the real model is not installed (220 MB): run `make test-agents`")
    script = TOP / "loopd" / "testing" / "realmodel_server.py"
    # One thread for two cores: llama.cpp's threads spin while they wait for each other, and any other load stalls them.
    threads = max(1, (os.cpu_count() or 2) // 2)
    process = subprocess.Popen(
        [str(folder / "venv" / "bin" / "python"), "-I", str(script), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if line.startswith(b'{"ready"'))
        yield json.loads(ready)["url"]
    finally:
        process.stdin.close()  # it ends with its stdin
        process.wait(10)
        process.stdout.close()


def degenerate(daemon: Daemon, driver: dict[str, Any], goal: str, turns: int, **fields: Any) -> None:
    """Leave a session alone with a goal: it is warned first, then stopped within so many turns."""
    created = daemon.call("session.create", driver=driver, goal=goal, set=PACE, **fields)
    sid = str(created["sid"])
    daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", within_s=280)
    verdicts = [event["b"]["verdict"] for event in daemon.events(sid, "degeneration.detected")]
    said = [event["b"].get("text", "")[:80] for event in daemon.events(sid, "turn.step")]
    acted = [verdict for verdict in verdicts if verdict != "warn"]  # which only tells
    assert acted[0] == "nudge", (verdicts, said)
    assert "close" in acted[1:], (verdicts, said)
    assert len(daemon.events(sid, "turn.started")) <= turns, (verdicts, said)
    daemon.call("session.end", sid)


@pytest.mark.parametrize("goal", GOALS)
def test_a_chat_session_is_warned_and_stopped_within_ten_turns(model: str, house: House, goal: str) -> None:
    spec = {"kind": "chat", "base_url": model, **realmodel.SPEC}
    degenerate(house.daemon().start(), spec, goal, 10)


@pytest.mark.parametrize("agent", ["goose", "pi"])
def test_a_real_agent_is_warned_and_stopped_within_fifteen_turns(
    model: str, house: House, agent: str
) -> None:
    need(agent)
    workspace = house.folder / "work"
    workspace.mkdir()
    daemon = house.daemon(env={"PATH": f"{bin_folder()}{os.pathsep}{os.environ['PATH']}"}).start()
    spec = {"kind": "acp", "agent": agent, "base_url": model, "model": "smollm2", "context_tokens": 8_192}
    degenerate(daemon, spec, GOALS[1], 15, workspace=str(workspace))


def test_demo_real_tells_of_a_real_agent_too(model: str) -> None:
    need("goose")
    told = subprocess.run(
        [sys.executable, "-m", "loopd.testing.demo_real", "--folder", TOP / realmodel.FOLDER],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "after its end 0" in told.stdout
    assert "All of it happened" in told.stdout
