"""Which rows an export takes: a contiguous run of a session or of the log, read in pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loopd.store.past import number_of
from loopd.store.rows import PAGE_ROWS, ROW_COLUMNS, Row, session_page
from loopd_protocol.errors import Refused


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to export: one session (`sid`) or all; only events from `since` to before `until`.

    With `links` an archive of one session also carries what ties it to the log; see `loopd.store.archive_links`.
    """

    sid: str | None = None
    since: int | None = None
    until: int | None = None
    links: bool = False


def rows_of(connection: sqlite3.Connection, wanted: Wanted, stopped: Callable[[], bool]) -> Iterator[Row]:
    """The rows that are wanted, in order; the range is fixed at the beginning.

    Raises:
        Refused: `not_found` for an unknown session, `cancelled`.
    """
    if wanted.sid is not None:
        num = number_of(connection, wanted.sid)
        pages = _session_pages(connection, num, *_bounds(connection, "sid = ? AND ", (num,), "ss", wanted))
    else:
        pages = _log_pages(connection, *_bounds(connection, "", (), "seq", wanted))
    for page in pages:
        if stopped():
            raise Refused("cancelled", "the export was called off")
        yield from page


def _bounds(
    connection: sqlite3.Connection, where: str, values: tuple[Any, ...], column: str, wanted: Wanted
) -> tuple[int, int]:
    """A contiguous run: from the first event not before `since` to the last one before `until`."""
    low, high = connection.execute(
        f"SELECT min({column}), max({column}) FROM journal WHERE {where}1",  # noqa: S608  (constants)
        values,
    ).fetchone()
    if low is None:
        return 1, 0
    if wanted.since is not None:
        found = connection.execute(
            f"SELECT min({column}) FROM journal WHERE {where}at_ms >= ?",  # noqa: S608  (constants)
            (*values, wanted.since),
        ).fetchone()[0]
        low = high + 1 if found is None else found
    if wanted.until is not None:
        found = connection.execute(
            f"SELECT max({column}) FROM journal WHERE {where}at_ms < ?",  # noqa: S608  (constants)
            (*values, wanted.until),
        ).fetchone()[0]
        high = low - 1 if found is None else found
    return low, high


def _session_pages(connection: sqlite3.Connection, num: int, low: int, high: int) -> Iterator[list[Row]]:
    after = low - 1
    while after < high:
        page = [row for row in session_page(connection, num, after) if row.ss <= high]
        if not page:
            return
        yield page
        after = page[-1].ss


def _log_pages(connection: sqlite3.Connection, low: int, high: int) -> Iterator[list[Row]]:
    after = low - 1
    while after < high:
        page = [
            Row(*values)
            for values in connection.execute(
                f"SELECT {', '.join(ROW_COLUMNS)} FROM journal WHERE seq > ? AND seq <= ? "  # noqa: S608  (constants)
                "ORDER BY seq LIMIT ?",
                (after, high, PAGE_ROWS),
            )
        ]
        if not page:
            return
        yield page
        after = page[-1].seq
