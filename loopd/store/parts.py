"""A verification of the whole log in parts, none of which needs another: one process can do all, or many some.

Parts are made in the order in which their findings are told, whoever has done them and when.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from loopd.store.blob_check import BlobCheck
from loopd.store.log_check import LogCheck, frozen
from loopd.store.page_check import PageCheck
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.session_check import SessionCheck

PIECES = 48
"""Sessions and blobs are cut into about so many pieces, so that nobody waits long for the last one."""

EVENTS_AT_LEAST = 4_000
BLOBS_AT_LEAST = 2_000
NO_END = (1 << 63) - 1


class Part(msgspec.Struct, frozen=True):
    """A part: `first` and `last` are numbers of sessions or ids of blobs; `rows` is about its size."""

    what: Literal["log", "sessions", "house", "blobs", "pages"]
    first: int = 0
    last: int = 0
    rows: int = 0


def parts_of(connection: sqlite3.Connection) -> list[Part]:
    """All parts of a log, in the order of their findings."""
    events = connection.execute("SELECT count(*) FROM journal").fetchone()[0]
    return [
        Part("log", rows=events),
        *_sessions(connection, max(EVENTS_AT_LEAST, events // PIECES)),
        Part("house"),
        *_blobs(connection),
        Part("pages"),
    ]


def rows_of(parts: Sequence[Part]) -> int:
    """About how many rows they look at: each event twice, in the log and in its session, and each blob."""
    return sum(part.rows * (2 if part.what == "log" else part.what == "blobs") for part in parts)


def _sessions(connection: sqlite3.Connection, size: int) -> Iterator[Part]:
    first, rows = 1, 0
    for num, ss in connection.execute("SELECT num, ss FROM session ORDER BY num"):
        rows += max(1, ss)
        if rows >= size:
            yield Part("sessions", first, num, rows)
            first, rows = num + 1, 0
    yield Part("sessions", first, NO_END, rows)  # also those that are created meanwhile


def _blobs(connection: sqlite3.Connection) -> Iterator[Part]:
    count, lowest, highest = connection.execute(
        "SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM blob"
    ).fetchone()
    pieces = max(1, min(PIECES, count // BLOBS_AT_LEAST))
    width = (highest - lowest) // pieces + 1
    first = -NO_END
    for piece in range(1, pieces):
        last = lowest + piece * width
        yield Part("blobs", first, last, count // pieces)
        first = last + 1
    yield Part("blobs", first, NO_END, count - count // pieces * (pieces - 1))


def carry_out(
    connection: sqlite3.Connection, request: Request, part: Part, findings: Findings, scratch: Scratch
) -> int:
    """Check one part; returns how many events, sessions or blobs that were."""
    match part.what:
        case "log":
            return LogCheck(connection, request, findings).run()
        case "sessions":
            return _check_sessions(connection, request, part, findings, scratch)
        case "house":
            _strays(connection, findings)
            frozen(connection, findings)
            return 0
        case "blobs":
            return BlobCheck(connection, request, findings).all(part.first, part.last)
        case "pages":
            PageCheck(connection, request, findings).run()
            return 0


def _check_sessions(
    connection: sqlite3.Connection, request: Request, part: Part, findings: Findings, scratch: Scratch
) -> int:
    after, count = part.first - 1, 0
    while True:
        row = connection.execute(
            "SELECT num, sid FROM session WHERE num > ? AND num <= ? ORDER BY num LIMIT 1", (after, part.last)
        ).fetchone()
        if row is None:
            return count
        after, count = row[0], count + 1
        SessionCheck(connection, request, findings, scratch, num=row[0], sid=row[1]).run()


def _strays(connection: sqlite3.Connection, findings: Findings) -> None:
    """Events of sessions that the projections do not know."""
    after = 0
    while True:
        row = connection.execute(
            "SELECT sid, seq FROM journal WHERE sid > ? ORDER BY sid, ss LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            break
        after = row[0]
        if connection.execute("SELECT 1 FROM session WHERE num = ?", (after,)).fetchone() is None:
            findings.add("I9", f"session number {after} has events and no row", seq=row[1], table="session")
    for table in ("hold", "inbox", "cron", "turn", "cron_occurrence", "effect"):
        rows = connection.execute(
            f"SELECT DISTINCT sid FROM {table} WHERE sid NOT IN (SELECT num FROM session) LIMIT 10"  # noqa: S608
        )
        for (num,) in rows.fetchall():
            findings.add("I9", f"{table} has rows of session number {num}, which does not exist", table=table)
