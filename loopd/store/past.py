"""Looking back: a session as it was at any moment, and its decisions made again. Synchronous, read-only."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from loopd import __version__
from loopd.core import replay
from loopd.core.evolution import DERIVATION, evolve
from loopd.core.state import Session
from loopd.store.rows import PAGE_ROWS, Row, session_page
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

MARK_EVERY = 512
"""Events between two remembered states: a look anywhere costs at most so many steps."""

MARKS_MAX = 256
SESSIONS_MAX = 8

Stopped = Callable[[], bool]


class At(msgspec.Struct, frozen=True, kw_only=True):
    """The last event that a state includes."""

    seq: int
    ss: int
    at_ms: int


def number_of(connection: sqlite3.Connection, sid: str) -> int:
    """The number of a session.

    Raises:
        Refused: `not_found`.
    """
    row = connection.execute("SELECT num FROM session WHERE sid = ?", (sid,)).fetchone()
    if row is None:
        raise Refused("not_found", f"no session {sid!r}", path="$.sid")
    return int(row[0])


def rows_of(connection: sqlite3.Connection, num: int, after: int, stopped: Stopped) -> Iterator[Row]:
    """Rows of a session behind `after`, in order of `ss`; each page is a transaction of its own.

    Raises:
        Refused: `cancelled`.
    """
    while True:
        if stopped():
            raise Refused("cancelled", "the work was called off")
        page = session_page(connection, num, after)
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1].ss


def replay_session(
    connection: sqlite3.Connection, sid: str, overrides: Mapping[str, Any], stopped: Stopped
) -> dict[str, Any]:
    """Decide everything of a session again; see `loopd.core.replay`."""
    num = number_of(connection, sid)
    work = replay.Replay(overrides)
    for row in rows_of(connection, num, 0, stopped):
        if not work.feed((replay.Row(row.seq, row.ss, row.at_ms, row.kind, row.whole),)):
            break
    outcome: dict[str, Any] = msgspec.to_builtins(work.finish())
    if outcome.get("difference"):
        wrote = connection.execute(
            "SELECT b.version, b.derivation FROM journal AS j JOIN boot AS b ON b.n = j.boot WHERE j.seq = ?",
            (outcome["difference"]["seq"],),
        ).fetchone()
        outcome |= by_whom(wrote)
    return {"sid": sid, **outcome}


def by_whom(wrote: tuple[str, int] | None) -> dict[str, Any]:
    """Which version wrote the event in which a replay differs, and which one replays."""
    now = {"version": __version__, "derivation": DERIVATION}
    then = None if wrote is None else {"version": wrote[0], "derivation": wrote[1]}
    return {"recorded_by": then, "replayed_by": now}


class Past:
    """States of sessions as they were. Remembers some of those it passed; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: OrderedDict[int, dict[int, Session]] = OrderedDict()

    def state(
        self,
        connection: sqlite3.Connection,
        sid: str,
        *,
        seq: int | None,
        at_ms: int | None,
        stopped: Stopped,
    ) -> tuple[Session, At]:
        """The session after its last event up to `seq`, or up to a moment.

        Raises:
            Refused: `not_found` when it did not exist yet, or when content that is needed was deleted.
        """
        num = number_of(connection, sid)
        last = _last(connection, num, seq=seq, at_ms=at_ms)
        if last is None:
            first = connection.execute(
                "SELECT seq, at_ms FROM journal WHERE sid = ? ORDER BY ss LIMIT 1", (num,)
            ).fetchone()
            began = "" if first is None else f"; its first event is seq {first[0]} at {_moment(first[1])}"
            raise Refused("not_found", f"session {sid!r} did not exist then{began}", path="$.at")
        state, ss = self._nearest(num, last.ss)
        for row in rows_of(connection, num, ss, stopped):
            if row.ss > last.ss:
                break
            state = _step(state, row)
            if row.ss % MARK_EVERY == 0:
                self._remember(num, row.ss, state)
        assert state is not None
        self._remember(num, last.ss, state)
        return state, last

    def _nearest(self, num: int, ss: int) -> tuple[Session | None, int]:
        with self._lock:
            marks = self._marks.get(num, {})
            below = max((mark for mark in marks if mark <= ss), default=0)
            return marks.get(below), below

    def _remember(self, num: int, ss: int, state: Session) -> None:
        with self._lock:
            marks = self._marks.setdefault(num, {})
            self._marks.move_to_end(num)
            marks[ss] = state
            if len(marks) > MARKS_MAX:
                for mark in sorted(marks)[1::2]:
                    del marks[mark]
            while len(self._marks) > SESSIONS_MAX:
                self._marks.popitem(last=False)


def _step(state: Session | None, row: Row) -> Session:
    if row.body is None or row.kind not in ev.EVENT_TYPES:
        gone = "was deleted by retention" if row.body is None else f"is of an unknown kind, {row.kind!r}"
        raise Refused(
            "not_found", f"the content of seq {row.seq} {gone}; the state behind it cannot be rebuilt"
        )
    try:
        return evolve(state, ev.decode(row.body), ss=row.ss, at_ms=row.at_ms)
    except ValueError as error:
        what = "the beginning of the session was deleted by retention" if state is None else str(error)
        raise Refused("not_found", f"the state at seq {row.seq} cannot be rebuilt: {what}") from error


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _last(connection: sqlite3.Connection, num: int, *, seq: int | None, at_ms: int | None) -> At | None:
    where, values = "", [num]
    if seq is not None:
        where += " AND seq <= ?"
        values.append(seq)
    if at_ms is not None:
        where += " AND at_ms <= ?"
        values.append(at_ms)
    row = connection.execute(
        f"SELECT seq, ss, at_ms FROM journal WHERE sid = ?{where} ORDER BY ss DESC LIMIT 1",  # noqa: S608  (constants)
        values,
    ).fetchone()
    return None if row is None else At(seq=row[0], ss=row[1], at_ms=row[2])
