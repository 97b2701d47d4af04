"""The second pass: the rows of one session against their chain, the invariants and the projections."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from loopd import __version__
from loopd.core.evolution import evolve as core_evolve
from loopd.core.state import Session
from loopd.store import chain
from loopd.store.blob_check import missing, references
from loopd.store.invariants import SessionInvariants
from loopd.store.projection import Placed, Plan, decode_state
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.rows import PAGE_ROWS, Row, session_page
from loopd_protocol import events as ev


class SessionCheck:
    """Streams one session's rows once, in pages, and compares what they add up to."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        request: Request,
        findings: Findings,
        scratch: Scratch,
        *,
        num: int,
        sid: str,
    ) -> None:
        self._connection = connection
        self._request = request
        self._findings = findings
        self._scratch = scratch
        self._num = num
        self._sid = sid
        self._evolve = request.evolve or core_evolve
        self._invariants = SessionInvariants(sid, findings.add)
        self._state: Session | None = None
        self._foldable = True
        self._previous = chain.session_genesis(request.log_id, num)
        self._ss = 0
        self._boot = self._first_boot = 0

    def run(self) -> int:
        """Check all rows; returns how many there are."""
        count = 0
        try:
            while True:
                self._request.check()
                # Pages are short transactions; the last one and the comparison share a snapshot.
                self._connection.execute("BEGIN")
                try:
                    page = session_page(self._connection, self._num, self._ss)
                    count += len(page)
                    self._take(page)
                    if len(page) < PAGE_ROWS:
                        self._compare()
                        return count
                finally:
                    if self._connection.in_transaction:
                        self._connection.execute("COMMIT")
        finally:
            self._scratch.forget(self._num)

    def _take(self, page: list[Row]) -> None:
        before, placed = self._state, []
        for row in page:
            where = {"sid": self._sid, "seq": row.seq, "ss": row.ss}
            if row.ss != self._ss + 1:
                self._findings.add("I8", f"ss jumps from {self._ss} to {row.ss}", **where)
            if chain.link(self._previous, row.digest()) != row.sh:
                what = f"{row.kind!r} does not match its hash or its predecessor's"
                self._findings.add("session chain", what, **where)
            self._previous, self._ss, self._boot = row.sh or b"", row.ss, row.boot
            self._first_boot = self._first_boot or row.boot
            event = self._event(row, where)
            self._blobs(row, event, where)
            if event is None:
                self._foldable = False  # its content is gone or from the future: no refold beyond it
                continue
            self._invariants.see(row.seq, row.ss, row.boot, event)
            placed.append(Placed(row.seq, row.ss, row.at_ms, event, row.body or b""))
            self._fold(event, row, where)
        if self._foldable and self._state is not None and placed:
            plan = Plan()
            plan.add(self._num, before, self._state, placed)
            self._scratch.apply(plan)

    def _event(self, row: Row, where: dict[str, Any]) -> ev.Event | None:
        kind = ev.EVENT_TYPES.get(row.kind)
        if row.body is None or kind is None:
            return None
        try:
            return msgspec.json.decode(row.body, type=kind)
        except msgspec.MsgspecError as error:
            self._findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **where)
            return None

    def _blobs(self, row: Row, event: ev.Event | None, where: dict[str, Any]) -> None:
        named = {row.blob} if row.blob is not None else set()
        if event is not None:
            named |= {bytes.fromhex(digest.removeprefix("sha256:")) for digest in references(event)}
        for digest in missing(self._connection, named):
            self._findings.add("blob", f"blob {digest} is missing", **where)

    def _fold(self, event: ev.Event, row: Row, where: dict[str, Any]) -> None:
        if not self._foldable:
            return
        try:
            self._state = self._evolve(self._state, event, ss=row.ss, at_ms=row.at_ms)
        except Exception as error:  # noqa: BLE001  (a finding, whatever it was)
            self._foldable = False
            self._findings.add("I9", f"{row.kind!r} cannot be refolded: {error}", **where)

    def _compare(self) -> None:
        """The state, the invariants that need an end, and the projections."""
        connection, sid = self._connection, self._sid
        boots = connection.execute("SELECT boots FROM meta").fetchone()[0]
        last = connection.execute("SELECT at_ms FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        stored = connection.execute("SELECT state FROM session WHERE num = ?", (self._num,)).fetchone()
        found: Session | None = None
        try:
            found = decode_state(stored[0])
        except (msgspec.MsgspecError, TypeError) as error:
            self._findings.add("I9", f"the stored state cannot be read: {error}", sid=sid, table="session")
        self._invariants.finish(boot=boots, now=last[0] if last else 0, state=found)
        if not self._foldable or self._state is None:
            return
        add = self._findings.add if self._same_version() else self._findings.note
        if found is not None and found != self._state:
            fields = [
                name
                for name in Session.__struct_fields__
                if getattr(found, name) != getattr(self._state, name)
            ]
            what = f"the stored state differs from the refold in {', '.join(fields)}"
            add("I9", what, sid=sid, table="session")
        for table, what in self._scratch.differences(connection, self._num):
            (add if table == "session" else self._findings.add)("I9", what, sid=sid, table=table)

    def _same_version(self) -> bool:
        """Whether all of the session was derived by the version that refolds it now.

        Only what rules and counters derive may differ after an update; the other tables may not.
        """
        others = self._connection.execute(
            "SELECT count(*) FROM boot WHERE n BETWEEN ? AND ? AND version <> ?",
            (self._first_boot, self._boot, __version__),
        ).fetchone()
        return int(others[0]) == 0
