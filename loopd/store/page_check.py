"""The pass beside the chains: pages and indexes of the file, its schema, and rows that only have a sum.

The chains read rows through tables and indexes; an index that lost an entry, or a page that is used twice,
changes no row of the journal and yet lets a command run a second time.
"""

from __future__ import annotations

import re
import sqlite3

from loopd.store.request import Findings, Request
from loopd.store.schema import migrate
from loopd.store.sums import is_whole
from loopd_protocol.errors import Refused

PAGE_ROWS = 1_000
FAULTS_MAX = 10
STEPS_BETWEEN_LOOKS = 200_000
"""Steps of SQLite's machine after which it is asked whether anybody still wants to know: some 10 ms."""

_ANSWERS = "principal", "key", "command_sha256", "result", "seq", "at_ms"
_NOISE = re.compile(r"--[^\n]*|[\s\"]+")


class PageCheck:
    """Checks the file as SQLite sees it."""

    def __init__(self, connection: sqlite3.Connection, request: Request, findings: Findings) -> None:
        self._connection = connection
        self._request = request
        self._findings = findings

    def run(self) -> None:
        """Check pages, schema and sums.

        Raises:
            Refused: `cancelled`.
        """
        self._schema()
        self._pages()
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version >= 2:
            self._recoveries()
        if version >= 3:
            self._answers()
            self._house()

    def _pages(self) -> None:
        """Pages, free list, indexes against tables, constraints: each page is read once."""
        stopped = self._request.stopped
        self._connection.set_progress_handler(stopped, STEPS_BETWEEN_LOOKS)
        try:
            rows = self._connection.execute(f"PRAGMA integrity_check({FAULTS_MAX})").fetchall()
        except sqlite3.OperationalError as error:
            if stopped():
                raise Refused("cancelled", "the verification was called off") from error
            raise
        finally:
            self._connection.set_progress_handler(None, 0)
        for (what,) in rows:
            if what != "ok":
                self._findings.add("pages", str(what))

    def _schema(self) -> None:
        """Tables and indexes are those that the migrations make."""
        made = sqlite3.connect(":memory:", isolation_level=None)
        try:
            migrate(made)
            expected = _definitions(made)
            newest = made.execute("PRAGMA user_version").fetchone()
        finally:
            made.close()
        if self._connection.execute("PRAGMA user_version").fetchone() != newest:
            return  # opened for reading only, and not brought to this schema
        found = _definitions(self._connection)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                what = "is missing" if name not in found else "is not what the migrations make"
                self._findings.add("schema", f"{name!r} {what}", table=name)

    def _recoveries(self) -> None:
        """What boots said of themselves is what the journal has."""
        rows = self._connection.execute(
            "SELECT r.boot, j.seq FROM recovery AS r JOIN journal AS j ON j.sid IS NULL AND j.ss = 0 "
            "AND j.boot = r.boot AND j.kind = 'daemon.recovered' WHERE j.body_sha IS NULL AND j.body <> r.body"
        )
        for boot, seq in rows.fetchall():
            self._findings.add("row", f"boot {boot} is not what it said", seq=seq, table="recovery")

    def _answers(self) -> None:
        after = 0
        while True:
            self._request.check()
            page = self._connection.execute(
                f"SELECT id, sum, {', '.join(_ANSWERS)} FROM idempotency WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
                (after, PAGE_ROWS),
            ).fetchall()
            for _, stored, *values in page:
                if not is_whole(stored, *values):
                    what = f"the stored answer of key {values[1]!r} is not what was stored"
                    self._findings.add("row", what, seq=values[4], table="idempotency")
            if len(page) < PAGE_ROWS:
                return
            after = page[-1][0]

    def _house(self) -> None:
        for kind, name, body, stored in self._connection.execute("SELECT kind, id, body, sum FROM house"):
            if not is_whole(stored, kind, name, body):
                self._findings.add("row", f"{kind} {name!r} is not what was stored", table="house")


def _definitions(connection: sqlite3.Connection) -> dict[str, tuple[str, str, str]]:
    """Name → type, table and SQL without comments, quotes and white space."""
    rows = connection.execute("SELECT name, type, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    # SQLite makes and drops `sqlite_stat…` by itself
    return {
        name: (kind, table, _NOISE.sub("", sql))
        for name, kind, table, sql in rows
        if not name.startswith("sqlite_stat")
    }
