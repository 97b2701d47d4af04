"""Events to many subscribers over the control socket, beside bare writes of the same bytes.

    python -m tests.bench.bench_socket_fanout [--quick]

One process serves, one receives and counts. The limit is a server that knows nothing: it writes the
same coalesced bytes to every connection. A frozen subscriber never reads; the others must not feel it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import uvloop

from loopd.bus import Bus
from loopd.core.writes import StoredEvent
from loopd.server.rendering import Slice, make_filter
from loopd.server.unix import UnixServer
from loopd_protocol.events import EnvelopeAccepted
from loopd_protocol.sources import Source
from tests.bench.bench_roundtrip import cpu_s
from tests.bench.figures import report
from tests.control_stage import Stage

QUICK = "--quick" in sys.argv
ROUNDS = 3 if QUICK else 5
DELIVERIES = 400_000 if QUICK else 2_000_000
BURST = 64
AHEAD_EVENTS = 2_048
BODY = msgspec.json.encode(
    EnvelopeAccepted(id="env_1", source=Source.HUMAN, text="x" * 200, ephemeral_in_history=False)
)


def burst(first: int) -> list[StoredEvent]:
    return [
        StoredEvent(seq=n, sid="ses_a", ss=n, at_ms=1, kind="envelope.accepted", kv=1, body=BODY)
        for n in range(first, first + BURST)
    ]


class Bare(asyncio.Protocol):
    """A connection that is only written to."""

    everyone: set[Any] = set()
    open: asyncio.Event

    def connection_made(self, transport: Any) -> None:
        transport.set_write_buffer_limits(high=262_144)
        self.transport, self.full = transport, False
        self.everyone.add(self)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        Bare.open.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.discard(self)
        if self.full:
            self.resume_writing()


async def serve(folder: Path) -> None:
    stage = Stage()
    # Nothing is stored here: the ring must hold whatever the slowest has not read.
    stage.bus = Bus(log_id="lg_bench", head=0, pages=stage.log, ring_events=300_000, ring_bytes=1 << 30)
    server = UnixServer(folder / "c.sock", stage, stage.bus, now_ms=lambda: 1, version="0", boot="b")
    bare = await asyncio.get_running_loop().create_unix_server(Bare, folder / "bare.sock", backlog=1_024)
    wanted = make_filter(None, (), metadata=False)
    async with anyio.create_task_group() as group:
        await group.start(server.serve)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            kind, count, subscribers = line.split()
            while kind == "bare" and len(Bare.everyone) < int(subscribers):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            for _ in range(int(count) // BURST):
                if kind == "loopd":
                    stage.bus.publish(burst(stage.bus.head + 1))
                    await anyio.lowlevel.checkpoint()
                    while stage.bus.head - server.fanout._position > AHEAD_EVENTS:
                        await anyio.lowlevel.checkpoint()
                else:
                    data, _ = Slice(burst(1)).render("s", wanted, "json", after=0, prev=0)
                    for line_to in list(Bare.everyone):
                        while line_to.full:
                            Bare.open = asyncio.Event()
                            await Bare.open.wait()
                        line_to.transport.write(data)
                    await anyio.lowlevel.checkpoint()
        bare.close()
        group.cancel_scope.cancel()


class Reader(asyncio.Protocol):
    """Counts lines; `done` when there are enough."""

    def __init__(self) -> None:
        self.left = 0
        self.done: asyncio.Future[None] | None = None

    def expect(self, lines: int) -> asyncio.Future[None]:
        self.left = lines
        self.done = asyncio.get_running_loop().create_future()
        return self.done

    def data_received(self, data: bytes) -> None:
        self.left -= data.count(b"\n")
        if self.left <= 0 and self.done is not None and not self.done.done():
            self.done.set_result(None)


HELLO = b'{"t":"hello","v":[1,1]}\n{"t":"sub","id":"s"}\n'


async def receive(
    folder: Path, server: subprocess.Popen[bytes], kind: str, subscribers: int
) -> tuple[float, float]:
    """Deliveries per second, and microseconds of the server's CPU for each."""
    loop = asyncio.get_running_loop()
    path = folder / ("c.sock" if kind == "loopd" else "bare.sock")
    peers = []
    for _ in range(subscribers):
        transport, reader = await loop.create_unix_connection(Reader, path)
        if kind == "loopd":
            greeted = reader.expect(2)
            transport.write(HELLO)
            await greeted
        peers.append((transport, reader))
    events = max(BURST, DELIVERIES // subscribers // BURST * BURST)
    waits = [reader.expect(events) for _, reader in peers]
    burnt, begun = cpu_s(server.pid), time.perf_counter()
    assert server.stdin
    server.stdin.write(f"{kind} {events} {subscribers}\n".encode())
    server.stdin.flush()
    async with asyncio.timeout(60):
        await asyncio.gather(*waits)
    took, burnt = time.perf_counter() - begun, cpu_s(server.pid) - burnt
    for transport, _ in peers:
        transport.abort()
    await asyncio.sleep(0.2)
    deliveries = subscribers * events
    return deliveries / took, burnt / deliveries * 1e6


def main() -> None:
    rows: dict[tuple[str, int], list[tuple[float, float]]] = {}
    frozen_rows: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="lp") as name:
        folder = Path(name)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_socket_fanout", "--serve", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with server:
            assert server.stdin
            assert server.stdout
            server.stdout.readline()
            for run in range(ROUNDS + 1):
                for subscribers in (10, 100, 500):
                    for kind in ("bare", "loopd"):
                        got = uvloop.run(receive(folder, server, kind, subscribers))
                        if run:
                            rows.setdefault((kind, subscribers), []).append(got)
                with socket.socket(socket.AF_UNIX) as frozen:
                    frozen.connect(os.fspath(folder / "c.sock"))
                    frozen.sendall(HELLO)
                    got = uvloop.run(receive(folder, server, "loopd", 100))
                if run:
                    frozen_rows.append(got)
            server.stdin.close()
            server.wait(20)
    note = f"about {DELIVERIES} deliveries of 400 bytes a run, bursts of {BURST}, one receiving process"
    for subscribers in (10, 100, 500):
        mine, bare = rows["loopd", subscribers], rows["bare", subscribers]
        pairs = list(zip(mine, bare, strict=True))
        what = f"socket fan-out to {subscribers}"
        report(f"{what}: deliveries", [rate for rate, _ in mine], "1/s", better="more", note=note)
        report(f"{what}: against bare writes", [a[0] / b[0] for a, b in pairs], "x", better="more", note=note)
        report(f"{what}: CPU of the server for each delivery", [cpu for _, cpu in mine], "µs", note=note)
    beside = [a[0] / b[0] for a, b in zip(frozen_rows, rows["loopd", 100], strict=True)]
    report(
        "socket fan-out to 100 beside a frozen one: rate", beside, "x", goal=0.95, better="more", note=note
    )
    burnt = [a[1] / b[1] for a, b in zip(frozen_rows, rows["loopd", 100], strict=True)]
    report("socket fan-out to 100 beside a frozen one: CPU", burnt, "x", goal=1.05, note=note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        anyio.run(serve, Path(sys.argv[2]), backend_options={"use_uvloop": True})
    else:
        main()
