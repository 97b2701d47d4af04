"""What the HTTP side shares with the control socket: its dispatcher, fan-out, tokens and connections."""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loopd.core.access import Answer, Caller
from loopd.server.connection import Connection
from loopd.server.house import Clock, Job
from loopd.server.ports import Keys
from loopd.server.unix import UnixServer
from loopd_protocol.commands import Command
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from starlette.types import Scope

    from loopd.server.http.sse import SseLine

TICKET_MS = 30_000
TICKETS = 1_024
COOKIE_MS = 12 * 3_600_000
COOKIES = 4_096
_SITE_BITS = 64


class Cookies:
    """Logins of the page: `kid.ends.nonce.mac`, where the mac is an HMAC under a key of this daemon.

    Nothing is stored, so a page that is left open outlives a restart. The secret that changes by cookie must show
    (CSRF) follows from the cookie by the same key. Only a logout is remembered, until the cookie would have ended.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._out: dict[str, int] = {}

    def issue(self, kid: str, ends_ms: int) -> str:
        """A new cookie for the holder of a token."""
        named = f"{kid}.{ends_ms}.{secrets.token_urlsafe(16)}"
        return f"{named}.{self._mac('cookie', named)}"

    def kid(self, cookie: str, now_ms: int) -> str:
        """The token that a cookie stands for.

        Raises:
            Refused: `unauthenticated`.
        """
        named, _, mac = cookie.rpartition(".")
        kid, _, rest = named.partition(".")
        ends = rest.partition(".")[0]
        good = hmac.compare_digest(self._mac("cookie", named).encode(), mac.encode("utf-8", "replace"))
        if not good or not ends.isdigit() or int(ends) <= now_ms or cookie in self._out:
            raise Refused("unauthenticated", "not logged in, or not any more")
        return kid

    def csrf(self, cookie: str) -> str:
        """What a change by this cookie must show."""
        return self._mac("csrf", cookie)

    def forget(self, cookie: str, now_ms: int) -> None:
        """It is worth nothing any more."""
        self._out = {name: ends for name, ends in self._out.items() if ends > now_ms}
        if len(self._out) < COOKIES:
            self._out[cookie] = now_ms + COOKIE_MS

    def _mac(self, what: str, text: str) -> str:
        mac = hmac.digest(self._key, f"{what}:{text}".encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def cookie_key(path: Path) -> bytes:
    """The key of this data folder's cookies; made, readable for its owner alone, when there is none."""
    with contextlib.suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(secrets.token_bytes(32))
    key = path.read_bytes()
    return key if len(key) == 32 else secrets.token_bytes(32)  # half a file: logins end with this boot


def source_of(scope: Scope) -> str:
    """Where a request came from: `ip:ADDRESS` (of IPv6 the network of the site), or `local` for a unix socket."""
    client = scope.get("client")
    if not client or not client[0]:
        return "local"
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return "local"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None and not address.is_loopback:
        return f"ip:{ipaddress.ip_network((address, _SITE_BITS), strict=False)}"
    return f"ip:{address}"


class Desk:
    """Carries out what HTTP clients ask, by the means of the control socket.

    Attributes:
        cookies: logins of the page.
        lines: open event streams, closed with the daemon.
    """

    def __init__(self, server: UnixServer, keys: Keys, *, cookies: Cookies | None = None) -> None:
        self.server = server
        self.cookies = cookies or Cookies()
        self.keys = keys
        self.lines: set[SseLine] = set()
        self.closing = False
        self._tickets: dict[str, tuple[str, int]] = {}
        keys.listeners.append(self._revoked)

    @property
    def now_ms(self) -> Clock:
        """Wall clock, ms since the epoch (UTC)."""
        return self.server.now_ms

    async def carry_out(
        self,
        command: Command,
        caller: Caller,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Answer:
        """Carry out a command like one from the socket.

        Raises:
            Refused: nothing was changed.
        """
        answer = await self.server.carry_out(
            command, caller, key=key, if_rev=if_rev, if_gate_gen=if_gate_gen, if_turn=if_turn
        )
        if isinstance(answer, Refused):
            raise answer
        return answer

    # -- tickets and cookies ----------------------------------------------------------------------

    def ticket(self, caller: Caller) -> tuple[str, int]:
        """A ticket that stands once, within 30 s, for the caller's token; and when it ends.

        Raises:
            Refused: `overloaded`.
        """
        now = self.now_ms()
        self._tickets = {name: row for name, row in self._tickets.items() if row[1] > now}
        if len(self._tickets) >= TICKETS:
            raise Refused(
                "overloaded", f"{TICKETS} tickets are out; the limit is {TICKETS}", retry_after_ms=1_000
            )
        assert caller.kid is not None
        name = f"lpt_{secrets.token_urlsafe(32)}"
        self._tickets[name] = (caller.kid, now + TICKET_MS)
        return name, now + TICKET_MS

    def turned_away(self, scope: Scope, refused: Refused, token: str | None = None) -> None:
        """Tell of somebody who is not known here. Who may not do something is known, and told of elsewhere."""
        if refused.code == "unauthenticated":
            kid = "" if token is None else self.keys.named(token)
            self.server.knocked("http", source_of(scope), refused.code, kid)

    def redeem(self, ticket: str) -> Caller:
        """Who a ticket stands for; it is worth nothing afterwards.

        Raises:
            Refused: `unauthenticated`.
        """
        kid, ends_ms = self._tickets.pop(ticket, ("", 0))
        if ends_ms <= self.now_ms():
            raise Refused("unauthenticated", "this ticket is not known, was used before or is over 30 s old")
        return self.keys.caller_of(kid)

    def log_in(self, token: str) -> tuple[str, int, Caller]:
        """Take a token for a cookie: its value, when it ends, and whose it is.

        Raises:
            Refused: `unauthenticated`.
        """
        caller = self.keys.authenticate(token)
        assert caller.kid is not None
        ends_ms = self.now_ms() + COOKIE_MS
        return self.cookies.issue(caller.kid, ends_ms), ends_ms, caller

    def log_out(self, cookie: str) -> None:
        """Forget a cookie."""
        self.cookies.forget(cookie, self.now_ms())

    def logged_in(self, cookie: str) -> Caller:
        """The login behind a cookie.

        Raises:
            Refused: `unauthenticated`.
        """
        return self.keys.caller_of(self.cookies.kid(cookie, self.now_ms()))

    # -- ends ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye to all event streams."""
        self.closing = True
        for line in list(self.lines):
            line.bye("draining", "the daemon stops")

    def _revoked(self, kid: str) -> None:
        for line in list(self.lines):
            if line.caller.kid == kid:
                line.bye("unauthenticated", "the token has expired or was revoked")


class WebSocketHouse:
    """The control socket's server as a connection over WebSocket sees it: others may come in."""

    def __init__(self, desk: Desk, caller: Caller, scope: Scope) -> None:
        server = desk.server
        self._scope = scope
        self.bus = server.bus
        self.dispatcher = server.dispatcher
        self.fanout = server.fanout
        self.limits = server.limits
        self.info = server.info
        self._desk = desk
        self._caller = caller

    @property
    def now_ms(self) -> Clock:
        """Wall clock."""
        return self._desk.now_ms

    def admit(self, connection: Connection) -> Caller:
        """Whoever the request was from; nobody, without a token in it."""
        self._desk.server.count(connection)
        return self._caller

    def greet(self, connection: Connection, token: str | None) -> Caller:
        """The holder of the token or ticket in `hello`."""
        try:
            return self._holder(connection, token)
        except Refused as refused:
            self._desk.turned_away(self._scope, refused, token)
            raise

    def _holder(self, connection: Connection, token: str | None) -> Caller:
        if token is None:
            if connection.caller.kid is None:
                raise Refused("unauthenticated", "no token; expected one in the request or in `hello.auth`")
            return connection.caller
        if token.startswith("lpt_"):
            return self._desk.redeem(token)
        return self._desk.keys.authenticate(token)

    def gone(self, connection: Connection) -> None:
        """A connection is over."""
        self._desk.server.gone(connection)

    def submit(self, job: Job) -> None:
        """Have a worker carry it out."""
        self._desk.server.submit(job)


Observe = Callable[[str, str, float], None]
