"""Turns that wait for a person: the question, the place they give back, the deadline that stands still."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from loopd.core.policy_inputs import Settle
from loopd.engine.pace import Pace


class Place:
    """One of the places for turns that run at the same time; it can be left and taken again."""

    def __init__(self, limiter: anyio.CapacityLimiter, pace: Pace) -> None:
        self._limiter = limiter
        self._pace = pace
        self._held = False
        self._taking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def take(self) -> None:
        """Wait for a place, and for its time. Two calls of one turn may wait for it together."""
        await checkpoint_if_cancelled()
        async with self._taking:
            if not self._held:
                await self._take()

    async def _take(self) -> None:
        try:  # nearly always there is one: waiting for it would cost each turn a step of the event loop
            self._limiter.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        self._held = True
        try:
            await self._pace.take()
        except BaseException:
            self.leave()
            raise

    async def breathe(self) -> None:
        """Let others come in between, without giving the place away."""
        await self._pace.take()

    def leave(self) -> None:
        """Give it to another turn; nothing happens when it is not held."""
        if self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)


class Questions:
    """The open questions of one turn.

    Attributes:
        place: what the turn holds while it runs.
        deadline: scope of the turn's own deadline; its time does not run while somebody is asked.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self.deadline: anyio.CancelScope | None = None
        self._open: dict[str, anyio.Event] = {}
        self._settled: dict[str, Settle] = {}
        self._waiting = 0
        self._left_s = math.inf

    def expect(self, approval: str) -> None:
        """A question was asked; its answer may come from now on."""
        self._open[approval] = anyio.Event()

    def settle(self, answer: Settle) -> None:
        """An answer is durable."""
        event = self._open.get(answer.id)
        if event is not None:
            self._settled[answer.id] = answer
            event.set()

    def give_up(self) -> None:
        """Nobody will answer any more: what was written could not be kept."""
        for approval in self._open:
            self.settle(Settle(id=approval, allowed=False, said="the turn is over"))

    async def wait(self, approval: str) -> Settle:
        """Wait for the answer. Time and place of the turn are others' meanwhile."""
        self._pause()
        try:
            await self._open[approval].wait()
        finally:
            self._resume()
            del self._open[approval]
        if self.place is not None and not self._waiting:
            await self.place.take()
            if self._waiting:  # something else was asked meanwhile
                self.place.leave()
        return self._settled.pop(approval)

    def _pause(self) -> None:
        self._waiting += 1
        if self._waiting > 1:
            return
        if self.place is not None:
            self.place.leave()
        if self.deadline is not None:
            self._left_s = self.deadline.deadline - anyio.current_time()
            self.deadline.deadline = math.inf

    def _resume(self) -> None:
        self._waiting -= 1
        if not self._waiting and self.deadline is not None:
            self.deadline.deadline = anyio.current_time() + self._left_s
