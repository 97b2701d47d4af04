"""The store without a disk: the same ledger on an in-memory database, called inline.

No thread and no clock: groups are committed by the event loop itself, one step after the first
submission, so it runs under virtual time.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from loopd.core.writes import Append, Appended, StoredEvent
from loopd.store import opening
from loopd.store.faults import refusal
from loopd.store.forensics import Forensics, Stopped
from loopd.store.item import Item
from loopd.store.ledger import Ledger
from loopd_protocol.errors import Refused

P = ParamSpec("P")
T = TypeVar("T")


class MemoryStore(Forensics):
    """Behaves like `SqliteStore`; its data live on only in its `image`.

    Attributes:
        refuse: when set, every later submission fails with it: a full disk, for tests of others.
    """

    def __init__(
        self,
        *,
        boot: str = "memory",
        now_ms: int = 0,
        max_bytes: int | None = None,
        on_commit: Callable[[list[StoredEvent]], None] | None = None,
        image: bytes | None = None,
    ) -> None:
        """Create a store.

        Args:
            boot: id of this start.
            now_ms: wall time (UTC).
            max_bytes: as in `SqliteStore.open`.
            on_commit: as in `SqliteStore.open`.
            image: what `image` of another store returned: begin a new boot on its data.
        """
        super().__init__()
        self._connection = opening.connect(":memory:")
        if image is not None:
            self._connection.deserialize(image)
        self._ledger, self._boot = opening.prepare(
            self._connection, boot=boot, now_ms=now_ms, max_bytes=max_bytes
        )
        self.on_commit = on_commit
        self.refuse: Refused | None = None
        self._head = self._ledger.seq
        self._queue: list[Item] = []
        self._closed = False
        self._last_image = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Commit what is queued and close; `image` still answers."""
        if not self._closed:
            self._flush()
            self._closed = True
            self._last_image = self._connection.serialize()
            self._connection.close()

    def image(self) -> bytes:
        """The committed data, as if the process had died now: hand it to another `MemoryStore`."""
        return self._last_image if self._closed else self._connection.serialize()

    @property
    def log_id(self) -> str:
        """Identity of the log's chain."""
        return self._ledger.log_id

    @property
    def cursor_log(self) -> str:
        """What cursors call the log."""
        return self._ledger.cursor_log

    @property
    def epoch(self) -> int:
        """Rises with each boot."""
        return self._boot.epoch

    @property
    def boots(self) -> int:
        """Number of this boot, from 1."""
        return self._boot.n

    @property
    def frozen(self) -> bytes | None:
        """Body of the `daemon.frozen` event that stands, or None."""
        return self._ledger.frozen

    @property
    def head(self) -> int:
        """`seq` of the last committed event, 0 for none."""
        return self._head

    @property
    def last_at_ms(self) -> int:
        """Moment of the newest event."""
        return self._ledger.last_at_ms

    def submit(self, batch: Append) -> asyncio.Future[Appended]:
        """Queue one atomic batch; see `loopd.engine.ports.Store.submit`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        if self.refuse is not None:
            future.set_exception(Refused(self.refuse.code, self.refuse.message))
        elif self._closed:
            future.set_exception(Refused("draining", "the journal is closing; nothing was stored"))
        else:
            try:
                item = Item(batch, future)
            except Exception as error:  # noqa: BLE001  (the wall: the producer gets it as an answer)
                future.set_exception(refusal(error))
                return future
            if not self._queue:
                loop.call_soon(self._flush)
            self._queue.append(item)
        return future

    def takes_lazy(self) -> bool:
        """Whether a note would be taken now; it goes with all others."""
        return self.refuse is None and not self._closed

    def _flush(self) -> None:
        group, self._queue = self._queue, []
        if not group:
            return
        self._ledger.commit(group)
        events: list[StoredEvent] = []
        for item in group:
            if item.failure is not None:
                if not item.future.done():
                    item.future.set_exception(item.failure)
                continue
            events += item.stored()
            self._head = item.first + len(item.bodies) - 1
            if not item.future.done():
                item.future.set_result(Appended(first=item.first, last=self._head, row=item.row))
        if self.on_commit is not None and events:
            self.on_commit(events)

    async def _read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._closed:
            raise Refused("draining", "the journal is closed")
        try:
            return query(self._connection, *args, **kwargs)
        except sqlite3.Error as error:
            raise refusal(error) from error

    async def _tend(self, chore: Callable[[Ledger], T], size: int) -> T:
        del size
        if self._closed:
            raise Refused("draining", "the journal is closed")
        try:
            return self._ledger.tend(chore)
        except sqlite3.Error as error:
            raise refusal(error) from error

    async def learn_keys(self) -> bool:
        """There is nothing to be learned: looking into memory is as fast."""
        return False

    async def cut_log(self) -> bool:
        """There is no write-ahead log in memory."""
        return True

    async def snapshot(self, target: Path, *, verify: bool = False) -> dict[str, Any]:
        """There is no file to be copied; see `image`."""
        del verify
        raise Refused("invalid", f"a store in memory has no file to copy to {str(target)!r}")

    async def _study(self, work: Callable[[sqlite3.Connection, Stopped], T]) -> T:
        if self._closed:
            raise Refused("draining", "the journal is closed")
        return work(self._connection, lambda: False)
