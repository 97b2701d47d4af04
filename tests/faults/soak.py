"""Hours in minutes: `python -m tests.faults.soak --minutes 20` (or `make soak MINUTES=20`).

200 sessions of mixed agents, scripted ones and chats on the test endpoint that run real tools, with cron
jobs, suspensions that end by themselves, readers that freeze, operators that interfere, and a `kill -9`
every minute; with `--one-life` only at the end. Then nothing may be broken: the journal verifies, the audit of
the end-to-end tests agrees, everything acknowledged is there, no effect ran twice; memory is flat, and neither
tasks, threads nor file descriptors grow. What is compared with what is said in `tests.faults.flatness`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
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
from tests.faults.flatness import DECIDES, Look, judged, look, rates, report, told
from tests.faults.load import BUSY, Hand, Model

SESSIONS = 200
LIFE_S = 60.0
LOOK_S = 5.0
"""Time between two looks at the process."""

RIPE_S = 40.0
"""A process that is killed after a minute is compared at the ages from this one on: until then it fills up."""

LONG = "word " * 6_000
"""30 KB for each step: a context is full, at 200 KB, after seven."""

GAPS_MS = (4_000, 10_000)
"""Pauses between the turns of busy and of slow sessions: about 25 turns a second, which one processor carries
beside the model and the users. So the rate, and with it what fills up, is the same all the time."""

TELL_S = 30.0
"""Between two lines of progress."""

CONFIG = """
[recovery]
crash_loop_boots = 0
unstable_boots = 0
"""


class Soak:
    """One daemon that is killed now and then, and everybody who uses it."""

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
        self.began = time.monotonic()
        self.looks: list[Look] = []
        self.sids: list[str] = []
        self.jobs: list[tuple[str, cm.Command]] = list(self._creations())
        self.hands = [
            Hand(n, random.Random(self.dice.random()), self._play(300), None, goal="write") for n in range(8)
        ]
        for hand in self.hands:
            hand.pause_s = 0.15
        self.trouble: list[str] = []
        self.events_read = 0
        self.acknowledged = 0
        self.told_s = 0.0

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
            busy, slow = (BUSY | {"continuation.min_gap_ms": gap_ms} for gap_ms in GAPS_MS)
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

    async def live(self, life: int) -> bool:
        """One life: start, work, be looked at, be killed; false when it did not even begin."""
        process = self.spawn()
        assert process.stdout is not None
        try:
            with anyio.fail_after(180):
                line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
            if not line:
                self.trouble.append(f"life {life} did not begin (exit {process.wait()})")
                return False
            began = time.monotonic()
            async with anyio.create_task_group() as tasks:
                for user in (self._creator, *[self._reader] * 4, *[self._frozen] * 3, self._operator):
                    tasks.start_soon(self._gently, user)
                ticking, ticks = anyio.create_memory_object_stream[int](100)
                tasks.start_soon(self._count, ticks)
                for hand in self.hands:
                    tasks.start_soon(hand.work, self.socket, ticking)
                while (left := began + self.life_s - time.monotonic()) > 0:
                    await anyio.sleep(min(LOOK_S, left))
                    if left > LOOK_S:
                        await self._look(process, life, time.monotonic() - began)
                process.kill()
                await anyio.to_thread.run_sync(process.wait)
                tasks.cancel_scope.cancel()
                ticking.close()
            return True
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

    async def _count(self, ticks: anyio.abc.ObjectReceiveStream[int]) -> None:
        async with ticks:
            async for _ in ticks:
                self.acknowledged += 1

    async def _look(self, process: subprocess.Popen[bytes], life: int, age_s: float) -> None:
        self.endpoint.requests.clear()  # only the daemon is measured, but this process should not grow either
        try:
            found = look(process.pid, life=life, at_s=time.monotonic() - self.began, age_s=age_s)
        except OSError:
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
            self.trouble.append(f"life {life} did not answer at {age_s:.0f} s")
            return
        found.tasks, found.head = status["tasks"], status["head"]
        found.running = status["sessions"]["running"]
        found.sessions = status["memory"]["sessions"]
        found.idle_kib = status["memory"]["idle_bytes"] // 1_024
        self.looks.append(found)
        if found.at_s - self.told_s >= TELL_S:
            self.told_s = found.at_s
            print(
                f"{found.at_s / 60:5.1f} min  life {life}  {len(self.sids)} sessions  {found.head} events  "
                f"{found.resident_kib / 1_024:.1f} MiB ({found.sessions} loaded, at rest {found.idle_kib // 1_024} MiB)  "
                f"{found.fds} fds  {found.tasks} tasks  {found.threads} threads  {found.running} turns",
                flush=True,
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
        known: list[Acknowledged] = [a for hand in self.hands for a in hand.acknowledged]
        found = examine(copy, known, self.workspace / "effects.log", self.model.commands)
        ripe_s = RIPE_S if self.life_s <= LIFE_S else 0.0
        verdicts = judged(self.looks, seconds, ripe_s=ripe_s * self.life_s / LIFE_S)
        missing = sorted(DECIDES - set(verdicts))
        return {
            "seconds": round(seconds),
            "lives": len({each.life for each in self.looks}),
            "sessions": len(self.sids) + len(self.hands),
            "events": found.events,
            "events_read": self.events_read,
            "acknowledged": found.acknowledged,
            "effects": found.effects,
            "uncertain": found.uncertain,
            "wrong": found.wrong[:50],
            "trouble": self.trouble,
            "grown": [name for name, each in verdicts.items() if not each.flat and name in DECIDES],
            "not_judged": missing,
            "events_per_s": rates(self.looks, seconds),
            "told": told(verdicts),
            **report(self.looks, verdicts),
        }


async def run(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """The whole soak."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the model's peers die all the time
    whole_s = options.minutes * 60
    async with Endpoint() as endpoint:
        soak = Soak(options.seed, root, endpoint, life_s=whole_s if options.one_life else options.life)
        life = 0
        while time.monotonic() - soak.began < whole_s - 1:
            life += 1
            if not await soak.live(life):
                break
        seconds = time.monotonic() - soak.began
    print(f"killed for the last time after {seconds / 60:.1f} min; looking at what is left", flush=True)
    return await anyio.to_thread.run_sync(soak.report, seconds)


def main(argv: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=float, default=LIFE_S, help="seconds between two kills")
    parser.add_argument("--one-life", action="store_true", help="one process all the time, killed at the end")
    parser.add_argument("--out", type=Path, help="write the report here as JSON")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="lsoak"))
    found = anyio.run(run, options, root)
    lines = found.pop("told")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    shown = {key: value for key, value in found.items() if key not in {"looks", "judged"}}
    print(json.dumps(shown, indent=1))
    print("second quarter → last quarter, medians:", *lines, sep="\n  ")
    print("events a second in each quarter:", *found["events_per_s"])
    if found["wrong"] or found["grown"] or found["trouble"] or found["not_judged"]:
        print(f"something is wrong; the data folder is {root}")
        return 1
    print("nothing lost, nothing run twice, verified, flat")
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
