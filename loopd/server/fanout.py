"""From the log to many subscribers: no queue for anyone, only cursors.

Subscribers that are at the head are *live*: one task reads the log once and writes the same bytes
to all of them. One that falls behind (its socket is full, or it began in the past) leaves the live
set and catches up by its own cursor, only while its socket takes bytes; at the head it joins again.
So nobody waits for anybody, and a frozen peer costs its socket's buffer and nothing more.
"""

from __future__ import annotations

import logging
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from loopd.core.access import Caller
from loopd.server.attendance import Attendance
from loopd.server.limits import SocketLimits
from loopd.server.ports import Bus, Chunk
from loopd.server.rendering import Encoding, EventFilter, Slice, slices
from loopd_protocol.errors import Refused
from loopd_protocol.frames import Delta, Err, Gap, Lag, Snap

_RECENT_BYTES = 4 << 20
_log = logging.getLogger("loopd.server")


class Line(Protocol):
    """The connection that a subscription writes to."""

    enc: Encoding
    caller: Caller
    via: str

    @property
    def takes_events(self) -> bool:
        """Whether less than `buffer_bytes` waits for the peer, and it is still there."""

    def write(self, data: bytes) -> None:
        """Write bytes of whole frames."""

    def say(self, frame: msgspec.Struct) -> None:
        """Write one frame."""

    def ended(self, sub: Subscription) -> None:
        """The subscription ended by itself."""


class Subscription:
    """One cursor of one connection.

    Attributes:
        cursor: how far the log has been looked through for it.
        prev: the last event delivered, or where it began.
        snaps: parts of a snapshot that come before the first event.
        deltas_lost: pieces of live text dropped since the last `lag`.
    """

    __slots__ = (
        "acked", "catching_up", "closed", "cursor", "deltas_lost", "id", "line", "prev", "snaps", "wanted",
    )  # fmt: skip

    def __init__(self, line: Line, sub_id: str, wanted: EventFilter, cursor: int) -> None:
        self.line = line
        self.id = sub_id
        self.wanted = wanted
        self.cursor = cursor
        self.prev = cursor
        self.acked = cursor
        self.snaps: list[Snap] = []
        self.deltas_lost = 0
        self.catching_up = False
        self.closed = False


class Fanout:
    """Moves events from the bus to subscriptions.

    Attributes:
        attendance: told who comes and goes, or None.
    """

    def __init__(self, bus: Bus, limits: SocketLimits) -> None:
        self._bus = bus
        self._limits = limits
        self._live: dict[Subscription, None] = {}  # a set that keeps the order
        self._all: dict[Subscription, None] = {}
        self._delta_subs: dict[Subscription, None] = {}
        self._recent: dict[int, Slice] = {}  # by the cursor that it follows, oldest first
        self._recent_bytes = 0
        self._deletions = bus.deletions
        self._reading: dict[int, anyio.Event] = {}
        self._position = bus.head
        self._group: TaskGroup | None = None
        self.attendance: Attendance | None = None

    @property
    def subscribers(self) -> int:
        """Subscriptions that stand."""
        return len(self._all)

    @property
    def lag_max(self) -> int:
        """Events between the head and the slowest subscription."""
        head = self._bus.head
        return max((head - sub.cursor for sub in self._all), default=0)

    def add(self, sub: Subscription, *, deltas: bool) -> None:
        """Begin to serve a subscription."""
        self._all[sub] = None
        if self.attendance is not None:
            self.attendance.came(sub)
        if deltas:
            self._delta_subs[sub] = None
        self.resume(sub)

    def remove(self, sub: Subscription) -> None:
        """Nothing is written for it any more."""
        sub.closed = True
        if self.attendance is not None:
            self.attendance.went(sub)
        for group in (self._all, self._live, self._delta_subs):
            group.pop(sub, None)

    def resume(self, sub: Subscription) -> None:
        """Its line takes bytes again (or for the first time)."""
        if sub.closed or sub.catching_up or sub in self._live:
            return
        if not sub.snaps and sub.cursor >= self._position:
            self._live[sub] = None
            return
        assert self._group is not None, "run() comes first"
        sub.catching_up = True
        self._group.start_soon(self._catch_up, sub)

    async def run(self, group: TaskGroup) -> None:
        """Serve until cancelled; `group` holds the tasks of those that catch up."""
        self._group = group
        self._position = self._bus.head
        group.start_soon(self._pump_deltas)
        bus, limits = self._bus, self._limits
        while True:
            await bus.wait(self._position)
            if not self._live:
                self._position = bus.head
                await checkpoint()
                continue
            try:
                chunk = await bus.read(self._position, limit=limits.chunk_events)
            except Exception:  # noqa: BLE001  (a wall: each subscriber meets and reports it by itself)
                chunk = None
            if chunk is None or chunk.gap is not None:
                behind, self._live = self._live, {}
                self._position = bus.head
                for sub in behind:
                    self.resume(sub)
                await checkpoint()
                continue
            for piece in slices(chunk.events, limits.chunk_bytes):
                # Moved before writing: whoever joins from here on has seen this piece.
                self._position = piece.last
                self._keep(piece)
                for sub in list(self._live):
                    if sub.line.takes_events:
                        self._give(sub, piece)
                    else:
                        self._live.pop(sub, None)
                # The ring answers without waiting, so give way to everybody else here.
                await checkpoint()
            self._position = max(self._position, chunk.cursor)
            await checkpoint()

    async def _read_once(self, cursor: int) -> Chunk | None:
        """Read what follows a cursor, or wait (None) until somebody else has read just that."""
        others = self._reading.get(cursor)
        if others is not None:
            await others.wait()
            return None
        done = self._reading[cursor] = anyio.Event()
        try:
            return await self._bus.read(cursor, limit=self._limits.chunk_events)
        finally:
            del self._reading[cursor]
            done.set()

    def _keep(self, piece: Slice) -> None:
        """Remember a piece for those who fall behind together: they share its bytes as well."""
        if piece.first - 1 not in self._recent:
            self._recent[piece.first - 1] = piece
            self._recent_bytes += piece.size_bytes
            while self._recent_bytes > _RECENT_BYTES and len(self._recent) > 1:
                oldest = self._recent.pop(next(iter(self._recent)))
                self._recent_bytes -= oldest.size_bytes

    def _give(self, sub: Subscription, piece: Slice) -> None:
        if sub.cursor >= piece.last:
            return
        data, sub.prev = piece.render(sub.id, sub.wanted, sub.line.enc, after=sub.cursor, prev=sub.prev)
        sub.cursor = piece.last
        if data:
            sub.line.write(data)

    async def _catch_up(self, sub: Subscription) -> None:
        try:
            while not sub.closed and sub.line.takes_events:
                if sub.snaps:
                    sub.line.say(sub.snaps.pop(0))
                    await checkpoint()
                    continue
                if sub.cursor >= self._position:
                    self._live[sub] = None
                    return
                if self._deletions != self._bus.deletions:
                    self._recent, self._recent_bytes, self._deletions = {}, 0, self._bus.deletions
                recent = self._recent.get(sub.cursor)
                if recent is not None:
                    self._give(sub, recent)
                    await checkpoint()
                    continue
                chunk = await self._read_once(sub.cursor)
                if chunk is None or sub.closed:
                    continue
                if chunk.gap is not None:
                    first, last = chunk.gap
                    log = self._bus.log_id
                    sub.line.say(
                        Gap(sub=sub.id, from_=first, to=last, why="retention", next=last + 1, log=log)
                    )
                    sub.cursor = sub.prev = max(sub.cursor, last)
                pieces = slices(chunk.events, self._limits.chunk_bytes)
                for piece in pieces:
                    self._keep(piece)
                for piece in pieces:
                    if sub.closed or not sub.line.takes_events:
                        return
                    self._give(sub, piece)
                    await checkpoint()
                sub.cursor = max(sub.cursor, chunk.cursor)
        except Exception as error:  # noqa: BLE001  a wall: the log cannot be read; only this subscription ends
            _log.exception("subscription cannot read the log", extra={"sub": sub.id, "cursor": sub.cursor})
            self.remove(sub)
            known = error if isinstance(error, Refused) else None
            sub.line.say(
                Err(
                    id=sub.id,
                    code=known.code if known else "internal",
                    msg=f"the log cannot be read after {sub.cursor}: {known.message if known else error!r}",
                )
            )
            sub.line.ended(sub)
        finally:
            sub.catching_up = False
            # The line may have opened again between the last look and here.
            if not sub.closed and sub not in self._live and sub.line.takes_events:
                self.resume(sub)

    async def _pump_deltas(self) -> None:
        with self._bus.open_deltas() as deltas:
            dropped = deltas.dropped
            while True:
                sid, n, text = await deltas.receive()
                missed, dropped = deltas.dropped - dropped, deltas.dropped
                for sub in list(self._delta_subs):
                    sub.deltas_lost += missed
                    if sub.wanted.sids is not None and sid not in sub.wanted.sids:
                        continue
                    if sub.wanted.sees is not None and not sub.wanted.sees(sid, "turn.step"):
                        continue
                    if not sub.line.takes_events:
                        sub.deltas_lost += 1
                        continue
                    if sub.deltas_lost:
                        behind = max(0, self._bus.head - sub.cursor)
                        sub.line.say(Lag(sub=sub.id, deltas=sub.deltas_lost, behind=behind))
                        sub.deltas_lost = 0
                    sub.line.say(Delta(sub=sub.id, sid=sid, n=n, text=text))
