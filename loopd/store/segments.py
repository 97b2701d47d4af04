"""Sealed months: where one ends, who keeps it, and the links that its deletion leaves in the chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

from loopd.core.ageing import Segment
from loopd.store import chain
from loopd.store.ledger import Ledger
from loopd.store.statements import Table, insert
from loopd.store.upkeep import DIGEST_ZERO, seq_before

SCANNED_AT_ONCE = 2_048
_SEGMENT = "n, month, first_seq, last_seq, first_ms, last_ms, prev_h, head_h, sealed_ms, deleted_ms"
LINK_COLUMNS = ("sid", "segment", "first_ss", "last_ss", "prev_sh", "sh")
_LINK = Table(
    "session_link",
    LINK_COLUMNS,
    ("sid", "first_ss"),
    "segment = excluded.segment, last_ss = excluded.last_ss, prev_sh = excluded.prev_sh, sh = excluded.sh",
)


class Link(NamedTuple):
    """Where the chain of a session goes on behind rows that are gone."""

    sid: int
    segment: int
    first_ss: int
    last_ss: int
    prev_sh: bytes
    sh: bytes


def month_of(moment: int) -> tuple[str, int]:
    """The month of a moment (UTC), and the moment at which it ends."""
    begun = datetime.fromtimestamp(moment / 1_000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    after = begun.replace(year=begun.year + begun.month // 12, month=begun.month % 12 + 1)
    return f"{begun:%Y-%m}", int(after.timestamp() * 1_000)


def segments(connection: sqlite3.Connection) -> list[Segment]:
    """All sealed months in order; none in a database of schema 1."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'segment'").fetchone() is None:
        return []
    return [Segment(*row) for row in connection.execute(f"SELECT {_SEGMENT} FROM segment ORDER BY n")]  # noqa: S608  (constants)


def next_segment(connection: sqlite3.Connection, log_id: str, now_ms: int) -> Segment | None:
    """The oldest month that has ended and is not sealed."""
    last = connection.execute("SELECT max(n), max(last_seq) FROM segment").fetchone()
    n, first = (last[0] or 0) + 1, (last[1] or 0) + 1
    begun = connection.execute("SELECT at_ms FROM journal WHERE seq = ?", (first,)).fetchone()
    if begun is None:
        return None
    month, end_ms = month_of(begun[0])
    if now_ms < end_ms:
        return None
    through = max(first, seq_before(connection, end_ms))
    before = connection.execute("SELECT h FROM journal WHERE seq = ?", (first - 1,)).fetchone()
    if before is None and n > 1:
        before = connection.execute("SELECT head_h FROM segment WHERE n = ?", (n - 1,)).fetchone()
    ends = connection.execute("SELECT at_ms, h FROM journal WHERE seq = ?", (through,)).fetchone()
    return Segment(
        n=n,
        month=month,
        first_seq=first,
        last_seq=through,
        first_ms=begun[0],
        last_ms=ends[0],
        prev_h=chain.log_genesis(log_id) if before is None else before[0],
        head_h=ends[1],
        sealed_ms=now_ms,
        deleted_ms=None,
    )


def keepers(connection: sqlite3.Connection, segment: Segment, limit: int = 20) -> list[tuple[str, str]]:
    """(sid, why) of sessions that need rows of a segment, so that it must stay."""
    found: dict[str, str] = {}
    for why, sql in (
        ("legal hold", "SELECT h.sid, 1, 9007199254740991 FROM legal_hold AS h"),
        ("a waiting message", "SELECT sid, ss, ss FROM inbox"),
        (
            "an effect of unknown outcome",
            (
                "SELECT e.sid, j.ss, j.ss FROM effect AS e JOIN journal AS j ON j.seq = e.intent_seq "
                "WHERE e.outcome = 'uncertain'"
            ),
        ),
    ):
        for num, first, last in connection.execute(sql):
            if len(found) >= limit:
                return sorted(found.items())
            # seq and ss rise together: the first row at or behind `first` tells.
            row = connection.execute(
                "SELECT ss, seq FROM journal WHERE sid = ? AND ss >= ? AND seq >= ? ORDER BY ss LIMIT 1",
                (num, first, segment.first_seq),
            ).fetchone()
            if row is None or row[0] > last or row[1] > segment.last_seq:
                continue
            sid = connection.execute("SELECT sid FROM session WHERE num = ?", (num,)).fetchone()
            found.setdefault(sid[0] if sid else str(num), why)
    return sorted(found.items())


class Links:
    """Gathers the links of one segment while its rows are scanned in order."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._found: dict[int, tuple[int, int, bytes]] = {}
        self.next = segment.first_seq

    def scan(self, connection: sqlite3.Connection) -> bool:
        """Look at some more rows; false when all were seen."""
        end = min(self._segment.last_seq, self.next + SCANNED_AT_ONCE - 1)
        for num, ss, sh in connection.execute(
            "SELECT sid, ss, sh FROM journal WHERE seq BETWEEN ? AND ? AND sid IS NOT NULL ORDER BY seq",
            (self.next, end),
        ):
            first = self._found.get(num)
            self._found[num] = (ss if first is None else first[0], ss, sh)
        self.next = end + 1
        return self.next <= self._segment.last_seq

    def numbers(self) -> list[int]:
        """Sessions that have rows in the segment."""
        return sorted(self._found)

    def of(self, connection: sqlite3.Connection, log_id: str, nums: Iterable[int]) -> list[Link]:
        """The links of these sessions."""
        links = []
        for num in nums:
            first, last, sh = self._found[num]
            before = connection.execute(
                "SELECT sh FROM journal WHERE sid = ? AND ss = ? UNION ALL "
                "SELECT sh FROM session_link WHERE sid = ? AND last_ss = ?",
                (num, first - 1) * 2,
            ).fetchone()
            prev = chain.session_genesis(log_id, num) if before is None else before[0]
            links.append(Link(num, self._segment.n, first, last, prev, sh))
        return links


def digest_of(digest: bytes, links: Iterable[Link]) -> bytes:
    """The digest over links goes on; they come in order of session and `ss`."""
    for link in links:
        numbers = b"".join(n.to_bytes(8, "big") for n in (link.sid, link.first_ss, link.last_ss))
        digest = sha256(digest + numbers + link.prev_sh + link.sh).digest()
    return digest


def links_of_segment(connection: sqlite3.Connection, n: int) -> Iterable[Link]:
    """The stored links of a segment, in the order of their digest."""
    for row in connection.execute(
        f"SELECT {', '.join(LINK_COLUMNS)} FROM session_link WHERE segment = ? ORDER BY sid, first_ss",  # noqa: S608  (constants)
        (n,),
    ):
        yield Link(*row)


def stored_digest(connection: sqlite3.Connection, n: int) -> str:
    """The digest over the stored links of a segment."""
    return digest_of(DIGEST_ZERO, links_of_segment(connection, n)).hex()


def links_of_session(connection: sqlite3.Connection, num: int) -> list[Link]:
    """Where rows of a session are gone, in order."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'session_link'").fetchone() is None:
        return []
    rows = connection.execute(
        f"SELECT {', '.join(f'l.{c}' for c in LINK_COLUMNS)} FROM session_link AS l "  # noqa: S608  (constants)
        "JOIN segment AS s ON s.n = l.segment WHERE l.sid = ? AND s.deleted_ms IS NOT NULL ORDER BY l.first_ss",
        (num,),
    )
    return [Link(*row) for row in rows]


# -- chores -------------------------------------------------------------------------------------------


def put_links(ledger: Ledger, links: Sequence[Link]) -> None:
    """Store links, before the rows go that they stand for."""
    insert(ledger.connection, _LINK, [tuple(link) for link in links])


def drop_rows(ledger: Ledger, segment: Segment, limit: int) -> int:
    """Delete some of the rows of a segment; returns how many were there."""
    return ledger.connection.execute(
        "DELETE FROM journal WHERE seq IN "
        "(SELECT seq FROM journal WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?)",
        (segment.first_seq, segment.last_seq, limit),
    ).rowcount


_PROJECTED = (
    ("turn", "id", "last_seq BETWEEN ? AND ? AND outcome <> ''"),
    ("effect", "rowid_", "outcome_seq BETWEEN ? AND ? AND outcome <> 'uncertain'"),
    ("cron_occurrence", "id", "seq BETWEEN ? AND ?"),
)


def old_projections(
    connection: sqlite3.Connection, segment: Segment, limit: int
) -> list[tuple[str, list[int]]]:
    """Rows of projections that tell of events of a segment: turns, effects, occurrences."""
    found = []
    for table, key, condition in _PROJECTED:
        ids = connection.execute(
            f"SELECT {key} FROM {table} WHERE {condition} ORDER BY {key} LIMIT ?",  # noqa: S608  (constants)
            (segment.first_seq, segment.last_seq, limit),
        ).fetchall()
        if ids:
            found.append((table, [row[0] for row in ids]))
    return found


def drop_projections(ledger: Ledger, rows: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Delete rows that `old_projections` named."""
    keys = {table: key for table, key, _ in _PROJECTED}
    for table, ids in rows:
        ledger.connection.executemany(
            f"DELETE FROM {table} WHERE {keys[table]} = ?",  # noqa: S608  (constants)
            [(id_,) for id_ in ids],
        )


def forgettable(connection: sqlite3.Connection, segment: Segment, limit: int) -> list[tuple[int, str]]:
    """(number, sid) of ended sessions of which no event is left."""
    return connection.execute(
        "SELECT s.num, s.sid FROM session_link AS l JOIN session AS s ON s.num = l.sid "
        "WHERE l.segment = ? AND s.status <> 'live' "
        "AND NOT EXISTS (SELECT 1 FROM journal AS j WHERE j.sid = s.num) "
        "AND NOT EXISTS (SELECT 1 FROM legal_hold AS h WHERE h.sid = s.num) ORDER BY s.num LIMIT ?",
        (segment.n, limit),
    ).fetchall()
