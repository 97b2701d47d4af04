"""Blobs that nobody needs any more: who names them, when they were last used, and their deletion.

A blob says when it was last handed in, to a day. What is not handed in again but still needed (the content
that sessions keep beyond its age, what forks and imports build on, the manifests before a manifest) is noted as
used before old blobs are looked for.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from loopd.core.ageing import Work
from loopd.store.content import unpacked
from loopd.store.ledger import BLOB_USE_MS, Ledger
from loopd.store.upkeep import DIGEST_ZERO, STEP_ROWS, begin

BLOBS_AT_ONCE = 64
_HEX = re.compile(rb'"(?:sha256:)?([0-9a-f]{64})"')
_FIRSTS = 3
"""What a fork or an import builds on is named in one of the first events of a session."""


def named_in(body: bytes) -> set[bytes]:
    """Everything in a text that may be the digest of a blob."""
    return {bytes.fromhex(found.decode()) for found in _HEX.findall(body)}


def needed_by(
    connection: sqlite3.Connection, num: int, after: int, last: int, limit: int = STEP_ROWS
) -> tuple[set[bytes], int]:
    """Digests that whole events of a session name, and how far that was looked."""
    digests: set[bytes] = set()
    end = after
    for ss, body, blob in connection.execute(
        "SELECT ss, CASE WHEN body_sha IS NULL THEN body END, blob FROM journal "
        "WHERE sid = ? AND ss > ? AND ss <= ? ORDER BY ss LIMIT ?",
        (num, after, last, limit),
    ):
        end = ss
        if body is not None:
            digests |= named_in(body)
            if blob is not None:
                digests.add(blob)
    return digests, end


def founded_on(connection: sqlite3.Connection, first: int, last: int) -> set[bytes]:
    """Digests that the first events of sessions with these numbers name: what forks and imports build on."""
    digests: set[bytes] = set()
    for (body,) in connection.execute(
        "SELECT j.body FROM session AS s JOIN journal AS j ON j.sid = s.num AND j.ss <= ? "
        "WHERE s.num BETWEEN ? AND ? AND j.kind IN ('session.forked', 'session.imported') AND "
        "(s.status = 'live' OR j.kind = 'session.imported') AND j.body IS NOT NULL",
        (_FIRSTS, first, last),
    ):
        digests |= named_in(body)
    return digests


def manifests_since(connection: sqlite3.Connection, first: int, last: int, cutoff_ms: int) -> set[bytes]:
    """Manifests of the first turns after the cutoff, of sessions with these numbers."""
    digests = set()
    for num, turns in connection.execute(
        "SELECT num, turns FROM session WHERE num BETWEEN ? AND ? AND last_turn_ms >= ?",
        (first, last, cutoff_ms),
    ).fetchall():
        low, high = 1, turns + 1
        while low < high:
            middle = (low + high) // 2
            row = connection.execute(
                "SELECT started_ms FROM turn WHERE sid = ? AND n >= ? ORDER BY n LIMIT 1", (num, middle)
            ).fetchone()
            if row is not None and row[0] < cutoff_ms:
                low = middle + 1
            else:
                high = middle
        row = connection.execute(
            "SELECT manifest FROM turn WHERE sid = ? AND n >= ? ORDER BY n LIMIT 1", (num, low)
        ).fetchone()
        if row is not None and row[0] is not None:
            digests.add(bytes.fromhex(row[0].removeprefix("sha256:")))
    return digests


def built_on(connection: sqlite3.Connection, digests: Iterable[bytes]) -> set[bytes]:
    """Blobs that these blobs name, for example the manifest before a manifest; large ones are not opened."""
    found: set[bytes] = set()
    for digest in digests:
        row = connection.execute(
            "SELECT codec, data FROM blob WHERE sha = ? AND len <= 65536", (digest,)
        ).fetchone()
        if row is not None:
            found |= named_in(unpacked(row[0], row[1]))
    return found


def note_use(ledger: Ledger, digests: Sequence[bytes], now_ms: int) -> None:
    """These blobs are needed, whatever their age."""
    ledger.connection.executemany(
        "UPDATE blob SET used_ms = ? WHERE sha = ? AND used_ms < ?",
        [(now_ms, digest, now_ms - BLOB_USE_MS) for digest in digests],
    )


def old_blobs(connection: sqlite3.Connection, after: int, cutoff_ms: int) -> tuple[list[int], int | None]:
    """Ids of blobs that nobody used since the cutoff, and where to look on; None at the end."""
    ids: list[int] = []
    rows = connection.execute(
        "SELECT id, at_ms, used_ms FROM blob WHERE id > ? ORDER BY id LIMIT ?", (after, BLOBS_AT_ONCE)
    ).fetchall()
    for id_, at_ms, used_ms in rows:
        if at_ms >= cutoff_ms:
            return ids, None
        if used_ms < cutoff_ms:
            ids.append(id_)
    return ids, rows[-1][0] if len(rows) == BLOBS_AT_ONCE else None


def delete_blobs(ledger: Ledger, work: Work, ids: Sequence[int], following: int | None) -> Work:
    """Delete those of the blobs that are still unused."""
    connection, event = ledger.connection, work.event
    marks = ", ".join("?" * len(ids))
    rows = connection.execute(
        f"DELETE FROM blob WHERE id IN ({marks}) AND used_ms < ? RETURNING id, sha, len",  # noqa: S608  (marks)
        (*ids, event.cutoff_ms),
    ).fetchall()
    ledger.forget_blobs(sha.hex() for _, sha, _ in rows)
    digest = bytes.fromhex(event.digest) or DIGEST_ZERO
    for _, sha, _ in sorted(rows):
        digest = sha256(digest + sha).digest()
    event = msgspec.structs.replace(
        event,
        count=event.count + len(rows),
        bytes=event.bytes + sum(size for _, _, size in rows),
        digest=digest.hex(),
    )
    after = Work(event=event, next=following or 0, done=following is None)
    if after.done and not event.count:
        connection.execute("UPDATE sweep SET state = NULL")
    else:
        begin(ledger, after)
    return after
