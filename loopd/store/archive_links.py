"""Links: what ties the export of one session to the log it was taken from.

The chain of a session proves that its events belong together. That they are what the *log* holds, and all that it holds
of the session, only the log's own chain can prove, and that runs through the events of others as well. So an archive may
carry, for each event of others from the session's first event up to an anchor, the bytes that the chain hashes: number,
session, moment, kind, principal and digests, never what was said.

    previous_hash ─▶ row of the session ─▶ row of another ─▶ row of another ─▶ row of the session ─▶ … ─▶ anchor

With an anchor that was kept elsewhere, nobody can have changed, added or left out an event of the session up to it.
"""

from __future__ import annotations

import base64
import binascii
import sqlite3
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loopd.store import chain
from loopd.store.rows import PAGE_ROWS, Row, row_page
from loopd_protocol.bounds import Seq
from loopd_protocol.errors import Refused

ROW_BYTES_MAX = 200_000


class Link(msgspec.Struct, kw_only=True):
    """A line of `links.ndjson`: what the log's chain hashes of an event of another session, base64."""

    seq: Seq
    row: Annotated[str, Meta(max_length=ROW_BYTES_MAX)]


_decode = msgspec.json.Decoder(Link).decode


# -- making -----------------------------------------------------------------------------------------


def foreign(
    connection: sqlite3.Connection,
    num: int,
    first: int,
    last: int,
    stopped: Callable[[], bool],
) -> Iterator[Link]:
    """The events of others between two events of the log.

    Raises:
        Refused: `invalid` when some of them went with their month, `cancelled`.
    """
    after = first - 1
    while after < last:
        if stopped():
            raise Refused("cancelled", "the export was called off")
        page = row_page(connection, after, min(PAGE_ROWS, last - after))
        for row in page:
            if row.seq != after + 1:
                break
            after = row.seq
            if row.sid != num:
                yield Link(seq=row.seq, row=base64.b64encode(row.digest()).decode())
        else:
            if page:
                continue
        raise Refused(
            "invalid", f"event {after + 1} went with its month; links of the log cannot reach over it"
        )


def end_of(connection: sqlite3.Connection, num: int) -> tuple[int, int | None]:
    """Up to where links go, and the anchor there if there is one.

    That is the first anchor at or behind the session's last event, so that the archive has all of it; else the newest
    anchor; else the head of the log. Later events of the session stay out.
    """
    connection.execute("BEGIN")  # an event of the session may come between two looks
    try:
        last = connection.execute("SELECT max(seq) FROM journal WHERE sid = ?", (num,)).fetchone()[0] or 0
        head = connection.execute("SELECT max(seq) FROM journal").fetchone()[0] or 0
        behind, newest = connection.execute(
            "SELECT min(seq) FILTER (WHERE seq >= ?), max(seq) FROM anchor", (last,)
        ).fetchone()
    finally:
        connection.execute("COMMIT")
    tied = behind if behind is not None else newest
    return (int(head), None) if tied is None else (int(tied), int(tied))


# -- checking ---------------------------------------------------------------------------------------


class Links:
    """Follows the log's chain through the rows of a session and the links between them.

    Args:
        said: `links` of the manifest.
        lines: of `links.ndjson`.
        wanted: the events whose hashes anchors will be compared with.
        report: `(what, seq)` of what is wrong; the first thing ends it, for nothing behind it can be told.

    Attributes:
        hashes: of the wanted events, as far as the chain holds.
        count: how many events of others there are.
    """

    def __init__(
        self,
        said: Any,
        lines: Iterator[bytes],
        own: set[int],
        wanted: set[int],
        report: Callable[[str, int], None],
    ) -> None:
        self._lines = lines
        self._own = own
        self._wanted = wanted
        self._report = report
        self._expected = int(said["first"])
        self.first, self.last = self._expected, int(said["last"])
        self._previous = bytes.fromhex(said["previous_hash"])
        self.hashes: dict[int, str] = {}
        self.count = 0
        self.broken = False

    def see(self, row: Row) -> None:
        """The next row of the session."""
        self._foreign_up_to(row.seq)
        if self.broken:
            return
        if row.seq != self._expected:
            self._break(f"the links do not lead to event {row.seq}", self._expected)
        elif self._go_on(row.digest()) != row.h:
            self._break(
                f"{row.kind!r} does not follow in the log's chain: something before it is not what it was",
                row.seq,
            )

    def finish(self) -> None:
        """All rows of the session were seen."""
        self._foreign_up_to(self.last + 1)
        if not self.broken and next(self._lines, None) is not None:
            self._break("there are links behind the last one", self.last)

    def _foreign_up_to(self, seq: int) -> None:
        while not self.broken and self._expected < seq:
            line = next(self._lines, None)
            if line is None:
                self._break(f"event {self._expected} is missing among the links", self._expected)
                return
            try:
                link = _decode(line)
                row = base64.b64decode(link.row, validate=True)
            except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
                self._break(f"a link cannot be read: {error}", self._expected)
                return
            if len(row) < chain.HEADER.size:
                self._break("a link is too short to be a row", self._expected)
                return
            number, session, *_ = chain.HEADER.unpack_from(row)
            if not link.seq == number == self._expected:
                self._break(f"the links jump from {self._expected - 1} to {number}", self._expected)
                return
            if session in self._own:
                self._break(f"event {number} belongs to the session and is only among the links", number)
                return
            self.count += 1
            self._go_on(row)

    def _go_on(self, row: bytes) -> bytes:
        self._previous = chain.link(self._previous, row)
        if self._expected in self._wanted:
            self.hashes[self._expected] = self._previous.hex()
        self._expected += 1
        return self._previous

    def _break(self, what: str, seq: int) -> None:
        self.broken = True
        self.hashes.clear()
        self._report(what, seq)
