"""Rows of the house: tokens, consumers, webhooks, dead letters. The store keeps them and reads nothing in them.

A row is a kind, an id and a JSON body. It is written in the transaction of the append that it comes with, so
a token exists exactly when the event that tells of it does; an append without events moves a cursor.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from loopd.core.writes import HouseRow
from loopd.store.sums import is_whole, row_sum
from loopd_protocol.errors import Refused

_PUT = """
INSERT INTO house (kind, id, body, sum) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, sum = excluded.sum
"""
_DROP = "DELETE FROM house WHERE kind = ? AND id = ?"


def write(connection: sqlite3.Connection, rows: Iterable[HouseRow]) -> None:
    """Put or drop rows, in order."""
    for row in rows:
        if row.body is None:
            connection.execute(_DROP, (row.kind, row.id))
        else:
            connection.execute(_PUT, (row.kind, row.id, row.body, row_sum(row.kind, row.id, row.body)))


def rows_of(connection: sqlite3.Connection, kind: str) -> dict[str, bytes]:
    """Bodies of a kind, by id."""
    found = connection.execute("SELECT id, body FROM house WHERE kind = ? ORDER BY id", (kind,))
    return {str(name): bytes(body) for name, body in found}


def check(connection: sqlite3.Connection) -> None:
    """Whether all rows are what was stored; they are few, and each start looks at all of them.

    Raises:
        Refused: `corrupt`, naming the first that is not.
    """
    for kind, name, body, stored in connection.execute("SELECT kind, id, body, sum FROM house"):
        if not is_whole(stored, kind, name, body):
            raise Refused("corrupt", f"{kind} {name!r} is not what was stored")


_AUDIT = """
SELECT j.seq, s.sid, j.at_ms, j.kind, j.principal, j.body
FROM journal AS j LEFT JOIN session AS s ON s.num = j.sid
WHERE j.principal NOT IN ('', 'daemon') AND j.body IS NOT NULL AND {where}
ORDER BY j.seq DESC LIMIT ?
"""
_CONSEQUENCES = (
    "turn.*",
    "effect.*",
    "provider.*",
    "degeneration.*",
    "detector.*",
    "envelope.held",
    "progress.*",
)
"""Kinds that follow from what somebody did and are not it."""


def audit(
    connection: sqlite3.Connection,
    *,
    principal: str | None,
    sid: str | None,
    denied: bool,
    after: int | None,
    limit: int,
) -> list[tuple[int, str | None, int, str, str, bytes]]:
    """What principals did, newest first: `(seq, sid, at_ms, kind, principal, body)`."""
    where, values = ["1"], []
    if principal is not None:
        where.append("j.principal GLOB ?" if principal.endswith("*") else "j.principal = ?")
        values.append(principal if not principal.endswith("*") else _glob(principal[:-1]) + "*")
    if sid is not None:
        where.append("s.sid = ?")
        values.append(sid)
    if denied:
        where.append("j.kind = 'command.denied'")
    else:
        for pattern in _CONSEQUENCES:
            where.append("j.kind NOT GLOB ?")
            values.append(pattern)
    bounds: list[int] = [limit]
    if after is not None:
        where.append("j.seq > ?")
        bounds = [after, limit]
    query = _AUDIT.format(where=" AND ".join(where))
    return [tuple(row) for row in connection.execute(query, (*values, *bounds))]


def _glob(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)
