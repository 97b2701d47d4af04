"""What the events of retention change in its own tables, in the transaction that stores them."""

from __future__ import annotations

import sqlite3

from loopd_protocol.event import Event
from loopd_protocol.retention_events import (
    RetentionDeleted,
    RetentionForgot,
    RetentionHeld,
    RetentionReleased,
    RetentionSealed,
    RetentionSwept,
)

BOOKED: tuple[type[Event], ...] = (
    RetentionSealed,
    RetentionSwept,
    RetentionDeleted,
    RetentionForgot,
    RetentionHeld,
    RetentionReleased,
)

_OF_A_SESSION = ("hold", "inbox", "cron", "turn", "effect", "cron_occurrence", "content_kept")


def enter(connection: sqlite3.Connection, event: Event, at_ms: int) -> None:
    """Follow one event of retention."""
    match event:
        case RetentionSealed():
            connection.execute(
                "INSERT INTO segment (n, month, first_seq, last_seq, first_ms, last_ms, prev_h, head_h, sealed_ms) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    event.n,
                    event.month,
                    event.first,
                    event.last,
                    event.first_ms,
                    event.last_ms,
                    bytes.fromhex(event.prev_hash),
                    bytes.fromhex(event.head_hash),
                    at_ms,
                ),
            )
        case RetentionSwept():
            connection.execute("UPDATE sweep SET state = NULL")
            if event.what == "content" and event.sid is None:
                connection.execute("UPDATE sweep SET content_seq = max(content_seq, ?)", (event.last,))
        case RetentionDeleted():
            connection.execute("UPDATE segment SET deleted_ms = ? WHERE n = ?", (at_ms, event.n))
        case RetentionForgot():
            for num in event.nums:
                for table in _OF_A_SESSION:
                    connection.execute(f"DELETE FROM {table} WHERE sid = ?", (num,))  # noqa: S608  (constants)
                connection.execute("DELETE FROM session WHERE num = ?", (num,))
        case RetentionHeld():
            connection.execute(
                "INSERT INTO legal_hold (sid, since_ms, by, reason) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (sid) DO UPDATE SET by = excluded.by, reason = excluded.reason",
                (event.num, at_ms, event.by, event.reason),
            )
        case RetentionReleased():
            connection.execute("DELETE FROM legal_hold WHERE sid = ?", (event.num,))
        case _:
            pass
