"""Memory that nobody uses any more goes back to the system, now and then.

Requests and their answers refer to each other in circles, so that only the garbage collector finds them. Its own
moments come from how much is made, and in a daemon that lives mostly from references they are hours apart.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import anyio
import anyio.to_thread

from loopd import allocator

EVERY_S = 30.0
SHARE = 1_000
"""Looking for garbage takes at most this part of the time: the next look waits so many times as long as the last
one took, if that is more."""

MADE_MIN = 2_000
"""Objects since the last look; a daemon in which nothing happens is left alone."""


class Sweep:
    """Looks for garbage.

    Attributes:
        looks: how often it did.
        pause_s: how long the last look stopped everything else.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.looks = 0
        self.pause_s = 0.0
        self._monotonic = monotonic
        self._collections = 0

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await anyio.sleep(max(EVERY_S, self.pause_s * SHARE))
            await self.once()

    async def once(self) -> bool:
        """Sweep now, if enough was made since the last time; returns whether it did."""
        begun = sum(generation["collections"] for generation in gc.get_stats())
        if begun == self._collections and gc.get_count()[0] < MADE_MIN:
            return False
        began = self._monotonic()
        gc.collect()
        self.pause_s = self._monotonic() - began
        self.looks += 1
        self._collections = sum(generation["collections"] for generation in gc.get_stats())
        await anyio.to_thread.run_sync(allocator.give_back)
        return True
