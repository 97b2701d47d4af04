"""The writer: the one connection that writes, and the one task that feeds it.

Producers leave items in a queue; one hop to the connection's thread commits everything that waits,
group after group, until the queue is empty. Batches form while the last fsync runs; there is no
linger timer, but for notes (facts that nobody waits for): they lie in the same queue, in their order, and
wake nobody for 50 ms. After each commit the loop is told: futures resolve in order, then `on_commit` is
called, both in the same step of the event loop. So whoever awaits a future finds the events
published already, and nothing is ever published before it is durable.

The task belongs to the store, not to a request: it is never cancelled between BEGIN and COMMIT.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import aiosqlite
import anyio
import msgspec

from loopd import failpoints
from loopd.core.writes import LAZY_MS, Append, Appended, StoredEvent
from loopd.store.faults import refusal
from loopd.store.hop import hop
from loopd.store.item import Item
from loopd.store.ledger import Ledger
from loopd.store.opening import BUSY_TIMEOUT_MS, PAGE_BYTES
from loopd_protocol.errors import Refused

log = logging.getLogger(__name__)

T = TypeVar("T")

LAZY_ITEMS = 4_096
LAZY_BYTES = 8 << 20
"""Notes are left out while this much waits for the disk: what somebody waits for comes first."""

GROUP_ROWS = 2_048
GROUP_BYTES = 8 << 20
QUEUE_ITEMS = 32_768
QUEUE_BYTES = 64 << 20

CHECKPOINT_IDLE_BYTES = 2 << 20
CHECKPOINT_BYTES = 8 << 20
"""The write-ahead log is folded back from an idle moment at 2 MiB (who comes meanwhile waits for that long,
so often and short beats seldom and long), at once at 8 MiB. An uncapped background checkpointer lost 17 % in
sustained load and left a log of 1.8 GB."""

PAGES_GUESSED = 64
"""Pages that a group touches beside its rows, before the first checkpoint tells how many they really are."""

PROBE_S = 2.0
PROBE_BYTES = 1 << 20
_STORAGE_CODES = frozenset({"storage_full", "storage_readonly", "corrupt"})

WAL_STUCK_BYTES = 64 << 20
WAL_STUCK_WAIT_MS = 200
"""Readers kept passive checkpoints from finishing until the log was this large: wait for them, this long."""


class Commits(msgspec.Struct):
    """Running counts of the writer, for metrics.

    Attributes:
        last_s, last_rows: duration and size of the newest group.
        wal_bytes: size of the write-ahead log as of the last look.
        chore_s: the longest piece of upkeep so far, for which everybody waited.
        lazy, lazy_dropped: notes that were taken, and that were left out because the queue was full or
            the storage took nothing.
    """

    groups: int = 0
    rows: int = 0
    last_s: float = 0.0
    last_rows: int = 0
    checkpoints: int = 0
    failures: int = 0
    wal_bytes: int = 0
    chore_s: float = 0.0
    lazy: int = 0
    lazy_dropped: int = 0


class Writer:
    """Group commit over one aiosqlite connection.

    Attributes:
        on_commit: called on the event loop with the events of each group, after their futures
            have resolved; it must not raise or wait.
        on_group: called with rows and seconds of each group.
        on_refused: called on the event loop when the storage took nothing.
        copying: a snapshot reads one moment; waiting for it to let the log be folded back would only stop
            everybody.
        refused: why the storage took nothing when it was last asked, or None.
    """

    def __init__(self, connection: aiosqlite.Connection, ledger: Ledger, path: Path) -> None:
        self._connection = connection
        self.ledger = ledger
        self._wal = path.with_name(path.name + "-wal")
        self.on_commit: Callable[[list[StoredEvent]], None] | None = None
        self.on_group: Callable[[int, float], None] | None = None
        self.on_refused: Callable[[], None] | None = None
        self.commits = Commits()
        self.refused: Refused | None = None
        self.head = ledger.seq
        self.last_at_ms = ledger.last_at_ms
        self._queue: deque[Item] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._closing = False
        self._lazy: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._unfolded = 0.0
        self._growth = 1.0
        self._folded_whole = True
        self._chores = 0
        self.copying = False
        # Not a task group: the writer outlives every request and must never be cancelled halfway.
        self._task = self._loop.create_task(self._run(), name="journal-writer")

    def submit(self, append: Append) -> asyncio.Future[Appended]:
        """Queue one atomic append; see `loopd.engine.ports.Store.submit`."""
        future: asyncio.Future[Appended] = self._loop.create_future()
        broken = self.ledger.broken
        if broken is not None:
            future.set_exception(Refused(broken.code, broken.message))
        elif self._closing:
            future.set_exception(Refused("draining", "the journal is closing; nothing was stored"))
        elif len(self._queue) >= QUEUE_ITEMS or self._queued_bytes >= QUEUE_BYTES:
            message = f"{len(self._queue)} appends ({self._queued_bytes} bytes) wait for the disk"
            future.set_exception(Refused("overloaded", message, retry_after_ms=100))
        else:
            try:
                item = Item(append, future)
            except Exception as error:  # noqa: BLE001  (the wall: the producer gets it as an answer)
                future.set_exception(refusal(error))
                return future
            self._queue.append(item)
            self._queued_bytes += item.size
            if not append.lazy:
                self._wake.set()
            else:
                self.commits.lazy += 1
                if self._lazy is None:
                    self._lazy = self._loop.call_later(LAZY_MS / 1_000, self._ripe)
        return future

    def takes_lazy(self) -> bool:
        """Whether a note would be queued now; what is left out is counted."""
        takes = (
            self.refused is None
            and self.ledger.broken is None
            and not self._closing
            and len(self._queue) < LAZY_ITEMS
            and self._queued_bytes < LAZY_BYTES
        )
        self.commits.lazy_dropped += not takes
        return takes

    def _ripe(self) -> None:
        """No append came along in time: what waits goes by itself."""
        self._lazy = None
        if self._queue:
            self._wake.set()

    async def tend(self, chore: Callable[[Ledger], T], size: int) -> T:
        """Run a piece of upkeep between two groups, in a transaction of its own.

        Whoever submits meanwhile waits for it: it must be a matter of milliseconds.

        Args:
            chore: called on the connection's thread, inside the transaction.
            size: about how many bytes it writes.

        Raises:
            Refused: a storage code, or `draining`; nothing of it is stored.
        """
        if self.ledger.broken is not None:
            raise Refused(self.ledger.broken.code, self.ledger.broken.message)
        if self._closing:
            raise Refused("draining", "the journal is closing; nothing was done")

        def work(_raw: sqlite3.Connection) -> T:
            self._chores -= 1
            begun = perf_counter()
            done = self.ledger.tend(chore)
            self.commits.chore_s = max(self.commits.chore_s, perf_counter() - begun)
            self._unfolded += size
            return done

        self._chores += 1
        try:
            return await hop(self._connection, work)
        except (sqlite3.Error, ValueError) as error:
            if self._closing:
                raise Refused("draining", "the journal is closing; nothing was done") from error
            raise refusal(error) from error
        finally:
            self._wake.set()  # it may have left enough for a checkpoint

    async def cut(self) -> bool:
        """Cut the write-ahead log to nothing: what was deleted still stands in it. False while somebody reads."""
        if self.ledger.broken is not None or self._closing:
            return False

        def work(raw: sqlite3.Connection) -> bool:
            self._chores -= 1
            before = self.commits.checkpoints
            raw.execute("PRAGMA busy_timeout = 0")  # nobody waits for a reader
            try:
                self._checkpoint(raw, "TRUNCATE")
            finally:
                raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            return self.commits.checkpoints > before and self.commits.wal_bytes == 0

        self._chores += 1
        try:
            return await hop(self._connection, work)
        except ValueError:
            return False  # it was closed meanwhile, and that folds the log back too
        finally:
            self._wake.set()

    async def aclose(self) -> None:
        """Commit what is queued, fold the log back, stop. Idempotent; not cut short by cancellation."""
        self._closing = True
        self._wake.set()
        if self._lazy is not None:
            self._lazy.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as error:
            # A defect of the writer itself: nobody may wait for ever for an answer that cannot come.
            log.exception("the journal's writer ended")
            self.ledger.broken = self.refused = Refused("storage_readonly", f"the writer ended: {error!r}")
            while self._queue:
                self._fail(self._queue.popleft())

    def _fail(self, item: Item) -> None:
        if not item.future.done():
            item.future.set_exception(Refused("storage_readonly", "the journal's writer ended"))

    async def _work(self) -> None:
        while True:
            await self._awake()
            if self.refused is not None and self.ledger.broken is None and not self._queue:
                await hop(self._connection, self._probe)
            if self._queue:
                await hop(self._connection, self._drain)
                if self._queue:
                    self._wake.set()  # it made room for upkeep
            if not self._queue and self._closing:
                await hop(self._connection, self._checkpoint, "TRUNCATE")
                return
            if not self._queue and self._unfolded >= CHECKPOINT_IDLE_BYTES:
                await hop(self._connection, self._checkpoint, "PASSIVE")
                if self._queue:
                    self._wake.set()

    async def _awake(self) -> None:
        """Wait for work; while the storage refuses, at most `PROBE_S`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), None if self.refused is None else PROBE_S)
        self._wake.clear()

    # -- on the connection's thread ---------------------------------------------------------------

    def _drain(self, raw: sqlite3.Connection) -> None:
        """Commit group after group until nothing waits."""
        while self._queue:
            group: list[Item] = []
            rows = size = 0
            while self._queue and rows < GROUP_ROWS and size < GROUP_BYTES:
                item = self._queue.popleft()
                group.append(item)
                rows += len(item.bodies)
                size += item.size
            begun = perf_counter()
            self.ledger.commit(group)
            self._unfolded += self._growth * (size + PAGE_BYTES * min(len(group), PAGES_GUESSED))
            self._loop.call_soon_threadsafe(self._settle, group, size, rows, perf_counter() - begun)
            if self._unfolded >= CHECKPOINT_BYTES:
                self._checkpoint(raw, "PASSIVE")
            if self._chores:
                return

    def _probe(self, _raw: sqlite3.Connection) -> None:
        """Look whether there is room again, so that readiness does not wait for a write to find out."""
        try:
            self.ledger.probe(PROBE_BYTES)
            roomy = shutil.disk_usage(self._wal.parent).free >= PROBE_BYTES
        except (sqlite3.Error, OSError):
            return
        if roomy:
            self.refused = None

    def _checkpoint(self, raw: sqlite3.Connection, mode: str) -> None:
        try:
            if failpoints.armed:
                failpoints.hit("checkpoint.before")
            self.ledger.forget_keys()
            row = raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            # A full disk: the log stays whole, commits answer for themselves, and it is tried again.
            log.warning("checkpoint failed", extra={"error": str(error)})
            self._unfolded = CHECKPOINT_IDLE_BYTES / 2
            return
        if failpoints.armed:
            failpoints.hit("checkpoint.after")
        self.commits.checkpoints += 1
        _busy, frames, folded = row
        if self._folded_whole and self._unfolded:
            real = frames * PAGE_BYTES / self._unfolded
            self._growth = min(8.0, max(0.125, self._growth * (0.5 + 0.5 * real)))
        self._folded_whole = frames == folded
        self._unfolded = 0.0
        try:
            self.commits.wal_bytes = self._wal.stat().st_size
        except OSError:
            self.commits.wal_bytes = 0
        stuck = frames > folded and self.commits.wal_bytes > WAL_STUCK_BYTES
        if stuck and mode == "PASSIVE" and not self.copying:
            raw.execute(f"PRAGMA busy_timeout = {WAL_STUCK_WAIT_MS}")
            self._checkpoint(raw, "RESTART")
            raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    # -- back on the loop -------------------------------------------------------------------------

    def _settle(self, group: list[Item], size: int, rows: int, seconds: float) -> None:
        self._queued_bytes -= size
        events: list[StoredEvent] = []
        for item in group:
            future = item.future
            if item.failure is not None:
                self.commits.failures += 1
                if item.failure.code in _STORAGE_CODES:
                    self.refused = item.failure
                    if self.on_refused is not None:
                        self.on_refused()
                if not future.done():
                    future.set_exception(item.failure)
                continue
            self.refused = None
            if self.on_commit is not None:
                events += item.stored()
            self.head = item.first + len(item.bodies) - 1
            self.last_at_ms = item.append.at_ms
            if not future.done():
                future.set_result(Appended(first=item.first, last=self.head, row=item.row))
        self.commits.groups += 1
        self.commits.rows += rows
        self.commits.last_rows, self.commits.last_s = rows, seconds
        if self.on_commit is not None and events:
            try:
                self.on_commit(events)
            except Exception:
                log.exception("on_commit failed", extra={"seq": events[-1].seq})
        if self.on_group is not None:
            self.on_group(rows, seconds)
        if failpoints.armed:
            failpoints.hit("commit.told", {event.kind for event in events})
