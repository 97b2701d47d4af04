"""Drivers' seats: a session has one driver at a time, also while it leaves memory and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

import anyio

from loopd.engine.ports import Driver


class Seat:
    """Where the driver of a loaded session sits. The next one sits down only when the last one has left.

    A driver that leaves ends processes, which takes a moment; the next one may need the same files and ports.
    """

    def __init__(self, way: asyncio.Lock) -> None:
        self._way = way
        self._driver: Driver | None = None

    @property
    def taken(self) -> bool:
        """There is a driver, and nobody has asked it to leave."""
        return self._driver is not None

    async def driver(self, make: Callable[[], Driver]) -> Driver:
        """The driver that sits here, or a new one when the last one of the session has left."""
        async with self._way:
            if self._driver is None:
                self._driver = make()
            return self._driver

    async def aclose(self) -> None:
        """Let the driver leave; returns when it has. Not cut short by cancellation, for then it would stay."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with anyio.CancelScope(shield=True):
                async with self._way:
                    await driver.aclose()


class Seats:
    """The seats of all sessions: two of one session share the way to them."""

    def __init__(self) -> None:
        self._ways: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, sid: str) -> Seat:
        """A seat for a session that is being loaded."""
        return Seat(self._ways.setdefault(sid, asyncio.Lock()))
