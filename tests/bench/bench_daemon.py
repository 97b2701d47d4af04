"""The whole daemon under load: socket → gate → rules → journal → acknowledgement → 10 subscribers.

    python -m tests.bench.bench_daemon [--quick]

A real `loopd serve` hosts scripted sessions; each message that is sent becomes a turn with a step, a
tool call and all its events. Closed loop: as fast as answers come back, 256 unanswered at a time. Open
loop: at a fixed rate, latency counted from the moment at which the message was due. The limit is one
thread of plain `sqlite3` that writes the very rows that the daemon wrote into the same tables with the
same pragmas, a hundred to a transaction, in the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from loopd.client import Client
from loopd.store import opening
from loopd.store.ledger import JOURNAL
from loopd.store.projection import SESSION
from loopd.store.schema import migrate
from loopd.store.statements import insert_sql
from loopd.store.writer import CHECKPOINT_BYTES
from tests.bench.figures import report

QUICK = "--quick" in sys.argv
SESSIONS = 64
SUBSCRIBERS = 10
CONNECTIONS = 8
OPEN_CONNECTIONS = 64
"""A connection may have 64 commands without an answer; the rest of a burst needs other connections."""
UNANSWERED = 256
SENDS = 3_000 if QUICK else 12_000
ROUNDS = 3 if QUICK else 5
RATES = (500, 1_000, 2_000)
OPEN_S = 2.0 if QUICK else 5.0
GROUP = 100
TEXT = "Please look at the next chapter and say what is missing there. " * 12
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Load(asyncio.Protocol):
    """One connection that sends messages and times their acknowledgements."""

    def __init__(self) -> None:
        self.asked: dict[int, float] = {}
        self.took: list[float] = []
        self.refused: list[bytes] = []
        self.free = asyncio.Event()
        self.limit = UNANSWERED // CONNECTIONS
        self._tail = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(b'{"t":"hello","v":[1,1]}\n')

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b'{"t":"ok"'):
                self.took.append(now - self.asked.pop(int(json.loads(line)["id"])))
            elif b'"t":"err"' in line:
                self.refused.append(line)
                self.asked.pop(int(json.loads(line)["id"]), None)
        self.free.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The daemon gave this connection up: what was not answered counts as refused."""
        self.refused += [b"connection closed"] * len(self.asked)
        self.asked.clear()
        self.free.set()

    def send(self, number: int, sid: str, due: float) -> None:
        if self._transport.is_closing():
            self.refused.append(b"connection closed")
            return
        self.asked[number] = due
        frame = {
            "t": "cmd",
            "id": str(number),
            "key": f"k{number}-{os.getpid()}-{id(self)}",
            "c": {"t": "send", "sid": sid, "text": f"{number} {TEXT}"},
        }
        self._transport.write(json.dumps(frame).encode() + b"\n")

    async def drained(self, most: int) -> None:
        while len(self.asked) > most:
            self.free.clear()
            await self.free.wait()

    def close(self) -> None:
        self._transport.close()


async def _connections(path: str, count: int) -> list[Load]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_unix_connection(Load, path))[1] for _ in range(count)]


async def closed_loop(path: str, sids: list[str], count: int) -> list[float]:
    """Send `count` messages with a bounded number unanswered; returns latencies in seconds."""
    loads = await _connections(path, CONNECTIONS)

    async def work(place: int, load: Load) -> None:
        for number in range(place, count, CONNECTIONS):
            load.send(number, sids[number % len(sids)], time.perf_counter())
            await load.drained(load.limit - 1)
        await load.drained(0)

    await asyncio.gather(*(work(place, load) for place, load in enumerate(loads)))
    for load in loads:
        if load.refused:
            raise RuntimeError(load.refused[0])
        load.close()
    return [took for load in loads for took in load.took]


async def open_loop(path: str, sids: list[str], rate: int, seconds: float) -> tuple[list[float], int]:
    """Send at a fixed rate, whatever comes back; returns latencies, and how many were refused."""
    loads = await _connections(path, OPEN_CONNECTIONS)
    begun = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = begun + number / rate
        while (ahead := due - time.perf_counter()) > 0:  # noqa: ASYNC110  (the clock is what it waits for)
            await asyncio.sleep(ahead)
        loads[number % OPEN_CONNECTIONS].send(number, sids[number % len(sids)], due)
    for load in loads:
        await load.drained(0)
        load.close()
    return [took for load in loads for took in load.took], sum(len(load.refused) for load in loads)


class Drain(asyncio.Protocol):
    """A subscriber that counts bytes and events."""

    def __init__(self) -> None:
        self.events = 0

    def connection_made(self, transport: Any) -> None:
        transport.write(b'{"t":"hello","v":[1,1]}\n{"t":"sub","id":"1"}\n')

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b'{"t":"ev"')


async def _drain(path: str) -> None:
    loop = asyncio.get_running_loop()
    drains = [(await loop.create_unix_connection(Drain, path))[1] for _ in range(SUBSCRIBERS)]
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    sys.stdout.write("subscribed\n")
    sys.stdout.flush()
    await stop.wait()
    sys.stdout.write(json.dumps([drain.events for drain in drains]) + "\n")


@contextmanager
def subscribers(path: str) -> Iterator[list[int]]:
    """Ten subscribers in a process of their own; afterwards the list has what each received."""
    heard: list[int] = []
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bench_daemon", "--drain", path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "subscribed\n"
    try:
        yield heard
    finally:
        child.terminate()
        heard += json.loads(child.stdout.readline())
        child.wait(10)
        child.stdout.close()


@contextmanager
def daemon(data: Path) -> Iterator[tuple[str, int]]:
    """A real daemon; yields its socket and pid."""
    command = [str(Path(sys.executable).parent / "loopd"), "serve", "--data", str(data)]
    with (
        open(data.with_suffix(".log"), "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL) as child,
    ):
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        try:
            yield ready["socket"], child.pid
        finally:
            child.terminate()
            child.wait(60)


def sessions(client: Client, script: Path) -> list[str]:
    """Sessions that answer each message with a step and a tool call."""
    spec = {"kind": "scripted", "script": str(script)}
    settings = {"gate.inbox_cap": 10_000}
    create = {"t": "session.create", "driver": spec, "preset": "published", "set": settings}
    return [client.call(create)["sid"] for _ in range(SESSIONS)]


def write_script(path: Path, turns: int) -> Path:
    """A trajectory of turns that differ."""
    lines: list[dict[str, Any]] = [{"t": "trajectory", "v": 1}]
    for n in range(turns):
        call = {"name": "write_file", "args": {"path": f"{n}.md"}, "ok": True, "result": f"wrote {n}"}
        text = f"Chapter {n}: " + "something is said about it here, as one does. " * 8
        usage = {"input_tokens": 900, "output_tokens": 120}
        lines.append({"t": "step", "trigger": "human", "text": text, "calls": [call], "usage": usage})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def cpu_s(pid: int) -> float:
    """Processor time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def quiet(client: Client) -> int:
    """Wait until no turn runs; returns the head of the log."""
    while True:
        status = client.call({"t": "daemon.status"})
        if not status["sessions"]["running"]:
            return int(status["head"])


class Raw(NamedTuple):
    rate: float
    cpu_us: float


def raw_limit(written: Path, path: Path) -> Raw:
    """Plain sqlite3 with the same rows: the journal's, and a session row for each session of a group."""
    with closing(opening.connect_reader(written)) as source:
        rows, states = (
            source.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}").fetchall()
            for table in (JOURNAL, SESSION)
        )
    path.touch()
    connection = opening.connect(str(path))
    migrate(connection)
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_BYTES // opening.PAGE_BYTES}")
    journal, session = (insert_sql(table, 1) for table in (JOURNAL, SESSION))
    sid, num = JOURNAL.columns.index("sid"), SESSION.columns.index("num")
    by_num = {row[num]: row for row in states}
    begun, cpu = time.perf_counter(), time.process_time()
    for start in range(0, len(rows), GROUP):
        part = rows[start : start + GROUP]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(journal, part)
        connection.executemany(session, [by_num[n] for n in {row[sid] for row in part} if n is not None])
        connection.execute("COMMIT")
    wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    connection.close()
    return Raw(len(rows) / wall, cpu / len(rows) * 1e6)


def percentile_ms(took: list[float], percent: int) -> float:
    """A percentile in milliseconds."""
    return statistics.quantiles(took, n=100)[percent - 1] * 1e3


def _closed(folder: Path) -> None:
    sends, events, cpus, ratios, cpu_ratios, p50s, p99s = [], [], [], [], [], [], []
    raws = []
    for number in range(ROUNDS):
        data = folder / f"d{number}"
        with daemon(data) as (path, pid), Client(path, timeout_s=120) as client:
            sids = sessions(client, write_script(folder / "script.jsonl", SENDS // SESSIONS + 10))
            with subscribers(path) as heard:
                before, cpu, begun = quiet(client), cpu_s(pid), time.perf_counter()
                took = uvloop.run(closed_loop(path, sids, SENDS))
                answered = time.perf_counter() - begun
                head = quiet(client)
                wall, cpu = time.perf_counter() - begun, cpu_s(pid) - cpu
            assert min(heard) > 0
        raw = raw_limit(data / "journal.sqlite", folder / f"raw{number}")
        rate = (head - before) / wall
        sends.append(SENDS / answered)
        events.append(rate)
        cpus.append(cpu / (head - before) * 1e6)
        raws.append(raw.rate)
        ratios.append(rate / raw.rate)
        cpu_ratios.append(raw.cpu_us / cpus[-1])
        p50s.append(percentile_ms(took, 50))
        p99s.append(percentile_ms(took, 99))
    note = (
        f"{SENDS} messages a round, {SESSIONS} sessions, {SUBSCRIBERS} subscribers, {UNANSWERED} unanswered"
    )
    report("daemon: acknowledged messages", sends, "sends/s", better="more", note=note)
    report("daemon: durable events", events, "events/s", better="more", note=note)
    report("daemon: CPU", cpus, "us/event", note="all threads of the daemon")
    report("daemon: raw sqlite3 with the same rows", raws, "events/s", better="more")
    report("daemon: ratio to raw", ratios, "x", goal=0.7, better="more")
    report("daemon: ratio to raw, CPU", cpu_ratios, "x", better="more", note="steady under foreign load")
    report("daemon: acknowledgement p50, closed loop", p50s, "ms")
    report("daemon: acknowledgement p99, closed loop", p99s, "ms")


def _open(folder: Path) -> None:
    for rate in RATES:
        p50s, p99s, refused = [], [], []
        for number in range(ROUNDS):
            with (
                daemon(folder / f"o{rate}.{number}") as (path, _),
                Client(path, timeout_s=120) as client,
            ):
                count = int(rate * OPEN_S)
                sids = sessions(client, write_script(folder / "script.jsonl", count // SESSIONS + 10))
                with subscribers(path):
                    took, count_refused = uvloop.run(open_loop(path, sids, rate, OPEN_S))
                quiet(client)
            refused.append(count_refused)
            p50s.append(percentile_ms(took, 50))
            p99s.append(percentile_ms(took, 99))
        goals = (1.0, 5.0) if rate == 2_000 else (None, None)
        report(f"daemon: acknowledgement at {rate}/s p50", p50s, "ms", goal=goals[0])
        report(f"daemon: acknowledgement at {rate}/s p99", p99s, "ms", goal=goals[1])
        if any(refused):
            report(f"daemon: refused as overloaded at {rate}/s", refused, "messages", goal=0)


def main() -> None:
    """Measure both, or be the subscribers."""
    if "--drain" in sys.argv:
        uvloop.run(_drain(sys.argv[-1]))
        return
    assert sqlite3.threadsafety > 0
    with tempfile.TemporaryDirectory(prefix="lpb") as name:
        _closed(Path(name))
        _open(Path(name))


if __name__ == "__main__":
    main()
