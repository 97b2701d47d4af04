"""A daemon with a hundred thousand sessions and a million turns behind it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from loopd.engine.clock import SystemClock
from loopd.engine.maintenance import HELD_MAX, Maintenance
from loopd.engine.ports import Driver
from loopd.engine.router import Router
from loopd.store import SqliteStore
from loopd_protocol.errors import Refused
from tests.bench.multitude import write
from tests.e2e.harness import House
from tests.engine.test_maintenance import Disk

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


@pytest.mark.anyio
async def test_a_full_disk_closes_the_house_for_a_hundred_thousand_sessions(tmp_path: Path) -> None:
    path, disk = tmp_path / "journal.sqlite", Disk(free=1 << 40)
    write(path, sessions=SESSIONS, turns=1)

    async def start(store: SqliteStore, tasks: anyio.abc.TaskGroup) -> tuple[Router, Maintenance]:
        router = Router(
            store=store,
            clock=SystemClock(),
            make_driver=no_driver,
            on_delta=lambda *_: None,
            max_sessions=10**6,
        )
        await router.open(tasks, frozen=False)
        return router, Maintenance(router, disk, lambda: store.refused or refused)

    refused: Refused | None = None
    async with await SqliteStore.open(path, boot="b2", now_ms=1) as store, anyio.create_task_group() as tasks:
        router, watch = await start(store, tasks)
        await watch.open(dropped=False)
        assert router.closed_by is None
        disk.free, refused = 0, Refused("storage_full", "no room")
        before = path.stat().st_size + path.with_name(f"{path.name}-wal").stat().st_size
        began = time.monotonic()
        tasks.start_soon(watch.run)
        watch.look()
        with anyio.fail_after(60):
            while router.closed_by is None:
                await anyio.lowlevel.checkpoint()
            closed_s = time.monotonic() - began
            while sum("Maintenance" in row.holds for row in router.rows.values()) < HELD_MAX:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        held_s = time.monotonic() - began
        grown = path.stat().st_size + path.with_name(f"{path.name}-wal").stat().st_size - before
        print(
            f"closed after {closed_s * 1_000:.0f} ms, {HELD_MAX} holds after {held_s:.1f} s, {grown >> 20} MiB"
        )
        assert closed_s < 2
        assert grown < disk.size_bytes / 2, "it fits into the ballast"
        tasks.cancel_scope.cancel()
    disk.free = 32 << 20  # room to start with, none for the ballast
    async with await SqliteStore.open(path, boot="b3", now_ms=1) as store, anyio.create_task_group() as tasks:
        router, watch = await start(store, tasks)
        await watch.open(dropped=False)
        assert router.closed_by == "maintenance", "for all of them"
        tasks.cancel_scope.cancel()


def no_driver(sid: str, spec: Mapping[str, Any], workspace: str | None) -> Driver:
    raise AssertionError(f"{sid} takes a turn: {spec}, {workspace}")
