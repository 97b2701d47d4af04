"""A scratch database in which projections are made anew from the journal, to be compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from loopd.store.projection import FOLDED, Plan
from loopd.store.schema import migrate

DIFFERENCES_MAX = 10

_BYTES_THAT_MAY_DIFFER = frozenset({"state", "labels", "body"})
"""Columns whose bytes depend on field order or on defaults of the version that wrote them; the state
is compared as a value instead."""


class Scratch:
    """Projections of one session at a time, in a temporary database that spills to disk when it grows."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, cached_statements=256)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA journal_mode = OFF")
        migrate(self._connection)

    def apply(self, plan: Plan) -> None:
        """Take in the changes of one page."""
        self._connection.execute("BEGIN")
        plan.write(self._connection)
        self._connection.execute("COMMIT")

    def differences(self, live: sqlite3.Connection, num: int) -> Iterator[tuple[str, str]]:
        """(table, what) for rows that differ, at most `DIFFERENCES_MAX` for each table."""
        for table, columns, key in FOLDED:
            compared = [c for c in columns if c not in _BYTES_THAT_MAY_DIFFER]
            owner = "num" if table == "session" else "sid"
            sql = (
                f"SELECT {', '.join(compared)} FROM {table} WHERE {owner} = ? "  # noqa: S608  (constants)
                f"ORDER BY {', '.join(key)}"
            )
            pairs = zip_longest(live.execute(sql, (num,)), self._connection.execute(sql, (num,)))
            for found, _ in zip(_unequal(compared, pairs), range(DIFFERENCES_MAX), strict=False):
                yield table, found

    def forget(self, num: int) -> None:
        """Make room for the next session."""
        self._connection.execute("BEGIN")
        for table, _, _ in reversed(FOLDED):
            owner = "num" if table == "session" else "sid"
            self._connection.execute(f"DELETE FROM {table} WHERE {owner} = ?", (num,))  # noqa: S608  (constants)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Forget it."""
        self._connection.close()


def _unequal(columns: list[str], pairs: Iterator[tuple[Any, Any]]) -> Iterator[str]:
    for stored, folded in pairs:
        if stored == folded:
            continue
        if stored is None:
            yield f"a row is missing: {dict(zip(columns, folded, strict=True))}"
        elif folded is None:
            yield f"a row is there that the journal does not explain: {dict(zip(columns, stored, strict=True))}"
        else:
            parts = [
                f"{name} is {a!r}, the journal says {b!r}"
                for name, a, b in zip(columns, stored, folded, strict=True)
                if a != b
            ]
            yield f"row {stored[:3]!r}: {'; '.join(parts)}"
            if stored[:2] != folded[:2]:
                return  # the rows no longer line up; what follows would be noise
