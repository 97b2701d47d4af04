"""Hours in minutes: `python -m tests.faults.soak --minutes 10` (or `make soak MINUTES=10`).

200 sessions of mixed agents, scripted ones and chats on the test endpoint that run real tools, with cron
jobs, suspensions that end by themselves, readers that freeze, operators that interfere, and a `kill -9`
every minute. At the end nothing may be broken: the journal verifies, the audit of the end-to-end tests
agrees, everything acknowledged is there, no effect ran twice; memory is flat, and neither tasks, threads
nor file descriptors grow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from loopd.client_async import Disconnected, connect
from loopd.testing.endpoint import Endpoint
from loopd_protocol import commands as cm
from loopd_protocol.codec import encode_frame
from loopd_protocol.errors import Refused
from loopd_protocol.frames import Hello, Peer, Sub
from tests.faults import disk
from tests.faults.examination import Acknowledged, examine
from tests.faults.load import BUSY, Hand, Model

SESSIONS = 200
LIFE_S = 60.0
AGES_S = (25.0, 55.0)
"""When a life is measured: its growth is the difference, that of the whole run a line through all lives."""

LONG = "word " * 6_000
"""Contexts are kept up to 200 KB for each session: filled within a minute or two, they stay as large as they are."""

WARM_SHARE = 0.5
"""Of all lives: their memory is not compared, for contexts fill up."""

FLAT = 0.05
ALLOWED = {"fds": 0.25, "threads": 0.25, "tasks": 0.25}
"""By which share the later half of the lives may lie over the earlier one: how many turns run at the moment
of a look differs by as much."""

CONFIG = """
[recovery]
crash_loop_boots = 0
unstable_boots = 0
"""


class Sample(msgspec.Struct):
    """One look at the process."""

    life: int
    age_s: float
    rss_kib: int
    fds: int
    threads: int
    tasks: int
    head: int


class Soak:
    """One daemon that is killed every minute, and everybody who uses it."""

    def __init__(self, seed: int, root: Path, endpoint: Endpoint, *, life_s: float) -> None:
        self.dice = random.Random(f"soak:{seed}")
        self.folder = root / "data"
        self.folder.mkdir()
        self.workspace = root / "work"
        self.workspace.mkdir()
        self.root = root
        self.life_s = life_s
        self.endpoint = endpoint
        self.model = Model("s", self.dice)
        endpoint.script = lambda recorded: msgspec.structs.replace(
            self.model.reply(recorded), first_ms=self.dice.randrange(200, 2_000)
        )
        self.socket = str(self.folder / "control.sock")
        (root / "loopd.toml").write_text(CONFIG)
        self.samples: list[Sample] = []
        self.sids: list[str] = []
        self.jobs: list[tuple[str, cm.Command]] = list(self._creations())
        self.hands = [
            Hand(n, random.Random(self.dice.random()), self._play(300), None, goal="write") for n in range(8)
        ]
        for hand in self.hands:
            hand.pause_s = 0.15
        self.trouble: list[str] = []
        self.events_read = 0

    # -- who lives here -------------------------------------------------------------------------------

    def _play(self, delay_ms: int) -> dict[str, Any]:
        script = self.root / "script.jsonl"
        if not script.exists():
            lines: list[dict[str, Any]] = [{"t": "trajectory", "v": 1, "id": "works"}]
            for n in range(60):
                calls = [
                    {
                        "name": "write_file",
                        "args": {"path": f"p{n}", "content": f"t{n}"},
                        "ok": True,
                        "result": f"w{n}",
                    }
                ]
                lines.append(
                    {
                        "t": "step",
                        "n": n + 1,
                        "trigger": "continuation",
                        "text": f"Part {n}. {LONG}",
                        "calls": calls,
                    }
                )
            script.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"kind": "scripted", "script": str(script), "delay_ms": delay_ms}

    def _creations(self) -> Any:
        chat = {"kind": "chat", "base_url": self.endpoint.base_url, "model": "test", "context_bytes": 20_000}
        for number in range(SESSIONS - 8):
            busy, slow = BUSY | {"continuation.min_gap_ms": 2_000}, BUSY | {"continuation.min_gap_ms": 5_000}
            match number % 5:
                case 0:
                    driver, goal, settings = self._play(200), "write", busy
                case 1:
                    driver, goal, settings = chat, "write", slow
                case 2:
                    driver, goal, settings = self._play(50), None, busy
                case 3:
                    driver, goal, settings = chat, None, busy
                case _:
                    driver, goal, settings = self._play(50), "wait", slow
            create = cm.SessionCreate(
                driver=msgspec.convert(driver, cm.DriverSpec),
                workspace=str(self.workspace) if driver is chat else None,
                goal=goal,
                preset="published",
                set=settings,
                labels={"soak": str(number % 5)},
            )
            yield f"new{number}", create

    # -- the process -----------------------------------------------------------------------------------

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the daemon."""
        command = [sys.executable, "-m", "loopd.cli.daemon", "serve", "--data", str(self.folder)]
        command += ["--config", str(self.root / "loopd.toml")]
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOOPD_")} | {
            "LOOPD_LOG_LEVEL": "warning"
        }
        with open(self.root / "stderr", "ab") as err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=env
            )

    async def live(self, life: int) -> None:
        """One life: start, work, be measured, be killed."""
        process = self.spawn()
        assert process.stdout is not None
        try:
            with anyio.fail_after(180):
                line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            if not line:
                self.trouble.append(f"life {life} did not begin (exit {process.wait()})")
                return
            began = time.monotonic()
            async with anyio.create_task_group() as tasks:
                for user in (self._creator, *[self._reader] * 4, *[self._frozen] * 3, self._operator):
                    tasks.start_soon(self._gently, user)
                nobody, drop = anyio.create_memory_object_stream[int](100_000)
                for hand in self.hands:
                    tasks.start_soon(hand.work, self.socket, nobody)
                for age in AGES_S:
                    await anyio.sleep(max(0, began + age * self.life_s / LIFE_S - time.monotonic()))
                    await self._measure(process, life, age)
                await anyio.sleep(max(0, began + self.life_s - time.monotonic()))
                process.kill()
                await anyio.to_thread.run_sync(process.wait)
                tasks.cancel_scope.cancel()
                nobody.close()
                drop.close()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()

    async def _gently(self, user: Any) -> None:
        try:
            await user()
        except* (
            Disconnected,
            OSError,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
        ):
            pass

    async def _measure(self, process: subprocess.Popen[bytes], life: int, age: float) -> None:
        pid = process.pid
        try:
            text = Path(f"/proc/{pid}/status").read_text()  # noqa: ASYNC240  (no disk)
            rss = int(text.split("VmRSS:")[1].split()[0])
            threads = int(text.split("Threads:")[1].split()[0])
            fds = len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, IndexError):
            self.trouble.append(f"life {life} ended by itself (exit {process.poll()})")
            return
        status: dict[str, Any] = {}
        with anyio.move_on_after(10):
            try:
                async with connect(self.socket) as client:
                    status = dict((await client.call(cm.DaemonStatus())).r)
            except* (Disconnected, OSError):
                pass
        if not status:
            self.trouble.append(f"life {life} did not answer at {age} s")
            return
        self.samples.append(
            Sample(
                life=life,
                age_s=age,
                rss_kib=rss,
                fds=fds,
                threads=threads,
                tasks=status["tasks"],
                head=status["head"],
            )
        )

    # -- users ---------------------------------------------------------------------------------------------

    async def _creator(self) -> None:
        """Creates all sessions, once, over however many lives it takes; then gives them cron jobs."""
        async with connect(self.socket) as client:
            while self.jobs:
                key, command = self.jobs[0]
                answer = await client.call(command, key=key)
                self.jobs.pop(0)
                if isinstance(command, cm.SessionCreate):
                    sid = str(answer.r["sid"])
                    self.sids.append(sid)
                    if len(self.sids) % 4 == 0:
                        put = cm.CronPut(
                            sid=sid, job="minute", expr="* * * * *", text="look around", missed="all"
                        )
                        self.jobs.insert(0, (f"cron{sid}", put))

    async def _operator(self) -> None:
        """Suspends for seconds, interrupts, sends; what it meets is not its business."""
        async with connect(self.socket) as client:
            while True:
                await anyio.sleep(self.dice.uniform(0.05, 0.4))
                if not self.sids:
                    continue
                sid = self.dice.choice(self.sids)
                now = time.time_ns() // 1_000_000
                command = self.dice.choice(
                    (
                        cm.Suspend(
                            sid=sid, until_ms=now + self.dice.randrange(1_000, 20_000), quarantine=True
                        ),
                        cm.Send(sid=sid, text=f"operator {self.dice.random()}"),
                        cm.Interrupt(sid=sid, for_ms=2_000),
                        cm.GateOpen(sid=sid),
                        cm.Why(sid=sid),
                        cm.SessionList(),
                    )
                )
                with contextlib.suppress(Refused):
                    await client.call(command)

    async def _reader(self) -> None:
        async with connect(self.socket, deltas=True) as client:
            async for _ in client.subscribe():
                self.events_read += 1

    async def _frozen(self) -> None:
        """Subscribes to everything and never reads."""
        async with await anyio.connect_unix(self.socket) as stream:
            await stream.send(encode_frame(Hello(client=Peer(name="frozen"))))
            await stream.send(encode_frame(Sub(id="1")))
            await anyio.sleep_forever()

    # -- the end ---------------------------------------------------------------------------------------------

    def report(self, seconds: float) -> dict[str, Any]:
        """Examine what is left."""
        copy = disk.copied(self.folder, self.root / "look")
        told: list[Acknowledged] = [a for hand in self.hands for a in hand.acknowledged]
        found = examine(copy, told, self.workspace / "effects.log", self.model.commands)
        verdicts = judged(self.samples)
        grown = {name: share for name, share in verdicts.items() if name in ALLOWED and share > ALLOWED[name]}
        if abs(verdicts["rss_kib"]) > FLAT:
            grown["rss_kib"] = verdicts["rss_kib"]
        return {
            "seconds": round(seconds),
            "lives": len({s.life for s in self.samples}),
            "sessions": len(self.sids) + len(self.hands),
            "events": found.events,
            "events_read": self.events_read,
            "acknowledged": found.acknowledged,
            "effects": found.effects,
            "uncertain": found.uncertain,
            "wrong": found.wrong[:50],
            "trouble": self.trouble,
            "growth": verdicts,
            "grown": grown,
            "samples": [msgspec.to_builtins(s) for s in self.samples],
        }


def judged(samples: list[Sample]) -> dict[str, float]:
    """By which share each figure grew."""
    lives = sorted({sample.life for sample in samples})
    warm = lives[int(len(lives) * WARM_SHARE) :]
    late = [(s.life, s.rss_kib) for s in samples if s.life in warm and s.age_s == AGES_S[-1]]
    shares = {"rss_kib": round(growth(late), 4)}
    half = lives[len(lives) // 2 :]
    for name in ALLOWED:
        before = [getattr(s, name) for s in samples if s.life not in half]
        after = [getattr(s, name) for s in samples if s.life in half]
        known = bool(before and after)
        shares[name] = round(statistics.fmean(after) / statistics.fmean(before) - 1, 4) if known else 0.0
    return shares


def growth(points: list[tuple[int, int]]) -> float:
    """By which share of its mean a figure grew over the run, by a line through all points."""
    if len(points) < 3:
        return 0.0
    slope = statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope
    mean = statistics.fmean(y for _, y in points)
    return slope * (points[-1][0] - points[0][0]) / mean if mean else 0.0


async def run(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """The whole soak."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the model's peers die all the time
    began = time.monotonic()
    async with Endpoint() as endpoint:
        soak = Soak(options.seed, root, endpoint, life_s=options.life)
        life = 0
        while time.monotonic() - began < options.minutes * 60 - 1:
            life += 1
            await soak.live(life)
            endpoint.requests.clear()
            if soak.samples:
                last = soak.samples[-1]
                print(
                    f"life {life}: {len(soak.sids)} sessions, {last.head} events, {last.rss_kib // 1024} MiB, "
                    f"{last.fds} fds, {last.tasks} tasks, {last.threads} threads",
                    flush=True,
                )
    return await anyio.to_thread.run_sync(soak.report, time.monotonic() - began)


def main(argv: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=float, default=LIFE_S, help="seconds between two kills")
    parser.add_argument("--out", type=Path, help="write the report here as JSON")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="lsoak"))
    report = anyio.run(run, options, root)
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: value for key, value in report.items() if key != "samples"}, indent=1))
    broken = report["wrong"] or report["grown"] or report["trouble"]
    if broken:
        print(f"something is wrong; the data folder is {root}")
        return 1
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
