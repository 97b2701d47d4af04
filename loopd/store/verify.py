"""Verification: is the journal what was written, and are the projections what it says?

Passes, each streamed in pages with short transactions, so a live daemon keeps its pace:

1. the log: `seq` without holes, the chain `h`, epochs and boots that never fall, each boot's own account;
2. each session: `ss` without holes, the chain `sh`, the invariants, the refold against the projections;
3. blobs: content against digest;
4. anchors: signed heads, those in the database and those that somebody kept elsewhere.

One session alone needs only its own rows. What was found is a list of findings; an empty one is the
proof. Invariants are those of the design, see `loopd.store.request.INVARIANTS`.
"""

from __future__ import annotations

import sqlite3
from time import perf_counter
from typing import Any

from loopd import __version__
from loopd.store import anchors, chain
from loopd.store.blob_check import BlobCheck
from loopd.store.log_check import LogCheck, frozen
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.session_check import SessionCheck
from loopd.store.suspension import suspension
from loopd_protocol.errors import Refused


def run(connection: sqlite3.Connection, request: Request) -> dict[str, Any]:
    """Verify and tell.

    Returns:
        `{"ok", "version", "log", "range", "head", "head_hash", "checked": {"events", "sessions", "blobs"},
        "invariants", "anchors", "findings": […]}`, with `findings_total` when there are more than are listed,
        `notes` on states that an older loopd derived and this one would derive differently, `session` with its
        own head for one session, and `proof` for `suspended_since`.

    Raises:
        Refused: `not_found` for an unknown session, `invalid` for `suspended_since` without one,
            `cancelled` when nobody wants to know any more.
    """
    if request.suspended_since is not None and request.sid is None:
        raise Refused("invalid", "suspended_since needs a session", path="$.sid")
    begun = perf_counter()
    findings = Findings()
    checked = {"events": 0, "sessions": 0, "blobs": 0}
    row = connection.execute("SELECT seq, h FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    head, head_hash = (0, chain.log_genesis(request.log_id)) if row is None else row
    result: dict[str, Any] = {
        "ok": False,
        "version": __version__,
        "log": request.log_id,
        "range": {"first": 0, "last": head},
        "head": head,
        "head_hash": head_hash.hex(),
        "checked": checked,
    }
    blobs = BlobCheck(connection, request, findings)
    scratch = Scratch()
    try:
        if request.sid is not None:
            num = _number(connection, request.sid)
            result["sid"] = request.sid
            checked["events"] = SessionCheck(
                connection, request, findings, scratch, num=num, sid=request.sid
            ).run()
            checked["sessions"] = 1
            checked["blobs"] = blobs.of_session(num)
            result["range"], result["session"] = _ends(connection, num)
            if request.suspended_since is not None:
                result["proof"] = suspension(connection, num, request, findings)
        else:
            checked["events"] = LogCheck(connection, request, findings).run()
            checked["sessions"] = _sessions(connection, request, findings, scratch)
            _strays(connection, findings)
            frozen(connection, findings)
            checked["blobs"] = blobs.all()
            first = connection.execute("SELECT coalesce(min(seq), 0) FROM journal").fetchone()[0]
            result["range"]["first"] = first
    finally:
        scratch.close()
    result["anchors"] = anchors.check(connection, request.log_id, request.keys, findings)
    if request.anchors is not None:
        result["anchors_given"] = anchors.check(
            connection, request.log_id, request.keys, findings, given=request.anchors
        )
    result["invariants"] = findings.invariants()
    result["findings"] = findings.listed
    if findings.notes:
        result["notes"] = findings.notes
    if findings.total > len(findings.listed):
        result["findings_total"] = findings.total
    result["took_ms"] = round((perf_counter() - begun) * 1_000)
    result["ok"] = findings.total == 0
    return result


def _number(connection: sqlite3.Connection, sid: str) -> int:
    row = connection.execute("SELECT num FROM session WHERE sid = ?", (sid,)).fetchone()
    if row is None:
        raise Refused("not_found", f"no session {sid!r}", path="$.sid")
    return int(row[0])


def _ends(connection: sqlite3.Connection, num: int) -> tuple[dict[str, int], dict[str, Any]]:
    """First and last `seq` of a session, and the head of its own chain."""
    rows = [
        connection.execute(
            f"SELECT seq, ss, sh FROM journal WHERE sid = ? ORDER BY ss {order} LIMIT 1",  # noqa: S608  (constants)
            (num,),
        ).fetchone()
        for order in ("ASC", "DESC")
    ]
    if rows[0] is None:
        return {"first": 0, "last": 0}, {"ss": 0, "hash": None}
    return {"first": rows[0][0], "last": rows[1][0]}, {"ss": rows[1][1], "hash": (rows[1][2] or b"").hex()}


def _sessions(connection: sqlite3.Connection, request: Request, findings: Findings, scratch: Scratch) -> int:
    after = count = 0
    total = connection.execute("SELECT count(*) FROM session").fetchone()[0]
    while True:
        row = connection.execute(
            "SELECT num, sid FROM session WHERE num > ? ORDER BY num LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            return count
        after, count = row[0], count + 1
        request.progress("sessions", count, total)
        SessionCheck(connection, request, findings, scratch, num=row[0], sid=row[1]).run()


def _strays(connection: sqlite3.Connection, findings: Findings) -> None:
    """Events of sessions that the projections do not know."""
    after = 0
    while True:
        row = connection.execute(
            "SELECT sid, seq FROM journal WHERE sid > ? ORDER BY sid, ss LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            break
        after = row[0]
        if connection.execute("SELECT 1 FROM session WHERE num = ?", (after,)).fetchone() is None:
            findings.add("I9", f"session number {after} has events and no row", seq=row[1], table="session")
    for table in ("hold", "inbox", "cron", "turn", "cron_occurrence", "effect"):
        rows = connection.execute(
            f"SELECT DISTINCT sid FROM {table} WHERE sid NOT IN (SELECT num FROM session) LIMIT 10"  # noqa: S608
        )
        for (num,) in rows.fetchall():
            findings.add("I9", f"{table} has rows of session number {num}, which does not exist", table=table)
