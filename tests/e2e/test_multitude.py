"""A daemon with a hundred thousand sessions and a million turns behind it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.bench.multitude import write
from tests.e2e.harness import House

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(900)]

SESSIONS, TURNS = 100_000, 10
READY_S = 10.0
RESIDENT_MIB = 400


def resident_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1_024
    raise AssertionError("the kernel does not say")


def test_a_million_turns_of_a_hundred_thousand_sessions_are_no_burden_at_boot(house: House) -> None:
    daemon = house.daemon()
    daemon.data.mkdir(mode=0o700)
    events = write(daemon.data / "journal.sqlite", sessions=SESSIONS, turns=TURNS)
    assert events > 3_000_000
    began = time.monotonic()
    daemon.start(within_s=120)
    took_s = time.monotonic() - began
    status = daemon.ctl("status")
    assert status["sessions"]["live"] == status["sessions"]["closed"] == SESSIONS
    assert took_s < READY_S
    assert resident_mib(daemon.pid) < RESIDENT_MIB
    assert daemon.call("turn.get", "s77777", n=5)["outcome"] == "completed"
    daemon.ctl("unsuspend", "s77777")
    assert daemon.ctl("why", "s77777")["gate"] == "open"
    proof = daemon.call("verify", "s12345")
    assert [
        f for f in proof["findings"] if f["check"] != "I9"
    ] == []  # their states are made up, their chains are not
    assert resident_mib(daemon.pid) < RESIDENT_MIB
