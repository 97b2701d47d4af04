"""Answers of commands, stored by key: asked again within seven days, the same answer is given."""

from __future__ import annotations

import sqlite3

from loopd.store.ledger import IDEMPOTENCY_KEPT_MS
from loopd.store.sums import is_whole
from loopd_protocol.errors import Refused


def idempotent(
    connection: sqlite3.Connection, principal: str, key: str, last_at_ms: int
) -> tuple[str, bytes, int] | None:
    """Command hash, stored result and `seq` for a key that was used within seven days.

    Raises:
        Refused: `corrupt` when the stored answer is not what was stored: neither it nor a second run is right.
    """
    row = connection.execute(
        "SELECT command_sha256, result, seq, at_ms, sum FROM idempotency "
        "WHERE principal = ? AND key = ? AND at_ms >= ?",
        (principal, key, last_at_ms - IDEMPOTENCY_KEPT_MS),
    ).fetchone()
    if row is None:
        return None
    digest, result, seq, at_ms, stored = row
    if not is_whole(stored, principal, key, digest, result, seq, at_ms):
        raise Refused(
            "corrupt", f"the stored answer of key {key!r} is not what was stored; run `loopctl verify`"
        )
    return digest, result, seq
