"""A client of the control socket for programs that are asynchronous already: many calls at once.

async with connect(path) as client:
answer = await client.call(DaemonStatus())
async for frame in client.subscribe(after=cursor):
...
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Literal

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from loopd_protocol import codec
from loopd_protocol.commands import MUTATING, Command
from loopd_protocol.errors import Refused
from loopd_protocol.frames import (
    Bye,
    Cancel,
    ClientFrame,
    Cmd,
    Cursor,
    Err,
    EventSelector,
    Hello,
    Ok,
    Peer,
    Ping,
    Pong,
    ServerFrame,
    Sub,
    Unsub,
    Welcome,
)
from loopd_protocol.framing import Splitter

_RECV_BYTES = 262_144
_SUB_FRAMES = 1_024
CLOSE_S = 1.0


class Disconnected(Exception):
    """The connection ended. `bye` is what the server said last, or None."""

    def __init__(self, bye: Bye | None) -> None:
        super().__init__(f"the server hung up: {bye.why if bye else 'without a word'}")
        self.bye = bye


class _Stream:
    """A connected socket, with asyncio's own streams.

    `anyio.connect_unix` waits for a socket with `add_reader(future.set_result)`: cancelled in the same step of
    the loop in which bytes arrive, that callback meets a future that is done, and raises into the loop.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Hand bytes to the socket; waits while its buffer is full."""
        if self._writer.is_closing():
            raise anyio.ClosedResourceError
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def receive(self, max_bytes: int) -> bytes:
        """Some bytes; raises `anyio.EndOfStream` when the peer has hung up."""
        try:
            data = await self._reader.read(max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Close; what a peer does not take within a second is thrown away."""
        self._writer.close()
        with anyio.move_on_after(CLOSE_S, shield=True) as patience, suppress(OSError):
            await self._writer.wait_closed()
        if patience.cancelled_caught:
            self._writer.transport.abort()


class AsyncClient:
    """One connection. Made by `connect`.

    Attributes:
        welcome: the server's greeting.
    """

    def __init__(self, stream: _Stream, enc: Literal["json", "msgpack"]) -> None:
        self._stream = stream
        self._enc: Literal["json", "msgpack"] = enc
        self._splitter = Splitter(limit_bytes=64 << 20, enc=enc)
        self._waiting: dict[str, MemoryObjectSendStream[ServerFrame]] = {}
        self._subs: dict[str, MemoryObjectSendStream[ServerFrame]] = {}
        self._ids = 0
        self._bye: Bye | None = None
        self._over = False
        self.welcome: Welcome

    async def call(
        self,
        command: Command,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
        frame_id: str | None = None,
    ) -> Ok:
        """Carry out a command; mutating ones get a random key unless one is given.

        Raises:
            Refused: the daemon refused.
            Disconnected: the connection ended first; the outcome is uncertain.
        """
        if key is None and (command.type in MUTATING or command.type == "batch"):
            key = os.urandom(16).hex()
        frame = Cmd(
            id=frame_id or self._next_id(),
            c=codec.raw(command),
            key=key,
            if_rev=if_rev,
            if_gate_gen=if_gate_gen,
            if_turn=if_turn,
        )
        answer = await self._ask(frame, frame.id)
        assert isinstance(answer, Ok)
        return answer

    async def ping(self) -> Pong:
        """A `pong` of the server."""
        frame_id = self._next_id()
        answer = await self._ask(Ping(id=frame_id), frame_id)
        assert isinstance(answer, Pong)
        return answer

    async def cancel(self, frame_id: str) -> None:
        """Give up waiting for a call that was made with this `frame_id`."""
        await self.send(Cancel(id=frame_id))

    async def subscribe(
        self,
        *,
        after: Cursor | None = None,
        sids: Sequence[str] = (),
        kinds: Sequence[str] = (),
        snapshot: bool = False,
    ) -> AsyncIterator[ServerFrame]:
        """Frames of a subscription, `subd` first.

        While 1,024 frames of it wait to be taken, nothing more is read from the connection, answers
        neither: whoever may be slower than the log uses a connection for the subscription alone.

        Raises:
            Refused: the daemon refused it, or ended it.
            Disconnected: the connection ended.
        """
        sub_id = self._next_id()
        # Small: behind it the socket is the buffer, and the log is the queue.
        sender, receiver = anyio.create_memory_object_stream[ServerFrame](_SUB_FRAMES)
        self._subs[sub_id] = sender
        selector = EventSelector(sids=tuple(sids), kinds=tuple(kinds))
        try:
            await self.send(Sub(id=sub_id, after=after, sel=selector, snapshot=snapshot))
            async for frame in self._received(receiver):
                yield frame
            raise Disconnected(self._bye)
        finally:
            if self._subs.pop(sub_id, None) is not None and not self._over:
                with anyio.move_on_after(1, shield=True):
                    await self._say(Unsub(id=self._next_id(), sub=sub_id))
            receiver.close()
            sender.close()

    async def send(self, frame: ClientFrame) -> None:
        """Send any frame.

        Raises:
            Disconnected: the connection has ended.
        """
        if not await self._say(frame):
            raise Disconnected(self._bye)

    async def _say(self, frame: ClientFrame) -> bool:
        try:
            await self._stream.send(codec.encode_frame(frame, self._enc))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True

    async def _received(self, receiver: MemoryObjectReceiveStream[ServerFrame]) -> AsyncIterator[ServerFrame]:
        async for frame in receiver:
            if isinstance(frame, Err):
                raise _refused(frame)
            yield frame

    async def _ask(self, frame: ClientFrame, frame_id: str) -> ServerFrame:
        sender, receiver = anyio.create_memory_object_stream[ServerFrame](math.inf)
        self._waiting[frame_id] = sender
        with sender, receiver:
            try:
                if self._over:
                    raise Disconnected(self._bye)
                await self.send(frame)
                try:
                    answer = await receiver.receive()
                except anyio.EndOfStream:
                    raise Disconnected(self._bye) from None
            finally:
                self._waiting.pop(frame_id, None)
        if isinstance(answer, Err):
            raise _refused(answer)
        return answer

    async def _read(self) -> None:
        try:
            while True:
                data = await self._stream.receive(_RECV_BYTES)
                for raw in self._splitter.split(data):
                    await self._deliver(
                        codec.decode_server_frame(codec.unpack(raw) if self._enc == "msgpack" else raw)
                    )
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._over = True
            for sender in (*self._waiting.values(), *self._subs.values()):
                sender.close()

    async def _deliver(self, frame: ServerFrame) -> None:
        if isinstance(frame, Bye):
            self._bye = frame
            return
        frame_id = getattr(frame, "id", None)
        waiting = self._waiting.get(frame_id) if frame_id else None
        if waiting is not None:
            waiting.send_nowait(frame)
            return
        sub = self._subs.get(getattr(frame, "sub", None) or frame_id or "")
        if sub is not None:
            with suppress(anyio.BrokenResourceError):  # it unsubscribed meanwhile
                await sub.send(frame)

    def _next_id(self) -> str:
        self._ids += 1
        return str(self._ids)


def _refused(frame: Err) -> Refused:
    after_ms = frame.retry.after_ms if frame.retry else None
    return Refused(frame.code, frame.msg, path=frame.path, retry_after_ms=after_ms)


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str],
    *,
    name: str = "python",
    deltas: bool = False,
    enc: Literal["json", "msgpack"] = "json",
) -> AsyncIterator[AsyncClient]:
    """Connect and say hello.

    Raises:
        OSError: nobody listens there.
        Refused: the daemon does not want us.
        Disconnected: it hung up without a word.
    """
    reader, writer = await asyncio.open_unix_connection(os.fspath(path), limit=_RECV_BYTES)
    async with aclosing(_Stream(reader, writer)) as stream:
        hello = Hello(client=Peer(name=name), want=("delta",) if deltas else (), enc=enc)
        await stream.send(codec.encode_frame(hello))
        client = AsyncClient(stream, enc)
        splitter = Splitter(limit_bytes=1 << 20, enc=enc)
        greeting = await _greeting(stream, splitter, enc)
        if isinstance(greeting, Err):
            raise _refused(greeting)
        assert isinstance(greeting, Welcome)
        client.welcome = greeting
        async with anyio.create_task_group() as group:
            group.start_soon(client._read)  # noqa: SLF001  (one module, one class)
            try:
                yield client
            finally:
                group.cancel_scope.cancel()


async def _greeting(stream: _Stream, splitter: Splitter, enc: Literal["json", "msgpack"]) -> ServerFrame:
    """The first frame. The server says nothing after it until it is asked."""
    while True:
        try:
            data = await stream.receive(_RECV_BYTES)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise Disconnected(None) from None
        # A refusal before `hello` is NDJSON whatever was asked for.
        if enc == "msgpack" and data.startswith(b"{"):
            splitter.enc = enc = "json"
        for raw in splitter.split(data):
            return codec.decode_server_frame(codec.unpack(raw) if enc == "msgpack" else raw)
