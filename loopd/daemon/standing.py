"""What a daemon says of itself: the answer to `daemon.status`, and its gauges."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loopd
from loopd.telemetry import Gauges

if TYPE_CHECKING:
    from loopd.daemon.house import Daemon


def status(house: Daemon) -> dict[str, Any]:
    """The answer to `daemon.status`."""
    assert house.router is not None
    assert house.store is not None
    live = [row for row in house.router.rows.values() if row.status == "live"]
    holds: dict[str, int] = {}
    for row in live:
        for kind in row.holds.split(",") if row.holds else ():
            holds[kind] = holds.get(kind, 0) + 1
    return {
        "version": loopd.__version__,
        "boot": house.boot,
        "pid": os.getpid(),
        "uptime_ms": house.clock.monotonic_ms() - house.started_ms,
        "log": house.store.cursor_log,
        "head": house.store.head,
        "frozen": house.router.frozen,
        "draining": house.router.draining,
        "ready": not house.health(),
        "reasons": list(house.health()),
        "sessions": {
            "live": len(live),
            "ended": len(house.router.rows) - len(live),
            "running": sum(1 for row in live if row.running),
            "closed": sum(1 for row in live if row.holds),
        },
        "holds": holds,
        "recovered": house.router.boot.recovered,
        "memory": {
            "resident_bytes": resident_bytes(),
            "sessions": len(house.router.residents),
            "idle_sessions": house.router.residents.idle,
            "idle_bytes": house.router.residents.idle_bytes,
            "idle_bytes_max": house.router.residents.idle_bytes_max,
        },
        "tasks": len(asyncio.all_tasks()),
        "socket": os.path.abspath(house.socket),
        "http": house.http,
        "data": str(house.data),
        # Said aloud, because people expect otherwise: see docs/explanation/security.md.
        "isolation": "none" if house.run_as is None else "user",
        "agents_user": None if house.run_as is None else house.run_as.name,
        "agents_socket": os.path.abspath(house.agent_door.path),
        "agents_refused": house.lineage is not None and sys.platform == "linux",
        # How far a verification that runs now has come: what, done, of how many.
        "verifying": None if house.store is None else house.store.verifying,
    }


def resident_bytes() -> int | None:
    """Memory that the process occupies; None where the system does not say (it is no Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def gauges(house: Daemon) -> Gauges:
    """What the metrics page shows of the daemon ithouse."""
    assert house.router is not None
    assert house.store is not None
    assert house.bus is not None
    return Gauges(
        head=house.store.head,
        uptime_ms=house.clock.monotonic_ms() - house.started_ms,
        next_deadline_ms=house.router.timers.next_ms(),
        frozen=house.router.frozen,
        draining=house.router.draining,
        bus_subscribers=0 if house.server is None else house.server.fanout.subscribers,
        bus_lag_max=0 if house.server is None else house.server.fanout.lag_max,
        wal_bytes=house.store.commits.wal_bytes,
        loop_lag_s=house.lag.max_s,
        resident_bytes=resident_bytes(),
        sessions_in_memory=len(house.router.residents),
        idle_bytes=house.router.residents.idle_bytes,
        anchored_ms=None if house.anchoring is None else house.anchoring.at_ms,
        anchor_behind=None
        if house.anchoring is None or house.store.signer is None
        else house.anchoring.behind,
    )
