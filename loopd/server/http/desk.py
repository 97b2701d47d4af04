"""What the HTTP side shares with the control socket: its dispatcher, fan-out, tokens and connections."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from loopd.core.access import Answer, Caller
from loopd.server.connection import Connection
from loopd.server.house import Clock, Job
from loopd.server.ports import Keys
from loopd.server.unix import UnixServer
from loopd_protocol.commands import Command
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from loopd.server.http.sse import SseLine

TICKET_MS = 30_000
TICKETS = 1_024
COOKIE_MS = 12 * 3_600_000
COOKIES = 4_096


class Cookie:
    """A login of the page: stands for a token, for some hours, with the secret that its changes must show."""

    def __init__(self, kid: str, ends_ms: int) -> None:
        self.kid = kid
        self.csrf = secrets.token_urlsafe(24)
        self.ends_ms = ends_ms


class Desk:
    """Carries out what HTTP clients ask, by the means of the control socket.

    Attributes:
        lines: open event streams, closed with the daemon.
    """

    def __init__(self, server: UnixServer, keys: Keys) -> None:
        self.server = server
        self.keys = keys
        self.lines: set[SseLine] = set()
        self.closing = False
        self._tickets: dict[str, tuple[str, int]] = {}
        self._cookies: dict[str, Cookie] = {}
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

    def redeem(self, ticket: str) -> Caller:
        """Who a ticket stands for; it is worth nothing afterwards.

        Raises:
            Refused: `unauthenticated`.
        """
        kid, ends_ms = self._tickets.pop(ticket, ("", 0))
        if ends_ms <= self.now_ms():
            raise Refused("unauthenticated", "this ticket is not known, was used before or is over 30 s old")
        return self.keys.caller_of(kid)

    def log_in(self, token: str) -> tuple[str, Cookie, Caller]:
        """Take a token for a cookie.

        Raises:
            Refused: `unauthenticated`.
        """
        caller = self.keys.authenticate(token)
        assert caller.kid is not None
        now = self.now_ms()
        self._cookies = {name: row for name, row in self._cookies.items() if row.ends_ms > now}
        while len(self._cookies) >= COOKIES:
            del self._cookies[next(iter(self._cookies))]
        name = secrets.token_urlsafe(32)
        cookie = self._cookies[name] = Cookie(caller.kid, now + COOKIE_MS)
        return name, cookie, caller

    def log_out(self, name: str) -> None:
        """Forget a cookie."""
        self._cookies.pop(name, None)

    def cookie(self, name: str) -> tuple[Cookie, Caller]:
        """The login behind a cookie.

        Raises:
            Refused: `unauthenticated`.
        """
        cookie = self._cookies.get(name)
        if cookie is None or cookie.ends_ms <= self.now_ms():
            raise Refused("unauthenticated", "not logged in, or not any more")
        return cookie, self.keys.caller_of(cookie.kid)

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
        self._cookies = {name: row for name, row in self._cookies.items() if row.kid != kid}


class WebSocketHouse:
    """The control socket's server as a connection over WebSocket sees it: others may come in."""

    def __init__(self, desk: Desk, caller: Caller) -> None:
        server = desk.server
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
