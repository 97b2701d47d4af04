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
from hashlib import sha256
from typing import Any

import msgspec

from loopd.core.evolution import evolve as core_evolve
from loopd.core.state import Session
from loopd.store import chain
from loopd.store.invariants import SessionInvariants
from loopd.store.ledger import unpacked
from loopd.store.projection import Placed, Plan, decode_state
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.rows import PAGE_ROWS, Row, rows_of_log, session_page
from loopd.store.suspension import suspension
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused


def run(connection: sqlite3.Connection, request: Request) -> dict[str, Any]:
    """Verify and tell.

    Returns:
        `{"ok", "log", "head", "checked": {"events", "sessions", "blobs"}, "findings": […]}`, with
        `findings_total` when there are more than are listed, and `proof` for `suspended_since`.

    Raises:
        Refused: `not_found` for an unknown session, `invalid` for `suspended_since` without one.
    """
    if request.suspended_since is not None and request.sid is None:
        raise Refused("invalid", "suspended_since needs a session", path="$.sid")
    findings = Findings()
    checked = {"events": 0, "sessions": 0, "blobs": 0}
    head = connection.execute("SELECT max(seq) FROM journal").fetchone()[0] or 0
    result: dict[str, Any] = {"ok": False, "log": request.log_id, "head": head, "checked": checked}
    if request.sid is not None:
        num = _number(connection, request.sid)
        result["sid"] = request.sid
        checked["events"] = _session(connection, request, num, request.sid, findings)
        checked["sessions"] = 1
        checked["blobs"] = _blobs_of(connection, num, findings)
        if request.suspended_since is not None:
            result["proof"] = suspension(connection, num, request, findings)
    else:
        checked["events"] = _log(connection, request.log_id, findings)
        after = 0
        while True:
            row = connection.execute(
                "SELECT num, sid FROM session WHERE num > ? ORDER BY num LIMIT 1", (after,)
            ).fetchone()
            if row is None:
                break
            after = row[0]
            _session(connection, request, row[0], row[1], findings)
            checked["sessions"] += 1
        _strays(connection, findings)
        _frozen(connection, findings)
        checked["blobs"] = _blobs(connection, findings)
    result["findings"] = findings.listed
    if findings.total > len(findings.listed):
        result["findings_total"] = findings.total
    result["ok"] = findings.total == 0
    return result


def _number(connection: sqlite3.Connection, sid: str) -> int:
    row = connection.execute("SELECT num FROM session WHERE sid = ?", (sid,)).fetchone()
    if row is None:
        raise Refused("not_found", f"no session {sid!r}", path="$.sid")
    return int(row[0])


# -- pass 1: the log --------------------------------------------------------------------------


def _log(connection: sqlite3.Connection, log_id: str, findings: Findings) -> int:
    previous = chain.log_genesis(log_id)
    expected, epoch, boot, count = 1, 0, 0, 0
    for row in rows_of_log(connection):
        count += 1
        if row.seq != expected:
            findings.add("I8", f"seq jumps from {expected - 1} to {row.seq}", seq=expected)
        if chain.link(previous, row.digest()) != row.h:
            findings.add(
                "chain", f"{row.kind!r} does not match its hash or its predecessor's", seq=row.seq, ss=row.ss
            )
        if row.epoch < epoch or row.boot < boot:
            findings.add(
                "I7",
                f"epoch {row.epoch}, boot {row.boot} after epoch {epoch}, boot {boot}",
                seq=row.seq,
            )
        previous, expected = row.h, row.seq + 1
        epoch, boot = max(epoch, row.epoch), max(boot, row.boot)
    return count


def _strays(connection: sqlite3.Connection, findings: Findings) -> None:
    """Rows of sessions that the projections do not know."""
    after = 0
    while True:
        row = connection.execute(
            "SELECT sid, ss, seq FROM journal WHERE sid > ? ORDER BY sid, ss LIMIT 1", (after,)
        ).fetchone()
        if row is None:
            return
        after = row[0]
        if connection.execute("SELECT 1 FROM session WHERE num = ?", (after,)).fetchone() is None:
            findings.add("I9", f"session number {after} has events and no row", seq=row[2], table="session")


def _frozen(connection: sqlite3.Connection, findings: Findings) -> None:
    row = connection.execute(
        "SELECT kind, body FROM journal WHERE kind IN ('daemon.frozen', 'daemon.unfrozen') "
        "AND sid IS NULL ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    expected = row[1].decode() if row is not None and row[0] == "daemon.frozen" and row[1] else None
    stored = connection.execute("SELECT frozen FROM meta").fetchone()[0]
    if stored != expected:
        findings.add("I9", f"frozen is {stored!r}; the journal says {expected!r}", table="meta")


# -- pass 2: sessions -------------------------------------------------------------------------


def _session(connection: sqlite3.Connection, request: Request, num: int, sid: str, findings: Findings) -> int:
    evolve = request.evolve or core_evolve
    scratch = Scratch()
    try:
        invariants = SessionInvariants(sid, findings.add)
        state: Session | None = None
        foldable = True
        previous = chain.session_genesis(request.log_id, num)
        after = count = 0
        while True:
            # Short pages; the last one and the comparison share one snapshot.
            connection.execute("BEGIN")
            try:
                page = session_page(connection, num, after)
                before, placed = state, []
                for row in page:
                    count += 1
                    where = {"sid": sid, "seq": row.seq, "ss": row.ss}
                    if row.ss != after + 1:
                        findings.add("I8", f"ss jumps from {after} to {row.ss}", **where)
                    if chain.link(previous, row.digest()) != row.sh:
                        findings.add(
                            "session chain",
                            f"{row.kind!r} does not match its hash or its predecessor's",
                            **where,
                        )
                    previous, after = row.sh or b"", row.ss
                    event = _event(row, findings, where)
                    if event is None:
                        foldable = False  # the content is gone or newer: what follows cannot be refolded
                        continue
                    invariants.see(row.seq, row.ss, row.boot, event)
                    placed.append(Placed(row.seq, row.ss, row.at_ms, event, row.body or b""))
                    if foldable:
                        try:
                            state = evolve(state, event, ss=row.ss, at_ms=row.at_ms)
                        except Exception as error:  # noqa: BLE001  (a finding, whatever it was)
                            foldable = False
                            findings.add("I9", f"{row.kind!r} cannot be refolded: {error}", **where)
                if foldable and state is not None and placed:
                    plan = Plan()
                    plan.add(num, before, state, placed)
                    scratch.apply(plan)
                if len(page) < PAGE_ROWS:
                    _finish(
                        connection,
                        num,
                        sid,
                        state=state if foldable else None,
                        scratch=scratch,
                        invariants=invariants,
                        findings=findings,
                    )
                    return count
            finally:
                connection.execute("COMMIT")
    finally:
        scratch.close()


def _finish(
    connection: sqlite3.Connection,
    num: int,
    sid: str,
    *,
    state: Session | None,
    scratch: Scratch,
    invariants: SessionInvariants,
    findings: Findings,
) -> None:
    boots = connection.execute("SELECT boots FROM meta").fetchone()[0]
    last = connection.execute("SELECT at_ms FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
    stored = connection.execute("SELECT state FROM session WHERE num = ?", (num,)).fetchone()
    try:
        found = decode_state(stored[0])
    except (msgspec.MsgspecError, TypeError) as error:
        findings.add("I9", f"the stored state cannot be read: {error}", sid=sid, table="session")
        found = None
    invariants.finish(boot=boots, now=last[0] if last else 0, state=found)
    if state is None:
        return
    if found is not None and found != state:
        fields = [f for f in Session.__struct_fields__ if getattr(found, f) != getattr(state, f)]
        findings.add(
            "I9", f"the stored state differs from the refold in {', '.join(fields)}", sid=sid, table="session"
        )
    for table, what in scratch.differences(connection, num):
        findings.add("I9", what, sid=sid, table=table)


def _event(row: Row, findings: Findings, where: dict[str, Any]) -> ev.Event | None:
    kind = ev.EVENT_TYPES.get(row.kind)
    if row.body is None or kind is None:
        return None
    try:
        return msgspec.json.decode(row.body, type=kind)
    except msgspec.MsgspecError as error:
        findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **where)
        return None


# -- pass 3: blobs ----------------------------------------------------------------------------


def _blobs(connection: sqlite3.Connection, findings: Findings) -> int:
    after = count = 0
    while True:
        page = connection.execute(
            "SELECT id, sha, codec, len, data FROM blob WHERE id > ? ORDER BY id LIMIT 64", (after,)
        ).fetchall()
        for row in page:
            after = row[0]
            count += 1
            _check_blob(row[1], row[2], row[3], row[4], findings)
        if len(page) < 64:
            break
    after = 0
    while True:  # rows whose blob is not there
        row = connection.execute(
            "SELECT seq, blob FROM journal WHERE seq > ? AND blob IS NOT NULL "
            "AND blob NOT IN (SELECT sha FROM blob) ORDER BY seq LIMIT 1",
            (after,),
        ).fetchone()
        if row is None:
            return count
        after = row[0]
        findings.add("blob", f"blob {row[1].hex()} is missing", seq=row[0])


def _blobs_of(connection: sqlite3.Connection, num: int, findings: Findings) -> int:
    after = count = 0
    while True:
        page = connection.execute(
            "SELECT j.ss, j.seq, j.blob, b.codec, b.len, b.data FROM journal AS j "
            "LEFT JOIN blob AS b ON b.sha = j.blob "
            "WHERE j.sid = ? AND j.ss > ? AND j.blob IS NOT NULL ORDER BY j.ss LIMIT 64",
            (num, after),
        ).fetchall()
        for ss, seq, sha, codec, size, data in page:
            after = ss
            count += 1
            if data is None:
                findings.add("blob", f"blob {sha.hex()} is missing", seq=seq, ss=ss)
            else:
                _check_blob(sha, codec, size, data, findings, seq=seq, ss=ss)
        if len(page) < 64:
            return count


def _check_blob(sha: bytes, codec: str, size: int, data: bytes, findings: Findings, **where: Any) -> None:
    try:
        content = unpacked(codec, data)
    except Exception as error:  # noqa: BLE001  (damaged data may raise anything)
        findings.add("blob", f"blob {sha.hex()} cannot be unpacked: {error}", **where)
        return
    if sha256(content).digest() != sha or len(content) != size:
        findings.add("blob", f"blob {sha.hex()} does not match its digest", **where)
