"""Round trip on the control socket beside a plain asyncio echo of the same bytes, in the same run.

    python -m tests.bench.bench_roundtrip

One process serves both, on two unix sockets and one event loop; this one asks with blocking sockets,
so that the client costs next to nothing. `ping` and a read-only command through the whole path
(framing, strict decoding, worker, dispatcher, encoding). Depth 1, and 64 at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from loopd.core.access import Answer, Caller
from loopd.server.unix import UnixServer
from loopd_protocol.commands import Command
from tests.bench.figures import report
from tests.control_stage import Stage

RUNS = 7
TRIPS = 4_000
DEPTH = 64
BATCHES = 800
STATUS = {"running": 3, "closed": 2, "sessions": 5, "frozen": False, "boot": "b_0123456789ab"}


class Quiet(Stage):
    """Answers everything at once, so that what is measured is the server."""

    async def dispatch(self, command: Command, caller: Caller, **_: Any) -> Answer:
        return Answer(seq=self.bus.head, result=STATUS)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve(folder: Path) -> None:
    stage = Quiet()
    server = UnixServer(
        folder / "control.sock", stage, stage.bus, now_ms=lambda: 1, version="0.1.0", boot="b_bench"
    )
    echo = await asyncio.get_running_loop().create_unix_server(Echo, folder / "echo.sock")
    async with anyio.create_task_group() as group:
        await group.start(server.serve)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.readline)
        echo.close()
        group.cancel_scope.cancel()


def lines(sock: socket.socket, count: int, tail: bytes = b"") -> None:
    """Read exactly so many lines."""
    while count:
        count -= sock.recv(262_144).count(b"\n")


def trips(sock: socket.socket, data: bytes) -> list[float]:
    """Seconds of each round trip, one at a time."""
    clock, took = time.perf_counter, []
    for _ in range(TRIPS):
        begun = clock()
        sock.sendall(data)
        lines(sock, 1)
        took.append(clock() - begun)
    return took


def rate(sock: socket.socket, batch: bytes) -> float:
    """Answers per second with `DEPTH` on their way."""
    begun = time.perf_counter()
    for _ in range(BATCHES):
        sock.sendall(batch)
        lines(sock, DEPTH)
    return BATCHES * DEPTH / (time.perf_counter() - begun)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def dial(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(30)
    sock.connect(str(path))
    return sock


def main() -> None:
    def cmd(n: int) -> bytes:
        return json.dumps({"t": "cmd", "id": str(n), "c": {"t": "daemon.status"}}).encode() + b"\n"

    one = {"echo": cmd(1), "ping": b'{"t":"ping","id":"1"}\n', "status": cmd(1)}
    many = {
        "echo": b"".join(map(cmd, range(DEPTH))),
        "ping": one["ping"] * DEPTH,
        "status": b"".join(map(cmd, range(DEPTH))),
    }
    p50: dict[str, list[float]] = {name: [] for name in one}
    p99: dict[str, list[float]] = {name: [] for name in one}
    cpu: dict[str, list[float]] = {name: [] for name in one}
    rates: dict[str, list[float]] = {name: [] for name in one}
    with tempfile.TemporaryDirectory(prefix="lp") as name:
        folder = Path(name)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.bench_roundtrip", "--serve", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with server:
            assert server.stdin
            assert server.stdout
            server.stdout.readline()
            socks = {kind: dial(folder / ("echo.sock" if kind == "echo" else "control.sock")) for kind in one}
            for kind in ("ping", "status"):
                socks[kind].sendall(b'{"t":"hello","v":[1,1]}\n')
                lines(socks[kind], 1)
            for run in range(RUNS + 1):
                for kind, sock in socks.items():
                    took = sorted(trips(sock, one[kind]))
                    before = cpu_s(server.pid)
                    speed = rate(sock, many[kind])
                    burnt = (cpu_s(server.pid) - before) / (BATCHES * DEPTH) * 1e6
                    if run:  # the first one warms up
                        p50[kind].append(statistics.median(took) * 1e6)
                        p99[kind].append(took[len(took) * 99 // 100] * 1e6)
                        rates[kind].append(speed)
                        cpu[kind].append(burnt)
            for sock in socks.values():
                sock.close()
            server.stdin.write(b"\n")
            server.stdin.close()
            server.wait(10)

    def ratio(table: dict[str, list[float]], kind: str) -> list[float]:
        return [mine / echo for mine, echo in zip(table[kind], table["echo"], strict=True)]

    note = f"{TRIPS} round trips a run, unix socket, uvloop, blocking client in its own process"
    deep = f"{DEPTH} on their way, {BATCHES * DEPTH} answers a run"
    report("round trip: plain asyncio echo, p50", p50["echo"], "µs", note=note)
    for kind in ("ping", "status"):
        report(f"round trip: {kind}, p50", p50[kind], "µs", note=note)
        report(f"round trip: {kind}, p99", p99[kind], "µs", goal=1_000, note=note)
        report(f"round trip: {kind}, p50 against the echo", ratio(p50, kind), "x", goal=2.5, note=note)
        report(f"round trip: {kind}, p99 against the echo", ratio(p99, kind), "x", goal=2.5, note=note)
    report("pipelined: plain asyncio echo", rates["echo"], "1/s", better="more", note=deep)
    for kind in ("ping", "status"):
        report(f"pipelined: {kind}", rates[kind], "1/s", better="more", note=deep)
        report(f"pipelined: {kind}, CPU of the server for each", cpu[kind], "µs", note=deep)
        report(f"pipelined: {kind}, against the echo", ratio(rates, kind), "x", better="more", note=deep)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        anyio.run(serve, Path(sys.argv[2]), backend_options={"use_uvloop": True})
    else:
        main()
