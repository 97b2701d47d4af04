"""Blobs against their digests, and references against blobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from hashlib import sha256
from typing import Any

from loopd.store.content import unpacked
from loopd.store.request import Findings, Request
from loopd_protocol import events as ev

PAGE_BLOBS = 64
DIGESTS_AT_ONCE = 256


class BlobCheck:
    """The third pass: content is what its digest says."""

    def __init__(self, connection: sqlite3.Connection, request: Request, findings: Findings) -> None:
        self._connection = connection
        self._request = request
        self._findings = findings

    def all(self, first: int, last: int) -> int:
        """Check every blob with such an id; returns how many there are."""
        after, count = first - 1, 0
        while True:
            self._request.check()
            page = self._connection.execute(
                "SELECT id, sha, codec, len, data FROM blob WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
                (after, last, PAGE_BLOBS),
            ).fetchall()
            self._request.looked(len(page))
            for id_, sha, codec, size, data in page:
                after, count = id_, count + 1
                self._check(sha, codec, size, data)
            if len(page) < PAGE_BLOBS:
                return count

    def of_session(self, num: int) -> int:
        """Check the blobs that belong to rows of one session; returns how many there are."""
        after = count = 0
        while True:
            self._request.check()
            page = self._connection.execute(
                "SELECT j.ss, j.seq, j.blob, b.codec, b.len, b.data FROM journal AS j "
                "JOIN blob AS b ON b.sha = j.blob WHERE j.sid = ? AND j.ss > ? ORDER BY j.ss LIMIT ?",
                (num, after, PAGE_BLOBS),
            ).fetchall()
            for ss, seq, sha, codec, size, data in page:
                after, count = ss, count + 1
                self._check(sha, codec, size, data, seq=seq, ss=ss)
            if len(page) < PAGE_BLOBS:
                return count

    def _check(self, sha: bytes, codec: str, size: int, data: bytes, **where: Any) -> None:
        try:
            content = unpacked(codec, data)
        except Exception as error:  # noqa: BLE001  (damaged data may raise anything)
            self._findings.add("blob", f"blob {sha.hex()} cannot be unpacked: {error}", **where)
            return
        if sha256(content).digest() != sha or len(content) != size:
            self._findings.add("blob", f"blob {sha.hex()} does not match its digest", **where)


def references(event: ev.Event) -> Iterator[str]:
    """Digests (hex) of the blobs that an event names."""
    match event:
        case ev.TurnStarted(manifest=str(digest)):
            yield digest
        case ev.TurnInterrupted(partial_blob=str(digest)):
            yield digest
        case ev.EffectIntent(args_blob=str(digest)):
            yield digest
        case ev.TurnStep():
            if event.text_blob is not None:
                yield event.text_blob
            for call in event.calls:
                if call.result_blob is not None:
                    yield call.result_blob
        case _:
            pass


def missing(connection: sqlite3.Connection, digests: Collection[bytes]) -> set[bytes]:
    """Those of the digests for which there is no blob."""
    wanted, found = list(digests), set[bytes]()
    for start in range(0, len(wanted), DIGESTS_AT_ONCE):
        part = wanted[start : start + DIGESTS_AT_ONCE]
        marks = ", ".join("?" * len(part))
        rows = connection.execute(f"SELECT sha FROM blob WHERE sha IN ({marks})", part)  # noqa: S608  (marks)
        found.update(row[0] for row in rows)
    return set(wanted) - found
