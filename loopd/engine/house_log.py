"""Events of the daemon itself, and answers that changed nothing: written without a session."""

from __future__ import annotations

import asyncio
import logging

import anyio

from loopd.core.writes import Append, Appended, Fact, HouseRow, Idempotency
from loopd.engine.ports import Clock, Store
from loopd_protocol import events as ev

logger = logging.getLogger("loopd.engine")


class HouseLog:
    """Writes, and waits until it is durable even when the caller goes away."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def say(
        self, event: ev.Event, *, principal: str, idempotency: Idempotency | None = None
    ) -> Appended:
        """Journal an event of the daemon itself."""
        return await self.tell((event,), principal=principal, idempotency=idempotency)

    def note(self, event: ev.Event, principal: str) -> bool:
        """Journal an event that nobody waits for; false when it is left out. Never waits."""
        if not self._store.takes_lazy():
            return False
        fact = Fact(event=event, ss=0)
        batch = Append(sid=None, at_ms=self._clock.now_ms(), facts=(fact,), principal=principal, lazy=True)
        self._store.submit(batch).add_done_callback(_looked_at)
        return True

    async def tell(
        self,
        events: tuple[ev.Event, ...],
        *,
        principal: str,
        idempotency: Idempotency | None = None,
        house: tuple[HouseRow, ...] = (),
    ) -> Appended:
        """Journal events of the daemon itself together with rows of the house; either may be missing."""
        batch = Append(
            sid=None,
            at_ms=self._clock.now_ms(),
            facts=tuple(Fact(event=event, ss=0) for event in events),
            principal=principal,
            idempotency=idempotency,
            house=house,
        )
        future = self._store.submit(batch)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
        return future.result()

    async def keep(self, key: Idempotency) -> Appended:
        """Make the answer to a command that changed nothing durable: asked again, it still changes nothing."""
        batch = Append(sid=None, at_ms=self._clock.now_ms(), facts=(), idempotency=key)
        future = self._store.submit(batch)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
        return future.result()


def _looked_at(future: asyncio.Future[Appended]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("a note was not journaled", extra={"error": str(error)})
