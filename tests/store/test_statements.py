"""The statements of the writer: what they cost does not depend on what else is in the table."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from loopd.store.statements import ROWS_PER_STATEMENT, Table, delete, insert

THING = Table("thing", ("sid", "name", "at_ms"))
COLUMNS = "sid INTEGER NOT NULL, name TEXT NOT NULL, at_ms INTEGER NOT NULL"
LAYOUTS = (
    f"CREATE TABLE thing ({COLUMNS}, PRIMARY KEY (sid, name)) STRICT, WITHOUT ROWID",
    f"CREATE TABLE thing (id INTEGER PRIMARY KEY, {COLUMNS}, UNIQUE (sid, name)) STRICT",
)


def filled(layout: str, count: int) -> sqlite3.Connection:
    """A table of `count` things."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(layout)
    insert(connection, THING, [(n, f"n{n}", n) for n in range(count)])
    return connection


def names(connection: sqlite3.Connection) -> list[int]:
    """Which things there are."""
    return [sid for (sid,) in connection.execute("SELECT sid FROM thing ORDER BY sid")]


def steps(connection: sqlite3.Connection, rows: list[tuple[Any, ...]], **how: Any) -> int:
    """How many steps of its machine SQLite takes to delete these."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(step, 1)
    delete(connection, "thing", ("sid", "name"), rows, **how)
    connection.set_progress_handler(None, 1)
    return count


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", [{}, {"before_ms": 1_000_000}])
@pytest.mark.parametrize("rows", [1, 7])
def test_a_deletion_costs_the_same_in_a_large_table(layout: str, how: dict[str, Any], rows: int) -> None:
    gone = [(n, f"n{n}") for n in range(rows)]
    with closing(filled(layout, 20)) as small, closing(filled(layout, 4_000)) as large:
        assert steps(large, gone, **how) <= steps(small, gone, **how) + 10 * rows
        assert names(large) == list(range(rows, 4_000))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_is_named_and_old_enough_is_deleted(layout: str) -> None:
    with closing(filled(layout, 10)) as connection:
        delete(
            connection, "thing", ("sid", "name"), [(2, "n2"), (5, "n5"), (3, "n4"), (77, "n77")], before_ms=5
        )
        assert names(connection) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
        delete(connection, "thing", ("sid", "name"), [(5, "n5")])
        assert names(connection) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_every_number_of_rows_is_written_whole_and_in_order() -> None:
    with closing(filled(LAYOUTS[1], 0)) as connection:
        written = 0
        for count in (0, 1, 2, 12, 23, 63, 64, 511, 512, 1_300):
            insert(connection, THING, [(written + n, "x", 0) for n in range(count)])
            written += count
            assert names(connection) == list(range(written))
        in_order = connection.execute("SELECT sid FROM thing ORDER BY id").fetchall()
        assert in_order == [(n,) for n in range(written)]


def test_small_groups_take_few_statements() -> None:
    for count in range(1, 65):
        left, taken = count, 0
        for size in ROWS_PER_STATEMENT:
            taken += left // size
            left %= size
        assert left == 0
        assert taken <= 3
