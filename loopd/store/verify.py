"""Verification: is the journal what was written, and are the projections what it says?

Three passes, each streamed in pages with short transactions, so a live daemon keeps its pace:

1. the log: `seq` without holes, the chain `h`, epochs and boots that never fall;
2. each session: `ss` without holes, the chain `sh`, the invariants, the refold against the projections;
3. blobs: content against digest.

One session alone needs only its own rows. What was found is a list of findings; an empty one is the
proof. Invariants are those of the design: I1 turns alternate, I2 no turn that a hold forbids, I3 holds
have deadlines and keep them, I4 envelopes are consumed once, I5 outcomes follow intents, I6 one final
state per cron occurrence, I7 epochs never fall, I8 no hole, I9 refold = projections.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from loopd.store import chain
from loopd.store.blob_check import BlobCheck
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.rows import pages_of_log
from loopd.store.session_check import SessionCheck
from loopd.store.suspension import suspension
from loopd_protocol.errors import Refused


def run(connection: sqlite3.Connection, request: Request) -> dict[str, Any]:
    """Verify and tell.

    Returns:
        `{"ok", "log", "head", "head_hash", "checked": {"events", "sessions", "blobs"}, "findings": […]}`, with
        `findings_total` when there are more than are listed, `notes` on states that an older loopd
        derived and this one would derive differently, and `proof` for `suspended_since`.

    Raises:
        Refused: `not_found` for an unknown session, `invalid` for `suspended_since` without one,
            `cancelled` when nobody wants to know any more.
    """
    if request.suspended_since is not None and request.sid is None:
        raise Refused("invalid", "suspended_since needs a session", path="$.sid")
    findings = Findings()
    checked = {"events": 0, "sessions": 0, "blobs": 0}
    row = connection.execute("SELECT seq, h FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    head, head_hash = (0, chain.log_genesis(request.log_id)) if row is None else row
    result: dict[str, Any] = {
        "ok": False,
        "log": request.log_id,
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
            if request.suspended_since is not None:
                result["proof"] = suspension(connection, num, request, findings)
        else:
            checked["events"] = _log(connection, request, findings)
            checked["sessions"] = _sessions(connection, request, findings, scratch)
            _strays(connection, findings)
            _frozen(connection, findings)
            checked["blobs"] = blobs.all()
    finally:
        scratch.close()
    result["findings"] = findings.listed
    if findings.notes:
        result["notes"] = findings.notes
    if findings.total > len(findings.listed):
        result["findings_total"] = findings.total
    result["ok"] = findings.total == 0
    return result


def _number(connection: sqlite3.Connection, sid: str) -> int:
    row = connection.execute("SELECT num FROM session WHERE sid = ?", (sid,)).fetchone()
    if row is None:
        raise Refused("not_found", f"no session {sid!r}", path="$.sid")
    return int(row[0])


def _log(connection: sqlite3.Connection, request: Request, findings: Findings) -> int:
    previous = chain.log_genesis(request.log_id)
    expected, epoch, boot, count = 1, 0, 0, 0
    for page in pages_of_log(connection):
        request.check()
        count += len(page)
        for row in page:
            where = {"seq": row.seq, "ss": row.ss}
            if row.seq != expected:
                findings.add("I8", f"seq jumps from {expected - 1} to {row.seq}", seq=expected)
            if chain.link(previous, row.digest()) != row.h:
                findings.add("chain", f"{row.kind!r} does not match its hash or its predecessor's", **where)
            if row.epoch < epoch or row.boot < boot:
                what = f"epoch {row.epoch}, boot {row.boot} after epoch {epoch}, boot {boot}"
                findings.add("I7", what, **where)
            previous, expected = row.h, row.seq + 1
            epoch, boot = max(epoch, row.epoch), max(boot, row.boot)
    return count


def _sessions(connection: sqlite3.Connection, request: Request, findings: Findings, scratch: Scratch) -> int:
    after = count = 0
    while True:
        row = connection.execute(
            "SELECT num, sid FROM session WHERE num > ? ORDER BY num LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            return count
        after, count = row[0], count + 1
        SessionCheck(connection, request, findings, scratch, num=row[0], sid=row[1]).run()


def _strays(connection: sqlite3.Connection, findings: Findings) -> None:
    """Events of sessions that the projections do not know."""
    after = 0
    while True:
        row = connection.execute(
            "SELECT sid, seq FROM journal WHERE sid > ? ORDER BY sid, ss LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            return
        after = row[0]
        if connection.execute("SELECT 1 FROM session WHERE num = ?", (after,)).fetchone() is None:
            findings.add("I9", f"session number {after} has events and no row", seq=row[1], table="session")


def _frozen(connection: sqlite3.Connection, findings: Findings) -> None:
    connection.execute("BEGIN")  # a freeze may come between two looks
    try:
        row = connection.execute(
            "SELECT kind, body FROM journal WHERE kind IN ('daemon.frozen', 'daemon.unfrozen') "
            "AND sid IS NULL AND ss = 0 ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        stored = connection.execute("SELECT frozen FROM meta").fetchone()[0]
    finally:
        connection.execute("COMMIT")
    expected = row[1].decode() if row is not None and row[0] == "daemon.frozen" and row[1] else None
    if stored != expected:
        findings.add("I9", f"frozen is {stored!r}; the journal says {expected!r}", table="meta")
