"""What waiting sessions cost: memory for each, start-up with thousands stored, processor time while nothing happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from loopd.client_async import AsyncClient, connect
from loopd_protocol.commands import ScriptedSpec, SessionCreate, Suspend
from tests.bench.figures import report

COUNTS = (1_000, 10_000)
RUNS = 5
IN_FLIGHT = 48
QUIET_S = 10.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SCRIPT = """{"t":"trajectory","v":1,"id":"idle"}
{"t":"step","trigger":"continuation","text":"done"}
"""
UNTIL_MS = 4_000_000_000_000


class Running:
    """A daemon and what the kernel says about it."""

    def __init__(self, process: subprocess.Popen[str], ready_s: float) -> None:
        self.process = process
        self.ready_s = ready_s

    def resident_bytes(self) -> int:
        """Memory that it occupies."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@contextmanager
def daemon(data: Path) -> Iterator[Running]:
    """A daemon on `data`, timed from exec to its ready line."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "loopd.cli.daemon", "serve", "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        try:
            yield Running(process, time.monotonic() - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


async def fill(socket: Path, count: int, script: Path) -> float:
    """Create `count` suspended sessions, each with a deadline; seconds that it took."""
    limiter = anyio.CapacityLimiter(IN_FLIGHT)

    async def one(client: AsyncClient) -> None:
        async with limiter:
            made = await client.call(SessionCreate(driver=ScriptedSpec(script=str(script))))
            await client.call(Suspend(sid=made.r["sid"], until_ms=UNTIL_MS))

    began = time.monotonic()
    async with connect(socket) as client, anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one, client)
    return time.monotonic() - began


def measured(data: Path) -> tuple[list[float], list[float]]:
    """Start-up times and resident bytes of several starts on the same data."""
    ready, resident = [], []
    for _ in range(RUNS):
        with daemon(data) as running:
            ready.append(running.ready_s)
            resident.append(float(running.resident_bytes()))
    return ready, resident


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as top:
        script = Path(top, "script.jsonl")
        script.write_text(SCRIPT)
        empty = Path(top, "empty")
        ready, floor = measured(empty)
        report("idle: exec to ready, no session", ready, "s", goal=0.5)
        report("idle: resident, no session", [each / 1024**2 for each in floor], "MiB")
        for count in COUNTS:
            data = Path(top, str(count))
            with daemon(data) as running:
                took = anyio.run(fill, data / "control.sock", count, script)
                report(
                    f"idle: {count:,} sessions created and suspended",
                    [2 * count / took],
                    "commands/s",
                    better="more",
                )
                grown = running.resident_bytes() - min(floor)
                report(f"idle: {count:,} sessions, resident each, as created", [grown / count / 1024], "KiB")
            ready, resident = measured(data)
            report(f"idle: exec to ready, {count:,} sessions", ready, "s", goal=3)
            each = [(now - base) / count / 1024 for now, base in zip(resident, floor, strict=True)]
            report(f"idle: {count:,} sessions, resident each, after a start", each, "KiB", goal=1)
        with daemon(data) as running:
            before = running.cpu_s()
            time.sleep(QUIET_S)
            busy = (running.cpu_s() - before) / QUIET_S * 100
            report(
                f"idle: processor with {count:,} waiting sessions",
                [busy],
                "%",
                goal=0.2,
                note=f"{QUIET_S:g} s",
            )


if __name__ == "__main__":
    main()
