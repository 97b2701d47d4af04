"""`GET /v1/ws`: the frames of the control socket over a WebSocket.

A text message holds one frame or several, a line each. The connection is the very one of the control socket
(`loopd.server.connection`) with a WebSocket where its transport would be, so limits, heartbeats, slow readers and
`bye` are the same there and here.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from loopd.core.access import Caller
from loopd.server.connection import Connection
from loopd.server.http.desk import Desk, WebSocketHouse

NOBODY = Caller(principal="nobody", scopes=frozenset())
_PIECE_BYTES = 262_144


class _Transport:
    """What a connection expects of an asyncio transport, on a WebSocket."""

    def __init__(self) -> None:
        self.protocol: Connection | None = None
        self.closing = False
        self.aborted = anyio.Event()
        self.filled = anyio.Event()
        self._parts: list[bytes] = []
        self._size = 0
        self._high = 65_536
        self._low = 16_384
        self._paused = False
        self._reads = anyio.Event()
        self._reads.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else self._high
        self._low = low if low is not None else self._low

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002
        return default

    def get_write_buffer_size(self) -> int:
        return self._size

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        if self.aborted.is_set():
            return
        self._parts.append(data)
        self._size += len(data)
        self.filled.set()
        if self._size > self._high and not self._paused and self.protocol is not None:
            self._paused = True
            self.protocol.pause_writing()

    def close(self) -> None:
        self.closing = True
        self.filled.set()

    def abort(self) -> None:
        self.closing = True
        self.aborted.set()
        self.filled.set()

    def pause_reading(self) -> None:
        self._reads = anyio.Event()

    def resume_reading(self) -> None:
        self._reads.set()

    async def may_read(self) -> None:
        """Wait until the connection wants to hear more."""
        await self._reads.wait()

    def take(self) -> bytes:
        """Whole frames, at least one if any waits, of about `_PIECE_BYTES`."""
        taken: list[bytes] = []
        size = 0
        while self._parts and (not taken or size + len(self._parts[0]) <= _PIECE_BYTES):
            part = self._parts.pop(0)
            taken.append(part)
            size += len(part)
        return b"".join(taken)

    def sent(self, size: int) -> None:
        """The peer's side has taken so much."""
        self._size -= size
        if self._paused and self._size <= self._low and self.protocol is not None:
            self._paused = False
            self.protocol.resume_writing()


async def serve(websocket: WebSocket, desk: Desk, caller: Caller | None) -> None:
    """Serve one WebSocket until it ends. `caller`: whoever the request was from; None must say hello with a token."""
    await websocket.accept()
    transport = _Transport()
    house = WebSocketHouse(desk, caller or NOBODY, websocket.scope)
    connection = Connection(house, asyncio.get_running_loop())
    connection.via = "websocket"
    transport.protocol = connection
    connection.connection_made(cast("asyncio.BaseTransport", transport))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_hear, websocket, connection, transport, group.cancel_scope)
            group.start_soon(_cut, transport, group.cancel_scope)
            await _speak(websocket, transport)
            group.cancel_scope.cancel()
    finally:
        transport.abort()
        connection.connection_lost(None)


async def _speak(websocket: WebSocket, transport: _Transport) -> None:
    while True:
        await transport.filled.wait()
        transport.filled = anyio.Event()
        while data := transport.take():
            # The last LF says nothing: a message has an end of its own.
            await websocket.send({"type": "websocket.send", "text": data[:-1].decode()})
            transport.sent(len(data))
        if transport.closing:
            await websocket.close(1000)
            return


async def _hear(
    websocket: WebSocket, connection: Connection, transport: _Transport, scope: anyio.CancelScope
) -> None:
    try:
        while True:
            await transport.may_read()
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            text = message.get("text")
            if text is None:
                connection.data_received(b"\0\n")  # binary is no frame: refused as such
                continue
            connection.data_received(text.encode("utf-8", "replace") + b"\n")
    except WebSocketDisconnect:
        pass
    scope.cancel()


async def _cut(transport: _Transport, scope: anyio.CancelScope) -> None:
    await transport.aborted.wait()
    scope.cancel()
