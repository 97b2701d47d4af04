"""The proxy's listener: one port on 127.0.0.1 for all sessions, opened with the first passage.

A key names its session; nothing is answered without one but `401`. Only the model APIs exist here, and
two questions that agents ask beside them: which models there are, and how many tokens a request has.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from loopd.drivers.model import Limits, client_for
from loopd.drivers.proxy.bodies import Gone, Head, answer
from loopd.drivers.proxy.door import Upstream, Witness
from loopd.drivers.proxy.passage import OpenPassage
from loopd.drivers.proxy.relay import PATHS, Arrival, Relay
from loopd.drivers.proxy.stops import error_body
from loopd.drivers.wires import endpoint_url
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("loopd.drivers")

CONNECTIONS = 512
"""Open at the same time, over all sessions; one more is refused with 503."""
CALLS = 32
"""Of one session at the same time; further ones wait for a place."""
_KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")


class ModelProxy:
    """Implements `door.ProxyDoor`.

    Args:
        tasks: where it serves.
        witness: the engine.
        limits: of one call towards an endpoint.
        keep_bodies: record bodies, not only their digests.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        witness: Witness,
        *,
        limits: Limits | None = None,
        keep_bodies: bool = True,
    ) -> None:
        self._tasks = tasks
        self._limits = limits or Limits()
        self._by_key: dict[bytes, OpenPassage] = {}
        self._by_sid: dict[str, OpenPassage] = {}
        self._relay = Relay(witness, self._limits, keep_bodies=keep_bodies)
        self._opening = anyio.Lock()
        self._hosts: frozenset[bytes] = frozenset()
        self.port = 0

    @property
    def origin(self) -> str | None:
        """Where it listens, None while it does not."""
        return f"http://127.0.0.1:{self.port}" if self.port else None

    @property
    def passages(self) -> int:
        """How many are open."""
        return len(self._by_sid)

    async def open(self, sid: str, upstream: Upstream) -> OpenPassage:
        """See `door.ProxyDoor`."""
        endpoint_url(upstream.base_url, "")
        real_key = None
        if upstream.api_key_env:
            real_key = os.environ.get(upstream.api_key_env, "").strip()
            if not real_key:
                raise Refused(
                    "invalid",
                    f"environment variable {upstream.api_key_env!r} is not set in the daemon; expected the API key",
                    path="$.driver.api_key_env",
                )
        async with self._opening:
            if not self.port:
                await self._tasks.start(self._serve)
        await self.close(sid)
        assert self.origin is not None
        client = client_for(upstream.base_url, {"user-agent": "loopd"}, self._limits, connections=CALLS)
        passage = OpenPassage(sid, upstream, real_key, client, self.origin)
        self._by_sid[sid] = passage
        self._by_key[_hashed(passage.key.encode())] = passage
        return passage

    async def close(self, sid: str) -> None:
        """See `door.ProxyDoor`."""
        passage = self._by_sid.pop(sid, None)
        if passage is not None:
            passage.closed = True
            self._by_key.pop(_hashed(passage.key.encode()), None)
            passage.cut()
            await passage.settled()
            await passage.client.aclose()

    # -- serving -------------------------------------------------------------------------------

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        listener.setblocking(False)  # noqa: FBT003
        # Connections inherit it. asyncio itself leaves it out here (uvloop does not), and then a small piece
        # waits up to 40 ms for the acknowledgement of the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = _server(self)
        self.port = listener.getsockname()[1]
        self._hosts = frozenset(f"{host}:{self.port}".encode() for host in ("127.0.0.1", "localhost"))
        logger.info("model proxy listens", extra={"port": self.port})
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run, server, listener)
                task_status.started()
                try:
                    await anyio.sleep_forever()
                finally:
                    server.force_exit = server.should_exit = True
                    with anyio.CancelScope(shield=True):
                        for sid in list(self._by_sid):
                            await self.close(sid)
        finally:
            self.port = 0
            listener.close()

    @staticmethod
    async def _run(server: uvicorn.Server, listener: socket.socket) -> None:
        # Shielded: uvicorn ends in order when it is told to, not when it is cancelled.
        with anyio.CancelScope(shield=True):
            await server.serve([listener])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        with contextlib.suppress(Gone):
            await self._answered(scope, receive, send)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers: Head = scope["headers"]
        inner = path.removeprefix("/v1")
        api = PATHS.get(inner)
        names = dict(headers)
        if names.get(b"host") not in self._hosts:
            await answer(send, 421, error_body("", "misdirected", "this is a model proxy on loopback"))
            return
        passage = self._passage_of(headers)
        if passage is None:
            await answer(
                send, 401, error_body(api or "", "authentication_error", "the key opens nothing here")
            )
            return
        arrival = Arrival(scope["method"], scope["query_string"], headers, receive, send)
        if scope["method"] == "POST" and api is not None and api in passage.upstream.apis:
            await self._relay.call(passage, api, arrival)
        elif (scope["method"], inner) in {("GET", "/models"), ("POST", "/messages/count_tokens")}:
            await self._relay.aside(passage, inner, arrival)
        else:
            message = f"{scope['method']} {path}: only the model APIs of this session are here"
            await answer(send, 404, error_body(api or "", "not_found_error", message))

    def _passage_of(self, headers: Head) -> OpenPassage | None:
        for name, value in headers:
            if name in _KEY_HEADERS:
                key = value.removeprefix(b"Bearer ").strip()
                passage = self._by_key.get(_hashed(key))
                if passage is not None and hmac.compare_digest(passage.key.encode(), key):
                    return passage
        return None


def _hashed(key: bytes) -> bytes:
    # Looked up by digest, so that the time of a look-up says nothing about the key.
    return hashlib.sha256(key).digest()


def _server(app: ModelProxy) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415

    class Server(uvicorn.Server):
        """uvicorn without signal handlers: signals belong to the daemon."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave them alone."""
            yield

    return Server(
        uvicorn.Config(
            app,
            http="h11",  # the strict one
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=64 * 1024,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=0,
        )
    )
