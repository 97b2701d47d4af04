"""Rows of the house: tokens, consumers, webhooks, dead letters. The store keeps them and reads nothing in them.

A row is a kind, an id and a JSON body. It is written in the transaction of the append that it comes with, so
a token exists exactly when the event that tells of it does; an append without events moves a cursor.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from loopd.core.writes import HouseRow

_PUT = "INSERT INTO house (kind, id, body) VALUES (?, ?, ?) ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body"
_DROP = "DELETE FROM house WHERE kind = ? AND id = ?"


def write(connection: sqlite3.Connection, rows: Iterable[HouseRow]) -> None:
    """Put or drop rows, in order."""
    for row in rows:
        if row.body is None:
            connection.execute(_DROP, (row.kind, row.id))
        else:
            connection.execute(_PUT, (row.kind, row.id, row.body))


def rows_of(connection: sqlite3.Connection, kind: str) -> dict[str, bytes]:
    """Bodies of a kind, by id."""
    found = connection.execute("SELECT id, body FROM house WHERE kind = ? ORDER BY id", (kind,))
    return {str(name): bytes(body) for name, body in found}
