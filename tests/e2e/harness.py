"""Real daemons in folders of their own, talked to through the real client and the real `loopctl`.

Nothing here sleeps to let something happen: whoever waits, waits for an event of the log, for a line,
or for a process, and always with an end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from loopd.client import CallFailed, Client
from loopd.core.replay import Row, replay
from loopd.testing.endpoint import Endpoint, Script

BIN = Path(sys.executable).parent
RULES = ("repeated_text", "barren_streak", "tool_repetition", "progress_stall")
FILLER = "16/100. Not complete. No action."
READY_S = 20.0
WAIT_S = 30.0
NO_RULES = {f"rules.{rule}.enabled": False for rule in RULES}
"""Overrides that let a session repeat itself for ever."""

Event = dict[str, Any]


class DaemonDied(AssertionError):
    """The daemon ended where it should have become ready; carries what it said."""

    def __init__(self, code: int | None, out: str, err: str) -> None:
        super().__init__(f"exit code {code}, stdout {out!r}, stderr {err!r}")
        self.code, self.out, self.err = code, out, err


class Daemon:
    """One data folder and the daemon process on it, which may be killed and started again.

    Attributes:
        data: the data folder.
        ready: the line that the running process printed.
        lines: everything that all processes so far printed on stdout.
    """

    def __init__(
        self,
        data: Path,
        *,
        config: str = "",
        http: bool = False,
        env: dict[str, str] | None = None,
        argv: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.socket = str(data / "control.sock")
        self.config = config
        self.http = http
        self.env = {**os.environ, "LOOPD_LOG_LEVEL": "info", **(env or {})}
        self.env.pop("NOTIFY_SOCKET", None)
        self.env |= env or {}
        self.argv = list(argv)
        self.ready: dict[str, Any] = {}
        self.lines: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self._client: Client | None = None
        self._err = data.parent / f"{data.name}.stderr"

    # -- the process --------------------------------------------------------------------------

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a process without waiting for it."""
        command = [str(BIN / "loopd"), "serve", "--data", str(self.data), *self.argv]
        if self.http:
            command += ["--http", "127.0.0.1:0"]
        if self.config:
            file = self.data.parent / f"{self.data.name}.toml"
            file.write_text(self.config)
            command += ["--config", str(file)]
        with open(self._err, "ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=self.env
            )
        return self.process

    def start(self, *, within_s: float = READY_S) -> Self:
        """Start, and wait for the ready line.

        Raises:
            DaemonDied: it ended instead.
        """
        process = self.spawn()
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], within_s)
        line = process.stdout.readline() if readable else b""
        if not line:
            code = process.wait(READY_S) if readable else None
            raise DaemonDied(code, line.decode(), self.stderr())
        self.lines.append(line.decode())
        self.ready = json.loads(line)
        return self

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    def stderr(self) -> str:
        """What all processes so far logged."""
        return self._err.read_text() if self._err.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to our own process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`; returns when the process is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """`SIGTERM`; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end of the process; keeps what it still printed."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        assert self.process.stdout is not None
        self.lines += self.process.stdout.read().decode().splitlines(keepends=True)
        self.process.stdout.close()
        self.process = None
        self.hang_up()
        return code

    def hang_up(self) -> None:
        """Close all our connections."""
        for client in self._clients:
            client.close()
        self._clients, self._client = [], None

    def close(self) -> None:
        """End our process, whatever its state."""
        if self.process is not None:
            self.process.kill()
            self.wait()
        self.hang_up()

    # -- talking --------------------------------------------------------------------------------

    def client(self, *, timeout_s: float = WAIT_S, deltas: bool = False) -> Client:
        """A new connection, closed with the daemon."""
        client = Client(self.socket, name="e2e", timeout_s=timeout_s, deltas=deltas)
        self._clients.append(client)
        return client

    def call(self, kind: str, sid: str | None = None, /, **fields: Any) -> dict[str, Any]:
        """Carry out one command and return its result."""
        if self._client is None:
            self._client = self.client()
        named = {"sid": sid} if sid is not None else {}
        return self._client.call({"t": kind, **named, **fields})

    def refusal(self, kind: str, sid: str | None = None, /, **fields: Any) -> CallFailed:
        """The error that a command is refused with."""
        try:
            answer = self.call(kind, sid, **fields)
        except CallFailed as refused:
            return refused
        raise AssertionError(f"{kind} {fields} was accepted: {answer}")

    def ctl(self, *words: str, code: int = 0) -> Any:
        """Run the real `loopctl … -o json`; returns the one object that it printed."""
        done = self.loopctl(*words, "-o", "json")
        assert done.returncode == code, f"loopctl {words}: exit {done.returncode}: {done.stdout}{done.stderr}"
        text = done.stdout.strip() or done.stderr.strip()
        return json.loads(text) if text else {}

    def loopctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the real `loopctl`."""
        return subprocess.run(
            [str(BIN / "loopctl"), *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=False,
            env={**os.environ, "LOOPD_SOCKET": self.socket},
        )

    def scripted(self, script: Path, **fields: Any) -> str:
        """Create a session (preset `published`, unless told) that plays a trajectory; returns its sid."""
        spec = {"kind": "scripted", "script": str(script)}
        spec |= {key: fields.pop(key) for key in ("delay_ms", "once") if key in fields}
        fields = {"preset": "published"} | fields
        return str(self.call("session.create", driver=spec, **{"preset": "published", **fields})["sid"])

    def chat(self, base_url: str, **fields: Any) -> str:
        """Create a session (preset `published`, unless told) on a chat endpoint; returns its sid."""
        spec = {"kind": "chat", "base_url": base_url, "model": "test"}
        spec |= {key: fields.pop(key) for key in ("system", "tools", "max_tokens") if key in fields}
        fields = {"preset": "published"} | fields
        return str(self.call("session.create", driver=spec, **{"preset": "published", **fields})["sid"])

    # -- watching -------------------------------------------------------------------------------

    def head(self) -> int:
        """`seq` of the newest event."""
        return int(self.call("daemon.status")["head"])

    def events(self, sid: str | None = None, *kinds: str, after: int = 0) -> list[Event]:
        """All stored events so far, oldest first: `{"seq","sid","ss","ts","k","turn","b"}`."""
        events: list[Event] = []
        while True:
            page = self.call("history.page", sid, after=after, limit=1_000, kinds=kinds)
            events += page["events"]
            if not page["more"]:
                return events
            after = page["events"][-1]["seq"]

    def follow(
        self, *sids: str, kinds: Sequence[str] = (), after: int = 0, within_s: float = WAIT_S
    ) -> Iterator[Event]:
        """Events from the beginning (or behind `after`) on, as they come; `timeout` ends it."""
        client = self.client()
        cursor = {"log": self.call("daemon.status")["log"], "seq": after}
        try:
            for frame in client.subscribe(after=cursor, sids=sids, kinds=kinds, timeout_s=within_s):
                assert frame["t"] != "gap", frame
                if frame["t"] == "ev":
                    yield frame
        finally:
            client.close()

    def until(
        self,
        sid: str,
        kind: str,
        test: Callable[[Event], bool] = lambda event: True,
        *,
        after: int = 0,
        count: int = 1,
        within_s: float = WAIT_S,
    ) -> Event:
        """Wait for the `count`th event of a kind that passes a test, and return it."""
        left = count
        stream = self.follow(sid, kinds=[kind], after=after, within_s=within_s)
        try:
            for event in stream:
                left -= test(event["b"])
                if not left:
                    return event
        except CallFailed as error:
            seen = [(e["seq"], e["k"]) for e in self.events(sid)[-20:]]
            raise AssertionError(f"no {kind} #{count} of {sid}: {error}; last events {seen}") from error
        finally:
            stream.close()  # type: ignore[attr-defined]
        raise AssertionError("a subscription has no end")

    def sql(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Look into the journal behind the daemon's back, while it runs."""
        uri = f"{(self.data / 'journal.sqlite').resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10)) as connection:
            return connection.execute(query, args).fetchall()

    def verified(self, sid: str | None = None, since: int | None = None) -> dict[str, Any]:
        """`loopctl verify`, which must succeed."""
        words = [] if sid is None else [sid]
        words += [] if since is None else ["--suspended-since", str(since)]
        proof = self.ctl("verify", *words)
        assert proof["ok"] is True, proof
        replayed(self.data / "journal.sqlite")
        return dict(proof)


def replayed(path: Path) -> None:
    """Every session that the journal has from its beginning is decided again and comes out the same."""
    with contextlib.closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)
    ) as db:
        for (num,) in db.execute("SELECT num FROM session").fetchall():
            rows = db.execute(
                "SELECT seq, ss, at_ms, kind, body, body_sha FROM journal WHERE sid = ? ORDER BY ss", (num,)
            ).fetchall()
            outcome = replay(Row(*row[:4], row[4] if row[5] is None else None) for row in rows)
            assert outcome.status != "different", outcome.difference
            if outcome.status == "ended":
                assert "not whole" in outcome.why or "before loopd recorded" in outcome.why, outcome


class House:
    """A short-named folder for daemons and files; ends every daemon that was made in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lp"))
        self.daemons: list[Daemon] = []

    def daemon(self, name: str = "d", **options: Any) -> Daemon:
        """A daemon that is not started yet."""
        daemon = Daemon(self.folder / name, **options)
        self.daemons.append(daemon)
        return daemon

    def script(self, turns: Sequence[Any], name: str = "script.jsonl") -> Path:
        """Write a trajectory: each turn is a text, a step, or a list of steps."""
        return write_script(self.folder / name, turns)

    def close(self) -> None:
        """End all processes and remove the folder."""
        for daemon in self.daemons:
            daemon.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def write_script(path: Path, turns: Sequence[Any]) -> Path:
    """Write a trajectory file."""
    lines: list[dict[str, Any]] = [{"t": "trajectory", "v": 1, "id": path.stem}]
    for turn in turns:
        steps = turn if isinstance(turn, list) else [turn]
        for place, step in enumerate(steps):
            fields = {"text": step} if isinstance(step, str) else dict(step)
            trigger = {"trigger": "continuation"} if place == 0 else {}
            lines.append({"t": "step", "n": len(lines), **trigger, **fields})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def call(name: str, **args: Any) -> dict[str, Any]:
    """A tool call of a scripted step."""
    result = args.pop("result", "done")
    return {"name": name, "args": args, "ok": True, "result": result}


def working(count: int = 40) -> list[dict[str, Any]]:
    """Turns that no published rule objects to: each says and does something new."""
    return [
        {
            "text": f"Part {n} of the report is written, next comes part {n + 1}.",
            "calls": [call("write_file", path=f"part{n}.md", content=f"text {n}", result=f"wrote {n}")],
            "usage": {"input_tokens": 100, "output_tokens": 20},
        }
        for n in range(count)
    ]


@contextlib.contextmanager
def endpoint(script: Script, *, port: int = 0) -> Iterator[tuple[Endpoint, BlockingPortal]]:
    """The test endpoint, served by a thread of its own."""
    with start_blocking_portal() as portal:
        served = portal.call(lambda: Endpoint(script, port=port))
        with portal.wrap_async_context_manager(served):
            yield served, portal


def free_port() -> int:
    """A port of the loopback interface at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether a process that is no child of ours ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], within_s)[0])
    finally:
        os.close(fd)


def raw_exchange(path: str, *sent: bytes, within_s: float = 5.0) -> list[dict[str, Any]]:
    """Send bytes to a control socket; returns the frames up to the peer's hanging up or silence."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(within_s)
        sock.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in sent:
                sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
        tail = b""
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1 << 20):
                tail += data
    return [json.loads(line) for line in tail.splitlines()]


def now_ms() -> int:
    """The wall clock, as the daemon on this machine sees it."""
    return time.time_ns() // 1_000_000
