"""Tasks that carry out commands: as many as are waiting for something, not one for each command.

A command that needs no waiting costs no task; a command that waits does not hold up the next one.
Commands begin in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from loopd_protocol.errors import Refused

_Job = TypeVar("_Job")
_SPARE = 8


class Workers(Generic[_Job]):
    """Runs `handle` for each job that is submitted.

    `handle` must not raise. `limit` bounds the jobs that are queued or under way.
    """

    def __init__(self, handle: Callable[[_Job], Awaitable[None]], *, limit: int) -> None:
        self._handle = handle
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._coming = False
        self._group: TaskGroup | None = None
        self._done: anyio.Event | None = None
        self.unfinished = 0

    def open(self, group: TaskGroup) -> None:
        """Use this task group from now on."""
        self._group = group

    def submit(self, job: _Job) -> None:
        """Queue a job; it starts in this turn of the event loop or the next.

        Raises:
            Refused: `overloaded`.
        """
        if self.unfinished >= self._limit:
            raise Refused(
                "overloaded",
                f"{self.unfinished} commands are under way; the limit is {self._limit}",
                retry_after_ms=100,
            )
        self.unfinished += 1
        self._jobs.append(job)
        self._rouse()

    async def finished(self) -> None:
        """Wait until nothing is queued or under way."""
        if self.unfinished:
            self._done = anyio.Event()
            await self._done.wait()

    def _rouse(self) -> None:
        if self._coming:
            return
        self._coming = True
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                return
        assert self._group is not None, "open() comes first"
        self._group.start_soon(self._work)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._coming = False
            while self._jobs:
                job = self._jobs.popleft()
                if self._jobs:  # should this one wait, somebody else goes on with the rest
                    self._rouse()
                try:
                    await self._handle(job)
                finally:
                    self.unfinished -= 1
                    if self._done is not None and not self.unfinished:
                        self._done.set()
            if len(self._idle) >= _SPARE:
                return
            idle: asyncio.Future[None] = loop.create_future()
            self._idle.append(idle)
            await idle
