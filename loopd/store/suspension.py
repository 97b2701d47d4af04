"""The proof of a suspension, taken from a journal or from an archive."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from loopd.store.request import Findings, Request
from loopd.store.rows import PAGE_ROWS, Row, session_page
from loopd_protocol import events as ev


def suspension(
    connection: sqlite3.Connection, num: int, request: Request, findings: Findings
) -> dict[str, Any]:
    """Contract 3 of the gate on the journal: no turn begins after `suspended_since` while it stands.

    Returns:
        `suspended_since`, `suspend_seq` and `hash` of the `gate.changed` that made it so, the turn that
        was in flight, `lifted_seq` and `lifted_by` if it was lifted, `turns_after` (turns that began
        in between; the proof is that there are none) and `checked_through`.
    """
    head = connection.execute("SELECT max(seq) FROM journal").fetchone()[0] or 0
    return proof_of(
        _rows(connection, num), request.suspended_since or 0, int(head), findings, sid=request.sid or ""
    )


def _rows(connection: sqlite3.Connection, num: int) -> Iterator[Row]:
    after = 0
    while True:
        page = session_page(connection, num, after)
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].ss


def proof_of(rows: Iterable[Row], since: int, head: int, findings: Findings, *, sid: str) -> dict[str, Any]:
    """The same on rows of one session, in order; `head` is the last event up to which there are no others of it."""
    where = {"sid": sid, "seq": since}
    proof: dict[str, Any] = {
        "suspended_since": since,
        "suspend_seq": None,
        "hash": None,
        "turn_in_flight": None,
        "lifted_seq": None,
        "lifted_by": None,
        "turns_after": 0,
        "checked_through": since,
    }
    standing = False
    running: int | None = None
    suspend: Row | None = None
    for row in rows:
        if row.seq > since:
            if not standing:
                break
            proof["checked_through"] = row.seq
        if row.kind == "turn.started":
            if row.seq > since:
                proof["turns_after"] += 1
                findings.add("contract 3", "a turn began during the suspension", sid=sid, seq=row.seq)
            running = row.turn
        elif row.kind in ("turn.completed", "turn.interrupted"):
            running = None if row.seq <= since else running
        elif row.kind == "gate.changed" and row.body is not None:
            try:
                event = msgspec.json.decode(row.body, type=ev.GateChanged)
            except (msgspec.MsgspecError, ValueError) as error:
                findings.add("body", f"{row.kind!r} cannot be decoded: {error}", sid=sid, seq=row.seq)
                continue
            stands = any(hold.kind == "UserSuspend" for hold in event.holds)
            if row.seq > since and ("UserSuspend" in event.removed or not stands):
                proof["lifted_seq"], proof["lifted_by"] = row.seq, f"{event.cause} by {event.by}"
                break
            if row.seq <= since:
                if event.added is not None and event.added.kind == "UserSuspend":
                    suspend = row
                elif not stands:
                    suspend = None
                standing = stands
                if stands and suspend is None:
                    suspend = row
        if row.seq <= since:
            proof["turn_in_flight"] = running
    if since > head:
        # The end of the log is missing, or this is the number of another log: nothing is proven by it.
        proof["checked_through"] = head
        findings.add("contract 3", f"seq {since} is not in the log; it ends with {head}", **where)
    elif suspend is None:
        findings.add("contract 3", f"no UserSuspend stood at seq {since}", **where)
    else:
        proof["suspend_seq"], proof["hash"] = suspend.seq, suspend.h.hex()
        if proof["lifted_seq"] is None:
            proof["checked_through"] = max(proof["checked_through"], head)
    return proof
