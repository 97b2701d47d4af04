"""The journal's rows as stored, read in pages for those who check them."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from hashlib import sha256

import msgspec

from loopd.core.content import after_retention
from loopd.store import chain

PAGE_ROWS = 1_024
DIGEST_BYTES = 32
NO_DIGEST = b"no row"
"""Hashed in place of a row that cannot be one; no stored hash is ever its."""

_ROW = "seq, sid, ss, epoch, boot, at_ms, kind, kv, turn, cause_seq, principal, body, body_sha, blob, h, sh"
ROW_COLUMNS = tuple(_ROW.split(", "))


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of the journal as stored."""

    seq: int
    sid: int | None
    ss: int
    epoch: int
    boot: int
    at_ms: int
    kind: str
    kv: int
    turn: int | None
    cause_seq: int | None
    principal: str
    body: bytes | None
    body_sha: bytes | None
    blob: bytes | None
    h: bytes
    sh: bytes | None

    def oddities(self) -> list[str]:
        """What no writer of ours stores and the chains do not cover."""
        if self.body_sha is None and self.blob is None and self.sid != 0 and self.turn != 0 != self.cause_seq:
            return []
        found = []
        if self.body is not None and self.body_sha is not None and not self._is_left_over():
            found.append(
                "its body stands beside the digest of another, and is not what retention leaves of one"
            )
        found += [
            f"{name} is 0; expected null" for name in ("sid", "turn", "cause_seq") if getattr(self, name) == 0
        ]
        if self.blob is not None and len(self.blob) != DIGEST_BYTES:
            found.append(f"blob has {len(self.blob)} bytes; expected {DIGEST_BYTES}")
        return found

    @property
    def whole(self) -> bytes | None:
        """The body as it was written; None when retention or redaction left less."""
        return self.body if self.body_sha is None else None

    def _is_left_over(self) -> bool:
        assert self.body is not None
        try:
            return after_retention(self.kind, self.body) == self.body
        except (msgspec.MsgspecError, AttributeError, TypeError, RecursionError):
            return False

    def digest(self) -> bytes:
        """The bytes that both chains hash."""
        sha = self.body_sha if self.body_sha is not None else sha256(self.body or b"").digest()
        try:
            return chain.row_bytes(
                seq=self.seq,
                sid=self.sid,
                ss=self.ss,
                epoch=self.epoch,
                boot=self.boot,
                at_ms=self.at_ms,
                kv=self.kv,
                turn=self.turn,
                cause_seq=self.cause_seq,
                kind=self.kind,
                principal=self.principal,
                body_sha=sha,
                blob=self.blob,
            )
        except (struct.error, UnicodeEncodeError):
            return NO_DIGEST  # a number or a text that no writer of ours stores


def session_page(connection: sqlite3.Connection, num: int, after: int) -> list[Row]:
    """At most `PAGE_ROWS` rows of a session, in order of `ss`."""
    return [
        Row(*values)
        for values in connection.execute(
            f"SELECT {_ROW} FROM journal WHERE sid = ? AND ss > ? ORDER BY ss LIMIT ?",  # noqa: S608
            (num, after, PAGE_ROWS),
        )
    ]


def row_page(connection: sqlite3.Connection, after: int, limit: int) -> list[Row]:
    """At most `limit` rows of the log behind `after`, in order of `seq`."""
    return [
        Row(*values)
        for values in connection.execute(
            f"SELECT {_ROW} FROM journal WHERE seq > ? ORDER BY seq LIMIT ?",  # noqa: S608  (constants)
            (after, limit),
        )
    ]


def tail(connection: sqlite3.Connection, limit: int) -> list[Row]:
    """The last rows of the log, in order of `seq`."""
    rows = connection.execute(f"SELECT {_ROW} FROM journal ORDER BY seq DESC LIMIT ?", (limit,))  # noqa: S608  (constants)
    return [Row(*values) for values in rows][::-1]


def pages_of_log(connection: sqlite3.Connection) -> Iterator[list[Row]]:
    """All rows in order of `seq`, in pages of at most `PAGE_ROWS`."""
    after = -1
    while True:
        page = row_page(connection, after, PAGE_ROWS)
        yield page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].seq
