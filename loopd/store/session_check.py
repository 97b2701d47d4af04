"""The second pass: the rows of one session against their chain, the invariants and the projections."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from msgspec.structs import replace

from loopd.core.evolution import DERIVATION
from loopd.core.evolution import evolve as core_evolve
from loopd.core.state import Running, Session
from loopd.store import chain
from loopd.store.blob_check import missing, references
from loopd.store.invariants import SessionInvariants
from loopd.store.projection import Placed, Plan, decode_state
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd.store.rows import PAGE_ROWS, Row, session_page
from loopd.store.segments import links_of_session
from loopd_protocol import events as ev

_DECODERS: dict[str, msgspec.json.Decoder[ev.Event]] = {
    kind: msgspec.json.Decoder(event) for kind, event in ev.EVENT_TYPES.items()
}


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
        self._invariants = SessionInvariants(sid, findings.add, findings.looked)
        self._state: Session | None = None
        self._foldable = True
        self._previous = chain.session_genesis(request.log_id, num)
        self._ss = 0
        self._boot = self._first_boot = 0
        self._links = {link.first_ss: link for link in links_of_session(connection, num)}

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
                    self._findings.looked("I8", len(page))
                    self._take(page)
                    if len(page) < PAGE_ROWS:
                        self._pass_over()
                        self._compare()
                        self._request.looked(len(page))
                        return count
                finally:
                    if self._connection.in_transaction:
                        self._connection.execute("COMMIT")
                self._request.looked(len(page))
        finally:
            self._scratch.forget(self._num)

    def _take(self, page: list[Row]) -> None:
        before, placed = self._state, []
        named: dict[bytes, list[Row]] = {}
        for row in page:
            if row.ss <= self._ss or self._ss + 1 in self._links:
                self._pass_over()
                if row.ss <= self._ss:
                    continue  # its month is being deleted; what is left of it goes in a moment
            for what in row.oddities():
                self._findings.add("row", what, **self._where(row))
            if row.ss != self._ss + 1:
                self._findings.add("I8", f"ss jumps from {self._ss} to {row.ss}", **self._where(row))
            if chain.link(self._previous, row.digest()) != row.sh:
                what = f"{row.kind!r} does not match its hash or its predecessor's"
                self._findings.add("session chain", what, **self._where(row))
            self._previous, self._ss, self._boot = row.sh or b"", row.ss, row.boot
            self._first_boot = self._first_boot or row.boot
            event = self._event(row)
            self._name(named, row, event)
            if event is None:
                self._invariants.unseen(row.kind, row.turn, row.boot)
                self._foldable = False  # its content is gone or from the future: no refold beyond it
                continue
            if row.whole is None:
                self._foldable = False  # what is left of it does not make the same state
            self._invariants.see(row.seq, row.ss, row.boot, event)
            placed.append(Placed(row.seq, row.ss, row.at_ms, event, row.body or b""))
            self._fold(event, row)
        for digest in sorted(missing(self._connection, named)):
            for row in named[digest]:
                self._findings.add("blob", f"blob {digest.hex()} is missing", **self._where(row))
        if self._foldable and self._state is not None and placed:
            plan = Plan()
            plan.add(self._num, before, self._state, placed)
            self._scratch.apply(plan)

    def _pass_over(self) -> None:
        """Go on behind rows that went with their month, from the links that they left."""
        while (link := self._links.get(self._ss + 1)) is not None:
            if link.prev_sh != self._previous:
                what = f"what was deleted of it (ss {link.first_ss} to {link.last_ss}) does not follow"
                self._findings.add("session chain", what, sid=self._sid, ss=link.first_ss)
            self._previous, self._ss = link.sh, link.last_ss
            self._foldable = False
            self._invariants.gap()

    def _where(self, row: Row) -> dict[str, Any]:
        return {"sid": self._sid, "seq": row.seq, "ss": row.ss}

    def _event(self, row: Row) -> ev.Event | None:
        decoder = _DECODERS.get(row.kind)
        if row.body is None or decoder is None:
            return None
        try:
            return decoder.decode(row.body)
        except (msgspec.MsgspecError, ValueError) as error:
            self._findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **self._where(row))
            return None

    def _name(self, named: dict[bytes, list[Row]], row: Row, event: ev.Event | None) -> None:
        """Note the blobs that a row needs."""
        if row.whole is None:
            return  # with its content, its blobs may have gone
        digests = {row.blob} if row.blob is not None else set()
        if event is not None:
            digests |= {bytes.fromhex(digest.removeprefix("sha256:")) for digest in references(event)}
        for digest in digests:
            named.setdefault(digest, []).append(row)

    def _fold(self, event: ev.Event, row: Row) -> None:
        if not self._foldable:
            return
        try:
            self._state = self._evolve(self._state, event, ss=row.ss, at_ms=row.at_ms)
        except Exception as error:  # noqa: BLE001  (a finding, whatever it was)
            self._foldable = False
            self._findings.add("I9", f"{row.kind!r} cannot be refolded: {error}", **self._where(row))

    def _compare(self) -> None:
        """The state, the invariants that need an end, and the projections."""
        connection, sid = self._connection, self._sid
        boot, since_ms = standing(connection)
        last = connection.execute("SELECT at_ms FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        stored = connection.execute("SELECT state FROM session WHERE num = ?", (self._num,)).fetchone()
        found: Session | None = None
        try:
            found = decode_state(stored[0])
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            self._findings.add("I9", f"the stored state cannot be read: {error}", sid=sid, table="session")
        self._invariants.finish(boot=boot, now=last[0] if last else 0, state=found, since_ms=since_ms)
        if not self._foldable or self._state is None:
            return
        derived = self._findings.add if self._derived_here() else self._findings.note
        if found is not None:
            self._findings.looked("I9")
            strict, lenient = differing(found, self._state, elsewhere=not self._derived_here())
            words = "the stored state differs from the refold in {}"
            if strict:
                self._findings.add("I9", words.format(", ".join(strict)), sid=sid, table="session")
            if lenient:
                derived("I9", words.format(", ".join(lenient)), sid=sid, table="session")
        for table, what, is_derived in self._scratch.differences(
            connection, self._num, self._findings.looked, exact=self._derived_here()
        ):
            (derived if is_derived else self._findings.add)("I9", what, sid=sid, table=table)

    def _derived_here(self) -> bool:
        """Whether all of the session was derived in the way in which it is refolded now.

        What rules and counters derive may differ after an update; nothing else ever may.
        """
        others = self._connection.execute(
            "SELECT count(*) FROM boot WHERE n BETWEEN ? AND ? AND derivation <> ?",
            (self._first_boot, self._boot, DERIVATION),
        ).fetchone()
        return int(others[0]) == 0


DERIVED = frozenset(
    {"rules", "stops", "repeat_streak", "barren_streak", "progress_ms", "toolless_continuations"}
)
"""Fields of the state that follow from what rules and counters make of the events."""


def differing(stored: Session, folded: Session, *, elsewhere: bool) -> tuple[list[str], list[str]]:
    """Fields in which two states differ: those that only events determine, and those that rules derive.

    A state that was derived `elsewhere` cannot have what was invented since: such a field has its default.
    """
    strict, lenient = [], []
    blank = Session(sid="", num=0, name="", driver={}, preset="") if elsewhere else None
    for name in Session.__struct_fields__:
        one, other = getattr(stored, name), getattr(folded, name)
        if one == other:
            continue
        if name in DERIVED or (blank is not None and one == getattr(blank, name)):
            lenient.append(name)
        elif name == "spent" and replace(one, barren=0) == replace(other, barren=0):
            lenient.append("spent.barren")
        elif name == "turn" and one is not None and other is not None and _bare(one) == _bare(other):
            lenient.append("turn")
        else:
            strict.append(name)
    return strict, lenient


def _bare(turn: Running) -> Running:
    return replace(turn, progressed=False, near={})


def standing(connection: sqlite3.Connection) -> tuple[int | None, int]:
    """The boot that has taken the sessions over, and by when it was to have carried out what was overdue.

    None: the last boot died before it came to that, so what it would have done is not missing.
    """
    boots, at_ms = connection.execute(
        "SELECT boots, (SELECT at_ms FROM boot WHERE n = boots) FROM meta"
    ).fetchone()
    try:
        rows = dict(
            connection.execute("SELECT boot, body FROM recovery ORDER BY boot DESC LIMIT 1").fetchall()
        )
    except sqlite3.OperationalError:  # schema 1 has no such table
        rows = {}
    if rows and boots not in rows:
        return None, 0
    spread_ms = msgspec.json.decode(rows[boots]).get("spread_ms", 0) if rows else 0
    return boots, (at_ms or 0) + spread_ms
