"""The real engine with all its doors open: control socket, HTTP, WebSocket, and tokens for them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec

from loopd.bus import Bus
from loopd.core.access import Answer
from loopd.engine.commands import Dispatcher
from loopd.engine.rates import Rates
from loopd.server.http import serve_http
from loopd.server.http.desk import Desk
from loopd.server.limits import SocketLimits
from loopd.server.unix import UnixServer
from loopd_protocol.access_commands import TokenNew
from tests.control_stage import NOW_MS, Wire, dialled
from tests.engine.stage import Stage, stage

LIMITS = SocketLimits(hello_s=1.0, heartbeat_s=0.2, stall_s=2.0, linger_s=0.3, buffer_bytes=65_536)


class Faces:
    """One engine and its doors.

    Attributes:
        path: the control socket.
        url: the HTTP listener.
    """

    def __init__(self, engine: Stage, server: UnixServer, desk: Desk, path: str, url: str) -> None:
        self.engine, self.server, self.desk, self.path, self.url = engine, server, desk, path, url

    async def token(self, *scopes: str, **more: Any) -> str:
        """A token with these scopes, made by the daemon's own user."""
        return str((await self.made(*scopes, **more)).result["token"])

    async def made(self, *scopes: str, **more: Any) -> Answer:
        """The whole answer of `token.new`."""
        return await self.engine.call(
            msgspec.convert({"t": "token.new", "scopes": list(scopes), **more}, TokenNew)
        )

    @asynccontextmanager
    async def http(self, token: str | None = None, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client, with a token if there is one."""
        shown = {**headers, **({} if token is None else {"authorization": f"Bearer {token}"})}
        async with httpx.AsyncClient(base_url=self.url, headers=shown, timeout=10, trust_env=False) as client:
            yield client

    @asynccontextmanager
    async def wire(self, token: str) -> AsyncIterator[Wire]:
        """A greeted connection to the control socket."""
        async with dialled(self.path) as wire:
            await wire.hello(auth=token)
            yield wire


@asynccontextmanager
async def faces(
    *,
    dispatcher: type[Dispatcher] = Dispatcher,
    rates: Rates | None = None,
    limits: SocketLimits = LIMITS,
    health: Any = list,
    **http: Any,
) -> AsyncIterator[Faces]:
    """Open all doors of a fresh engine."""
    with tempfile.TemporaryDirectory(prefix="lp") as folder:
        async with stage() as engine, anyio.create_task_group() as group:
            if dispatcher is not Dispatcher or rates is not None:
                stop = engine.dispatcher._stop
                engine.dispatcher = dispatcher(engine.router, engine.queries, stop, rates=rates)
            bus = Bus(log_id=engine.store.log_id, head=engine.store.head, pages=engine.store)
            engine.store.on_commit = bus.publish
            keys = engine.dispatcher.keyring
            server = UnixServer(
                f"{folder}/c.sock", engine.dispatcher, bus, now_ms=engine.clock.now_ms, version="0.1.0",
                boot="b_1", limits=limits, keys=keys,
            )  # fmt: skip
            path = await group.start(server.serve)
            desk = Desk(server, keys)

            async def serve(*, task_status: Any) -> None:
                await serve_http(
                    http.pop("host", "127.0.0.1"), 0, metrics=lambda: b"loopd_boot_total 1\n", health=health,
                    desk=desk, task_status=task_status, **http,
                )  # fmt: skip

            host, port = await group.start(serve)
            yield Faces(engine, server, desk, path, f"http://{host}:{port}")
            group.cancel_scope.cancel()


class Events:
    """A reader of server-sent events that keeps what browsers keep: the last id."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id: str | None = None

    async def next(self) -> tuple[str, Any]:
        """The next event's name and data; a block without data is (`beat`, None)."""
        fields: dict[str, str] = {}
        while True:
            with anyio.fail_after(10):
                line = await anext(self._lines)
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            self.last_id = fields.get("id", self.last_id)
            if "data" in fields:
                return fields.get("event", "message"), json.loads(fields["data"])
            if fields:
                return "beat", None

    async def message(self) -> dict[str, Any]:
        """The next event of the log."""
        while True:
            name, data = await self.next()
            if name == "message":
                return dict(data)

    async def named(self, wanted: str) -> Any:
        """The next event with this name."""
        while True:
            name, data = await self.next()
            if name == wanted:
                return data


assert NOW_MS
