"""The pace of turns: only a few of them go on in one step of the event loop, so that commands come in between.

A commit wakes all turns whose events it holds. If all of them decided at once what they do next, a command that
arrives meanwhile would wait behind them all, twice: on its way in and on its way out.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 2
"""Turns that go on in one step of the event loop. Beside 64 turns that never rest, a command is answered in half
the time that it takes without a limit; one at once halves it again, but makes many small commits."""


class Pace:
    """Lets turns go on, `AT_ONCE` in each step of the event loop, in the order in which they came."""

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._stepping = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Wait until it is this turn's time; at once when few are on their way."""
        loop = asyncio.get_running_loop()
        if not self._stepping:
            self._stepping = True
            loop.call_soon(self._step)
        if self._left:
            self._left -= 1
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _step(self) -> None:
        self._left = AT_ONCE
        while self._left and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # else its turn was cut meanwhile
                waiting.set_result(None)
                self._left -= 1
        self._stepping = bool(self._waiting) or self._left < AT_ONCE
        if self._stepping:
            asyncio.get_running_loop().call_soon(self._step)
