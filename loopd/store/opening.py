"""Opening a database: is it ours, is it whole, which boot is this?"""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path
from typing import NamedTuple

from loopd import __version__
from loopd.core.evolution import DERIVATION
from loopd.store import chain, house
from loopd.store.ledger import Ledger
from loopd.store.rows import tail
from loopd.store.schema import check_identity, migrate, migrations
from loopd.store.segments import segments
from loopd_protocol.errors import Refused

OLDEST_SQLITE = (3, 38, 0)
PAGE_BYTES = 4_096
"""A commit writes each page it touches: beside small rows, 16 KiB pages made the write-ahead log four times as
large. Groups of 4 KB rows cost about a tenth more processor time than with 16 KiB; 8 KiB is the worst of all
for them, because only one fits into a page."""
CACHE_KIB = 8_192
BUSY_TIMEOUT_MS = 2_000
WAL_KEPT_BYTES = 16 << 20
"""What the write-ahead log keeps of its size once it has been folded back: writing over blocks that exist is
cheaper than growing the file again."""
READER_CACHE_KIB = 2_048
STATEMENTS_KEPT = 256
TAIL_ROWS = 256
"""Rows at the end of the log whose hashes are checked at each start; `verify` checks them all."""

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA foreign_keys = ON",
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}",
    "PRAGMA fullfsync = ON",  # macOS: fsync alone does not reach the disk
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA secure_delete = ON",  # deleted content is not left standing in free pages
    "PRAGMA mmap_size = 0",
    f"PRAGMA cache_size = -{CACHE_KIB}",
)


class Boot(NamedTuple):
    """One start of the daemon on this log; `n` counts up, `epoch` grows with each."""

    n: int
    id: str
    epoch: int
    at_ms: int


def connect(path: str) -> sqlite3.Connection:
    """A connection for writing with the store's pragmas. Statements begin no transaction by themselves.

    Raises:
        Refused: `unsupported_version` when Python was built with an SQLite older than 3.38 (STRICT
            tables, JSON functions).
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise Refused(
            "unsupported_version", f"SQLite is {sqlite3.sqlite_version}; expected {oldest} or newer"
        )
    connection = sqlite3.connect(
        path, isolation_level=None, cached_statements=STATEMENTS_KEPT, check_same_thread=False
    )
    try:
        if path != ":memory:" and Path(path).stat().st_size == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only a new file can still choose
        for pragma in _PRAGMAS:
            answer = connection.execute(pragma).fetchone()
            if pragma.startswith("PRAGMA journal_mode") and answer[0] not in ("wal", "memory"):
                raise Refused("storage_readonly", f"journal mode is {answer[0]!r}; expected 'wal'")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """A connection that cannot write.

    Args:
        path: the database.
        alone: nobody has the file open and it has no write-ahead log; then not even the files that readers
            share are made beside it.
    """
    mode = "immutable=1" if alone else "mode=ro"
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(
    connection: sqlite3.Connection, *, boot: str, now_ms: int, max_bytes: int | None
) -> tuple[Ledger, Boot]:
    """Migrate, check the end of the log, and begin a new boot.

    Raises:
        Refused: `corrupt` or `unsupported_version`; nothing is changed then.
    """
    migrate(connection)
    if max_bytes is not None:
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {max(1, max_bytes // page_bytes)}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _first_use(connection, now_ms)
        log_id, epoch, boots, frozen, copied = connection.execute(
            "SELECT log_id, epoch, boots, frozen, copied FROM meta"
        ).fetchone()
        seq, h, at_ms = check_tail(connection, log_id)
        cursor_log = _new_log_id() if copied else _cursor_log(connection, log_id)
        house.check(connection)
        begun = Boot(n=boots + 1, id=boot, epoch=epoch + 1, at_ms=now_ms)
        connection.execute("UPDATE meta SET epoch = ?, boots = ?, copied = 0", (begun.epoch, begun.n))
        connection.execute(
            "INSERT INTO boot (n, id, version, epoch, at_ms, head, derivation, log) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (begun.n, boot, __version__, begun.epoch, now_ms, seq, DERIVATION, cursor_log),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    ledger = Ledger(connection, log_id=log_id, epoch=begun.epoch, boot=begun.n, seq=seq, h=h)
    ledger.last_at_ms = at_ms
    ledger.cursor_log = cursor_log
    ledger.frozen = None if frozen is None else frozen.encode()
    return ledger, begun


def _first_use(connection: sqlite3.Connection, now_ms: int) -> None:
    connection.execute(
        "INSERT INTO meta (id, log_id, created_ms, epoch, boots) VALUES (1, ?, ?, 0, 0) "
        "ON CONFLICT (id) DO NOTHING",
        (_new_log_id(), now_ms),
    )


def _new_log_id() -> str:
    return f"lg_{secrets.token_hex(8)}"


def _cursor_log(connection: sqlite3.Connection, log_id: str) -> str:
    """What cursors call the log: its own id, until a copy of it was started."""
    if connection.execute("PRAGMA user_version").fetchone()[0] < 3:
        return log_id  # opened for reading only
    row = connection.execute("SELECT log FROM boot ORDER BY n DESC LIMIT 1").fetchone()
    return log_id if row is None or row[0] is None else str(row[0])


class Identity(NamedTuple):
    """What a database says about itself when it is opened for reading."""

    log_id: str
    epoch: int
    boots: int
    frozen: bytes | None
    head: int
    last_at_ms: int
    cursor_log: str


def identity_of(ledger: Ledger, boot: Boot) -> Identity:
    """What a database is once a boot has begun."""
    return Identity(
        ledger.log_id, boot.epoch, boot.n, ledger.frozen, ledger.seq, ledger.last_at_ms, ledger.cursor_log
    )


def identify(connection: sqlite3.Connection) -> Identity:
    """Look at a database without changing it; damaged hashes are left for `verify` to find.

    Raises:
        Refused: `corrupt` (not our database) or `unsupported_version`.
    """
    check_identity(connection, newest=migrations()[-1][0])
    row = connection.execute("SELECT log_id, epoch, boots, frozen FROM meta").fetchone()
    if row is None:
        raise Refused("corrupt", "the database has no log id; expected one row in 'meta'")
    log_id, epoch, boots, frozen = row
    last = connection.execute("SELECT seq, at_ms FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    seq, at_ms = last if last is not None else (0, 0)
    cursor_log = _cursor_log(connection, log_id)
    return Identity(log_id, epoch, boots, None if frozen is None else frozen.encode(), seq, at_ms, cursor_log)


def check_tail(connection: sqlite3.Connection, log_id: str) -> tuple[int, bytes, int]:
    """Check the hashes of the last rows.

    Returns:
        Head, its hash, and the moment of the newest event.

    Raises:
        Refused: `corrupt`, naming the first row that does not verify.
    """
    rows = tail(connection, TAIL_ROWS + 1)
    if not rows:
        return 0, chain.log_genesis(log_id), 0
    first = rows[0]
    previous = chain.log_genesis(log_id) if first.seq == 1 else first.h
    deleted = {s.first_seq: s for s in segments(connection) if s.deleted_ms is not None}
    expected = first.seq
    for row in rows:
        if row is first and first.seq != 1:
            expected += 1
            continue  # there is nothing before it to check it against
        while row.seq > expected and (month := deleted.get(expected)) is not None:
            previous, expected = month.head_h, month.last_seq + 1
        if row.seq < expected:
            previous = row.h
            continue  # its month was being deleted
        if row.seq != expected:
            raise Refused("corrupt", f"the log jumps to seq {row.seq}; expected {expected}")
        expected += 1
        if chain.link(previous, row.digest()) != row.h:
            raise Refused("corrupt", f"the row with seq {row.seq} ({row.kind!r}) does not match its hash")
        previous = row.h
    return rows[-1].seq, previous, rows[-1].at_ms
