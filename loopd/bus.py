"""The bus: a log that is told of new events, and cursors that read it. There are no queues.

A subscriber is a cursor: it waits until the head has passed it, then reads from the ring of recent
events or, further back, from the store. So nothing is dropped, a frozen reader costs nothing, and
producers never wait. Only deltas (streamed text that is not stored) are lossy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio
import msgspec

from loopd.core.writes import StoredEvent

RING_EVENTS = 16_384
RING_BYTES = 16 << 20
EVENT_OVERHEAD_BYTES = 512
"""What a `StoredEvent` costs beside its body."""

CHUNK_BYTES = 4 << 20
"""Bodies in one chunk that is read from the store; one event may be larger."""

Delta = tuple[str, int, str]
"""(session id, turn, streamed text)."""


class Pages(Protocol):
    """Where events are that the ring has no more."""

    async def page(
        self,
        *,
        sid: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        kinds: Sequence[str] = (),
        newest: bool = False,
        max_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Events in order of `seq`, strictly between `after` and `before`."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a cursor gets.

    Attributes:
        events: in order of `seq`, all above the cursor; empty at the head.
        cursor: where to read on.
        gap: (first, last) sequence numbers that should be here and are not: deleted by retention, or
            not written yet (the cursor comes from another log or was set too high).
    """

    events: Sequence[StoredEvent]
    cursor: int
    gap: tuple[int, int] | None = None


class Deltas:
    """Streamed text for one watcher; the oldest is dropped when it does not keep up.

    Attributes:
        dropped: how many were dropped so far.
    """

    def __init__(self, maxlen: int) -> None:
        self._waiting: deque[Delta] = deque(maxlen=maxlen)
        self._arrived = anyio.Event()
        self.dropped = 0

    async def receive(self) -> Delta:
        """The oldest delta that was not dropped; waits for one."""
        while not self._waiting:
            await self._arrived.wait()
        delta = self._waiting.popleft()
        if not self._waiting:
            self._arrived = anyio.Event()
        return delta

    def receive_nowait(self) -> list[Delta]:
        """All that wait now, possibly none: for senders that batch."""
        deltas = list(self._waiting)
        if deltas:
            self._waiting.clear()
            self._arrived = anyio.Event()
        return deltas

    def _put(self, delta: Delta) -> None:
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(delta)
        self._arrived.set()


class Bus:
    """One log's live end.

    Attributes:
        log_id: what cursors call the log (the store's `cursor_log`); a cursor of another log is no cursor here.
        head: `seq` of the newest published event.
        deletions: how often something was deleted; who remembers events forgets them when it grows.
    """

    def __init__(
        self,
        *,
        log_id: str,
        head: int,
        pages: Pages,
        ring_events: int = RING_EVENTS,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self.log_id = log_id
        self.head = head
        self._pages = pages
        self._ring_events = ring_events
        self._ring_bytes = ring_bytes
        self.deletions = 0
        self._ring: list[StoredEvent] = []
        self._bytes = 0
        self._advanced = anyio.Event()
        self._listeners: dict[int, Callable[[int], None]] = {}
        self._next_listener = 0
        self._deltas: list[Deltas] = []

    @property
    def watchers(self) -> int:
        """How many watch streamed text now."""
        return len(self._deltas)

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Tell that these were committed; the store calls it, in order of `seq`. Never waits."""
        if not events:
            return
        if self._ring and events[0].seq != self._ring[-1].seq + 1:
            self._ring, self._bytes = [], 0  # the ring is contiguous, or it would lie
        self._ring.extend(events)
        for event in events:
            self._bytes += len(event.body) + EVENT_OVERHEAD_BYTES
        self._trim()
        self.head = events[-1].seq
        advanced, self._advanced = self._advanced, anyio.Event()
        advanced.set()
        for listener in tuple(self._listeners.values()):
            listener(self.head)

    def forget(self) -> None:
        """Some of these were deleted from the store: from now on it alone says what there is."""
        self._ring, self._bytes = [], 0
        self.deletions += 1

    def _trim(self) -> None:
        if len(self._ring) <= self._ring_events and self._bytes <= self._ring_bytes:
            return
        # A quarter at once: removing from the front of a list moves all the rest.
        keep_events, keep_bytes = self._ring_events * 3 // 4, self._ring_bytes * 3 // 4
        gone = 0
        while gone < len(self._ring) and (len(self._ring) - gone > keep_events or self._bytes > keep_bytes):
            self._bytes -= len(self._ring[gone].body) + EVENT_OVERHEAD_BYTES
            gone += 1
        del self._ring[:gone]

    async def read(self, after: int, *, limit: int = 512) -> Chunk:
        """What follows the cursor, at most `limit` events: from the ring, else from the store.

        Returns at once; at the head the chunk is empty. See `wait`.
        """
        if after > self.head:
            return Chunk(events=(), cursor=self.head, gap=(self.head + 1, after))
        if after == self.head:
            return Chunk(events=(), cursor=after)
        if self._ring and after >= self._ring[0].seq - 1:
            start = after - self._ring[0].seq + 1
            events: Sequence[StoredEvent] = self._ring[start : start + limit]
            return Chunk(events=events, cursor=events[-1].seq)
        end = self._ring[0].seq if self._ring else self.head + 1
        events = await self._pages.page(sid=None, after=after, before=end, limit=limit, max_bytes=CHUNK_BYTES)
        if not events:
            return Chunk(events=(), cursor=end - 1, gap=(after + 1, end - 1))
        first, last = events[0].seq, events[-1].seq
        if last - first + 1 != len(events):  # a hole: end before it, the next read names it
            events = [event for index, event in enumerate(events) if event.seq == first + index]
        return Chunk(
            events=events,
            cursor=events[-1].seq,
            gap=(after + 1, first - 1) if first > after + 1 else None,
        )

    async def wait(self, after: int) -> int:
        """Wait until the head is above `after`; returns the head."""
        while self.head <= after:
            await self._advanced.wait()
        return self.head

    @contextmanager
    def listening(self, listener: Callable[[int], None]) -> Iterator[None]:
        """Call `listener(head)` at each publication, for readers without a task of their own.

        It must not raise or wait.
        """
        key = self._next_listener
        self._next_listener += 1
        self._listeners[key] = listener
        try:
            yield
        finally:
            del self._listeners[key]

    def publish_delta(self, sid: str, n: int, text: str) -> None:
        """Show streamed text to those who watch. Lossy, never waits, not stored."""
        for deltas in self._deltas:
            deltas._put((sid, n, text))  # noqa: SLF001  (one module, one pair)

    @contextmanager
    def open_deltas(self, maxlen: int = 256) -> Iterator[Deltas]:
        """Watch streamed text of all sessions while the context is open."""
        deltas = Deltas(maxlen)
        self._deltas.append(deltas)
        try:
            yield deltas
        finally:
            self._deltas.remove(deltas)
