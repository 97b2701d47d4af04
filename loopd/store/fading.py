"""What projections remember of content that is deleted: the states of ended sessions, notes on effects.

They are looked at once a day. Nothing of it is journaled: the `retention.swept` that took the content took this.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

from loopd.core.ageing import faded
from loopd.store.ledger import Ledger
from loopd.store.projection import decode_state
from loopd.store.upkeep import content_level

_encode_state = msgspec.msgpack.Encoder().encode


class Fading(NamedTuple):
    """States as they will be (number, `ss`, bytes), and effects whose notes go."""

    states: list[tuple[int, int, bytes]]
    notes: list[int]


def look(connection: sqlite3.Connection, first: int, last: int) -> Fading:
    """What projections of sessions with these numbers remember and should not."""
    level = content_level(connection)
    states = []
    for num, ss, state in connection.execute(
        "SELECT num, ss, state FROM session AS s WHERE num BETWEEN ? AND ? AND status <> 'live' "
        "AND NOT EXISTS (SELECT 1 FROM legal_hold WHERE sid = s.num) "
        "AND NOT EXISTS (SELECT 1 FROM content_kept WHERE sid = s.num)",
        (first, last),
    ):
        session = decode_state(state)
        left = faded(session)
        if left != session and _is_swept(connection, num, level):
            states.append((num, ss, _encode_state(left)))
    notes = connection.execute(
        "SELECT rowid_ FROM effect AS e WHERE sid BETWEEN ? AND ? AND note IS NOT NULL "
        "AND coalesce((SELECT body_sha IS NOT NULL FROM journal WHERE seq = e.outcome_seq), 1)",
        (first, last),
    )
    return Fading(states, [row[0] for row in notes])


def _is_swept(connection: sqlite3.Connection, num: int, level: int) -> bool:
    """All of its events are old enough, and content of some was deleted: nobody refolds its state any more."""
    newest = connection.execute(
        "SELECT seq FROM journal WHERE sid = ? ORDER BY ss DESC LIMIT 1", (num,)
    ).fetchone()
    if newest is None:
        return True  # they went with their months
    if newest[0] > level:
        return False
    oldest = connection.execute("SELECT ss FROM journal WHERE sid = ? ORDER BY ss LIMIT 1", (num,)).fetchone()
    swept = "SELECT 1 FROM journal WHERE sid = ? AND body_sha IS NOT NULL LIMIT 1"
    return oldest[0] > 1 or connection.execute(swept, (num,)).fetchone() is not None


def carry_out(ledger: Ledger, found: Fading) -> None:
    """Take it away, unless a session was written meanwhile."""
    ledger.connection.executemany(
        "UPDATE session SET state = ? WHERE num = ? AND ss = ? AND status <> 'live'",
        [(state, num, ss) for num, ss, state in found.states],
    )
    ledger.connection.executemany(
        "UPDATE effect SET note = NULL WHERE rowid_ = ?", [(effect,) for effect in found.notes]
    )
