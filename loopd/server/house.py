"""What a connection needs of the server it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from loopd.core.access import Caller
from loopd.server.fanout import Fanout
from loopd.server.limits import SocketLimits
from loopd.server.ports import Bus, Dispatcher
from loopd_protocol.commands import Command
from loopd_protocol.frames import Cmd, ServerInfo, Sub

if TYPE_CHECKING:
    from loopd.server.connection import Connection


class Job(NamedTuple):
    """A command, or a subscription that must look something up first, on its way to a worker."""

    connection: Connection
    frame: Cmd | Sub
    command: Command | None


class House(Protocol):
    """The server, as its connections see it."""

    bus: Bus
    dispatcher: Dispatcher
    fanout: Fanout
    limits: SocketLimits
    info: ServerInfo

    @property
    def now_ms(self) -> Clock:
        """Wall clock, ms since the epoch (UTC)."""

    def admit(self, connection: Connection) -> Caller:
        """The caller behind a new connection; raises `Refused`."""

    def greet(self, connection: Connection, token: str | None) -> Caller:
        """Who it is after `hello`, which may carry a token; raises `Refused`."""

    def gone(self, connection: Connection) -> None:
        """A connection is over."""

    def submit(self, job: Job) -> None:
        """Have a worker carry it out; raises `Refused`."""


class Clock(Protocol):
    """Tells the time."""

    def __call__(self) -> int:
        """Milliseconds since the epoch."""
