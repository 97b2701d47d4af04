"""What a frozen subscriber costs the others, and what a publication costs: `python -m tests.bench.bench_fanout`.

At the level of the bus: subscribers are tasks that wait for the head and read on. A frozen one has
subscribed and never reads again; at the end it reads everything, and must get it all, in order.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from loopd.bus import Bus
from loopd.core.writes import Append, StoredEvent
from loopd.store import SqliteStore
from tests.bench.figures import report
from tests.bench.journal_load import appends

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 7
EVENTS = 4_000 if QUICK else 20_000
SUBSCRIBERS = 10
PUBLISHED_AT_ONCE = 64


async def _subscriber(bus: Bus, until: int, lags: list[float], born: dict[int, float]) -> int:
    cursor = seen = 0
    while cursor < until:
        await bus.wait(cursor)
        chunk = await bus.read(cursor)
        now = time.perf_counter()
        lags += [now - born[event.seq] for event in chunk.events if event.seq in born]
        seen += len(chunk.events)
        cursor = chunk.cursor
    return seen


async def _live(folder: Path, load: list[list[Append]], *, frozen: bool) -> tuple[float, float]:
    """Events per second through journal and bus to ten subscribers, and p99 of the delivery in ms."""
    async with await SqliteStore.open(folder / f"{time.monotonic_ns()}.db", boot="bench") as store:
        bus = Bus(log_id=store.log_id, head=store.head, pages=store, ring_events=1_024)
        born: dict[int, float] = {}

        def on_commit(events: list[StoredEvent]) -> None:
            born[events[-1].seq] = time.perf_counter()
            bus.publish(events)

        store.on_commit = on_commit
        lags: list[float] = []
        frozen_cursor = (await bus.read(0)).cursor if frozen else 0
        total = sum(len(batches) for batches in load)

        async def produce(batches: list[Append]) -> None:
            for batch in batches:
                await store.submit(batch)

        begun = time.perf_counter()
        seen = await asyncio.gather(
            *(_subscriber(bus, total, lags, born) for _ in range(SUBSCRIBERS)),
            *(produce(batches) for batches in load),
        )
        took = time.perf_counter() - begun
        assert [n for n in seen if n is not None] == [total] * SUBSCRIBERS
        if frozen:
            got: list[int] = []
            while frozen_cursor < bus.head:
                chunk = await bus.read(frozen_cursor)
                assert chunk.gap is None
                got += [event.seq for event in chunk.events]
                frozen_cursor = chunk.cursor
            assert got == list(range(1, total + 1)), "the frozen one lost something"
        return total / took, sorted(lags)[len(lags) * 99 // 100] * 1e3


async def _publications(subscribers: int) -> float:
    """Deliveries per second from the ring alone."""
    bus = Bus(log_id="lg", head=0, pages=None)  # type: ignore[arg-type]  (the ring never overflows here)
    body = b"x" * 300
    total = PUBLISHED_AT_ONCE * max(2, 200_000 // PUBLISHED_AT_ONCE // subscribers)

    async def publish() -> None:
        for first in range(1, total + 1, PUBLISHED_AT_ONCE):
            bus.publish(
                [
                    StoredEvent(seq=seq, sid="ses_1", ss=seq, at_ms=0, kind="turn.step", kv=1, body=body)
                    for seq in range(first, first + PUBLISHED_AT_ONCE)
                ]
            )
            await asyncio.sleep(0)

    begun = time.perf_counter()
    await asyncio.gather(*(_subscriber(bus, total, [], {}) for _ in range(subscribers)), publish())
    return total * subscribers / (time.perf_counter() - begun)


def main() -> None:
    """Measure both."""
    sys.setswitchinterval(0.0005)
    load = [appends(p, EVENTS // 20, 1_024) for p in range(20)]
    plain, frozen = [], []
    with tempfile.TemporaryDirectory(prefix="loopd-bench-") as name:
        for _ in range(ROUNDS):
            plain.append(uvloop.run(_live(Path(name), load, frozen=False)))
            frozen.append(uvloop.run(_live(Path(name), load, frozen=True)))
    note = f"{EVENTS} events of 1 KB from 20 sessions, {SUBSCRIBERS} subscribers, ring of 1,024"
    report(
        "fan-out: journal to subscribers", [rate for rate, _ in plain], "events/s", better="more", note=note
    )
    report("fan-out: delivery p99", [p99 for _, p99 in plain], "ms")
    report("fan-out: delivery p99 beside a frozen subscriber", [p99 for _, p99 in frozen], "ms")
    report(
        "fan-out: rate with a frozen subscriber against without",
        [f / p for (f, _), (p, _) in zip(frozen, plain, strict=True)],
        "x",
        goal=0.95,
        better="more",
    )
    for subscribers in (10, 100, 1_000):
        rates = [uvloop.run(_publications(subscribers)) for _ in range(ROUNDS)]
        report(f"fan-out: bus alone, {subscribers:,} subscribers", rates, "deliveries/s", better="more")


if __name__ == "__main__":
    main()
