"""What a loaded session and the router are to each other, and an input on its way to the journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from loopd.core.account import Purse
from loopd.core.conversation import Message
from loopd.core.inputs import Advanced
from loopd.core.prices import Prices
from loopd.core.state import Session
from loopd.core.writes import Appended, PassiveRow
from loopd.engine.ports import Clock, DriverFactory, Store
from loopd.engine.seats import Seats

if TYPE_CHECKING:
    from loopd.engine.live_turn import LiveTurn
    from loopd.engine.session_loop import SessionLoop


class Office(Protocol):
    """What a loaded session needs from the router."""

    clock: Clock
    store: Store
    make_driver: DriverFactory
    seats: Seats

    @property
    def closed_by(self) -> str | None:
        """`freeze`, `drain` or `maintenance` while no session admits work."""

    @property
    def scheduled_from_ms(self) -> int:
        """Cron and wake-ups wait until then."""

    def spawn(self, loop: SessionLoop, turn: LiveTurn) -> None:
        """Run the turn's driver in the daemon's task group."""

    def release(self, loop: SessionLoop) -> None:
        """The session has ended, is suspended or forgotten, and no turn of it runs: close its driver."""

    def changed(self, loop: SessionLoop, row: PassiveRow | None = None) -> None:
        """The committed state of a session changed: arm its deadline, renew its passive row.

        `row`: as the store has just written it, so that it is not made twice.
        """

    def rested(self, loop: SessionLoop) -> None:
        """Its turn is over for good: when nothing of it is on its way, it may leave memory."""

    def lost(self, loop: SessionLoop, error: BaseException) -> None:
        """A write failed: what is in memory is ahead of the journal and must be forgotten."""

    def told(self, sid: str, n: int, text: str, /) -> None:
        """Live text of a running step."""

    prices: Prices

    def purses(self, session: Session) -> tuple[Purse, ...]:
        """Limits of labels and parents that bind a session, with what all of theirs have spent."""

    def spent(self, before: Session, after: Session, at_ms: int, seq: int) -> None:
        """A commit that ends at `seq` changed what a session has spent, or its limits."""


class Pending:
    """An input that was decided and handed to the journal."""

    def __init__(self, advanced: Advanced, messages: tuple[Message, ...]) -> None:
        self.advanced = advanced
        self.messages = messages
        self.appended: Appended | None = None
        self._future: asyncio.Future[Appended] | None = None

    def follow(self, future: asyncio.Future[Appended]) -> None:
        """The journal's answer will be in `future`."""
        self._future = future

    async def committed(self) -> Advanced:
        """Wait until it is durable.

        Raises:
            Refused: the journal could not take it; nothing of it happened.
        """
        if self._future is not None:
            # shielded: the caller may go away, the write and its effects do not
            self.appended = await asyncio.shield(self._future)
        return self.advanced
