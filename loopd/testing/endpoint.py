"""A model endpoint for tests: a real HTTP server on loopback that speaks chat-completions, messages, responses.

It says what its script tells it to, in all the ways in which real endpoints go wrong, and keeps the
exact bytes of every request.

    async with Endpoint([say("16/100. Not complete. No action.")]) as endpoint:
        ...  # drive a session at endpoint.base_url
    assert endpoint.requests[0].sha256 == digest

As a process: `python -m loopd.testing.endpoint --say TEXT` prints one line of JSON with its address.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from loopd.testing.replies import Call, Reply, ask, fail, pieces, say, whole


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it arrived.

    Attributes:
        number: from 1.
        body: the exact bytes; `sha256` and `size` are theirs.
        api: `chat-completions`, `messages` or `responses`, by the path it came to.
        port: of the client's side: the same for requests on one connection.
    """

    number: int
    body: bytes
    sha256: str
    headers: dict[str, str]
    api: str = "chat-completions"
    query: str = ""
    port: int = 0

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    @property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)


__all__ = ["Call", "Endpoint", "Recorded", "Reply", "Script", "ask", "fail", "say"]

APIS = {
    "/chat/completions": "chat-completions",
    "/messages": "messages",
    "/responses": "responses",
}
"""Path behind `/v1` → API."""

Script = Sequence[Reply] | Callable[[Recorded], Reply]
"""Replies in order, the last one repeating; or a function of the request."""


class Endpoint:
    """The server, in the running event loop, on a free port of 127.0.0.1.

    Attributes:
        requests: all requests so far, oldest first.
        open_streams: answers that are being sent right now.
        disconnects: answers that the client broke off.
    """

    def __init__(self, script: Script = (), *, port: int = 0) -> None:
        self.script: Script = script or [say("ok")]
        self.requests: list[Recorded] = []
        self.open_streams = 0
        self.disconnects = 0
        self._socket = socket.create_server(("127.0.0.1", port))
        # Connections inherit it. asyncio sets it only where it knows the protocol; without it a small piece
        # waits up to 40 ms for the acknowledgement of the one before.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                _Watched(self),
                log_config=None,
                log_level="critical",  # told failures are not worth a line
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=0,
                timeout_keep_alive=75,
                ws="none",
            )
        )
        self._tasks: anyio.abc.TaskGroup | None = None
        self._more = anyio.Event()

    @property
    def base_url(self) -> str:
        """What a chat session's `base_url` is set to."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        """Start serving."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self.serve_forever)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; connections that are still open are closed."""
        del kind, error, trace  # not for the task group, which would wrap what the block raised
        assert self._tasks is not None
        self.stop()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._socket.close()

    async def serve_forever(self) -> None:
        """Serve until `stop`; a cancellation waits for that, so that the server always closes in order."""
        with anyio.CancelScope(shield=True):
            await self._server.serve([self._socket])

    def stop(self) -> None:
        """End serving; answers that are being sent are broken off."""
        self._server.force_exit = True
        self._server.told_to_exit.set()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        while len(self.requests) < count:
            await self._more.wait()

    async def wait_for_quiet(self) -> None:
        """Wait until no answer is being sent any more."""
        while self.open_streams:
            await self._more.wait()

    def opened(self) -> None:
        """An answer begins."""
        self.open_streams += 1

    def closed(self, *, finished: bool) -> None:
        """An answer ended; not `finished` when the client broke it off."""
        self.open_streams -= 1
        self.disconnects += not finished
        self._tell()

    def _tell(self) -> None:
        self._more.set()
        self._more = anyio.Event()

    def record(
        self,
        body: bytes,
        headers: dict[str, str],
        api: str = "chat-completions",
        query: str = "",
        port: int = 0,
    ) -> Recorded:
        """Keep a request."""
        recorded = Recorded(
            number=len(self.requests) + 1,
            body=body,
            sha256=hashlib.sha256(body).hexdigest(),
            headers=headers,
            api=api,
            query=query,
            port=port,
        )
        self.requests.append(recorded)
        self._tell()
        return recorded

    def reply_to(self, recorded: Recorded) -> Reply:
        """The script's answer to a request."""
        if callable(self.script):
            return self.script(recorded)
        return self.script[min(recorded.number, len(self.script)) - 1]


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_exit = anyio.Event()

    async def main_loop(self) -> None:
        """Wait for the end without looking ten times a second; `Date` is that of the start."""
        await self.on_tick(0)
        await self.told_to_exit.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the program that this runs in."""
        yield


class _Watched:
    """The application; counts streams, and lets a broken one break the connection quietly."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._app = Starlette(
            routes=[
                *(Route(f"/v1{path}", self._complete, methods=["POST"]) for path in APIS),
                Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/requests", self._requests),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(_Broken, ClientDisconnect):
            await self._app(scope, receive, send)

    async def _models(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [{"id": "test", "object": "model"}]})

    async def _count(self, request: Request) -> Response:
        return JSONResponse({"input_tokens": -(-len(await request.body()) // 4)})

    async def _requests(self, request: Request) -> Response:
        del request
        kept = self._endpoint.requests
        return JSONResponse(
            {
                "count": len(kept),
                "requests": [{"number": r.number, "sha256": r.sha256, "bytes": r.size} for r in kept],
            }
        )

    async def _complete(self, request: Request) -> Response:
        api = APIS[request.url.path.removeprefix("/v1")]
        query = request.url.query
        port = request.client.port if request.client is not None else 0
        recorded = self._endpoint.record(await request.body(), dict(request.headers), api, query, port)
        reply = self._endpoint.reply_to(recorded)
        if reply.first_ms:
            await anyio.sleep(reply.first_ms / 1_000)
        if reply.status != 200:
            return Response(reply.body, reply.status, reply.headers, media_type="application/json")
        if reply.whole:
            body = whole(reply, recorded.number, recorded.size, api)
            return JSONResponse(body, headers=reply.headers)
        return StreamingResponse(
            self._stream(reply, recorded), media_type="text/event-stream", headers=reply.headers
        )

    async def _stream(self, reply: Reply, recorded: Recorded) -> AsyncIterator[bytes]:
        self._endpoint.opened()
        finished = False
        try:
            for place, piece in enumerate(pieces(reply, recorded.number, recorded.size, recorded.api)):
                if reply.break_after == place:
                    finished = True
                    raise _Broken
                if reply.hang_after == place:
                    await anyio.sleep_forever()
                if reply.gap_ms:
                    await anyio.sleep(reply.gap_ms / 1_000)
                yield piece
                if reply.endless:
                    await anyio.lowlevel.checkpoint()
            if reply.raw is not None and reply.hang_after == 1:
                await anyio.sleep_forever()
            finished = True
        finally:
            self._endpoint.closed(finished=finished)


class _Broken(Exception):
    """Told to break the connection."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.endpoint",
        description="A model endpoint (chat-completions, messages, responses) on 127.0.0.1 that says what it is told to.",
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument(
        "--say", default="16/100. Not complete. No action.", help="{n}: number of the request"
    )
    parser.add_argument(
        "--call", metavar="NAME:JSON", action="append", default=[], help="ask for a tool call"
    )
    parser.add_argument("--gap-ms", type=int, default=0, help="wait before each streamed piece")
    parser.add_argument("--first-ms", type=int, default=0, help="wait before the answer")
    parser.add_argument("--fail", type=int, metavar="STATUS", help="answer with this HTTP status")
    parser.add_argument("--fail-first", type=int, metavar="N", help="fail only the first N requests")
    parser.add_argument("--retry-after", metavar="SECONDS", help="header of failures")
    parser.add_argument("--replies", metavar="FILE", help="JSON array of replies; see Reply in the source")
    return parser


def _script(options: argparse.Namespace) -> list[Reply]:
    if options.replies:
        with open(options.replies, "rb") as stream:
            return msgspec.json.decode(stream.read(), type=list[Reply])
    calls = []
    for text in options.call:
        name, _, args = text.partition(":")
        calls.append(Call(name, args or "{}"))
    told = Reply(text=options.say, calls=tuple(calls), gap_ms=options.gap_ms, first_ms=options.first_ms)
    if options.fail is None:
        return [told]
    failure = fail(options.fail, retry_after=options.retry_after)
    return [failure] if options.fail_first is None else [failure] * options.fail_first + [told]


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; prints `{"ready":true,"url":…,"pid":…}` when it listens."""
    options = _arguments().parse_args(argv)
    endpoint = Endpoint(_script(options), port=options.port)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                tasks.start_soon(endpoint.serve_forever)
                line = {"ready": True, "url": endpoint.base_url, "pid": os.getpid()}
                print(json.dumps(line), flush=True)
                async for _ in signals:
                    endpoint.stop()
                    return

    anyio.run(serve)


if __name__ == "__main__":
    main()
