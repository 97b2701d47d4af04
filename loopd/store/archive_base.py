"""An archive made into a database that is read like a journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loopd.core.evolution import evolve
from loopd.core.state import Session
from loopd.store import export
from loopd.store.archive import Archive
from loopd.store.content import packed
from loopd.store.projection import Placed, Plan
from loopd.store.rows import ROW_COLUMNS
from loopd.store.schema import migrate
from loopd.store.statements import Table, insert
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

ROWS_AT_ONCE = 512
_JOURNAL = Table("journal", ROW_COLUMNS)
_BLOB = Table("blob", ("sha", "at_ms", "used_ms", "codec", "len", "data"), ("sha",), "NOTHING")


def importable(archive: Archive) -> list[dict[str, Any]]:
    """The sessions of an archive, which must be there from their beginning.

    Raises:
        Refused: `invalid` when one begins in the middle.
    """
    sessions = archive.values(export.SESSIONS)
    for said in sessions:
        if said["first"]["ss"] != 1:
            raise Refused(
                "invalid",
                f"session {said['sid']!r} begins at event {said['first']['ss']} in this archive; only a session from "
                "its first event on can be imported (export it without --since)",
            )
    return sessions


def into_database(archive: Archive, target: Path, aliases: Mapping[int, tuple[str, str]]) -> None:
    """Write a database that readers open like a journal: the rows as they were, projections made anew.

    Args:
        archive: verified before.
        target: a file that does not exist yet.
        aliases: (sid, name) by session number: what the sessions are called here.
    """
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection)
        connection.execute("BEGIN")
        _fill(connection, archive, aliases)
        connection.execute("COMMIT")
    finally:
        connection.close()


def renamed(aliases: Mapping[int, tuple[str, str]]) -> Callable[..., Session]:
    """`evolve`, for sessions that have other names here than in their own log."""

    def follow(session: Session | None, event: ev.Event, *, ss: int, at_ms: int) -> Session:
        after = evolve(session, event, ss=ss, at_ms=at_ms)
        sid, name = aliases.get(after.num, (after.sid, after.name))
        return after if (after.sid, after.name) == (sid, name) else replace(after, sid=sid, name=name)

    return follow


def _fill(connection: sqlite3.Connection, archive: Archive, aliases: Mapping[int, tuple[str, str]]) -> None:
    boots = archive.values(export.BOOTS)
    last = boots[-1] if boots else {"epoch": 1, "n": 1}
    connection.execute(
        "INSERT INTO meta (id, log_id, created_ms, epoch, boots) VALUES (1, ?, 0, ?, ?)",
        (archive.log, last["epoch"], last["n"]),
    )
    for boot in boots:
        names = ("n", "id", "version", "epoch", "at_ms", "head", "derivation")
        connection.execute(
            f"INSERT INTO boot ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608  (constants)
            tuple(boot[name] for name in names),
        )
    for sha in archive.blob_names():
        data = archive.blob(sha)
        digest = sha256(data).hexdigest()
        columns = packed(digest, data, 0)
        # redacted content keeps the name by which events know it
        insert(connection, _BLOB, [(bytes.fromhex(sha), *columns[1:])])
    follow = renamed(aliases)
    states: dict[int, Session | None] = {}
    rows: list[tuple[Any, ...]] = []
    for row, redacted in archive.marked_rows():
        # What is verified is the archive; here a body_sha says that retention left less, and only that.
        stored = replace(row, body_sha=None) if redacted and row.body is not None else row
        rows.append(tuple(getattr(stored, name) for name in ROW_COLUMNS))
        if len(rows) >= ROWS_AT_ONCE:
            insert(connection, _JOURNAL, rows)
            rows = []
        if row.sid is None or row.body is None or row.kind not in ev.EVENT_TYPES:
            continue
        before = states.get(row.sid)
        event = ev.decode(row.body)
        try:
            after = follow(before, event, ss=row.ss, at_ms=row.at_ms)
        except (ValueError, AssertionError):
            if before is None:
                raise Refused("corrupt", f"session number {row.sid} begins with {row.kind!r}") from None
            after = replace(before, ss=row.ss)  # what is left of a redacted event does not follow
        plan = Plan()
        plan.add(row.sid, before, after, [Placed(row.seq, row.ss, row.at_ms, event, row.body)])
        plan.write(connection)
        states[row.sid] = after
    insert(connection, _JOURNAL, rows)
