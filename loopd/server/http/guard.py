"""What is checked of every request before anybody looks at its path: Host, Origin, framing.

A page in a browser can send requests to 127.0.0.1, and can point a name of its own at it. `Host` must name
this listener, which stops the second; an `Origin` must be this listener's own, which stops the first, cookies or
not. There is no CORS: no foreign page ever reads an answer.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopd.server.http.desk import source_of
from loopd.server.http.problems import refusal
from loopd.server.ports import Knock, nobody_listens
from loopd_protocol.errors import Refused

API_POLICY = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_FIXED: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_ONCE = (b"host", b"origin", b"authorization", b"content-length", b"idempotency-key", b"last-event-id")
"""Headers that decide something: given twice, two readers could disagree on which one counts."""
HEADERS_MAX = 64
HEAD_BYTES = 16_384


class HostGuard:
    """Refuses requests that are not for us or not from us, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], knocked: Knock = nobody_listens) -> None:
        self._app = app
        self._knocked = knocked
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] in {"http.response.start", "websocket.http.response.start"}:
                _add_headers(message)
            await send(message)

        try:
            self._check(scope)
        except Refused as refused:
            if refused.code in {"not_owner", "forbidden"}:  # another name for us, or a page of another site
                self._knocked("http", source_of(scope), refused.code, "")
            await deny(scope, receive, send_guarded, refused)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > HEADERS_MAX:
            raise Refused("bad_frame", f"{len(headers)} headers; the limit is {HEADERS_MAX}")
        # The parser looks at the size of a head only while it is incomplete.
        size = sum(len(name) + len(value) + 4 for name, value in headers) + len(scope.get("raw_path") or b"")
        size += len(scope.get("query_string") or b"")
        if size > HEAD_BYTES:
            raise Refused("bad_frame", f"a head of {size} bytes; the limit is {HEAD_BYTES}")
        names = [name for name, _ in headers]
        host = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
        if names.count(b"host") != 1 or without_port(host).lower() not in self._hosts:
            raise Refused("not_owner", f"host {host[:200]!r} is not served here; see http.allowed_hosts")
        for name in _ONCE:
            if names.count(name) > 1:
                raise Refused("bad_frame", f"header {name.decode()!r} is given more than once")
        if b"content-length" in names and b"transfer-encoding" in names:
            raise Refused("bad_frame", "both content-length and transfer-encoding; expected one of them")
        check_origin(headers, host)


def check_origin(headers: list[tuple[bytes, bytes]], host: str) -> None:
    """Refuse what a foreign page asks.

    Raises:
        Refused: `forbidden`.
    """
    for name, value in headers:
        if name == b"origin":
            scheme, _, where = value.decode("latin-1").lower().partition("://")
            if scheme not in {"http", "https"} or where != host.lower():
                raise Refused("forbidden", f"origin {value[:200]!r} is not this listener; expected {host!r}")
        elif name == b"sec-fetch-site" and value not in {b"same-origin", b"none"}:
            raise Refused("forbidden", f"a page of another site asks ({value[:40]!r})")


async def deny(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    """Answer with a problem; a WebSocket is refused before it is one."""
    answer = refusal(refused)
    if scope["type"] == "http":
        answer.headers["connection"] = "close"  # an unread body may follow
        await answer(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await send(
            {
                "type": "websocket.http.response.start",
                "status": answer.status_code,
                "headers": answer.raw_headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": refused.code})


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = message["headers"] = list(message.get("headers", ()))
    have = {name for name, _ in headers}
    headers += [pair for pair in _FIXED if pair[0] not in have]
    if b"content-security-policy" not in have:
        headers.append((b"content-security-policy", API_POLICY))


def without_port(host: str) -> str:
    """The name of a `Host` header; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
