"""Durable appends through the writer against plain sqlite3, in the same run.

    python -m tests.bench.bench_append [--quick]

Hash chains, projections and encoding are on. The limit is one thread of plain `sqlite3` that puts the
same rows into the same tables with the same pragmas, one transaction for as many rows as there are
producers: no event loop, no futures, no hashing, nothing to build. Rounds alternate; the CPU ratio is
steady under foreign load, the wall ratio is not.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from loopd.core.writes import Append
from loopd.store import SqliteStore, opening
from loopd.store.ledger import JOURNAL
from loopd.store.projection import SESSION
from loopd.store.schema import migrate
from loopd.store.statements import insert_sql
from loopd.store.writer import CHECKPOINT_BYTES
from tests.bench.figures import report
from tests.bench.journal_load import appends

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 5
EVENTS = {1: 400, 20: 4_000, 1_000: 20_000} if QUICK else {1: 2_000, 20: 20_000, 1_000: 60_000}
SIZES = (1_024, 4_096)
BURN_S = 0.002


class Taken(NamedTuple):
    rate: float
    cpu_us: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


async def _produce(store: SqliteStore, batches: list[Append], took: list[float]) -> None:
    clock = time.perf_counter
    for batch in batches:
        begun = clock()
        await store.submit(batch)
        took.append(clock() - begun)


async def _through_writer(path: Path, load: list[list[Append]]) -> Taken:
    store = await SqliteStore.open(path, boot="bench")
    took: list[float] = []
    heard = 0

    def on_commit(events: list[Any]) -> None:
        nonlocal heard
        heard += len(events)

    store.on_commit = on_commit
    count = sum(len(batches) for batches in load)
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(_produce(store, batches, took) for batches in load))
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    assert heard == count == store.head
    await store.aclose()
    cuts = statistics.quantiles(took, n=100)
    return Taken(count / wall, cpu / count * 1e6, cuts[49] * 1e3, cuts[98] * 1e3)


def _rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    connection = opening.connect_reader(path)
    rows = {
        table.name: connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}").fetchall()
        for table in (JOURNAL, SESSION)
    }
    connection.close()
    return rows


def _raw(
    path: Path, rows: dict[str, list[tuple[Any, ...]]], group: int, *, journal_only: bool = False
) -> Taken:
    path.touch()
    connection = opening.connect(str(path))
    migrate(connection)
    # Somebody must fold the log back: SQLite itself, at the size that the writer uses.
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // opening.PAGE_BYTES}")
    journal, session = (insert_sql(table, 1) for table in (JOURNAL, SESSION))
    column = JOURNAL.columns.index("sid")
    number = SESSION.columns.index("num")
    sessions = {row[number]: row for row in rows["session"]}
    all_rows = rows["journal"]
    groups = [all_rows[start : start + group] for start in range(0, len(all_rows), group)]
    begun, cpu = time.perf_counter(), time.process_time()
    for part in groups:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(journal, part)
        if not journal_only:
            nums = {row[column] for row in part}
            connection.executemany(session, [sessions[num] for num in nums])
        connection.execute("COMMIT")
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    connection.close()
    return Taken(len(all_rows) / wall, cpu / len(all_rows) * 1e6)


async def _drained(path: Path, load: list[list[Append]], *, busy: bool) -> float:
    """Events per second of a backlog, with the loop idle or burning slices of Python."""
    store = await SqliteStore.open(path, boot="bench")
    futures = [store.submit(batch) for step in zip(*load, strict=True) for batch in step]
    begun = time.perf_counter()
    while busy and not futures[-1].done():
        until = time.perf_counter() + BURN_S
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)
    await asyncio.gather(*futures)
    wall = time.perf_counter() - begun
    await store.aclose()
    return len(futures) / wall


def _measure(folder: Path, producers: int, size: int) -> None:
    per_producer = EVENTS[producers] // producers
    load = [appends(p, per_producer, size) for p in range(producers)]
    ours, raw, bare = [], [], []
    for number in range(ROUNDS):
        gc.collect()
        path = folder / f"w{number}.db"
        ours.append(uvloop.run(_through_writer(path, load)))
        rows = _rows(path)
        raw.append(_raw(folder / f"r{number}.db", rows, producers))
        bare.append(_raw(folder / f"b{number}.db", rows, producers, journal_only=True))
        for left in folder.iterdir():
            left.unlink()
    name = f"{producers:,} producers, {size // 1024} KB"
    note = f"{EVENTS[producers]} events a round, state of {len(rows['session'][0][-1])} bytes"
    goal = 0.8 if producers == 1_000 else None
    report(f"append: {name}: rate", [t.rate for t in ours], "events/s", better="more", note=note)
    report(f"append: {name}: p50", [t.p50_ms for t in ours], "ms")
    report(f"append: {name}: p99", [t.p99_ms for t in ours], "ms")
    report(f"append: {name}: raw sqlite3 rate", [t.rate for t in raw], "events/s", better="more")
    pairs = list(zip(ours, raw, bare, strict=True))
    report(
        f"append: {name}: ratio to raw", [o.rate / r.rate for o, r, _ in pairs], "x", goal=goal, better="more"
    )
    report(
        f"append: {name}: ratio to raw, journal rows alone",
        [o.rate / b.rate for o, _, b in pairs],
        "x",
        better="more",
    )
    report(f"append: {name}: CPU", [t.cpu_us for t in ours], "us/event")
    report(f"append: {name}: raw CPU", [t.cpu_us for t in raw], "us/event")


def _convoy(folder: Path) -> None:
    load = [appends(p, 2 if QUICK else 10, 4_096) for p in range(1_000)]
    idle, busy = [], []
    for number in range(ROUNDS):
        idle.append(uvloop.run(_drained(folder / f"i{number}.db", load, busy=False)))
        busy.append(uvloop.run(_drained(folder / f"c{number}.db", load, busy=True)))
        for left in folder.iterdir():
            left.unlink()
    report("append: backlog, loop idle: rate", idle, "events/s", better="more")
    report("append: backlog, loop burning 2 ms slices: rate", busy, "events/s", better="more")
    report(
        "append: ratio of busy to idle loop",
        [b / i for b, i in zip(busy, idle, strict=True)],
        "x",
        goal=0.7,
        better="more",
    )


def main() -> None:
    """Measure all."""
    assert sqlite3.threadsafety > 0
    sys.setswitchinterval(0.0005)  # as the daemon does
    with tempfile.TemporaryDirectory(prefix="loopd-bench-") as name:
        folder = Path(name)
        for producers in EVENTS:
            for size in SIZES:
                _measure(folder, producers, size)
        _convoy(folder)


if __name__ == "__main__":
    main()
