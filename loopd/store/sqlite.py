"""The store on a disk: one writing connection, a few reading ones, one file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiosqlite
import anyio

from loopd.core.writes import Append, Appended, StoredEvent
from loopd.store import opening
from loopd.store.faults import refusal
from loopd.store.forensics import Forensics, Stopped
from loopd.store.hop import close, hop
from loopd.store.known_keys import KnownKeys
from loopd.store.ledger import Ledger
from loopd.store.request import File
from loopd.store.snapshot import take
from loopd.store.writer import Commits, Writer
from loopd_protocol.errors import Refused

P = ParamSpec("P")
T = TypeVar("T")

READERS = 2
KEYS_AT_ONCE = 2_000
STUDIES = 2
"""Long looks (verification, replay, export) that run at the same time; more wait for their turn."""


class SqliteStore(Forensics):
    """The journal of one node in one SQLite file. Use `open`, then close with `aclose`.

    When a submitted future resolves, its events are durable, `head` has reached them and
    `on_commit` has been called (later in the same step of the event loop, before any awaiter runs).

    Attributes:
        path: the database file; `-wal` and `-shm` lie beside it.
    """

    def __init__(self, path: Path, *, identity: opening.Identity, writer: Writer | None) -> None:
        super().__init__()
        self.path = path
        self._identity = identity
        self._writer = writer
        self._readers: list[aiosqlite.Connection] = []
        self._free: asyncio.Queue[aiosqlite.Connection] = asyncio.Queue()
        self._connection: aiosqlite.Connection | None = None
        self._studies = asyncio.Semaphore(STUDIES)
        self._copying = asyncio.Lock()
        self._keys = KnownKeys()
        self._learned: int | None = 0
        self._closed = False
        self._unwritable: Refused | None = None
        self._alone = writer is None and not _log_beside(path)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        boot: str,
        now_ms: int = 0,
        max_bytes: int | None = None,
        on_commit: Callable[[list[StoredEvent]], None] | None = None,
        readonly: bool = False,
        unwritable: Refused | None = None,
    ) -> Self:
        """Open or create the database, migrate it, and begin a boot.

        Args:
            path: the file; its folder must exist.
            boot: id of this start of the daemon.
            now_ms: wall time (UTC).
            max_bytes: the file never grows over this; then writes answer `storage_full`.
            on_commit: see `Writer.on_commit`; may also be set later.
            readonly: forensic reading; nothing is migrated or written, `submit` answers
                `storage_readonly`.
            unwritable: for `readonly`: what `submit` answers instead, and `refused` says.

        Raises:
            Refused: `corrupt` with what was found (not a database, another program's, hashes that
                do not match); `unsupported_version`; `storage_readonly`; `storage_full`. The file is
                left as it was.
        """
        where = Path(path)
        if readonly:
            return await cls._open_readonly(where, unwritable)

        def connector() -> sqlite3.Connection:
            where.touch(mode=0o600, exist_ok=True)
            return opening.connect(str(where))

        connection = aiosqlite.Connection(connector, iter_chunk_size=64)
        try:
            await connection
            ledger, begun = await hop(
                connection, opening.prepare, boot=boot, now_ms=now_ms, max_bytes=max_bytes
            )
        except (sqlite3.Error, OSError) as error:
            await close(connection)
            raise _on_open(where, error) from error
        except BaseException:
            await close(connection)
            raise
        writer = Writer(connection, ledger, where)
        writer.on_commit = on_commit
        store = cls(where, identity=opening.identity_of(ledger, begun), writer=writer)
        store._connection = connection
        try:
            await store._open_readers()
        except BaseException:
            await store.aclose()
            raise
        return store

    @classmethod
    async def _open_readonly(cls, where: Path, unwritable: Refused | None) -> Self:
        def look() -> opening.Identity:
            connection = opening.connect_reader(where, alone=not _log_beside(where))
            try:
                return opening.identify(connection)
            finally:
                connection.close()

        try:
            identity = await anyio.to_thread.run_sync(look)
        except (sqlite3.Error, OSError) as error:
            raise _on_open(where, error) from error
        store = cls(where, identity=identity, writer=None)
        store._unwritable = unwritable
        await store._open_readers()
        return store

    async def _open_readers(self) -> None:
        for _ in range(READERS):
            reader = aiosqlite.Connection(self._reader, iter_chunk_size=64)
            await reader
            self._readers.append(reader)
            self._free.put_nowait(reader)

    def _reader(self) -> sqlite3.Connection:
        return opening.connect_reader(self.path, alone=self._alone)

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
        """Commit what is queued, fold the write-ahead log back and close. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            for reader in self._readers:
                await close(reader)
            if self._writer is not None:
                await self._writer.aclose()
            if self._connection is not None:
                await close(self._connection)

    # -- writing --------------------------------------------------------------------------------

    @property
    def log_id(self) -> str:
        """Identity of the log's chain."""
        return self._identity.log_id

    @property
    def cursor_log(self) -> str:
        """What cursors call the log."""
        return self._identity.cursor_log

    @property
    def epoch(self) -> int:
        """Rises with each boot and each change of owner."""
        return self._identity.epoch

    @property
    def boots(self) -> int:
        """Number of this boot, from 1."""
        return self._identity.boots

    @property
    def head(self) -> int:
        """`seq` of the last committed event that was announced, 0 for none."""
        return self._identity.head if self._writer is None else self._writer.head

    @property
    def last_at_ms(self) -> int:
        """Moment of the newest event."""
        return self._identity.last_at_ms if self._writer is None else self._writer.last_at_ms

    @property
    def frozen(self) -> bytes | None:
        """Body of the `daemon.frozen` event that stands, or None."""
        return self._identity.frozen if self._writer is None else self._writer.ledger.frozen

    @property
    def commits(self) -> Commits:
        """Running counts of the writer."""
        return Commits() if self._writer is None else self._writer.commits

    @property
    def refused(self) -> Refused | None:
        """Why nothing can be written any more, or None."""
        return self._unwritable if self._writer is None else self._writer.refused

    @property
    def readonly(self) -> bool:
        """Whether nothing will ever be written by this store."""
        return self._writer is None

    @property
    def on_refused(self) -> Callable[[], None] | None:
        """Called when the storage took nothing."""
        return None if self._writer is None else self._writer.on_refused

    @on_refused.setter
    def on_refused(self, callback: Callable[[], None] | None) -> None:
        if self._writer is not None:
            self._writer.on_refused = callback

    @property
    def on_commit(self) -> Callable[[list[StoredEvent]], None] | None:
        """Called with the events of each committed group, in order."""
        return None if self._writer is None else self._writer.on_commit

    @on_commit.setter
    def on_commit(self, callback: Callable[[list[StoredEvent]], None] | None) -> None:
        if self._writer is not None:
            self._writer.on_commit = callback

    @property
    def on_group(self) -> Callable[[int, float], None] | None:
        """Called with rows and seconds of each group."""
        return None if self._writer is None else self._writer.on_group

    @on_group.setter
    def on_group(self, callback: Callable[[int, float], None] | None) -> None:
        if self._writer is not None:
            self._writer.on_group = callback

    def submit(self, batch: Append) -> asyncio.Future[Appended]:
        """Queue one atomic batch; synchronous, never waits. See `loopd.engine.ports.Store.submit`."""
        if self._writer is not None:
            if batch.idempotency is not None:
                self._keys.add(batch.idempotency.principal, batch.idempotency.key)
            return self._writer.submit(batch)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        why = self._unwritable or Refused("storage_readonly", f"{str(self.path)!r} was opened for reading")
        future.set_exception(Refused(why.code, why.message))
        return future

    def takes_lazy(self) -> bool:
        """Whether a note would be taken now. See `loopd.engine.ports.Store.takes_lazy`."""
        return self._writer is not None and self._writer.takes_lazy()

    async def idempotent(self, principal: str, key: str) -> tuple[str, bytes, int] | None:
        """Command hash, result and `seq` of a key that was used within seven days, or None."""
        if self._keys.surely_new(principal, key):
            return None
        return await super().idempotent(principal, key)

    async def learn_keys(self) -> bool:
        """Learn some of the keys that earlier boots have stored; false when all are known."""
        if self._learned is None and not self._keys.outgrown():
            return False
        self._learned = await self._read(_learn, self._keys, self._learned or 0)
        if self._learned is None:
            self._keys.learned()
        return self._learned is not None

    # -- reading --------------------------------------------------------------------------------

    async def _read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._closed:
            raise Refused("draining", "the journal is closed")
        reader = await self._free.get()
        try:
            return await hop(reader, query, *args, **kwargs)
        except (sqlite3.Error, ValueError) as error:
            if self._closed:  # ValueError is what aiosqlite says then
                raise Refused("draining", "the journal is closed") from error
            if isinstance(error, sqlite3.Error):
                raise refusal(error) from error
            raise
        finally:
            self._free.put_nowait(reader)

    async def _tend(self, chore: Callable[[Ledger], T], size: int) -> T:
        if self._writer is None:
            raise Refused("storage_readonly", f"{str(self.path)!r} was opened for reading")
        return await self._writer.tend(chore, size)

    async def cut_log(self) -> bool:
        """Cut the write-ahead log to nothing; false while somebody reads it."""
        return self._writer is None or await self._writer.cut()

    async def measures(self) -> dict[str, Any]:
        """Sizes of the database and of its write-ahead log; see `db.status`."""
        wal = self.path.with_name(f"{self.path.name}-wal")
        try:
            size = wal.stat().st_size
        except FileNotFoundError:
            size = 0
        return {
            **await super().measures(),
            "wal_bytes": size,
            "checkpoints": self.commits.checkpoints,
            "chore_ms": round(self.commits.chore_s * 1_000, 1),
            "lazy": self.commits.lazy,
            "lazy_dropped": self.commits.lazy_dropped,
        }

    @property
    def file(self) -> File:
        """Where other processes can read the journal."""
        return File(path=self.path, alone=self._alone, gently=self._writer is not None)

    async def snapshot(self, target: Path, *, verify: bool = False) -> dict[str, Any]:
        """Copy one moment of the log to a new file, and check the copy; see `loopd.store.snapshot`."""
        given_up = False

        def work() -> dict[str, Any]:
            connection = self._reader()
            try:
                return take(connection, target, verify=verify, stopped=lambda: given_up or self._closed)
            finally:
                connection.close()

        async with self._copying:
            if self._writer is not None:
                self._writer.copying = True
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except (sqlite3.Error, OSError) as error:
                raise refusal(error) from error
            finally:
                given_up = True
                if self._writer is not None:
                    self._writer.copying = False

    async def _study(self, work: Callable[[sqlite3.Connection, Stopped], T]) -> T:
        given_up = False

        def study() -> T:
            connection = self._reader()
            try:
                return work(connection, lambda: given_up or self._closed)
            finally:
                connection.close()

        async with self._studies:
            try:
                # Whoever asked may leave: the thread notices at its next page.
                return await anyio.to_thread.run_sync(study, abandon_on_cancel=True)
            except (sqlite3.Error, OSError) as error:
                raise refusal(error) from error
            finally:
                given_up = True


def _learn(connection: sqlite3.Connection, keys: KnownKeys, after: int) -> int | None:
    """Add a page of stored keys, on the reader's thread; returns where the next one begins."""
    page = connection.execute(
        "SELECT id, principal, key FROM idempotency WHERE id > ? ORDER BY id LIMIT ?", (after, KEYS_AT_ONCE)
    ).fetchall()
    for _, principal, key in page:
        keys.add(principal, key)
    return page[-1][0] if len(page) == KEYS_AT_ONCE else None


def _log_beside(path: Path) -> bool:
    return path.with_name(f"{path.name}-wal").exists()


def _on_open(path: Path, error: sqlite3.Error | OSError) -> Refused:
    found = refusal(error)
    code = found.code
    if isinstance(error, sqlite3.DatabaseError) and code == "invalid":
        code = "corrupt"  # a schema that lacks our tables, a view where a table should be, …
    return Refused(code, f"cannot open {str(path)!r}: {error}")
