"""A scratch database in which projections are made anew from the journal, to be compared."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import msgspec

from loopd.core.state import CronJob
from loopd.store.projection import FOLDED, Plan
from loopd.store.schema import migrate
from loopd_protocol.holds import AnyHold

DIFFERENCES_MAX = 10

_VALUES: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("session", "labels"): lambda text: msgspec.json.decode(text) if text else {},
    ("hold", "body"): msgspec.json.Decoder(AnyHold).decode,
    ("cron", "body"): msgspec.json.Decoder(CronJob).decode,
}
"""Columns whose bytes depend on field order or on defaults of the version that wrote them: their values are
compared. The state of a session is compared field by field elsewhere."""

_DERIVED = frozenset({"tokens_barren", "repeat_streak", "barren_streak", "progress_ms", "deadline_ms"})
"""Columns of a session that follow from what rules and counters derive."""


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

    def differences(
        self, live: sqlite3.Connection, num: int, look: Callable[[str, int], None], *, exact: bool
    ) -> Iterator[tuple[str, str, bool]]:
        """(table, what, only derived) for rows that differ, at most `DIFFERENCES_MAX` for each table.

        `exact`: this version wrote them, so that their bytes are the same as well.
        """
        for table, columns, key in FOLDED:
            compared = [c for c in columns if c != "state"]
            owner = "num" if table == "session" else "sid"
            sql = (
                f"SELECT {', '.join(compared)} FROM {table} WHERE {owner} = ? "  # noqa: S608  (constants)
                f"ORDER BY {', '.join(key)}"
            )
            pairs = zip_longest(live.execute(sql, (num,)), self._connection.execute(sql, (num,)))
            found = 0
            for stored, folded in pairs:
                look("I9", 1)
                for what, derived in _unequal(table, compared, stored, folded, exact=exact):
                    found += 1
                    yield table, what, derived
                if found >= DIFFERENCES_MAX or (stored and folded and stored[:2] != folded[:2]):
                    break  # the rows no longer line up; what follows would be noise

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


def _unequal(
    table: str, columns: list[str], stored: Any, folded: Any, *, exact: bool
) -> Iterator[tuple[str, bool]]:
    if stored == folded:
        return
    if stored is None:
        yield f"a row is missing: {dict(zip(columns, folded, strict=True))}", False
        return
    if folded is None:
        yield (
            f"a row is there that the journal does not explain: {dict(zip(columns, stored, strict=True))}",
            False,
        )
        return
    strict: list[str] = []
    derived: list[str] = []
    for name, a, b in zip(columns, stored, folded, strict=True):
        if a == b or (not exact and _same_value(table, name, a, b)):
            continue
        words = f"{name} is {a!r}, the journal says {b!r}"
        (derived if table == "session" and name in _DERIVED else strict).append(words)
    for parts, only_derived in ((strict, False), (derived, True)):
        if parts:
            yield f"row {stored[:3]!r}: {'; '.join(parts)}", only_derived


def _same_value(table: str, name: str, one: Any, other: Any) -> bool:
    decode = _VALUES.get((table, name))
    if decode is None:
        return False
    try:
        return bool(decode(one) == decode(other))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return False
