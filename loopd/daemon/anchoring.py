"""Anchors of a daemon: the head of its log is signed, stored, and told outside.

    head ─▶ signed ─▶ stored in `anchor` ─▶ `anchor.signed` in the log ─▶ webhooks, streams, consumers ─▶ another machine
                                        └─▶ the daemon's log lines

Telling goes through the log itself, so it has what the log has: an order, a cursor for each who listens, and nothing
lost while a listener is away. The last anchor of a daemon is signed behind its last event and told at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import msgspec

from loopd.core.writes import Appended
from loopd.engine.ports import Clock
from loopd.store.anchors import Anchor
from loopd.store.sqlite import SqliteStore
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_events import AnchorSigned

logger = logging.getLogger("loopd.anchor")

RETRY_S = 10.0


class Tell(Protocol):
    """Journals an event of the daemon itself."""

    async def __call__(self, event: AnchorSigned, /, *, principal: str) -> Appended:
        """Write it; returns when it is durable."""


class Head(Protocol):
    """Tells when the log has grown."""

    async def wait(self, after: int) -> int:
        """Return when the head is beyond `after`."""


class Anchoring:
    """Signs heads for one daemon.

    Args:
        every_s, every_events: how long, and how many events, wait for an anchor at most.
        counted: told `written` or `failed` of each try, for metrics.

    Attributes:
        seq, at_ms: of the newest anchor; 0 and None before the first.
        covered: the last event that needs no further anchor: the newest anchor's own, or the one that told of it.
    """

    def __init__(
        self,
        store: SqliteStore,
        clock: Clock,
        *,
        every_s: float = 60,
        every_events: int = 1_000,
        counted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._every_events = every_events
        self._counted = counted
        self.seq = 0
        self.at_ms: int | None = None
        self.covered = 0

    @property
    def behind(self) -> int:
        """How many events wait for an anchor."""
        return max(0, self._store.head - self.covered)

    async def keep(self, log: Head, tell: Tell) -> None:
        """Sign the head every so many events, and every so many seconds while there are new ones; for ever."""
        if self._store.signer is None or self._store.readonly:
            return
        await self._attempt(lambda: self._catch_up(tell))
        while True:
            await log.wait(self.covered)
            with anyio.move_on_after(self._every_s):
                await log.wait(self.covered + self._every_events - 1)
            if not await self._attempt(lambda: self.sign(tell)):
                return

    async def sign(self, tell: Tell | None = None) -> None:
        """Sign the head as it is, and tell.

        Raises:
            Refused: the journal takes nothing now.
        """
        anchor = await self._store.anchor(self._clock.now_ms())
        if anchor is None:
            self.covered = max(self.covered, await self._store.last_anchor())
            return
        self._counted("written")
        self.seq, self.at_ms, self.covered = anchor.seq, anchor.at_ms, anchor.seq
        logger.info("anchor", extra={"anchor": msgspec.to_builtins(anchor)})
        if tell is not None:
            await self._tell(anchor, tell)

    async def _catch_up(self, tell: Tell) -> None:
        """Learn of the newest anchor, and tell of it if the daemon that signed it could not."""
        last = await self._store.last_anchor()
        if not last:
            return
        (said,) = await self._store.anchors(after=last - 1, limit=1)
        self.seq, self.at_ms, self.covered = last, said["at_ms"], last
        told = await self._store.page(sid=None, after=last, before=None, limit=1, kinds=("anchor.signed",))
        if not told:
            await self._tell(msgspec.convert(said, Anchor), tell)
        elif told[-1].seq == last + 1:
            self.covered = last + 1

    async def _tell(self, anchor: Anchor, tell: Tell) -> None:
        event = msgspec.convert(msgspec.to_builtins(anchor), AnchorSigned)
        place = (await tell(event, principal="daemon")).last
        if place == anchor.seq + 1:
            self.covered = place  # nothing came in between: the next anchor waits for something to sign

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do it; false when this daemon only reads."""
        try:
            await work()
        except Refused as refused:
            if refused.code in {"corrupt", "storage_readonly"}:
                return False
            # a full disk: the next try comes, and `verify` still has the others
            self._counted("failed")
            logger.warning("anchor not stored", extra={"code": refused.code, "cause": refused.message})
            await anyio.sleep(RETRY_S)
        return True
