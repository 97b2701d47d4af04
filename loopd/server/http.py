"""The HTTP side: `/metrics`, `/livez` and `/readyz`, for Prometheus, systemd and load balancers.

They need no token, so they are served to loopback only: listening on another address is refused
unless the configuration says `http.allow_remote = true`. `Host` must name this listener, so that a
page in a browser cannot reach it by pointing its own name at 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from loopd.server.ports import Health
from loopd_protocol.errors import ERRORS, Refused

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_METHODS = ["GET", "HEAD"]
_STOP_S = 2.0


def problem(code: str, detail: str, *, status: int | None = None) -> Response:
    """An RFC 9457 problem document for a code of the error registry."""
    row = ERRORS[code]
    body = {"type": f"urn:loopd:error:{code}", "title": row.meaning, "status": status or row.http}
    return Response(
        msgspec.json.encode({**body, "code": code, "detail": detail}),
        status_code=status or row.http,
        media_type="application/problem+json",
    )


class HostGuard:
    """Refuses requests whose `Host` is not one of ours, and forbids caches to keep answers."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_uncached(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                assert isinstance(headers, list)
                headers += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
            await send(message)

        names = [value for name, value in scope["headers"] if name == b"host"]
        host = names[0].decode("latin-1") if len(names) == 1 else ""
        app: ASGIApp = self._app
        if _without_port(host).lower() not in self._hosts:
            app = problem("not_owner", f"host {host[:200]!r} is not served here; see http.hosts")
        await app(scope, receive, send_uncached)  # type: ignore[arg-type]


def make_app(*, metrics: Callable[[], bytes], health: Health, hosts: Collection[str] = ()) -> ASGIApp:
    """The ASGI application.

    Args:
        metrics: the text that Prometheus scrapes.
        health: why the daemon is not ready; empty when it is.
        hosts: names that a `Host` header may carry besides those of loopback, without port.
    """

    async def serve_metrics(_: Request) -> Response:
        return Response(metrics(), media_type=METRICS_TYPE)

    async def livez(_: Request) -> Response:
        return _json({"live": True})

    async def readyz(_: Request) -> Response:
        reasons = list(health())
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    def route(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, endpoint, methods=_METHODS)

    app = Starlette(
        routes=[route("/metrics", serve_metrics), route("/livez", livez), route("/readyz", readyz)],
        middleware=[Middleware(HostGuard, hosts=_LOOPBACK_NAMES | frozenset(hosts))],
        exception_handlers={404: _not_found, 405: _wrong_method},
    )
    app.router.redirect_slashes = False
    return app


async def serve_http(
    host: str,
    port: int,
    *,
    metrics: Callable[[], bytes],
    health: Health,
    hosts: Sequence[str] = (),
    allow_remote: bool = False,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound address, also for port 0.

    Runs in the caller's event loop, installs no signal handlers and writes no access log.

    Raises:
        Refused: `invalid` when the address is not loopback without `allow_remote`, or cannot be bound.
    """
    sock = _listen(host, port, allow_remote=allow_remote)
    try:
        bound = sock.getsockname()[:2]
        app = make_app(metrics=metrics, health=health, hosts=[*hosts, _bracketed(host)])
        server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                limit_concurrency=64,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=16_384,
            )
        )
        async with anyio.create_task_group() as group:
            finished = anyio.Event()

            async def run() -> None:
                # Shielded: uvicorn ends in order when it is told to, not when it is cancelled.
                with anyio.CancelScope(shield=True) as scope:
                    server.scope = scope
                    await server.serve(sockets=[sock])
                finished.set()

            group.start_soon(run)
            while not server.started:
                if finished.is_set():
                    raise Refused("invalid", f"the HTTP server ended at once on {host}:{port}")
                await anyio.sleep(0.005)
            task_status.started((str(bound[0]), int(bound[1])))
            try:
                await finished.wait()
            finally:
                server.should_exit = True
                with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
                    await finished.wait()
                if server.scope is not None:
                    server.scope.cancel()
    finally:
        sock.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the daemon."""

    scope: anyio.CancelScope | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise Refused("invalid", f"http address {host!r} is unknown: {error}") from error
    if not ipaddress.ip_address(address[0]).is_loopback and not allow_remote:
        raise Refused(
            "invalid",
            f"http address {host!r} is not loopback and nothing here asks for a token; expected 127.0.0.1,"
            " ::1, or http.allow_remote = true",
        )
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
        sock.setblocking(False)  # noqa: FBT003
    except OSError as error:
        sock.close()
        raise Refused("invalid", f"cannot listen at http {host}:{port}: {error.strerror}") from error
    return sock


def _json(body: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


async def _not_found(request: Request, _: Exception) -> Response:
    return problem("not_found", f"nothing is at {request.url.path[:200]!r}")


async def _wrong_method(request: Request, _: Exception) -> Response:
    answer = problem("invalid", f"method {request.method[:20]!r}; expected GET or HEAD", status=405)
    answer.headers["allow"] = ", ".join(_METHODS)
    return answer


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
