"""Start a real daemon behind many sessions and turns, and sweep them: `python -m tests.bench.bench_multitude [--quick]`.

The journal is written beforehand, row by row with its chains. Measured are the time from exec to ready, the most
memory that the process ever had, and how fast retention takes the content out of events when it is due.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from loopd.engine.clock import ManualClock
from loopd.engine.retention import Policy
from loopd.engine.router import Router
from loopd.engine.upkeep import Upkeep
from loopd.store import SqliteStore
from loopd_protocol.command import DAY_MS
from tests.bench.figures import report
from tests.bench.journal_load import AT_MS
from tests.bench.multitude import write

QUICK = "--quick" in sys.argv
SESSIONS = 10_000 if QUICK else 100_000
TURNS = 10
SWEPT = 2_000
ROUNDS = 3


@contextmanager
def daemon(data: Path) -> Iterator[int]:
    """A daemon that is ready."""
    command = [str(Path(sys.executable).parent / "loopd"), "serve", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["ready"] is True
        try:
            yield child.pid
        finally:
            child.terminate()
            child.wait(60)


def high_water_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1_024 for line in lines if line.startswith("VmHWM:"))


def nobody(*_: object) -> object:
    raise RuntimeError("nobody takes turns here")


async def sweep(path: Path) -> tuple[float, float]:
    """Events a second whose content goes, and the longest time for which writers waited, in milliseconds."""
    clock = ManualClock(AT_MS + 200 * DAY_MS)
    async with await SqliteStore.open(path, boot="sweep", now_ms=clock.now_ms()) as store:
        router = Router(store=store, clock=clock, make_driver=nobody, on_delta=lambda *_: None)  # type: ignore[arg-type]
        upkeep = Upkeep(router, store, Policy(content_days=1, metadata_days=0), pause_share=0)
        head, began = store.head, time.perf_counter()
        await upkeep.once()
        rate = head / (time.perf_counter() - began)
        return rate, float((await store.measures())["chore_ms"])


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="loopd-bench-") as name:
        data = Path(name) / "d"
        data.mkdir(mode=0o700)
        events = write(data / "journal.sqlite", sessions=SESSIONS, turns=TURNS)
        ready, memory = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            with daemon(data) as pid:
                ready.append(time.perf_counter() - began)
                memory.append(high_water_mib(pid))
        note = f"{SESSIONS:,} sessions, {SESSIONS * TURNS:,} turns, {events:,} events"
        report("multitude: exec to ready", ready, "s", goal=10, note=note)
        report("multitude: most resident", memory, "MiB", goal=400, note=note)
        rates, steps = [], []
        for number in range(ROUNDS):
            path = Path(name) / f"s{number}.sqlite"
            write(path, sessions=SWEPT, turns=TURNS)
            rate, step = anyio.run(sweep, path)
            rates.append(rate)
            steps.append(step)
        report("retention: events looked through", rates, "events/s", better="more", note="without pauses")
        report("retention: longest wait of writers", steps, "ms")


if __name__ == "__main__":
    main()
