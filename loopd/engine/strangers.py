"""Who knocked and is not known here: written down for the auditor, without a lever for whoever knocks.

Each event costs a commit and stays for a year. So the first attempt is written at once, and what comes within a minute of
an event is added up into the next one: at most one event a minute, with at most so many sources named, however many
knock.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from loopd.engine.ports import Clock
from loopd_protocol.access_events import ATTEMPTS_MAX, AccessRefused, Attempt
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd.access")

WINDOW_S = 60.0
SOURCE_CHARS = 100


class Say(Protocol):
    """Journals an event of the daemon itself."""

    async def __call__(self, event: AccessRefused, /, *, principal: str) -> object:
        """Write it; returns when it is durable."""


class Strangers:
    """Adds up attempts.

    Args:
        counted: told the door of each attempt, for metrics.
        sleep: waits; tests in virtual time have their own.
    """

    def __init__(
        self,
        clock: Clock,
        say: Say,
        *,
        counted: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        self._clock = clock
        self._say = say
        self._counted = counted
        self._sleep = sleep
        self._counts: dict[tuple[str, str, str, str], int] = {}
        self._more = 0
        self._first_ms = self._last_ms = 0
        self._came = anyio.Event()

    def knocked(self, door: str, source: str, code: str, kid: str = "") -> None:
        """Count one attempt; never waits."""
        self._counted(door)
        now = self._clock.now_ms()
        if not self._counts and not self._more:
            self._first_ms = now
        self._last_ms = now
        self._add((door, source[:SOURCE_CHARS], code, kid), 1)
        self._came.set()

    async def run(self) -> None:
        """Write down what comes; for ever."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            await self.write()
            await self._sleep(WINDOW_S)

    async def write(self) -> None:
        """Write down what has come so far; what cannot be written now is kept, as a number."""
        counts, more, first_ms = self._counts, self._more, self._first_ms
        if not counts and not more:
            return
        self._counts, self._more = {}, 0
        attempts = tuple(
            Attempt(door=door, source=source, code=code, kid=kid, count=count)
            for (door, source, code, kid), count in counts.items()
        )
        event = AccessRefused(attempts=attempts, first_ms=first_ms, last_ms=self._last_ms, more=more)
        try:
            await self._say(event, principal="daemon")
        except Refused as refused:
            logger.warning("attempts not journaled", extra={"code": refused.code, "count": len(attempts)})
            self._first_ms, self._more = first_ms, self._more + more
            for place, count in counts.items():
                self._add(place, count)
            self._came.set()

    def _add(self, place: tuple[str, str, str, str], count: int) -> None:
        if place in self._counts or len(self._counts) < ATTEMPTS_MAX:
            self._counts[place] = self._counts.get(place, 0) + count
        else:
            self._more += count
