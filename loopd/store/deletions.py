"""What retention has deleted, as the journal tells it, held against what is really gone.

Deleted content must be accounted for by a `retention.swept` whose digest fits, a missing month by a
`retention.deleted` that fits its segment and its links. So nobody can call it retention that something is gone.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from loopd.core.ageing import Segment, Work
from loopd.store import upkeep
from loopd.store.request import Findings
from loopd.store.rows import Row
from loopd.store.segments import segments, stored_digest
from loopd_protocol.retention_events import RetentionDeleted, RetentionSwept


class Deletions:
    """Reads what was journaled, then sees all rows in order."""

    def __init__(self, connection: sqlite3.Connection, findings: Findings) -> None:
        self._connection = connection
        self._findings = findings
        self._segments = [s for s in segments(connection) if s.deleted_ms is not None]
        self._ranges: list[RetentionSwept] = []
        self._sessions: dict[int, list[tuple[int, int, int]]] = {}
        self._sweeps: list[RetentionSwept] = []
        self._digests: dict[int, bytes] = {}
        self._counts: dict[int, int] = {}
        self._unaccounted = 0
        for event in _journaled(connection):
            if event.what != "content":
                continue
            if event.sid is None:
                self._ranges.append(event)
            else:
                place = len(self._sweeps)
                self._sweeps.append(event)
                known = self._sessions.setdefault(event.num, [])
                known.extend((first, last, place) for first, last in event.runs)
        self._ranges.sort(key=lambda event: event.first)
        self._firsts = [event.first for event in self._ranges]
        for runs in self._sessions.values():
            runs.sort()

    def behind(self, expected: int) -> Segment | None:
        """The deleted month that begins where a row is missing."""
        return next((s for s in self._segments if s.first_seq == expected), None)

    def within(self, seq: int) -> bool:
        """Whether a row belongs to a month that is being deleted right now."""
        return bool(self._segments) and any(s.first_seq <= seq <= s.last_seq for s in self._segments)

    def see(self, row: Row) -> None:
        """Take in the next row."""
        if row.body is None or row.body_sha is None:
            return
        place = self._account(row)
        if place is None:
            self._unaccounted += 1
            if self._unaccounted <= 10:
                what = f"the content of {row.kind!r} is deleted, and no retention.swept tells of it"
                self._findings.add("retention", what, seq=row.seq, ss=row.ss)
            return
        self._counts[place] = self._counts.get(place, 0) + 1
        self._digests[place] = upkeep.mix(self._digests.get(place, upkeep.DIGEST_ZERO), row)

    def _account(self, row: Row) -> int | None:
        """Which deletion took the content of a row: ranges are counted from 0, sessions below it."""
        runs = self._sessions.get(row.sid or 0, [])
        at = bisect_right(runs, (row.ss, row.ss, len(self._sweeps))) - 1
        for first, last, place in runs[max(0, at - 1) : at + 2]:
            if first <= row.ss <= last:
                return -1 - place
        at = bisect_right(self._firsts, row.seq) - 1
        if at >= 0 and self._ranges[at].first <= row.seq <= self._ranges[at].last:
            return at
        return None

    def finish(self) -> None:
        """All rows were seen."""
        for place, event in enumerate(self._ranges):
            self._compare(place, event, f"of events {event.first} to {event.last}")
        for place, event in enumerate(self._sweeps):
            self._compare(-1 - place, event, f"of session {event.sid}")
        self._months()

    def _compare(self, place: int, event: RetentionSwept, whose: str) -> None:
        if self._counts.get(place, 0) < event.count and self._segments:
            return  # the rest of these rows went with their month
        found = self._digests.get(place, upkeep.DIGEST_ZERO).hex()
        if found != (event.digest or upkeep.DIGEST_ZERO.hex()):
            what = f"what is left of the deleted content {whose} does not match its digest"
            self._findings.add("retention", what, seq=event.first or None)

    def _months(self) -> None:
        told: dict[int, RetentionDeleted] = {}
        for _, _, said in upkeep.deletions(self._connection):
            if isinstance(said, RetentionDeleted):
                told[said.n] = said
        for segment in self._segments:
            event = told.get(segment.n)
            where = {"seq": segment.first_seq, "table": "segment"}
            if event is None:
                self._findings.add(
                    "retention", f"month {segment.month} is gone; no retention.deleted tells of it", **where
                )
                continue
            told_by = (event.first, event.last, event.prev_hash, event.head_hash)
            stored = (segment.first_seq, segment.last_seq, segment.prev_h.hex(), segment.head_h.hex())
            if told_by != stored:
                self._findings.add(
                    "retention", f"month {segment.month} is stored as {stored}; told {told_by}", **where
                )
            if stored_digest(self._connection, segment.n) != event.links:
                what = f"the links of month {segment.month} do not match their digest"
                self._findings.add("retention", what, table="session_link", seq=segment.first_seq)
            self._findings.note(
                "retention",
                f"month {segment.month} (events {segment.first_seq} to {segment.last_seq}) was deleted by the "
                f"policy {event.policy!r}",
                seq=segment.first_seq,
                at_ms=segment.deleted_ms,
            )


def _journaled(connection: sqlite3.Connection) -> Iterator[RetentionSwept]:
    """Every deletion of content that was told, and the one that is under way."""
    for _, _, event in upkeep.deletions(connection):
        if isinstance(event, RetentionSwept):
            yield event
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sweep'").fetchone() is None:
        return
    work = upkeep.work_at_hand(connection)
    if work is not None and work.event.what == "content":
        reached = work.event if work.event.sid is not None else _reached(work)
        yield reached


def _reached(work: Work) -> RetentionSwept:
    return msgspec.structs.replace(work.event, last=max(work.event.first, work.next) - 1)
