"""The upkeep half of the store: each method is one short step; see `loopd.store.upkeep`."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from loopd.core.ageing import Context, Kept, Protection, Segment, Work
from loopd.store import disuse, fading, segments, upkeep
from loopd.store.ledger import Ledger
from loopd.store.reading import Reading
from loopd_protocol.retention_events import RetentionDeleted, RetentionSealed, RetentionSwept

P = ParamSpec("P")
T = TypeVar("T")

STEP_BYTES_GUESSED = 256 << 10
"""What a step writes into the write-ahead log, for the writer to know when to fold it back."""

SESSIONS_AT_ONCE = 512


class Keeping(Reading):
    """Deletes what is old enough, step by step. One caller at a time; nothing here decides when."""

    @abstractmethod
    async def _tend(self, chore: Callable[[Ledger], T], size: int) -> T:
        """Run a chore on the writing connection, in a transaction of its own."""

    async def _chore(
        self, chore: Callable[Concatenate[Ledger, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._tend(lambda ledger: chore(ledger, *args, **kwargs), STEP_BYTES_GUESSED)

    # -- content ------------------------------------------------------------------------------

    async def work_at_hand(self) -> Work | None:
        """What was begun and not finished, possibly by an earlier boot."""
        return await self._read(upkeep.work_at_hand)

    async def due_content(self, cutoff_ms: int) -> tuple[int, int] | None:
        """The next range of events that are old enough, or None."""
        return await self._read(upkeep.next_content, cutoff_ms)

    async def due_through(self, cutoff_ms: int) -> tuple[int, int] | None:
        """First and last of all events whose content is due, or None."""
        return await self._read(upkeep.due_through, cutoff_ms)

    async def begin_work(self, event: RetentionSwept) -> Work:
        """Note what is about to be deleted."""
        work = Work(event=event, next=event.first)
        await self._chore(upkeep.begin, work)
        return work

    async def sweep_content(self, work: Work, context: Context, known: dict[int, Protection]) -> Work:
        """Delete the content of the next few events of a range."""
        while True:
            step = await self._read(upkeep.look_at, work, context, known)
            after = await self._chore(upkeep.carry_out, work, step)
            if after is not None:
                return after
            known.clear()  # a session was put under legal hold while the step was prepared

    async def kept_sessions(self, after: int) -> list[Kept]:
        """Sessions that kept content below the level: number, sid, first and last `ss`."""
        return await self._read(upkeep.kept_sessions, after, SESSIONS_AT_ONCE)

    async def sweep_kept(self, kept: Kept, context: Context, policy: str, cutoff_ms: int) -> Work | None:
        """Delete what a session need not keep any longer, a step of it; None when there is nothing."""
        num, sid, first, last = kept
        while True:
            found = await self._read(upkeep.look_again, num, first, last, context)
            if not found.rows and found.first_kept == first:
                return None
            work = None
            if found.rows:
                digest = upkeep.DIGEST_ZERO
                for row in found.rows:
                    digest = upkeep.mix(digest, row)
                event = RetentionSwept(
                    what="content",
                    policy=policy,
                    cutoff_ms=cutoff_ms,
                    sid=sid or f"#{num}",
                    num=num,
                    runs=tuple(found.runs),
                    count=len(found.rows),
                    bytes=found.freed,
                    digest=digest.hex(),
                )
                work = Work(event=event, next=0, done=True)
            if await self._chore(upkeep.clear, num, found, work):
                return work

    async def fade(self, first: int, last: int) -> int:
        """Take from projections of sessions with these numbers what they remember of deleted content."""
        found = await self._read(fading.look, first, last)
        if found.states or found.notes:
            await self._chore(fading.carry_out, found)
        return len(found.states) + len(found.notes)

    # -- blobs ----------------------------------------------------------------------------------

    async def note_needed(self, kept: Kept, after: int, now_ms: int) -> int:
        """Note that the blobs are in use that kept content names; returns how far that was looked."""
        digests, end = await self._read(disuse.needed_by, kept.num, after, kept.last)
        await self._note(digests, now_ms)
        return end

    async def note_founded(self, first: int, last: int, cutoff_ms: int, now_ms: int) -> None:
        """Note the blobs that sessions with these numbers build on: imports, forks, manifests."""
        digests = await self._read(disuse.founded_on, first, last)
        digests |= await self._read(disuse.manifests_since, first, last, cutoff_ms)
        await self._note(digests, now_ms)

    async def _note(self, digests: set[bytes], now_ms: int) -> None:
        seen: set[bytes] = set()
        while digests:
            seen |= digests
            part = sorted(digests)
            for start in range(0, len(part), upkeep.STEP_ROWS):
                await self._chore(disuse.note_use, part[start : start + upkeep.STEP_ROWS], now_ms)
            digests = await self._read(disuse.built_on, digests) - seen

    async def sweep_blobs(self, work: Work) -> Work:
        """Delete the next few blobs that nobody uses."""
        ids, following = await self._read(disuse.old_blobs, work.next, work.event.cutoff_ms)
        if not ids and following is not None:
            return Work(event=work.event, next=following)
        return await self._chore(disuse.delete_blobs, work, ids, following)

    async def last_number(self) -> int:
        """The highest number that any session ever had."""
        return await self._read(upkeep.sessions_before)

    # -- months -----------------------------------------------------------------------------------

    async def due_seal(self, now_ms: int) -> RetentionSealed | None:
        """The oldest month that has ended and is not sealed."""
        found = await self._read(segments.next_segment, self.log_id, now_ms)
        if found is None:
            return None
        return RetentionSealed(
            n=found.n,
            month=found.month,
            first=found.first_seq,
            last=found.last_seq,
            first_ms=found.first_ms,
            last_ms=found.last_ms,
            prev_hash=found.prev_h.hex(),
            head_hash=found.head_h.hex(),
        )

    async def segments(self) -> list[Segment]:
        """All sealed months."""
        return await self._read(segments.segments)

    async def keepers(self, segment: Segment) -> list[tuple[str, str]]:
        """(sid, why) of sessions that need a segment."""
        return await self._read(segments.keepers, segment)

    async def put_links(self, segment: Segment, policy: str, cutoff_ms: int) -> RetentionDeleted:
        """Store the links that a segment leaves; returns the event to be journaled before its rows go."""
        links = segments.Links(segment)
        while await self._read(links.scan):
            pass
        numbers = links.numbers()
        digest = upkeep.DIGEST_ZERO
        for start in range(0, len(numbers), upkeep.LINKS_AT_ONCE):
            part = await self._read(links.of, self.log_id, numbers[start : start + upkeep.LINKS_AT_ONCE])
            await self._chore(segments.put_links, part)
            digest = segments.digest_of(digest, part)
        return RetentionDeleted(
            n=segment.n,
            month=segment.month,
            policy=policy,
            cutoff_ms=cutoff_ms,
            first=segment.first_seq,
            last=segment.last_seq,
            prev_hash=segment.prev_h.hex(),
            head_hash=segment.head_h.hex(),
            sessions=len(numbers),
            links=digest.hex(),
        )

    async def drop_rows(self, segment: Segment) -> bool:
        """Delete some rows of a segment and of its projections; false when none are left."""
        if await self._chore(segments.drop_rows, segment, upkeep.ROWS_DELETED_AT_ONCE):
            return True
        old = await self._read(segments.old_projections, segment, upkeep.ROWS_DELETED_AT_ONCE)
        if old:
            await self._chore(segments.drop_projections, old)
        return bool(old)

    async def forgettable(self, segment: Segment) -> list[tuple[int, str]]:
        """Ended sessions of which no event is left."""
        return await self._read(segments.forgettable, segment, upkeep.FORGOTTEN_AT_ONCE)

    # -- keys, pages, numbers ---------------------------------------------------------------------

    @abstractmethod
    async def learn_keys(self) -> bool:
        """Learn some of the idempotency keys that earlier boots have stored; false when all are known."""

    async def forget_keys(self) -> int:
        """Delete some idempotency keys that are older than seven days; returns how many."""
        return await self._chore(Ledger.forget_keys)

    async def free_pages(self) -> int:
        """Pages of the file that hold nothing and can be given back."""
        return await self._read(upkeep.free_pages)

    async def give_back(self, pages: int) -> None:
        """Cut so many free pages off the file."""
        await self._chore(upkeep.give_back, pages)

    @abstractmethod
    async def cut_log(self) -> bool:
        """Cut the write-ahead log to nothing: what was deleted still stands in it. False while somebody reads."""

    async def upkeep_state(self) -> dict[str, Any]:
        """Numbers for `retention.status`."""
        return await self._read(upkeep.state_of_upkeep)

    async def deletions(self) -> list[tuple[int, int, Any]]:
        """(seq, moment, event) of everything that retention has journaled."""
        return await self._read(upkeep.deletions)

    async def estimate(self, first: int, last: int) -> tuple[int, int]:
        """Events of a range and the bytes of their bodies."""
        return await self._read(_estimate, first, last)

    async def measures(self) -> dict[str, Any]:
        """Sizes of the database; see `db.status`."""
        return await self._read(_measures)

    @abstractmethod
    async def snapshot(self, target: Path, *, verify: bool) -> dict[str, Any]:
        """Copy one moment of the log to a new file and check it."""


def _estimate(connection: sqlite3.Connection, first: int, last: int) -> tuple[int, int]:
    row = connection.execute(
        "SELECT count(*), coalesce(sum(length(body)), 0) FROM journal WHERE seq BETWEEN ? AND ?",
        (first, last),
    ).fetchone()
    return row[0], row[1]


def _measures(connection: sqlite3.Connection) -> dict[str, Any]:
    def pragma(name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    oldest = connection.execute("SELECT seq, at_ms FROM journal ORDER BY seq LIMIT 1").fetchone()
    head = connection.execute("SELECT max(seq) FROM journal").fetchone()[0]
    return {
        "schema": pragma("user_version"),
        "page_bytes": pragma("page_size"),
        "pages": pragma("page_count"),
        "free_pages": pragma("freelist_count"),
        "shrinks": pragma("auto_vacuum") == 2,
        "oldest_seq": None if oldest is None else oldest[0],
        "oldest_ms": None if oldest is None else oldest[1],
        "head": head or 0,
        "sessions": connection.execute("SELECT count(*) FROM session").fetchone()[0],
        "keys": connection.execute("SELECT count(*) FROM idempotency").fetchone()[0],
    }
