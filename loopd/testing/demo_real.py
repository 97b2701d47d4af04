"""The main job on real input: a real model degenerates and is caught, suspended, killed and brought back.

    python -m loopd.testing.demo_real       # `make demo-real` runs this

A small real model (`loopd.testing.realmodel`) is served on loopback. A real daemon hosts a `chat`
session with a goal on it. A relay between both counts the requests that reach the model, so that
"no further request" is not loopd's word about itself. Each promise of the story is checked; the exit
code is 1 and the sentence that does not hold is printed when one is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.abc

from loopd.client_async import AsyncClient, connect
from loopd.testing.realmodel import FOLDER, SPEC, RealModel, prepare, serving
from loopd_protocol.frames import Cursor, Ev

NAME = "night-shift"
GOAL = "make all tests pass"
MESSAGE = "Stop repeating yourself. Which file did you change last?"
QUIET_S = 5.0
TEMPERATURE = f"{int(str(SPEC['temperature_milli'])) / 1_000:g}"
STORY_S = 600.0
_REQUEST = b"POST /v1/chat/completions "


class Broken(Exception):
    """A promise of the story that does not hold."""


def expect(held: object, promise: str) -> None:
    """Stop the story unless `held`.

    Raises:
        Broken: it does not hold.
    """
    if not held:
        raise Broken(promise)


class Relay:
    """Passes bytes on to the model's server and counts the requests among them."""

    def __init__(self, model: RealModel) -> None:
        address = model.url.partition("://")[2].partition("/")[0]
        host, _, port = address.rpartition(":")
        self._upstream = (host, int(port))
        self.requests = 0
        self.url = ""

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen on a free loopback port until cancelled."""
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            self.url = f"http://127.0.0.1:{port}/v1"
            task_status.started()
            await listener.serve(self._pass_on)

    async def _pass_on(self, client: anyio.abc.SocketStream) -> None:
        host, port = self._upstream
        async with client, await anyio.connect_tcp(host, port) as server, anyio.create_task_group() as both:

            async def pump(
                source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, *, count: bool
            ) -> None:
                with contextlib.suppress(
                    anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
                ):
                    while True:
                        data = await source.receive()
                        self.requests += data.count(_REQUEST) if count else 0
                        await target.send(data)
                both.cancel_scope.cancel()

            both.start_soon(lambda: pump(client, server, count=True))
            both.start_soon(lambda: pump(server, client, count=False))


class Stage:
    """Where the story is told: a folder, a daemon that can be killed, and an operator's terminal."""

    def __init__(self, folder: Path, *, colour: bool) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.socket = self.data / "control.sock"
        self._colour = colour
        self._daemon: anyio.abc.Process | None = None

    def say(self, text: str = "", style: str = "") -> None:
        """A line for the person who watches."""
        codes = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
        print(f"\x1b[{codes[style]}m{text}\x1b[0m" if self._colour and style else text, flush=True)

    async def start(self) -> dict[str, Any]:
        """Start the daemon; its ready line."""
        with (self.folder / "loopd.log").open("ab") as log:
            argv = [sys.executable, "-m", "loopd.cli.daemon", "serve", "--data", str(self.data)]
            self._daemon = await anyio.open_process(argv, stdin=subprocess.DEVNULL, stderr=log)
        assert self._daemon.stdout is not None
        line = b""
        with anyio.fail_after(30), contextlib.suppress(anyio.EndOfStream):
            while not line.endswith(b"\n"):
                line += await self._daemon.stdout.receive()
        expect(line, f"the daemon starts; its log: {(self.folder / 'loopd.log').read_text()[-2_000:]}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    async def kill(self, signum: signal.Signals) -> int:
        """End the daemon by a signal; its pid."""
        assert self._daemon is not None
        self._daemon.send_signal(signum)
        with anyio.fail_after(40):
            await self._daemon.wait()
        await self._daemon.aclose()
        return self._daemon.pid

    async def aclose(self) -> None:
        """Leave nothing running."""
        if self._daemon is not None and self._daemon.returncode is None:
            with anyio.CancelScope(shield=True):
                await self.kill(signal.SIGKILL)

    async def type(self, *words: str) -> str:
        """Run `loopctl` as an operator would: show the command and what it printed."""
        self.say(f"$ loopctl {shlex.join(words)}", "bold")
        done = await self._loopctl(*words)
        for line in (done.stdout + done.stderr).decode().rstrip().splitlines():
            self.say(line)
        expect(done.returncode == 0, f"`loopctl {words[0]}` succeeds; its exit code is {done.returncode}")
        return done.stdout.decode()

    async def ask(self, *words: str) -> dict[str, Any]:
        """Run `loopctl -o json` without showing it."""
        done = await self._loopctl("-o", "json", *words)
        expect(done.returncode == 0, f"`loopctl {words[0]}` succeeds: {done.stderr.decode()}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def _loopctl(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "LOOPD_SOCKET": str(self.socket), "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "loopd.cli.operator", *words]
        return await anyio.run_process(argv, check=False, env=environment)


async def events(client: AsyncClient, sid: str, after: Cursor) -> AsyncIterator[tuple[Ev, dict[str, Any]]]:
    """Events of one session after a position, decoded."""
    async for frame in client.subscribe(after=after, sids=[sid]):
        if isinstance(frame, Ev):
            yield frame, json.loads(bytes(frame.b))


async def watched(
    stage: Stage, sid: str, after: Cursor
) -> tuple[dict[str, Any], dict[str, Any], int, Cursor]:
    """Show turns until the gate closes: the finding, the hold, how many turns ran, and where it was."""
    finding: dict[str, Any] = {}
    turns, last = 0, ""
    async with connect(stage.socket) as client:
        async for frame, body in events(client, sid, after):
            if frame.k == "turn.step":
                same = " (the same)" if body.get("text") == last else ""
                last = body.get("text", "")
                stage.say(f"  turn {body['n']:>2}  {shown(last)}{same}", "dim")
            elif frame.k == "turn.completed":
                turns = body["n"]
                expect(
                    body["outcome"] == "completed", f"the model answers; turn {turns} was {body['outcome']}"
                )
            elif frame.k == "degeneration.detected":
                finding = body
            elif frame.k == "gate.changed" and body["gate"] == "closed":
                hold = body["added"]
                return finding, hold, max(turns, frame.turn or 0), Cursor(log=after.log, seq=frame.seq)
    return no_ending("the gate closes")


async def answered(stage: Stage, sid: str, after: Cursor, envelope: str) -> str:
    """The model's answer in the turn that consumed `envelope`."""
    mine, text = 0, ""
    async with connect(stage.socket) as client:
        async for frame, body in events(client, sid, after):
            if frame.k == "turn.started" and envelope in body.get("envelopes", ()):
                mine = body["n"]
            elif frame.k == "turn.step" and body["n"] == mine:
                text = body.get("text", "")
            elif frame.k == "turn.completed" and body["n"] == mine:
                return text
    return no_ending("the message is answered")


def no_ending(promise: str) -> NoReturn:
    """The stream of events ended too early.

    Raises:
        Broken: always.
    """
    raise Broken(f"{promise}; the stream of events ended before")


def shown(text: str, limit: int = 88) -> str:
    """One line of text, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def minutes(until_ms: int) -> float:
    """Minutes from now until a moment."""
    return (until_ms - time.time_ns() / 1e6) / 60_000


async def story(stage: Stage, relay: Relay) -> None:
    """Tell it and check it."""
    await stage.start()
    chat = ["--driver", "chat", "--base-url", relay.url, "--model", str(SPEC["model"]), "--no-tools"]
    sampling = ["--temperature", TEMPERATURE, "--max-tokens", str(SPEC["max_tokens"])]
    async with connect(stage.socket) as client:
        begin = client.welcome.head
    said = await stage.type("new", "--name", NAME, "--goal", GOAL, *chat, *sampling)
    sid = json.loads(said)["sid"]

    stage.say()
    finding, hold, turns, seen = await watched(stage, sid, begin)
    expect(finding, "a rule says why the gate closed")
    expect(hold["kind"] == "Degeneration", f"the hold is Degeneration, not {hold['kind']}")
    expect(55 < minutes(hold["until_ms"]) <= 60, "the gate stays closed for an hour unless somebody comes")
    stage.say()
    stage.say(
        f"caught by {finding['rule']} after {turns} turns: {finding['score']} of {finding['threshold']}",
        "yellow",
    )
    await stage.type("why", NAME)

    requests = relay.requests
    await anyio.sleep(QUIET_S)
    expect(relay.requests == requests, f"no request reaches the model: {relay.requests - requests} did")
    stage.say(f"requests that reached the model: {requests}; {QUIET_S:g} s later: {relay.requests}", "green")

    stage.say()
    suspended = await stage.ask("suspend", NAME, "--reason", "looking into it")
    stage.say(f"$ loopctl suspend {NAME} --reason 'looking into it'", "bold")
    stage.say(f"gate {suspended['gate']}, durable at seq {suspended['seq']}")
    before = (await stage.ask("why", NAME))["holds"]
    pid = await stage.kill(signal.SIGKILL)
    stage.say(f"kill -9 {pid}", "red")
    await stage.start()
    after = (await stage.ask("why", NAME))["holds"]
    kinds = [(each["kind"], each["until_ms"]) for each in after]
    expect(
        kinds == [(each["kind"], each["until_ms"]) for each in before],
        f"holds and deadlines survive: {before} became {after}",
    )
    stage.say(
        f"started again: {' and '.join(kind for kind, _ in kinds)} stand, with the same deadlines", "green"
    )
    await stage.type("verify", NAME, "--suspended-since", str(suspended["seq"]))
    expect(relay.requests == requests, "a restart asks the model nothing")

    stage.say()
    sent = json.loads(await stage.type("-o", "json", "send", NAME, MESSAGE))
    text = await answered(stage, sid, seen, sent["id"])
    stage.say(f"  the model: {shown(text)}", "dim")
    await stage.type("suspend", NAME, "--mode", "interrupt")
    await stage.type("verify")
    stage.say()
    stage.say(
        f"A person's message lifted both holds. {turns} turns were spent on the loop; "
        "an unattended one has run for 1,395.",
        "bold",
    )


async def play(folder: Path, *, threads: int, colour: bool) -> str | None:
    """Serve the model, tell the story, leave nothing behind; the promise that was broken, if one was."""
    python = await anyio.to_thread.run_sync(
        prepare, folder, lambda text: print(text, file=sys.stderr, flush=True)
    )
    with tempfile.TemporaryDirectory(prefix="loopd-demo-") as top:
        stage = Stage(Path(top), colour=colour)
        try:
            async with serving(python, threads=threads) as model, anyio.create_task_group() as tasks:
                stage.say(
                    f"serving {model.model} (135 M parameters) on loopback, temperature {TEMPERATURE}", "dim"
                )
                relay = Relay(model)
                await tasks.start(relay.serve)
                broken = None
                try:
                    with anyio.fail_after(STORY_S):
                        await story(stage, relay)
                except (Broken, TimeoutError) as error:
                    broken = str(error) or f"it ends within {STORY_S:g} s"
                await stage.kill(signal.SIGTERM)
                tasks.cancel_scope.cancel()
            return broken
        finally:
            await stage.aclose()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.demo_real",
        description="A real small model degenerates; loopd catches it. Installs the model first (220 MB).",
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the model's environment is or goes"
    )
    # llama.cpp's threads spin while they wait for each other: with all cores, any other load stalls them.
    threads = max(1, (os.cpu_count() or 2) // 2)
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"of the model (default here: {threads})"
    )
    options = parser.parse_args(argv)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    broken = anyio.run(lambda: play(options.folder, threads=options.threads, colour=colour))
    if broken is not None:
        print(f"the story did not happen: {broken}", file=sys.stderr)
    return 0 if broken is None else 1


if __name__ == "__main__":
    sys.exit(main())
