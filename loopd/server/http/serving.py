"""The listener: an address or a unix socket, TLS, and a uvicorn that lives and ends with the daemon."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskStatus

from loopd.server.http.app import make_app
from loopd.server.http.desk import Desk
from loopd.server.http.guard import HEAD_BYTES
from loopd.server.http.protocol import PatientConfig, PatientProtocol, Peers
from loopd.server.ports import Health
from loopd.server.unix import bind, clear_stale
from loopd_protocol.errors import Refused
from loopd_protocol.frames import FRAME_LIMIT_BYTES

UNIX = "unix:"
_STOP_S = 2.0
_KEEP_ALIVE_S = 5


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a certificate (with its chain) and its key, PEM."""

    certificate: str
    key: str


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the daemon."""

    scope: anyio.CancelScope | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve_http(
    host: str,
    port: int,
    *,
    metrics: Callable[[], bytes],
    health: Health,
    hosts: Sequence[str] = (),
    allow_remote: bool = False,
    desk: Desk | None = None,
    tls: Tls | None = None,
    metrics_auth: bool = False,
    connections: int = 4_096,
    task_status: TaskStatus[tuple[str, int]] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports the bound address, also for port 0.

    Runs in the caller's event loop, installs no signal handlers and writes no access log.

    Args:
        host: a name, an address, or `unix:PATH` (mode 0660), for which `port` does not matter.
        port: 0 takes any free one.
        metrics: the text that Prometheus scrapes.
        health: why the daemon is not ready; empty when it is.
        hosts: names that a `Host` header may carry besides those of loopback and `host`.
        allow_remote: permit an address that is not loopback.
        desk: carries out commands; None serves health and metrics only.
        tls: speak HTTPS.
        metrics_auth: `/metrics` needs a token also on loopback.
        connections: open at once.
        task_status: gets the bound address.

    Raises:
        Refused: `invalid` when the address is not loopback without `allow_remote`, or cannot be bound, or
            the certificate cannot be used.
    """
    if tls is not None:
        _check(tls)
    sock, local = _listen(host, port, allow_remote=allow_remote)
    try:
        bound = (host, 0) if host.startswith(UNIX) else sock.getsockname()[:2]
        app = make_app(
            metrics=metrics,
            health=health,
            hosts=[*hosts, _bracketed(host)],
            desk=desk,
            metrics_open=local and not metrics_auth,
            secure=tls is not None,
        )
        config = PatientConfig(
            app,
            http=PatientProtocol,
            ws="websockets-sansio",
            ws_max_size=FRAME_LIMIT_BYTES,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        config.peers = Peers(connections)
        server = _Server(config)
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
                if desk is not None:
                    desk.close()
                server.should_exit = True
                with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
                    await finished.wait()
                if server.scope is not None:
                    server.scope.cancel()
    finally:
        sock.close()
        if host.startswith(UNIX):
            with contextlib.suppress(OSError):
                os.unlink(host.removeprefix(UNIX))


def _check(tls: Tls) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            "invalid", f"http.tls_certificate {tls.certificate!r} cannot be used: {error}"
        ) from error


def _listen(host: str, port: int, *, allow_remote: bool) -> tuple[socket.socket, bool]:
    """A listening socket, and whether only this machine reaches it."""
    if host.startswith(UNIX):
        path = host.removeprefix(UNIX)
        clear_stale(path)
        sock = bind(path)
        sock.listen(128)
        sock.setblocking(False)  # noqa: FBT003
        return sock, True
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise Refused("invalid", f"http address {host!r} is unknown: {error}") from error
    local = ipaddress.ip_address(address[0]).is_loopback
    if not local and not allow_remote:
        raise Refused(
            "invalid",
            f"http address {host!r} is not loopback, so others could listen in and try tokens; expected 127.0.0.1,"
            " ::1, or http.allow_remote = true",
        )
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1_024)
        sock.setblocking(False)  # noqa: FBT003
    except OSError as error:
        sock.close()
        raise Refused("invalid", f"cannot listen at http {host}:{port}: {error.strerror}") from error
    return sock, local


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
