"""Who asks: a bearer token, or the cookie of the page with its secret."""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie

from starlette.requests import HTTPConnection

from loopd.core.access import Caller
from loopd.server.http.desk import Desk
from loopd.server.http.protocol import PEER
from loopd_protocol.errors import Refused

COOKIE = "loopd"
CSRF = "x-csrf-token"
SAFE = frozenset({"GET", "HEAD"})
TOKEN_CHARS = 256
ME = "/v1/me"


def bearer(connection: HTTPConnection) -> str | None:
    """The token of `Authorization: Bearer …`, or None without that header.

    Raises:
        Refused: `unauthenticated` for another scheme.
    """
    given = connection.headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not 1 <= len(token) <= TOKEN_CHARS:
        raise Refused("unauthenticated", "expected `Authorization: Bearer TOKEN`")
    return token.strip()


def caller_of(connection: HTTPConnection, desk: Desk) -> Caller:
    """Who asks; the connection counts as known from now on. Who is not known is told of.

    Raises:
        Refused: `unauthenticated`, or `forbidden` for a change by cookie without its secret.
    """
    try:
        return _caller_of(connection, desk)
    except Refused as refused:
        asks_itself = connection.scope["path"] == ME and not {"authorization", "cookie"} & set(
            connection.headers
        )
        if not asks_itself:  # the page, before anybody logged in
            desk.turned_away(connection.scope, refused, _token_of(connection))
        raise


def _token_of(connection: HTTPConnection) -> str | None:
    return connection.headers.get("authorization", "").partition(" ")[2][:TOKEN_CHARS].strip() or None


def _caller_of(connection: HTTPConnection, desk: Desk) -> Caller:
    token = bearer(connection)
    if token is not None:
        caller = desk.keys.authenticate(token)
    else:
        cookie, caller = logged_in(connection, desk)
        method = connection.scope.get("method", "GET")
        if method not in SAFE:
            shown = connection.headers.get(CSRF, "")
            if not hmac.compare_digest(shown.encode("utf-8", "replace"), desk.cookies.csrf(cookie).encode()):
                raise Refused("forbidden", f"a change by cookie needs the header {CSRF}; see GET /v1/me")
    peer = connection.scope.get(PEER)
    if peer is not None:
        peer.authenticated()
    return caller


def cookie_name(connection: HTTPConnection) -> str | None:
    """The value of our cookie, or None."""
    try:
        morsel = SimpleCookie(connection.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


def logged_in(connection: HTTPConnection, desk: Desk) -> tuple[str, Caller]:
    """The login of the page: its cookie and whose it is.

    Raises:
        Refused: `unauthenticated`.
    """
    name = cookie_name(connection)
    if name is None:
        raise Refused("unauthenticated", "no token; expected `Authorization: Bearer TOKEN`")
    return name, desk.logged_in(name)
