"""Who watches, and for how long: told to the journal as facts that nobody waits for.

    subscribed ──5 s──▶ attached ──gone──▶ detached
        └──gone before──▶ nothing: whoever only looked for a moment did not watch

So a page that reconnects every second, and a command that waits for one event, leave no trail; that somebody was
there while it happened does. What a full queue does not take is counted and left out: a journal that is busy
must not wait for its readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from loopd_protocol.access_events import WatcherAttached, WatcherDetached
from loopd_protocol.event import Event

if TYPE_CHECKING:
    from loopd.server.fanout import Subscription

WATCHING_S = 5.0
SIDS_NAMED = 20

Note = Callable[[Event, str], bool]
"""(event, principal) → whether it was taken; never waits."""


class _Visit(msgspec.Struct):
    """One subscription, from its beginning to its end."""

    id: str
    began: float
    timer: asyncio.TimerHandle | None


class Attendance:
    """Notes who attaches and who goes.

    Args:
        note: where to.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._visits: dict[Subscription, _Visit] = {}
        self._count = 0
        self._over = False

    def came(self, sub: Subscription) -> None:
        """A subscription began."""
        if self._over:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(WATCHING_S, self._stays, sub)
        self._visits[sub] = _Visit(id="", began=loop.time(), timer=timer)

    def went(self, sub: Subscription) -> None:
        """It is over."""
        visit = self._visits.pop(sub, None)
        if visit is None:
            return
        if visit.timer is not None:
            visit.timer.cancel()
        if not visit.id or self._over:
            return
        lasted_ms = int((asyncio.get_running_loop().time() - visit.began) * 1_000)
        told = WatcherDetached(id=visit.id, lasted_ms=max(0, lasted_ms), cursor=sub.cursor)
        self._note(told, sub.line.caller.principal)

    def end(self) -> None:
        """The daemon stops: from here on its own last event says that everybody is gone."""
        self._over = True
        for visit in self._visits.values():
            if visit.timer is not None:
                visit.timer.cancel()

    def _stays(self, sub: Subscription) -> None:
        visit = self._visits[sub]
        visit.timer = None
        sids = sorted(sub.wanted.sids or ())
        self._count += 1
        name = f"w{self._count}"
        told = WatcherAttached(
            id=name,
            via=sub.line.via,
            all=sub.wanted.sids is None,
            sids=tuple(sids[:SIDS_NAMED]),
            sids_count=len(sids),
        )
        if self._note(told, sub.line.caller.principal):
            visit.id = name
