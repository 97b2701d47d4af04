"""Keeping the journal small: content and months that are old enough are deleted, in small steps.

Content first: the body of an event is replaced by what `loopd.core.content.after_retention` leaves of it, and
its digest stays, so both chains verify as before. Rows are written anew in order, run by run: SQLite gives up
pages that are emptied, not rows that become shorter.

Months later: the rows of a sealed segment go as a whole. The chain goes on from the segment's head hash, which
`retention.sealed` has put into the log itself; the chain of a session goes on from its `session_link`.

Each function is one short piece of work on one connection: those that look take a reading one, those that
change are chores for `Ledger.tend`. `loopd.engine.upkeep` says when, and journals what was done.
"""

from __future__ import annotations

import sqlite3
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from loopd.core.ageing import Context, Kept, Protection, Work
from loopd.core.content import after_retention
from loopd.store.ledger import Ledger
from loopd.store.projection import decode_state
from loopd.store.rows import ROW_COLUMNS, Row
from loopd.store.statements import Table, insert
from loopd_protocol import events as ev

STEP_ROWS = 64
"""Rows that one step writes anew: one to two milliseconds on a quiet machine, for which writers wait."""

STEP_BYTES = 2 << 20
RANGE_EVENTS = 65_536
"""Events that one `retention.swept` tells of."""

RUNS_MAX = 512
LINKS_AT_ONCE = 256
ROWS_DELETED_AT_ONCE = 256
FORGOTTEN_AT_ONCE = 64
CONTEXT_SHARE = 2
"""A live session keeps bodies of this many times its context, because a body is more than its text."""

DIGEST_ZERO = bytes(32)
_JOURNAL = Table("journal", ROW_COLUMNS)


class Step(NamedTuple):
    """Rows as they will be, and what that deletes."""

    first: int
    last: int
    rows: list[Row]
    kept: dict[int, tuple[int, int]]
    held: frozenset[int]
    deleted: int
    freed: int
    digest: bytes


# -- looking --------------------------------------------------------------------------------------


def seq_before(connection: sqlite3.Connection, moment: int) -> int:
    """The last event before a moment, 0 for none. Where the clock went back, it is one of several."""
    low, high = 0, connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0]
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(
            "SELECT at_ms FROM journal WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (middle,)
        ).fetchone()
        if row is None or row[0] < moment:
            low = middle
        else:
            high = middle - 1
    return int(low)


def work_at_hand(connection: sqlite3.Connection) -> Work | None:
    """What was begun and not finished."""
    state = connection.execute("SELECT state FROM sweep").fetchone()[0]
    return None if state is None else msgspec.json.decode(state, type=Work)


def content_level(connection: sqlite3.Connection) -> int:
    """Content is gone through this `seq`, except for what was kept on purpose."""
    return int(connection.execute("SELECT content_seq FROM sweep").fetchone()[0])


def next_content(connection: sqlite3.Connection, cutoff_ms: int) -> tuple[int, int] | None:
    """The next range of events that are old enough."""
    found = due_through(connection, cutoff_ms)
    if found is None:
        return None
    first, last = found
    # Not across the end of a month, so that its digest can be checked for as long as the month is there.
    month = connection.execute(
        "SELECT last_seq FROM segment WHERE first_seq <= ? ORDER BY n DESC LIMIT 1", (first,)
    ).fetchone()
    end = month[0] if month is not None and month[0] >= first else last
    return first, min(last, end, first + RANGE_EVENTS - 1)


def due_through(connection: sqlite3.Connection, cutoff_ms: int) -> tuple[int, int] | None:
    """First and last of all events that are old enough."""
    level, through = content_level(connection), seq_before(connection, cutoff_ms)
    return (level + 1, through) if through > level else None


def held(connection: sqlite3.Connection) -> frozenset[int]:
    """Numbers of the sessions under legal hold."""
    return frozenset(row[0] for row in connection.execute("SELECT sid FROM legal_hold"))


def protection(connection: sqlite3.Connection, num: int, context: Context) -> Protection:
    """What must stay of a session now."""
    if connection.execute("SELECT 1 FROM legal_hold WHERE sid = ?", (num,)).fetchone():
        return Protection(0, frozenset())
    found = connection.execute("SELECT status, state FROM session WHERE num = ?", (num,)).fetchone()
    if found is None or found[0] != "live":
        return Protection(None, frozenset())
    waiting = frozenset(r[0] for r in connection.execute("SELECT ss FROM inbox WHERE sid = ?", (num,)))
    waiting |= _summary(connection, num)
    state = decode_state(found[1])
    wanted = int(state.driver.get("context_bytes") or context.bytes) * CONTEXT_SHARE
    marks = ", ".join("?" * len(context.kinds))
    floor, size = state.ss + 1, 0
    for ss, length in connection.execute(
        f"SELECT ss, length(body) FROM journal WHERE sid = ? AND kind IN ({marks}) ORDER BY ss DESC LIMIT ?",  # noqa: S608  (marks)
        (num, *context.kinds, context.events),
    ):
        floor, size = ss, size + (length or 0)
        if size > wanted:
            break
    return Protection(floor, waiting)


def _summary(connection: sqlite3.Connection, num: int) -> frozenset[int]:
    """The summary that stands in front of a context, however much was said since."""
    for ss, body in connection.execute(
        "SELECT ss, body FROM journal WHERE sid = ? AND kind = 'context.compacted' ORDER BY ss DESC", (num,)
    ):
        event = ev.decode(body) if body else None
        if isinstance(event, ev.ContextCompacted) and event.upto_ss:
            return frozenset((ss,))
    return frozenset()


def look_at(
    connection: sqlite3.Connection,
    work: Work,
    context: Context,
    known: dict[int, Protection],
) -> Step:
    """The next rows of a range, without the content that may go.

    Args:
        connection: a reading one.
        work: where it is.
        context: of live sessions.
        known: protections that were looked up before; is added to.
    """
    holding = held(connection)
    rows: list[Row] = []
    kept: dict[int, tuple[int, int]] = {}
    count = freed = size = 0
    digest = bytes.fromhex(work.event.digest) or DIGEST_ZERO
    first, last = work.next, work.event.last
    for values in connection.execute(
        f"SELECT {', '.join(ROW_COLUMNS)} FROM journal WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?",  # noqa: S608  (constants)
        (first, last, STEP_ROWS),
    ):
        row = Row(*values)
        size += len(row.body or b"")
        if rows and size > STEP_BYTES:
            return Step(first, rows[-1].seq, rows, kept, holding, count, freed, digest)
        if row.sid is not None and row.sid not in known:
            known[row.sid] = protection(connection, row.sid, context)
        left = _left(row)
        if left is not None and row.sid is not None and (row.sid in holding or known[row.sid].covers(row.ss)):
            low, high = kept.get(row.sid, (row.ss, row.ss))
            kept[row.sid] = (min(low, row.ss), max(high, row.ss))
            left = None
        if left is not None:
            digest = mix(digest, left)
            count, freed = count + 1, freed + len(row.body or b"") - len(left.body or b"")
        rows.append(left or row)
    end = rows[-1].seq if len(rows) == STEP_ROWS else last
    return Step(first, end, rows, kept, holding, count, freed, digest)


def _left(row: Row) -> Row | None:
    """The row without its content; None when it has none (any more)."""
    if row.body is None or row.body_sha is not None:
        return None
    body = after_retention(row.kind, row.body)
    if body == row.body and row.blob is None:
        return None
    return msgspec.structs.replace(row, body=body, body_sha=sha256(row.body).digest())


def mix(digest: bytes, row: Row) -> bytes:
    """The digest of a deletion goes on over one more row: what was there, and what stands there now."""
    parts = (digest, row.seq.to_bytes(8, "big"), row.body_sha or b"", sha256(row.body or b"").digest())
    return sha256(b"".join(parts)).digest()


# -- content: chores --------------------------------------------------------------------------------


def begin(ledger: Ledger, work: Work) -> None:
    """Note what is begun."""
    ledger.connection.execute("UPDATE sweep SET state = ?", (msgspec.json.encode(work),))


def carry_out(ledger: Ledger, work: Work, step: Step) -> Work | None:
    """Write the rows of a step anew; None when a hold came in between and it must be looked at again."""
    connection = ledger.connection
    if held(connection) != step.held:
        return None
    if step.deleted:
        connection.execute("DELETE FROM journal WHERE seq BETWEEN ? AND ?", (step.first, step.last))
        insert(connection, _JOURNAL, [msgspec.structs.astuple(row) for row in step.rows])
    for num, (low, high) in step.kept.items():
        connection.execute(
            "INSERT INTO content_kept (sid, first_ss, last_ss) VALUES (?, ?, ?) ON CONFLICT (sid) DO UPDATE "
            "SET first_ss = min(first_ss, excluded.first_ss), last_ss = max(last_ss, excluded.last_ss)",
            (num, low, high),
        )
    event = work.event
    event = msgspec.structs.replace(
        event,
        count=event.count + step.deleted,
        bytes=event.bytes + step.freed,
        digest=step.digest.hex(),
    )
    after = Work(event=event, next=step.last + 1, done=step.last >= event.last)
    if after.done and not event.count:
        # Nothing was deleted, so there is nothing to journal.
        connection.execute("UPDATE sweep SET state = NULL, content_seq = ?", (event.last,))
    else:
        begin(ledger, after)
    return after


def kept_sessions(connection: sqlite3.Connection, after: int, limit: int) -> list[Kept]:
    """Content that was left below the level, by session."""
    rows = connection.execute(
        "SELECT k.sid, coalesce(s.sid, ''), k.first_ss, k.last_ss FROM content_kept AS k "
        "LEFT JOIN session AS s ON s.num = k.sid WHERE k.sid > ? ORDER BY k.sid LIMIT ?",
        (after, limit),
    )
    return [Kept(*row) for row in rows]


class Leftover(NamedTuple):
    """Content of one session that need not stay any longer."""

    rows: list[Row]
    runs: list[tuple[int, int]]
    first_kept: int | None
    held: frozenset[int]
    freed: int


def look_again(connection: sqlite3.Connection, num: int, first: int, last: int, context: Context) -> Leftover:
    """What was kept of a session and need not be any more, at most a step of it."""
    holding = held(connection)
    guard = protection(connection, num, context)
    rows: list[Row] = []
    runs: list[tuple[int, int]] = []
    first_kept: int | None = None
    freed, joined = 0, False
    if num in holding:
        return Leftover(rows, runs, first, holding, 0)
    end = last if guard.floor is None else min(last, guard.floor - 1)
    if end < last:
        first_kept = end + 1
    for values in connection.execute(
        f"SELECT {', '.join(ROW_COLUMNS)} FROM journal WHERE sid = ? AND ss BETWEEN ? AND ? ORDER BY ss",  # noqa: S608  (constants)
        (num, first, end),
    ):
        row = Row(*values)
        left = _left(row)
        if left is None or guard.covers(row.ss):
            if left is not None:
                first_kept = row.ss if first_kept is None else min(first_kept, row.ss)
            joined = False
            continue
        if len(rows) == STEP_ROWS or (not joined and len(runs) == RUNS_MAX):
            first_kept = row.ss if first_kept is None else min(first_kept, row.ss)
            break
        rows.append(left)
        freed += len(row.body or b"") - len(left.body or b"")
        if joined:
            runs[-1] = (runs[-1][0], row.ss)
        else:
            runs.append((row.ss, row.ss))
        joined = True
    return Leftover(rows, runs, first_kept, holding, freed)


def clear(ledger: Ledger, num: int, found: Leftover, work: Work | None) -> bool:
    """Delete what `look_again` found; false when a hold came in between."""
    connection = ledger.connection
    if held(connection) != found.held:
        return False
    for row in found.rows:
        connection.execute(
            "UPDATE journal SET body = ?, body_sha = ? WHERE seq = ?", (row.body, row.body_sha, row.seq)
        )
    if found.first_kept is None:
        connection.execute("DELETE FROM content_kept WHERE sid = ?", (num,))
    else:
        connection.execute("UPDATE content_kept SET first_ss = ? WHERE sid = ?", (found.first_kept, num))
    if work is not None:
        begin(ledger, work)
    return True


# -- keys and free pages --------------------------------------------------------------------------------


def free_pages(connection: sqlite3.Connection) -> int:
    """Pages of the file that hold nothing and can be given back."""
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return 0  # an old file: its free pages are used again, but the file never shrinks
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def give_back(ledger: Ledger, pages: int) -> None:
    """Cut free pages off the end of the file."""
    # Stepped through by hand: `execute` makes one step, and one step gives back one page.
    cursor = ledger.connection.cursor()
    for _ in range(pages):
        cursor.execute("PRAGMA incremental_vacuum(1)")


def sessions_before(connection: sqlite3.Connection) -> int:
    """The highest number that any session ever had, also one that was forgotten."""
    row = connection.execute(
        "SELECT max(coalesce((SELECT max(num) FROM session), 0), coalesce((SELECT max(sid) FROM session_link), 0))"
    ).fetchone()
    return int(row[0])


def state_of_upkeep(connection: sqlite3.Connection) -> dict[str, Any]:
    """Numbers for `retention.status`."""
    oldest = connection.execute("SELECT seq, at_ms FROM journal ORDER BY seq LIMIT 1").fetchone()
    work = work_at_hand(connection)
    return {
        "content_seq": content_level(connection),
        "oldest": None if oldest is None else {"seq": oldest[0], "at_ms": oldest[1]},
        "working": None
        if work is None
        else {
            "what": work.event.what,
            "next": work.next,
            "last": work.event.last,
            "count": work.event.count,
            "bytes": work.event.bytes,
        },
        "segments": [
            dict(
                zip(
                    ("n", "month", "first", "last", "first_ms", "last_ms", "sealed_ms", "deleted_ms"),
                    row,
                    strict=True,
                )
            )
            for row in connection.execute(
                "SELECT n, month, first_seq, last_seq, first_ms, last_ms, sealed_ms, deleted_ms FROM segment "
                "ORDER BY n"
            )
        ],
        "holds": [
            {"sid": sid, "name": name, "since_ms": since, "by": by, "reason": reason}
            for sid, name, since, by, reason in connection.execute(
                "SELECT s.sid, s.name, h.since_ms, h.by, h.reason FROM legal_hold AS h "
                "JOIN session AS s ON s.num = h.sid ORDER BY h.since_ms"
            )
        ],
        "kept_sessions": connection.execute("SELECT count(*) FROM content_kept").fetchone()[0],
    }


def deletions(connection: sqlite3.Connection) -> list[tuple[int, int, ev.Event]]:
    """(seq, moment, event) of everything that retention has journaled, in order."""
    rows = connection.execute(
        "SELECT seq, at_ms, body FROM journal WHERE sid IS NULL AND ss = 0 AND kind LIKE 'retention.%' "
        "AND body IS NOT NULL ORDER BY seq"
    )
    return [(seq, at_ms, ev.decode(body)) for seq, at_ms, body in rows]
