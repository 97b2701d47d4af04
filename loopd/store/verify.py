"""Verification: is the journal what was written, and are the projections what it says?

Passes, each streamed in pages with short transactions, so a live daemon keeps its pace (and a large log in
processes of their own, see `loopd.store.crew`):

1. the log: `seq` without holes, the chain `h`, epochs and boots that never fall, each boot's own account;
2. each session: `ss` without holes, the chain `sh`, the invariants, the refold against the projections;
3. the house: whether a freeze stands, rows of sessions that are not there;
4. blobs: content against digest;
5. the file: its pages, indexes and schema, and the rows that only have a sum;
6. anchors: signed heads, those in the database and those that somebody kept elsewhere.

One session alone needs only its own rows. What was found is a list of findings; an empty one is the
proof. Invariants are those of the design, see `loopd.store.request.INVARIANTS`.
"""

from __future__ import annotations

import logging
import sqlite3
from time import perf_counter
from typing import Any

import msgspec

from loopd import __version__
from loopd.store import anchors, chain, crew, parts
from loopd.store.blob_check import BlobCheck
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.session_check import SessionCheck
from loopd.store.suspension import suspension
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd.store")


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
    if request.sid is None:
        _whole(connection, request, findings, checked)
        first = connection.execute("SELECT coalesce(min(seq), 0) FROM journal").fetchone()[0]
        result["range"]["first"] = first
    else:
        num = _number(connection, request.sid)
        result["sid"] = request.sid
        checked["events"] = _session(connection, request, findings, num)
        checked["sessions"] = 1
        checked["blobs"] = BlobCheck(connection, request, findings).of_session(num)
        result["range"], result["session"] = _ends(connection, num)
        if request.suspended_since is not None:
            result["proof"] = suspension(connection, num, request, findings)
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


def _session(connection: sqlite3.Connection, request: Request, findings: Findings, num: int) -> int:
    assert request.sid is not None
    scratch = Scratch()
    try:
        return SessionCheck(connection, request, findings, scratch, num=num, sid=request.sid).run()
    finally:
        scratch.close()


_COUNTED = {"log": "events", "sessions": "sessions", "blobs": "blobs"}


def _whole(
    connection: sqlite3.Connection, request: Request, findings: Findings, checked: dict[str, int]
) -> None:
    """All parts of a log: by a crew of processes if it is large enough, else here, one after the other."""
    found = parts.parts_of(connection)
    rows = parts.rows_of(found)

    def count(part: parts.Part, counted: int) -> None:
        if part.what in _COUNTED:
            checked[_COUNTED[part.what]] += counted

    if crew.is_worth_it(request, rows):
        try:
            outcomes = crew.Crew(request, found).run()
        except OSError as error:
            logger.warning("no process can be started, so one verifies all", extra={"error": str(error)})
        else:
            for part, outcome in zip(found, outcomes, strict=True):
                findings.take_over(outcome.findings)
                count(part, outcome.count)
            return
    done = 0

    def looked(more: int) -> None:
        nonlocal done
        done += more
        request.progress("rows", done, rows)

    told = msgspec.structs.replace(request, looked=looked)
    scratch = Scratch()
    try:
        for part in found:
            count(part, parts.carry_out(connection, told, part, findings, scratch))
    finally:
        scratch.close()
