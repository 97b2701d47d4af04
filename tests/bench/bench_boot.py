"""How long until the directory of all sessions is there: `python -m tests.bench.bench_boot [--quick]`.

Against plain `sqlite3` fetching the same rows with all their columns, in the same run.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from msgspec.structs import replace

from loopd.core.evolution import evolve
from loopd.core.state import Session
from loopd.core.writes import Append, Fact
from loopd.store import SqliteStore, opening
from loopd_protocol import events as ev
from tests.bench.figures import report
from tests.bench.journal_load import AT_MS, seasoned

QUICK = "--quick" in sys.argv
ROUNDS = 5
SIZES = (10_000,) if QUICK else (10_000, 100_000)
GROUP = 2_000


def _creation(num: int, state: Session) -> Append:
    created = ev.SessionCreated(
        sid=f"ses_{num:08}", num=num, name=f"s{num}", driver={"kind": "scripted"}, preset="published"
    )
    born = evolve(None, created, ss=1, at_ms=AT_MS)
    # The state of a session that has worked for a while, so that rows have their usual size.
    after = replace(state, sid=born.sid, num=num, name=born.name, ss=1)
    return Append(sid=born.sid, at_ms=AT_MS, facts=(Fact(event=created, ss=1),), after=after)


async def _fill(path: Path, count: int) -> None:
    state = seasoned()
    async with await SqliteStore.open(path, boot="fill") as store:
        for first in range(1, count + 1, GROUP):
            numbers = range(first, min(first + GROUP, count + 1))
            await asyncio.gather(*(store.submit(_creation(num, state)) for num in numbers))


async def _boot(path: Path, count: int) -> tuple[float, float]:
    """Milliseconds to open, and to have all rows."""
    begun = time.perf_counter()
    store = await SqliteStore.open(path, boot="bench")
    opened = time.perf_counter()
    rows = await store.directory()
    done = time.perf_counter()
    assert len(rows) == count
    await store.aclose()
    return (opened - begun) * 1e3, (done - opened) * 1e3


def _raw(path: Path, count: int) -> float:
    connection = opening.connect_reader(path)
    begun = time.perf_counter()
    rows = connection.execute("SELECT * FROM session").fetchall()
    took = (time.perf_counter() - begun) * 1e3
    assert len(rows) == count
    connection.close()
    return took


def main() -> None:
    """Measure all sizes."""
    sys.setswitchinterval(0.0005)
    for count in SIZES:
        with tempfile.TemporaryDirectory(prefix="loopd-bench-") as name:
            path = Path(name) / "journal.db"
            uvloop.run(_fill(path, count))
            booted, raw = [], []
            for _ in range(ROUNDS):
                booted.append(uvloop.run(_boot(path, count)))
                raw.append(_raw(path, count))
        report(f"boot: open with {count:,} sessions", [opened for opened, _ in booted], "ms")
        report(f"boot: directory of {count:,} sessions", [took for _, took in booted], "ms")
        report(f"boot: plain fetchall of {count:,} session rows", raw, "ms")
        report(
            f"boot: directory against fetchall, {count:,} sessions",
            [took / r for (_, took), r in zip(booted, raw, strict=True)],
            "x",
            goal=0.5 if count == 100_000 else None,
        )


if __name__ == "__main__":
    main()
