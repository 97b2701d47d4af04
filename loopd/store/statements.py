"""SQL text built from column names: few, large statements, always of the same few sizes.

Beside a busy event loop each statement step costs a fight for the GIL, so a batch is written with
multi-row `INSERT … VALUES`; the sizes are fixed so that the statement cache keeps them prepared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

ROWS_PER_STATEMENT = (
    512, 256, 160, 104, 72, 52, 40, 32, 26, 22, 19, 17, 15, 13, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1,
)  # fmt: skip
"""Close enough that nearly all groups under 64 rows take one or two statements of a table: each statement lets go
of the GIL, and has to fight for it. 512 rows of the widest table (25 columns) stay under SQLite's 32,766
parameters."""


class Table(NamedTuple):
    """A table as the writer fills it.

    Attributes:
        key: columns of the conflict target; empty for plain inserts.
        update: what an existing row becomes: assignments, or `NOTHING`, or empty for an error.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    update: str = ""


def overwriting(columns: Sequence[str]) -> str:
    """Assignments that take each of these columns from the new row."""
    return ", ".join(f"{column} = excluded.{column}" for column in columns)


@cache
def insert_sql(table: Table, rows: int) -> str:
    """The insert of `rows` rows at once."""
    row = f"({', '.join('?' * len(table.columns))})"
    sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES {', '.join([row] * rows)}"  # noqa: S608  (names are constants of this package)
    if not table.update:
        return sql
    action = "NOTHING" if table.update == "NOTHING" else f"UPDATE SET {table.update}"
    return f"{sql} ON CONFLICT ({', '.join(table.key)}) DO {action}"


@cache
def delete_sql(name: str, key: tuple[str, ...], rows: int) -> str:
    """The deletion of `rows` rows by their key."""
    row = f"({', '.join('?' * len(key))})"
    values = f"WITH gone ({', '.join(key)}) AS (VALUES {', '.join([row] * rows)})"
    # Not `IN (VALUES …)`: SQLite uses no index for that, and looks through the whole table.
    return f"{values} DELETE FROM {name} WHERE ({', '.join(key)}) IN gone"  # noqa: S608  (constants)


def insert(connection: sqlite3.Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert all rows, in order."""
    _each(connection, rows, lambda count: insert_sql(table, count))


def delete(
    connection: sqlite3.Connection,
    name: str,
    key: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
    *,
    before_ms: int | None = None,
) -> None:
    """Delete the rows with these keys, with `before_ms` only those whose `at_ms` is earlier.

    Those that are not there are no error.
    """
    if before_ms is None:
        _each(connection, rows, lambda count: delete_sql(name, key, count))
    else:
        _each(connection, rows, lambda count: delete_sql(name, key, count) + " AND at_ms < ?", before_ms)


def _each(
    connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]], sql: Callable[[int], str], *last: Any
) -> None:
    start, left = 0, len(rows)
    for size in ROWS_PER_STATEMENT:
        while left >= size:
            part = rows[start : start + size]
            connection.execute(sql(size), (*chain.from_iterable(part), *last))
            start += size
            left -= size
