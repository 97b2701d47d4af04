"""uvicorn's HTTP/1.1 with an end to everything that a stranger could hold open.

Before a connection has shown a token it must be quick: a request's head within 5 s, at most 16 KiB of it, and of
those that only sit there the oldest make room for new ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 5.0
IDLE_S = 1.0
"""A connection that has asked nothing for so long counts as one that only sits there."""
STRANGERS = 32
STRANGERS_SHARE = 4
"""So many strangers may always sit there, or a quarter of all connections: a thousand readers that come back at once
after a restart are strangers for as long as a busy machine needs to hear them."""
PEER = "loopd.peer"
"""Key of the connection in the scope of its requests."""


class Peers:
    """Connections that have shown no token yet; `connections`: how many there may be of all kinds."""

    def __init__(self, connections: int) -> None:
        self._most = max(STRANGERS, connections // STRANGERS_SHARE)
        self._strangers: dict[PatientProtocol, float] = {}

    def came(self, peer: PatientProtocol, now: float) -> None:
        """A new connection; too many idle strangers make room."""
        idle = [old for old, since in self._strangers.items() if now - since > IDLE_S and old.idle]
        for old in idle[: max(0, len(idle) - self._most + 1)]:
            old.transport.abort()
            self._strangers.pop(old, None)
        self._strangers[peer] = now

    def known(self, peer: PatientProtocol) -> None:
        """It has shown a token, or is gone."""
        self._strangers.pop(peer, None)


class PatientConfig(uvicorn.Config):
    """uvicorn's configuration with the peers of this listener."""

    peers: Peers


class PatientProtocol(H11Protocol):
    """One connection; impatient with strangers."""

    def __init__(self, config: PatientConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._peers = config.peers
        self._clock: asyncio.TimerHandle | None = None
        app = self.app

        async def with_peer(scope: Scope, receive: Receive, send: Send) -> None:
            scope[PEER] = self
            await app(scope, receive, send)

        self.app = with_peer

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def authenticated(self) -> None:
        """The peer has shown a token."""
        self._peers.known(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it among the strangers and give it time for a request."""
        super().connection_made(transport)
        self._peers.came(self, self.loop.time())
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_clock()
        self._peers.known(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of a part of its head."""
        before = self.scope
        super().data_received(data)
        if self.scope is not before:
            self._stop_clock()
        elif self.idle and self._clock is None and not self.transport.is_closing():
            self._start_clock()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From here on it is another protocol's."""
        self._stop_clock()
        self._peers.known(self)
        super().handle_websocket_upgrade(event)

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(HEAD_S, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        self._clock = None
        if self.idle and not self.transport.is_closing():
            self.transport.abort()
