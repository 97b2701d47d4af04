"""A small real dispatcher and log for tests of the control socket: real commands, real sockets."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from loopd.bus import Bus
from loopd.core.access import Answer, Caller, authorize
from loopd.core.writes import StoredEvent
from loopd.server.limits import SocketLimits
from loopd.server.unix import UnixServer
from loopd_protocol.commands import Command, DaemonStatus, Send, SessionGet, Suspend, Verify
from loopd_protocol.errors import Refused
from loopd_protocol.events import EnvelopeAccepted, Event, GateChanged
from loopd_protocol.sources import Source

SIDS = ("ses_a", "ses_b")
NOW_MS = 1_700_000_000_000


class Log:
    """The log as a list: the store behind the bus."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self.oldest = 1

    async def page(
        self,
        *,
        sid: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        kinds: Sequence[str] = (),
        newest: bool = False,
        max_bytes: int | None = None,
    ) -> list[StoredEvent]:
        await anyio.lowlevel.checkpoint()
        first = max((after or 0) + 1, self.oldest)
        last = len(self.events) if before is None else before - 1
        return self.events[first - 1 : min(last, first - 1 + limit)]


class Stage:
    """A daemon of two sessions that only remembers what it was told.

    `hold` makes `verify` wait until it is set, so tests decide when a command ends.
    """

    def __init__(self, *, log_id: str = "lg_test", ring_events: int = 256) -> None:
        self.log = Log()
        self.bus = Bus(log_id=log_id, head=0, pages=self.log, ring_events=ring_events)
        self.sent: list[str] = []
        self.callers: list[Caller] = []
        self.keys: dict[str, Answer] = {}
        self.hold = anyio.Event()
        self.entered = 0
        self.finished = 0
        self.ss = dict.fromkeys(SIDS, 0)

    def append(self, sid: str, *events: Event, kind: str | None = None) -> int:
        rows = []
        for event in events:
            self.ss[sid] += 1
            rows.append(
                StoredEvent(
                    seq=len(self.log.events) + 1,
                    sid=sid,
                    ss=self.ss[sid],
                    at_ms=NOW_MS,
                    kind=kind or event.kind,
                    kv=1,
                    body=msgspec.json.encode(event),
                    cause=1 if len(self.log.events) else None,
                    turn=3,
                )
            )
            self.log.events.append(rows[-1])
        self.bus.publish(rows)
        return self.bus.head

    def say(self, sid: str, text: str) -> int:
        self.sent.append(text)
        event = EnvelopeAccepted(
            id=f"env_{len(self.sent)}", source=Source.HUMAN, text=text, ephemeral_in_history=False
        )
        return self.append(sid, event)

    async def dispatch(
        self,
        command: Command,
        caller: Caller,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Answer:
        authorize(caller, command)
        self.callers.append(caller)
        match command:
            case DaemonStatus():
                return Answer(
                    seq=self.bus.head,
                    result={"head": self.bus.head, "preconditions": [if_rev, if_gate_gen, if_turn]},
                )
            case SessionGet(sid=sid):
                if sid.removeprefix("name-") not in SIDS:
                    raise Refused("not_found", f"no session {sid!r}")
                return Answer(seq=self.bus.head, result={"sid": sid.removeprefix("name-")})
            case Send(sid=sid, text=text):
                if key in self.keys:
                    return msgspec.structs.replace(self.keys[key], dup=True)
                await anyio.lowlevel.checkpoint()
                answer = Answer(
                    seq=self.say(sid, text), rev=self.ss[sid], result={"id": f"env_{len(self.sent)}"}
                )
                if key:
                    self.keys[key] = answer
                return answer
            case Suspend(sid=sid, reason=reason):
                seq = self.append(
                    sid, GateChanged(gate="closed", cause="suspend", by=caller.principal, gen=1)
                )
                return Answer(seq=seq, result={"gate": "closed", "reason": reason})
            case Verify():
                self.entered += 1
                await self.hold.wait()
                self.finished += 1
                return Answer(seq=self.bus.head, result={"ok": True})
        raise ZeroDivisionError("a fault of the daemon itself")

    def sees(self, caller: Caller) -> None:
        return None

    async def snapshot(self, selector: Any, caller: Caller | None = None) -> tuple[int, list[dict[str, Any]]]:
        sids = selector.sids or SIDS
        seq = self.bus.head
        rows = [{"sid": sid, "ss": self.ss[sid], "pad": "x" * 200} for sid in sids for _ in range(150)]
        await anyio.lowlevel.checkpoint()
        return seq, rows


QUICK = SocketLimits(hello_s=0.15, heartbeat_s=60, stall_s=60, linger_s=0.3, buffer_bytes=65_536)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="lp") as name:
        yield Path(name)


@asynccontextmanager
async def serving(
    stage: Stage | None = None, *, limits: SocketLimits = QUICK, **more: Any
) -> AsyncIterator[tuple[UnixServer, Stage, str]]:
    stage = stage or Stage()
    with short_folder() as folder:
        server = UnixServer(
            folder / "c.sock", stage, stage.bus, now_ms=lambda: NOW_MS, version="0.1.0", boot="b_1",
            limits=limits, **more,
        )  # fmt: skip
        async with anyio.create_task_group() as group:
            path = await group.start(server.serve)
            try:
                yield server, stage, path
            finally:
                group.cancel_scope.cancel()


class Wire:
    """A peer that sends whatever bytes it likes and reads frames as plain JSON."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.reader = BufferedByteReceiveStream(stream)

    async def send(self, *frames: Any) -> None:
        await self.stream.send(
            b"".join(f if isinstance(f, bytes) else json.dumps(f).encode() + b"\n" for f in frames)
        )

    async def read(self) -> dict[str, Any]:
        with anyio.fail_after(5):
            return json.loads(await self.reader.receive_until(b"\n", 8 << 20))

    async def until(self, tag: str) -> dict[str, Any]:
        while True:
            frame = await self.read()
            if frame["t"] == tag:
                return frame

    async def rest(self) -> list[dict[str, Any]]:
        """Everything until the server hangs up."""
        frames = []
        while True:
            try:
                frames.append(await self.read())
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                return frames

    async def hello(self, **more: Any) -> dict[str, Any]:
        await self.send({"t": "hello", "v": [1, 1], **more})
        return await self.until("welcome")

    async def ask(self, frame_id: str, command: dict[str, Any], **more: Any) -> dict[str, Any]:
        await self.send({"t": "cmd", "id": frame_id, "c": command, **more})
        while True:
            frame = await self.read()
            if frame.get("id") == frame_id:
                return frame


@asynccontextmanager
async def dialled(path: str | os.PathLike[str]) -> AsyncIterator[Wire]:
    async with await anyio.connect_unix(os.fspath(path)) as stream:
        yield Wire(stream)


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Be somebody else for a moment; needs root. Whoever connects now is that user to the kernel."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def connected_as(uid: int, path: str) -> socket.socket:
    """A connected socket of another user; needs root."""
    os.chmod(os.path.dirname(path), 0o755)
    os.chmod(path, 0o666)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with as_user(uid):
        sock.connect(path)
    sock.setblocking(False)
    return sock
