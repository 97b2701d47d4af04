"""What the HTTP side shares with the control socket: its dispatcher, fan-out, tokens and connections."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from loopd.core.access import Answer, Caller
from loopd.server.connection import Connection
from loopd.server.house import Clock, Job
from loopd.server.http.cookies import COOKIE_MS, Cookies
from loopd.server.ports import Keys
from loopd.server.unix import UnixServer
from loopd_protocol.commands import Command
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from starlette.types import Scope

    from loopd.server.http.sse import SseLine

TICKET_MS = 30_000
TICKETS = 1_024
_SITE_BITS = 64


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

    async def log_out(self, cookie: str) -> None:
        """End the login of a cookie, durably.

        Raises:
            Refused: `storage_full` or `storage_readonly`; it stands as before.
        """
        await anyio.to_thread.run_sync(self.cookies.forget, cookie, self.now_ms())

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
