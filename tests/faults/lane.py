"""One lane of the matrix: a data folder whose daemon is started, loaded, broken, examined, again and again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
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
from loopd_protocol.errors import Refused
from tests.faults import disk
from tests.faults.examination import Acknowledged, Examination, examine
from tests.faults.judgement import Whole, judged
from tests.faults.load import Hand, Model
from tests.faults.plan import Fault

READY_S = 180.0  # of a machine that does other things as well
LIFE = 5
"""Starts of one data folder; then a new one, so that examining stays quick."""

AGAIN_S = 20
"""How long a daemon may take to notice that there is room again, on a machine that does other things as well."""

GONE_S = 5.0
RETRIED_S = 3.0
"""A session whose take-over was refused is taken over a second later."""

FIRED = b"fail-point "

WAIT_S = 6.0
"""How long a fail-point may take to be reached; then the daemon is killed all the same."""

CONFIG = """
[testing]
enabled = true
[recovery]
crash_loop_boots = 0
unstable_boots = 0
[drain]
budget_ms = 500
[drivers.chat]
connect_s = 5
first_s = 5
silence_s = 5
tool_timeout_s = 10
"""


class Result(msgspec.Struct, kw_only=True):
    """One fault and what became of it.

    Attributes:
        reached: the fault happened where it was meant to; else the daemon was killed at a random moment.
        word: for damaged copies: what became of them.
        wrong: broken promises; empty is good.
    """

    number: int
    family: str
    what: str
    reached: bool = False
    word: str = ""
    wrong: list[str] = []
    seconds: float = 0.0
    found: Examination = msgspec.field(default_factory=Examination)


class Lane:
    """Keeps folder, hands and model over the daemon's many lives."""

    def __init__(self, seed: int, name: str, root: Path, *, keep: bool = False) -> None:
        self.dice = random.Random(f"{seed}:{name}")
        self.name = name
        self.root = root
        self.keep = keep
        self.wait_s = WAIT_S
        self.generation = 0
        self.lives = LIFE
        self.folder = root
        self.hands: list[Hand] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.err = root / f"{name}.stderr"
        self._err_from = 0
        self.endpoint: Endpoint
        self.model = Model(name, self.dice)

    # -- a new folder -------------------------------------------------------------------------------

    def _renew(self) -> None:
        if self.generation and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.generation += 1
        self.lives = 0
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-{self.generation}-", dir=self.root))
        self.workspace = self.folder / "work"
        self.workspace.mkdir()
        self.tool_file = self.workspace / "effects.log"
        (self.folder / "loopd.toml").write_text(CONFIG)
        self.model = Model(f"{self.name}.{self.generation}", self.dice)
        self.endpoint.script = self.model.reply
        self.endpoint.requests.clear()
        chat = {"kind": "chat", "base_url": self.endpoint.base_url, "model": "test"}
        script = self._script()
        play = {"kind": "scripted", "script": str(script), "delay_ms": 2}
        self.hands = [
            Hand(n, random.Random(self.dice.random()), chat, self.workspace, goal="write" if n % 2 else None)
            for n in range(4)
        ]
        self.hands.append(Hand(4, random.Random(self.dice.random()), play, None, goal="write"))

    def _script(self) -> Path:
        path = self.folder / "script.jsonl"
        lines: list[dict[str, Any]] = [{"t": "trajectory", "v": 1, "id": "works"}]
        for n in range(40):
            calls = [
                {
                    "name": "write_file",
                    "args": {"path": f"p{n}", "content": f"t{n}"},
                    "ok": True,
                    "result": f"w{n}",
                }
            ]
            lines.append(
                {"t": "step", "n": n + 1, "trigger": "continuation", "text": f"Part {n}.", "calls": calls}
            )
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    # -- the process --------------------------------------------------------------------------------

    @property
    def socket(self) -> str:
        return str(self.folder / "control.sock")

    def _spawn(self, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the daemon of this interpreter, from the tree that this module is in."""
        command = [sys.executable, "-m", "loopd.cli.daemon", "serve", "--data", str(self.folder)]
        command += ["--config", str(self.folder / "loopd.toml")]
        whole = {k: v for k, v in os.environ.items() if not k.startswith("LOOPD_")} | env
        whole["LOOPD_LOG_LEVEL"] = "warning"
        with open(self.err, "ab") as err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=whole
            )

    async def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the ready line; false if it ended instead."""
        assert process.stdout is not None
        with anyio.fail_after(READY_S):
            line = await anyio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
        return bool(line)

    async def _gone(self, process: subprocess.Popen[bytes], within_s: float) -> bool:
        """Whether the process ends in time."""
        with anyio.move_on_after(within_s):
            await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return process.poll() is not None

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()  # our own child
        await anyio.to_thread.run_sync(process.wait)
        if process.stdout is not None:
            process.stdout.close()

    # -- one fault ------------------------------------------------------------------------------------

    async def run(self, number: int, fault: Fault) -> Result:
        """Start, load, break, examine."""
        began = time.monotonic()
        if self.lives >= LIFE or fault.detail.endswith("session.created"):  # made in the first life only
            self._renew()
        self.lives += 1
        result = Result(number=number, family=fault.family, what=str(fault))
        env = dict(fault.env)
        if fault.family == "clock":
            (self.folder / "clock").write_text("0")
            env["LOOPD_TESTING_CLOCK_OFFSET_FILE"] = str(self.folder / "clock")
        if fault.family == "disk":
            found = disk.shim()
            if found is None:
                result.word = "no compiler"
                return result
            env |= {"LD_PRELOAD": str(found), "LOOPD_FAULT_CTL": str(self.folder / "fault")}
        self._err_from = self.err.stat().st_size if self.err.exists() else 0
        self.process = process = self._spawn(env)
        try:
            if await self._ready(process):
                await self._loaded(process, fault, result)
            else:
                result.reached = await self._gone(process, 5) and fault.family == "point"
                if not result.reached:
                    result.wrong.append(f"it did not start (exit {process.returncode})")
        finally:
            (self.folder / "fault").unlink(missing_ok=True)
            await self._end(process)
        await self._examine(result, fault)
        result.seconds = round(time.monotonic() - began, 2)
        return result

    async def _loaded(self, process: subprocess.Popen[bytes], fault: Fault, result: Result) -> None:
        if await self._talk(cm.RecoveryGet(), cm.EffectList()) is None:
            # It hung up: sessions go on before anybody is there, so a point may be reached at once. The socket is
            # closed a moment before the process can be waited for.
            gone = await self._gone(process, GONE_S)
            result.reached = gone and fault.family == "point"
            if not result.reached:
                result.wrong.append(f"it hung up as soon as it was ready (exit {process.poll()})")
            return
        send, receive = anyio.create_memory_object_stream[int](10_000)
        with send, receive:
            async with anyio.create_task_group() as tasks:
                for hand in self.hands:
                    hand.fat = fault.fat
                    tasks.start_soon(hand.work, self.socket, send)
                await self._break(process, fault, result, receive)
                tasks.cancel_scope.cancel()
        for hand in self.hands:
            result.wrong += [f"hand {hand.number}: {said}" for said in hand.strange]
            hand.strange.clear()

    async def _ticks(
        self, receive: anyio.abc.ObjectReceiveStream[int], count: int, process: subprocess.Popen[bytes]
    ) -> bool:
        """Wait for so many acknowledgements; false if the daemon is gone or silent before."""
        with anyio.move_on_after(self.wait_s):
            for _ in range(count):
                await receive.receive()
            return True
        return False

    async def _break(
        self,
        process: subprocess.Popen[bytes],
        fault: Fault,
        result: Result,
        receive: anyio.abc.ObjectReceiveStream[int],
    ) -> None:
        match fault.family:
            case "point":
                result.reached = await self._gone(process, self.wait_s)
            case "moment":
                await self._ticks(receive, fault.after, process)
                result.reached = process.poll() is None
            case "term":
                await self._ticks(receive, fault.after, process)
                process.terminate()
                result.reached = await self._gone(process, 10)
                if not result.reached:
                    result.wrong.append("a drain of 500 ms took over 10 s")
            case "stop":
                await self._ticks(receive, fault.after, process)
                process.send_signal(signal.SIGSTOP)
                await anyio.sleep(fault.for_s)
                process.send_signal(signal.SIGCONT)
                await self._alive(process, result, "after it was stopped")
                await self._ticks(receive, 20, process)
                result.reached = process.poll() is None
            case "clock":
                for jump in fault.jumps:
                    await self._ticks(receive, fault.after, process)
                    (self.folder / "clock").write_text(str(jump))
                    await anyio.sleep(0.4)
                await self._alive(process, result, "after the clock jumped")
                result.reached = process.poll() is None
            case "disk":
                await self._full_disk(process, fault, result, receive)
            case "fails":
                await self._failing(process, fault, result, receive)
            case _:  # the files of a daemon that stands still are copied and damaged
                await self._ticks(receive, fault.after, process)
                await self._damaged(process, fault, result)

    async def _full_disk(
        self,
        process: subprocess.Popen[bytes],
        fault: Fault,
        result: Result,
        receive: anyio.abc.ObjectReceiveStream[int],
    ) -> None:
        control = self.folder / "fault"
        await self._ticks(receive, fault.after, process)
        control.write_text(fault.detail)
        await anyio.sleep(fault.for_s)
        await self._alive(process, result, f"with {fault.detail}", reasons=True)
        control.unlink()
        result.reached = True
        if fault.detail != "ENOSPC":
            return  # an fsync that failed once is never trusted again: it needs a new start
        await self._ready_again(result)

    async def _ready_again(self, result: Result) -> None:
        with anyio.move_on_after(AGAIN_S) as patience:
            while not await self._is_ready():  # noqa: ASYNC110  (the other side is a process)
                await anyio.sleep(0.2)
        if patience.cancelled_caught:
            result.wrong.append(f"{AGAIN_S} s after there was room again it is not ready")

    async def _failing(
        self,
        process: subprocess.Popen[bytes],
        fault: Fault,
        result: Result,
        receive: anyio.abc.ObjectReceiveStream[int],
    ) -> None:
        """One error at one point: it lives on, says what it takes, and goes on by itself if the disk was full."""
        with anyio.move_on_after(self.wait_s):
            while not result.reached:
                await receive.receive()
                result.reached = self._fired()
        broken = result.reached and fault.detail.startswith("EIO commit")
        await self._alive(process, result, f"after {fault.detail}", reasons=broken)
        if "EIO" in fault.detail:
            return  # an fsync that failed once is never trusted again: it needs a new start
        await self._ready_again(result)
        await anyio.sleep(RETRIED_S)

    def _fired(self) -> bool:
        """Whether the fail-point of this life was reached: the daemon says so on standard error."""
        return FIRED in self.err.read_bytes()[self._err_from :]

    async def _damaged(self, process: subprocess.Popen[bytes], fault: Fault, result: Result) -> None:
        process.send_signal(signal.SIGSTOP)
        try:
            await anyio.to_thread.run_sync(self._damage, fault, result)
        finally:
            process.send_signal(signal.SIGCONT)
        result.reached = process.poll() is None

    def _damage(self, fault: Fault, result: Result) -> None:
        # One copy to damage copies of: a stopped process may still finish what it was in the middle of.
        disk.copied(self.folder, self.folder / "base")
        disk.copied(self.folder / "base", self.folder / "folded")
        disk.folded(self.folder / "folded" / "journal.sqlite")
        in_the_log = "log" in fault.detail or "fsync" in fault.detail
        base = self.folder / ("base" if in_the_log else "folded")
        whole = Whole(base / "journal.sqlite", self.folder / "scratch")
        words = []
        for turn in range(fault.times):
            copy = disk.copied(base, self.folder / f"copy{turn}")
            dice = random.Random(f"{fault.detail}{result.number}.{turn}")
            match fault.detail:
                case "lying fsync":
                    did = disk.cut_wal(copy, dice, whole_frames=True)
                case "torn log":
                    did = disk.cut_wal(copy, dice, whole_frames=False)
                case "log bits":
                    did = disk.flip(copy.with_name("journal.sqlite-wal"), dice, bits=dice.choice((1, 1, 8)))
                case "database bits":
                    did = disk.flip(copy, dice, bits=dice.choice((1, 1, 8)))
                case _:
                    did = disk.cut_database(copy, dice)
            word, details = judged(whole, copy)
            words.append(word)
            allowed = {"refused", "found", "harmless"} | ({"prefix"} if in_the_log else set())
            if word not in allowed:
                result.wrong.append(f"{fault.detail}: {did}: {word}: {details}")
            if word in allowed or not self.keep:
                shutil.rmtree(copy.parent, ignore_errors=True)
        for name in ("base", "folded", "scratch"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        result.word = ",".join(words)

    async def _talk(self, *commands: cm.Command) -> list[dict[str, Any]] | None:
        """The results of some commands, or None when the daemon is gone."""
        results: list[dict[str, Any]] = []
        try:
            async with connect(self.socket) as client:
                results += [dict((await client.call(command)).r) for command in commands]
        except* (Disconnected, OSError):
            pass
        return results if len(results) == len(commands) else None

    async def _is_ready(self) -> bool:
        told = await self._talk(cm.DaemonStatus())
        return told is not None and bool(told[0]["ready"])

    async def _alive(
        self, process: subprocess.Popen[bytes], result: Result, when: str, *, reasons: bool = False
    ) -> None:
        """It answers, also about its sessions; what it says of its readiness is right."""
        asked = [cm.Why(sid=hand.sid) for hand in self.hands if hand.sid]
        told: list[dict[str, Any]] | None = None
        said = ""
        try:
            with anyio.move_on_after(10):
                told = await self._talk(cm.DaemonStatus(), *asked)
        except* Refused as group:
            said = repr(group.exceptions[0])
        if told is None:
            result.wrong.append(f"{when} it does not answer: {said} (exit {process.poll()})")
        elif reasons and not set(told[0]["reasons"]) & {"storage_full", "storage_readonly"}:
            result.wrong.append(f"{when} it calls itself ready: {told[0]['reasons']}")

    async def _examine(self, result: Result, fault: Fault) -> None:
        def look() -> Examination:
            copy = disk.copied(self.folder, self.folder / "look")
            acknowledged: list[Acknowledged] = [a for hand in self.hands for a in hand.acknowledged]
            try:
                return examine(copy, acknowledged, self.tool_file, self.model.commands)
            finally:
                shutil.rmtree(copy.parent, ignore_errors=True)

        result.found = await anyio.to_thread.run_sync(look)
        result.wrong += result.found.wrong
        if result.wrong:
            self.lives = LIFE  # what is broken would be found again and again
            self.keep_folder()

    def keep_folder(self) -> None:
        """Leave the folder of a broken promise for whoever looks into it."""
        target = self.root / "broken" / self.folder.name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(self.folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))

    async def aclose(self) -> None:
        """End what still runs."""
        if self.process is not None:
            await self._end(self.process)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
