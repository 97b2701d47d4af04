"""The ASGI application: which path does what, and who may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from loopd.core.access import Answer, Caller
from loopd.server.http import documents, websocket
from loopd.server.http.access import COOKIE, ME, bearer, caller_of, cookie_name, logged_in
from loopd.server.http.cookies import COOKIE_MS
from loopd.server.http.desk import Desk
from loopd.server.http.guard import HostGuard, deny
from loopd.server.http.page import page_routes
from loopd.server.http.problems import problem, refusal
from loopd.server.http.protocol import PEER
from loopd.server.http.routes import ResourceRoute, from_body, from_query, object_of, resource_routes
from loopd.server.http.sse import EventStream
from loopd.server.opening import welcome
from loopd.server.ports import Health, nobody_listens
from loopd_protocol import codec
from loopd_protocol.commands import Command
from loopd_protocol.errors import Refused
from loopd_protocol.frames import FRAME_LIMIT_BYTES, PROTOCOL_VERSION

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
BODY_S = 10.0
"""Time for a body to come; whoever needs longer for 1 MiB is not served."""
LOGIN_BYTES = 4_096
_METHODS = ["GET", "HEAD"]
Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Caller], Awaitable[Response]]


def make_app(
    *,
    metrics: Callable[[], bytes],
    health: Health,
    hosts: Collection[str] = (),
    desk: Desk | None = None,
    metrics_open: bool = True,
    secure: bool = False,
) -> ASGIApp:
    """The ASGI application.

    Args:
        metrics: the text that Prometheus scrapes.
        health: why the daemon is not ready; empty when it is.
        hosts: names that a `Host` header may carry besides those of loopback, without port.
        desk: carries out commands; None serves health and metrics only.
        metrics_open: `/metrics` needs no token.
        secure: served over TLS: cookies say so.
    """

    async def serve_metrics(request: Request) -> Response:
        if not metrics_open:
            if desk is None:
                raise Refused("unauthenticated", "metrics need a token here")
            caller = caller_of(request, desk)
            if not caller.scopes & {"metrics", "admin"}:
                raise Refused("forbidden", f"/metrics needs scope 'metrics'; {caller.principal} lacks it")
        return Response(metrics(), media_type=METRICS_TYPE)

    async def livez(_: Request) -> Response:
        return _json({"live": True})

    async def readyz(_: Request) -> Response:
        reasons = list(health())
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    routes: list[Any] = [
        Route("/metrics", serve_metrics, methods=_METHODS),
        Route("/livez", livez, methods=_METHODS),
        Route("/readyz", readyz, methods=_METHODS),
    ]
    if desk is not None:
        routes += [*page_routes(), *Api(desk, secure=secure).routes()]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                HostGuard,
                hosts=LOOPBACK_NAMES | frozenset(hosts),
                knocked=nobody_listens if desk is None else desk.server.knocked,
            )
        ],
        exception_handlers={404: _not_found, 405: _wrong_method, Refused: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


class Api:
    """The routes below `/v1`."""

    def __init__(self, desk: Desk, *, secure: bool) -> None:
        self._desk = desk
        self._secure = secure
        self._events = EventStream(desk)

    def routes(self) -> list[Any]:
        """All routes, fixed paths before those with places."""
        table = [
            self._route("POST", "/v1/commands", self._command),
            self._route("GET", "/v1/welcome", self._welcome),
            self._route("GET", ME, self._me),
            self._route("POST", "/v1/tickets", self._ticket),
            self._route("POST", "/v1/logout", self._logout),
            self._route("GET", "/v1/schema", self._document("schema")),
            self._route("GET", "/v1/openapi.json", self._document("openapi")),
            self._route("GET", "/v1/asyncapi.json", self._document("asyncapi")),
            Route("/v1/login", self._login, methods=["POST"]),
            Route("/v1/events", _Streamed(self._desk, self._events)),
            WebSocketRoute("/v1/ws", self._websocket),
        ]
        table += [
            self._route(route.method, route.path, partial(self._resource, route))
            for route in resource_routes()
        ]
        return table

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            configured(self._desk)
            return await handler(request, caller_of(request, self._desk))

        return Route(path, endpoint, methods=[method])

    # -- commands -----------------------------------------------------------------------------------

    async def _command(self, request: Request, caller: Caller) -> Response:
        return await self._carry_out(codec.decode_command(await _checked(request)), request, caller)

    async def _resource(self, route: ResourceRoute, request: Request, caller: Caller) -> Response:
        places = {name: str(value) for name, value in request.path_params.items()}
        if route.by_query:
            command = from_query(route, places, request.query_params.multi_items())
        else:
            if request.query_params:
                raise Refused("unknown_field", "query parameters; expected a JSON body", path="$")
            command = from_body(route, places, await body_of(request))
        return await self._carry_out(command, request, caller)

    async def _carry_out(self, command: Command, request: Request, caller: Caller) -> Response:
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= 128:
            raise Refused("invalid", f"idempotency-key has {len(key)} characters; expected 1 to 128")
        conditions = {name: _condition(request, name) for name in ("if_rev", "if_gate_gen", "if_turn")}
        answer = await self._desk.carry_out(command, caller, key=key, **conditions)
        return _json(answer_object(answer))

    async def _welcome(self, _: Request, caller: Caller) -> Response:
        return _json(welcome(self._desk.server, caller, version=PROTOCOL_VERSION))

    # -- logins and tickets -------------------------------------------------------------------------

    async def _me(self, request: Request, caller: Caller) -> Response:
        shown = _who(caller)
        if bearer(request) is None:
            shown["csrf"] = self._desk.cookies.csrf(logged_in(request, self._desk)[0])
        return _json(shown)

    async def _ticket(self, _: Request, caller: Caller) -> Response:
        ticket, ends_ms = self._desk.ticket(caller)
        return _json({"ticket": ticket, "ends_ms": ends_ms})

    async def _login(self, request: Request) -> Response:
        configured(self._desk)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused("invalid", "expected content-type application/json")
        given = object_of(await body_of(request, most=LOGIN_BYTES)).get("token")
        if not isinstance(given, str) or not 1 <= len(given) <= 256:
            raise Refused("invalid", 'expected {"token": "lpd_…"}', path="$.token")
        try:
            cookie, ends_ms, caller = self._desk.log_in(given)
        except Refused as refused:
            self._desk.turned_away(request.scope, refused, given)
            raise
        answer = _json({**_who(caller), "csrf": self._desk.cookies.csrf(cookie), "ends_ms": ends_ms})
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=COOKIE_MS // 1_000,
            path="/",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request, _: Caller) -> Response:
        name = cookie_name(request)
        if name is not None:
            await self._desk.log_out(name)
        answer = _json({"out": True})
        answer.delete_cookie(COOKIE, path="/", secure=self._secure, httponly=True, samesite="strict")
        return answer

    def _document(self, name: str) -> Handler:
        async def serve(_: Request, __: Caller) -> Response:
            return Response(documents.document(name), media_type="application/json")

        return serve

    # -- streams ------------------------------------------------------------------------------------

    async def _websocket(self, socket: WebSocket) -> None:
        try:
            configured(self._desk)
            caller = self._upgrading(socket)
            if self._desk.closing:
                raise Refused("draining", "the daemon is about to stop", retry_after_ms=1_000)
        except Refused as refused:
            self._desk.turned_away(socket.scope, refused)
            await deny(socket.scope, socket.receive, socket.send, refused)
            return
        await websocket.serve(socket, self._desk, caller)

    def _upgrading(self, socket: WebSocket) -> Caller | None:
        """Whoever the upgrade names: by token, ticket or cookie; None must say hello with a token."""
        query = socket.query_params
        unknown = [name for name in query if name != "ticket"]
        if unknown:
            raise Refused("unknown_field", f"no query parameter {unknown[0]!r}; expected ticket")
        token = bearer(socket)
        if token is not None:
            return self._desk.keys.authenticate(token)
        ticket = query.get("ticket")
        if ticket is not None:
            return self._desk.redeem(ticket)
        if cookie_name(socket) is not None:
            # Browsers send cookies with any upgrade, and always an Origin; the guard has compared it.
            if socket.headers.get("origin") is None:
                raise Refused("forbidden", "an upgrade by cookie needs an Origin")
            return logged_in(socket, self._desk)[1]
        return None


class _Streamed:
    """`GET /v1/events` as a plain ASGI application: it streams for hours."""

    def __init__(self, desk: Desk, events: EventStream) -> None:
        self._desk = desk
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one stream."""
        request = Request(scope, receive)
        try:
            if request.method != "GET":
                raise Refused("invalid", f"method {request.method[:20]!r}; expected GET")
            configured(self._desk)
            caller = caller_of(request, self._desk)
            await self._events.serve(request, caller, receive, send)
        except Refused as refused:
            status = 405 if request.method != "GET" else None
            await refusal(refused, status=status)(scope, receive, send)


def configured(desk: Desk) -> None:
    """Refuse everything while there is no token: nobody could be anybody.

    Raises:
        Refused: `not_found`.
    """
    if not desk.keys.configured:
        raise Refused(
            "not_found",
            "nothing but /livez, /readyz and /metrics is served while no token exists; make one with"
            " `loopctl token new`",
        )


async def body_of(request: Request, *, most: int = FRAME_LIMIT_BYTES) -> bytes:
    """The body, within `most` bytes and `BODY_S`.

    Raises:
        Refused: `frame_too_large` or `timeout`.
    """
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > most:
        raise Refused("frame_too_large", f"a body of {length[:20]} bytes; the limit is {most}")
    data = bytearray()
    with anyio.move_on_after(BODY_S) as patience:
        async for chunk in request.stream():
            data += chunk
            if len(data) > most:
                raise Refused("frame_too_large", f"a body of more than {most} bytes")
    if patience.cancelled_caught:
        peer = request.scope.get(PEER)
        if peer is not None:
            peer.transport.abort()
        raise Refused("timeout", f"the body did not come within {BODY_S:g} s")
    return bytes(data)


async def _checked(request: Request) -> bytes:
    data = await body_of(request)
    codec.check_text(data)
    codec.check_depth(data)
    codec.check_keys(data)
    return data


def answer_object(answer: Answer) -> dict[str, Any]:
    """An answer as its JSON object: `{"seq", "rev", "dup", "r"}`."""
    return {"seq": answer.seq, "rev": answer.rev, "dup": answer.dup, "r": answer.result}


def _condition(request: Request, name: str) -> int | None:
    header = name.replace("_", "-")
    given = request.headers.get(header)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise Refused("invalid", f"{header} is {given[:40]!r}; expected a number", path=f"$.{name}")
    return int(given)


def _who(caller: Caller) -> dict[str, Any]:
    return {
        "principal": caller.principal,
        "scopes": sorted(caller.scopes),
        "labels": dict(caller.labels),
        "source": str(caller.source.value),
    }


def _json(body: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


async def _not_found(request: Request, _: Exception) -> Response:
    return problem("not_found", f"nothing is at {request.url.path[:200]!r}")


async def _wrong_method(request: Request, error: Exception) -> Response:
    allowed = (getattr(error, "headers", None) or {}).get("Allow", ", ".join(_METHODS))
    answer = problem("invalid", f"method {request.method[:20]!r}; expected {allowed}", status=405)
    answer.headers["allow"] = allowed
    return answer


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error)


async def _failed(request: Request, error: Exception) -> Response:
    return problem("internal", f"{request.url.path[:200]!r} failed with {type(error).__name__}; see the log")
