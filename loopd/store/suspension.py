"""The proof of a suspension, taken from the journal."""

from __future__ import annotations

import sqlite3
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
    since = request.suspended_since or 0
    where = {"sid": request.sid, "seq": since}
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
    after = 0
    while True:
        page = session_page(connection, num, after)
        for row in page:
            after = row.ss
            if row.seq > since:
                if not standing:
                    break
                proof["checked_through"] = row.seq
            if row.kind == "turn.started":
                if row.seq > since:
                    proof["turns_after"] += 1
                    findings.add(
                        "contract 3", "a turn began during the suspension", sid=request.sid, seq=row.seq
                    )
                running = row.turn
            elif row.kind in ("turn.completed", "turn.interrupted"):
                running = None if row.seq <= since else running
            elif row.kind == "gate.changed" and row.body is not None:
                try:
                    event = msgspec.json.decode(row.body, type=ev.GateChanged)
                except (msgspec.MsgspecError, ValueError) as error:
                    findings.add(
                        "body", f"{row.kind!r} cannot be decoded: {error}", sid=request.sid, seq=row.seq
                    )
                    continue
                stands = any(hold.kind == "UserSuspend" for hold in event.holds)
                if row.seq > since and ("UserSuspend" in event.removed or not stands):
                    proof["lifted_seq"], proof["lifted_by"] = row.seq, f"{event.cause} by {event.by}"
                    standing = False
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
        else:
            if len(page) == PAGE_ROWS:
                continue
        break
    head = connection.execute("SELECT max(seq) FROM journal").fetchone()[0] or 0
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
