"""A model call through the proxy beside the same call without it, in the same run.

    python -m tests.bench.bench_proxy

Three processes: the test endpoint, the proxy with a witness that keeps nothing, and this one, which asks
with blocking sockets and alternates between both ways. Time to the first byte of the answer's body; what
a streamed chunk takes longer; and a whole answer of 1 MB at full speed.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import anyio

from loopd.drivers.proxy.door import Upstream
from loopd.drivers.proxy.server import ModelProxy
from tests.bench.figures import report

CALLS = 150
STREAMS, CHUNKS, GAP_MS = 12, 150, 2
BULK, BULK_RUNS = 1_000_000, 15
BODY = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 20_000}]}
).encode()


class Nobody:
    """Lets everything through and keeps nothing: what is measured is the way."""

    async def admit(self, sid: str, request_bytes: int, cut: Callable[[], None]) -> int:
        return 1

    def leaving(self, sid: str, call: Any) -> None:
        pass

    def over(self, sid: str, cut: Callable[[], None]) -> None:
        pass

    def turn_of(self, sid: str) -> int:
        return 1

    async def called(self, sid: str, call: Any, *, request: bytes | None, response: bytes | None) -> None:
        pass


async def serve(base_url: str) -> None:
    async with anyio.create_task_group() as tasks:
        passage = await ModelProxy(tasks, Nobody()).open("ses_bench", Upstream(base_url=base_url))
        sys.stdout.write(json.dumps({"url": passage.base_url, "key": passage.key}) + "\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.readline)
        tasks.cancel_scope.cancel()


class Way:
    """One connection, directly or through the proxy."""

    def __init__(self, base_url: str, key: str = "x") -> None:
        parts = urlsplit(base_url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=60)
        self._path = parts.path + "/chat/completions"
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def ask(self) -> tuple[float, float, int]:
        """Seconds to the first byte of the body and to its end, and its size."""
        began = time.perf_counter()
        self._connection.request("POST", self._path, BODY, self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"answered {response.status}: {response.read(200)!r}")
        first = response.read1(1)
        ttft = time.perf_counter() - began
        size = len(first)
        while chunk := response.read1(65_536):
            size += len(chunk)
        return ttft, time.perf_counter() - began, size


def started(*argv: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def measured(
    *endpoint_options: str, calls: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], int]:
    """(first byte, whole) of calls without and with the proxy, one after the other in turns."""
    endpoint, told = started("loopd.testing.endpoint", *endpoint_options)
    proxy, way = started("tests.bench.bench_proxy", "serve", told["url"])
    try:
        ways = (Way(told["url"]), Way(way["url"], way["key"]))
        for each in ways:
            each.ask()
        taken: tuple[list[tuple[float, float]], ...] = ([], [])
        size = 0
        for _ in range(calls):
            for each, found in zip(ways, taken, strict=True):
                ttft, whole, size = each.ask()
                found.append((ttft, whole))
    finally:
        for process in (proxy, endpoint):
            process.terminate()
            process.wait(10)
    return taken[0], taken[1], size


def ms(seconds: float) -> float:
    return round(seconds * 1_000, 4)


def main() -> None:
    direct, through, _ = measured("--say", "hello", calls=CALLS)
    firsts = [[ms(first) for first, _ in found] for found in (direct, through)]
    ratio = statistics.median(firsts[1]) / statistics.median(firsts[0])
    report(
        "proxy: first byte, without it", firsts[0], "ms", note="20 kB request on loopback, connection kept"
    )
    report("proxy: first byte, through it", firsts[1], "ms", note=f"{ratio:.2f} times without it")
    added = [after - before for before, after in zip(*firsts, strict=True)]
    report("proxy: added to the first byte", added, "ms", goal=5.0)

    text = "x" * (8 * CHUNKS)
    direct, through, _ = measured("--say", text, "--gap-ms", str(GAP_MS), calls=STREAMS)
    chunk = [(t - d) / CHUNKS * 1_000 for (_, d), (_, t) in zip(direct, through, strict=True)]
    report(
        "proxy: added to each streamed chunk",
        chunk,
        "ms",
        goal=1.0,
        note=f"{CHUNKS} chunks, {GAP_MS} ms apart",
    )

    direct, through, size = measured("--say", "y" * (BULK // 16), calls=BULK_RUNS)
    ratios = [t / d for (_, d), (_, t) in zip(direct, through, strict=True)]
    report(
        "proxy: an answer at full speed, time as a multiple of that without it",
        ratios,
        "x",
        note=f"{size:,} bytes in 8-character chunks",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        anyio.run(serve, sys.argv[2], backend_options={"use_uvloop": True})
    else:
        main()
