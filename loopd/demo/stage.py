"""The stage of a demonstration: a real daemon in a temporary folder, and its events as lines to read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loopd.client import Client

STYLES = {"head": "1;36", "quiet": "2", "bad": "1;31", "good": "1;32", "warn": "33"}
POLL_S = 0.02
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


class StoryFailed(Exception):
    """Something that the demonstration promises did not happen."""


class Stage:
    """A daemon of its own, one session to watch, and a place to print.

    Args:
        data: an empty folder for the daemon.
        colours: whether to use them.
        limit_s: longest wait for any single expectation.
    """

    def __init__(self, data: Path, *, colours: bool, limit_s: float = 15.0) -> None:
        self.data = data
        self.limit_s = limit_s
        self.client = Client(data / "control.sock", name="demo", timeout_s=limit_s)
        self.events: list[dict[str, Any]] = []
        self.sid = ""
        self._colours = colours
        self._seen = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    # -- printing ---------------------------------------------------------------------------

    def say(self, text: str = "", style: str = "") -> None:
        """Print one line."""
        if style and self._colours:
            text = f"\x1b[{STYLES[style]}m{text}\x1b[0m"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def chapter(self, title: str) -> None:
        """Begin a part of the story."""
        self.say()
        self.say(f"── {title} ", "head")

    def command(self, text: str) -> None:
        """Show the shell command that does the same."""
        self.say(f"   $ {text}", "quiet")

    # -- the daemon -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.end(signal.SIGTERM)

    def start(self) -> dict[str, Any]:
        """Start the daemon; returns its ready line."""
        command = [sys.executable, "-m", "loopd.cli.daemon", "serve", "--data", str(self.data)]
        command += ["--http", "127.0.0.1:0"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOOPD_")}
        with (self.data / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise StoryFailed(f"the daemon did not start; its log is {self.data / 'daemon.log'}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def end(self, signum: int) -> int:
        """End the daemon that this stage started, and wait for it."""
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(signum)
        try:
            return self._process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill_and_restart(self) -> int:
        """`kill -9` the daemon and start it again on the same data; returns the pid that died."""
        assert self._process is not None
        pid = self._process.pid
        self.client.close()
        self.end(signal.SIGKILL)
        self.start()
        self.client = Client(self.data / "control.sock", name="demo", timeout_s=self.limit_s)
        return pid

    def turn_to(self, sid: str) -> None:
        """Watch another session from now on."""
        self.sid, self.events, self._seen = sid, [], 0

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Carry out a command for the watched session."""
        command: dict[str, Any] = {"t": kind, **fields}
        if self.sid:
            command.setdefault("sid", self.sid)
        result: dict[str, Any] = self.client.call(command)
        return result

    # -- watching ---------------------------------------------------------------------------

    def watch(self, describe: Callable[[Mapping[str, Any]], tuple[str, str] | None]) -> list[dict[str, Any]]:
        """Print what is new in the journal; returns it."""
        page = self.ask("history.page", after=self._seen, limit=500)["events"]
        for event in page:
            self._seen = event["seq"]
            self.events.append(event)
            line = describe(event)
            if line is not None:
                self.say(f"   {event['seq']:>5}  {line[0]}", line[1])
        return list(page)

    def expect(
        self,
        what: str,
        describe: Callable[[Mapping[str, Any]], tuple[str, str] | None],
        found: Callable[[list[dict[str, Any]]], bool],
    ) -> None:
        """Follow the journal until `found` holds for everything seen so far.

        Raises:
            StoryFailed: it did not happen in time.
        """
        limit = time.monotonic() + self.limit_s
        while True:
            self.watch(describe)
            if found(self.events):
                return
            if time.monotonic() > limit:
                raise StoryFailed(f"expected within {self.limit_s:g} s: {what}")
            time.sleep(POLL_S)

    def elapsed_s(self) -> float:
        """Seconds since the curtain rose."""
        return time.monotonic() - self._began


def check(condition: object, promise: str) -> None:
    """Hold the story to its promise.

    Raises:
        StoryFailed: the promise was not kept.
    """
    if not condition:
        raise StoryFailed(f"not so: {promise}")


def one_line(text: str, limit: int = 72) -> str:
    """Text of an agent, safe for a terminal."""
    clean = _CONTROL.sub(" ", text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def describe(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """One event as a line and its style; None for what is not worth a line."""
    b = event["b"]
    match event["k"]:
        case "turn.started":
            return f"turn {b['n']:>4}  ({b['trigger']})", "quiet"
        case "turn.step":
            calls = ", ".join(call["name"] for call in b.get("calls", ()))
            said = f"model says: {one_line(b.get('text', ''))!r}" if b.get("text") else "model says nothing"
            return f"           {said}" + (f"  calls {calls}" if calls else ""), ""
        case "turn.interrupted":
            return f"turn {b['n']:>4}  INTERRUPTED ({b['cause']})", "warn"
        case "degeneration.detected":
            text = f"DEGENERATION  {b['rule']}: {b['score']} {b.get('unit', 'turns')} (threshold {b['threshold']})"
            return f"{text} → {b['verdict']}" + (
                f", relapse {b['relapse']}" if b.get("relapse") else ""
            ), "bad"
        case "gate.changed":
            if b["gate"] == "open":
                return f"GATE OPEN     {', '.join(b.get('removed', ()))} went ({b['cause']})", "good"
            hold = b.get("added") or {}
            until = hold.get("until_ms")
            ends = "no deadline" if until is None else f"until {_clock(until)}"
            return f"GATE CLOSED   {hold.get('kind', '?')} ({b['cause']}), {ends}", "bad"
        case "envelope.accepted" if b["source"] != "system":
            return f"envelope      {b['source']}: {one_line(b['text'], 60)!r}", "warn"
        case "envelope.held":
            return f"held          by {', '.join(b['by'])}", "warn"
        case "envelope.coalesced":
            return f"coalesced     {b['count']} wakes of {b['job']!r} stand as one", "warn"
        case "goal.changed":
            return f"goal          {b['status']} ({b['origin']})", "warn"
    return None


def _clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1_000))
