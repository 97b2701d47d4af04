"""The first pass: the whole log in order of `seq`, and what each boot says of itself."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import msgspec

from loopd.store import chain
from loopd.store.deletions import Deletions
from loopd.store.request import Findings, Request
from loopd.store.rows import Row, pages_of_log
from loopd_protocol import events as ev


class _Boot(NamedTuple):
    n: int
    id: str
    version: str
    epoch: int
    at_ms: int
    head: int
    log: str | None


class LogCheck:
    """Streams all rows once."""

    def __init__(self, connection: sqlite3.Connection, request: Request, findings: Findings) -> None:
        self._connection = connection
        self._request = request
        self._findings = findings
        log = "log" if connection.execute("PRAGMA user_version").fetchone()[0] >= 3 else "NULL"
        rows = connection.execute(
            f"SELECT n, id, version, epoch, at_ms, head, {log} FROM boot ORDER BY n"  # noqa: S608  (constants)
        ).fetchall()
        self._boots = {row[0]: _Boot(*row) for row in rows}
        self._firsts: dict[int, int] = {}
        self._previous = chain.log_genesis(request.log_id)
        self._expected = 1
        self._epoch = self._boot = 0
        self._deletions = Deletions(connection, findings)

    def run(self) -> int:
        """Check all rows; returns how many there are."""
        count = 0
        for page in pages_of_log(self._connection):
            self._request.check()
            count += len(page)
            self._findings.looked("I8", len(page))
            self._findings.looked("I7", len(page))
            for row in page:
                self._row(row)
            self._request.looked(len(page))
        self._accounts()
        self._deletions.finish()
        return count

    def _row(self, row: Row) -> None:
        findings = self._findings
        if self._deletions.within(row.seq):
            return  # its month is being deleted; what is left of it goes in a moment
        while row.seq != self._expected and (month := self._deletions.behind(self._expected)) is not None:
            if month.prev_h != self._previous:
                findings.add("chain", f"month {month.month} does not follow what is before it", seq=row.seq)
            self._previous, self._expected = month.head_h, month.last_seq + 1
        self._deletions.see(row)
        if row.seq != self._expected:
            findings.add("I8", f"seq jumps from {self._expected - 1} to {row.seq}", seq=self._expected)
        if chain.link(self._previous, row.digest()) != row.h:
            findings.add("chain", f"{row.kind!r} does not match its hash or its predecessor's", **_where(row))
        if not row.sid:
            for what in row.oddities():
                findings.add("row", what, **_where(row))
        if row.epoch < self._epoch or row.boot < self._boot:
            what = f"epoch {row.epoch}, boot {row.boot} after epoch {self._epoch}, boot {self._boot}"
            findings.add("I7", what, **_where(row))
        if row.boot not in self._firsts:
            self._begins(row, _where(row))
        if row.kind == "daemon.started":
            self._started(row, _where(row))
        self._previous, self._expected = row.h, row.seq + 1
        self._epoch, self._boot = max(self._epoch, row.epoch), max(self._boot, row.boot)

    def _begins(self, row: Row, where: dict[str, Any]) -> None:
        self._firsts[row.boot] = row.seq
        boot = self._boots.get(row.boot)
        if boot is None:
            self._findings.add("boot", f"boot {row.boot} is not listed", table="boot", **where)
        elif boot.epoch != row.epoch:
            what = f"boot {row.boot} is listed with epoch {boot.epoch}; its events have {row.epoch}"
            self._findings.add("boot", what, table="boot", **where)

    def _started(self, row: Row, where: dict[str, Any]) -> None:
        boot = self._boots.get(row.boot)
        if boot is None or row.body is None:
            return
        try:
            said = msgspec.json.decode(row.body, type=ev.DaemonStarted)
        except (msgspec.MsgspecError, ValueError) as error:
            self._findings.add("body", f"{row.kind!r} cannot be decoded: {error}", **where)
            return
        listed = (boot.id, boot.version, boot.epoch, boot.log or "")
        told = (
            said.boot,
            said.version,
            said.epoch,
            said.log or (boot.log or ""),
        )  # of before schema 3: silent
        if listed != told:
            what = f"boot {row.boot} is listed as {listed}; it said {told}"
            self._findings.add("boot", what, table="boot", **where)

    def _accounts(self) -> None:
        """Each boot began where the one before it had ended, and `meta` knows the last one."""
        following = self._expected
        for n in sorted(self._boots, reverse=True):
            first = self._firsts.get(n, following)
            if self._deletions.within(self._boots[n].head + 1):
                first = self._boots[n].head + 1  # its first events went with their month
            if self._boots[n].head != first - 1:
                what = f"boot {n} is listed to begin behind seq {self._boots[n].head}; its first is {first}"
                self._findings.add("boot", what, table="boot", seq=first)
            following = first
        last = max(self._boots, default=0)
        if sorted(self._boots) != list(range(1, last + 1)):
            self._findings.add(
                "boot", f"{len(self._boots)} boots are listed, the last is {last}", table="boot"
            )
        epoch, boots = self._connection.execute("SELECT epoch, boots FROM meta").fetchone()
        known = self._boots[last].epoch if last else 0
        if (epoch, boots) != (known, last):
            what = f"meta says epoch {epoch}, boot {boots}; listed is epoch {known}, boot {last}"
            self._findings.add("boot", what, table="meta")


def _where(row: Row) -> dict[str, Any]:
    return {"seq": row.seq, "ss": row.ss}


def frozen(connection: sqlite3.Connection, findings: Findings) -> None:
    """Whether the freeze that stands is the one that the journal says."""
    connection.execute("BEGIN")  # a freeze may come between two looks
    try:
        row = connection.execute(
            "SELECT kind, body FROM journal WHERE kind IN ('daemon.frozen', 'daemon.unfrozen') "
            "AND sid IS NULL AND ss = 0 ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        stored = connection.execute("SELECT frozen FROM meta").fetchone()[0]
    finally:
        connection.execute("COMMIT")
    findings.looked("I9")
    expected = (
        row[1].decode("utf-8", "replace")
        if row is not None and row[0] == "daemon.frozen" and row[1]
        else None
    )
    if stored != expected:
        findings.add("I9", f"frozen is {stored!r}; the journal says {expected!r}", table="meta")
