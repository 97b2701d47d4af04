"""When the journal is made smaller, and what is said about it. The steps themselves are the store's.

Everything runs in the background, one short step after the other with pauses in between, so that nobody who
writes waits for more than a few milliseconds. What is deleted is journaled: a month before its first row goes,
content in the transaction after the last step of a range (what lies between is noted in the database and goes
on after a restart).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import anyio
import msgspec

from loopd.core.access import Answer, Caller
from loopd.core.ageing import Context, Kept, Protection, Work
from loopd.core.writes import Idempotency
from loopd.engine.history import CONTEXT_BYTES, KINDS
from loopd.engine.keeping import Upkept
from loopd.engine.loading import HISTORY_EVENTS
from loopd.engine.retention import Policy, Trusted
from loopd.engine.router import Router
from loopd_protocol import retention_commands as rc
from loopd_protocol import retention_events as rev
from loopd_protocol.command import DAY_MS
from loopd_protocol.errors import Refused
from loopd_protocol.event import Event

logger = logging.getLogger("loopd.engine")

T = TypeVar("T")

FIRST_AFTER_S = 60.0
"""A boot has better things to do."""

PAUSE_S = 0.002
PAUSE_SHARE = 3.0
"""After a step that took t, this many t belong to others: upkeep takes at most a quarter of the writer's time."""

BLOBS_EVERY_MS = DAY_MS
BLOB_SLACK_MS = DAY_MS
"""The use of a blob is noted to a day."""

FREE_PAGES_KEPT = 256
PAGES_AT_ONCE = 128
NUMBERS_AT_ONCE = 512
FADED_AT_ONCE = 64
ESTIMATE_EVENTS = 20_000
CUTS_TRIED = 20
LAST_TOLD = 20


class Upkeep:
    """Deletes what is old enough, and answers the commands about it.

    Args:
        router: says and forgets.
        store: deletes.
        policy: the ages.
        deleted: called when something is gone, so that nobody goes on showing it from memory.
        pause_share: 0 in tests that have no time.
    """

    def __init__(
        self,
        router: Router,
        store: Upkept,
        policy: Policy,
        *,
        deleted: Callable[[], None] = lambda: None,
        pause_share: float = PAUSE_SHARE,
    ) -> None:
        self._router = router
        self._store = store
        self._policy = policy
        self._deleted = deleted
        self._pause_share = pause_share
        self._asked = anyio.Event()
        self._running = False
        self._blobs_ms: int | None = None
        self._uncut = True
        self._last: dict[str, Any] | None = None
        self._slowest_ms = 0.0
        self._context = Context(kinds=KINDS, events=HISTORY_EVENTS, bytes=CONTEXT_BYTES)

    # -- the task -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after the journal, for ever."""
        wait_s = FIRST_AFTER_S
        time = Trusted(self._router.clock)
        while True:
            await self._learn()
            with anyio.move_on_after(wait_s):
                await self._asked.wait()
            asked, self._asked = self._asked.is_set(), anyio.Event()
            wait_s = self._policy.every_s
            ahead_ms = time.ahead_ms()
            if ahead_ms and not asked:
                logger.warning("the clock jumped, nothing is deleted by age", extra={"ahead_ms": ahead_ms})
                continue
            try:
                await self.once()
            except Refused as refusal:
                if refusal.code == "draining":
                    return
                logger.warning("upkeep put off", extra={"code": refusal.code, "error": refusal.message})
            except Exception:  # the wall: a defect of upkeep must not end the daemon
                logger.exception("upkeep failed")

    async def _learn(self) -> None:
        """Know which keys were used; until then the database is asked for each of them."""
        try:
            while await self._paced(self._store.learn_keys):
                pass
        except Refused as refusal:
            logger.warning("keys not learned", extra={"code": refusal.code})

    async def once(self) -> dict[str, Any]:
        """Delete everything that is due; returns what was done."""
        self._running = True
        begun = perf_counter()
        now = self._router.clock.now_ms()
        done: dict[str, Any] = {"at_ms": now, "content": 0, "blobs": 0, "bytes": 0}
        done |= {"months": [], "sessions": 0}
        self._slowest_ms = 0.0
        try:
            await self._resume(done)
            while (sealed := await self._store.due_seal(now)) is not None:
                await self._say(sealed)
            if self._policy.content_ms:
                await self._content(now - self._policy.content_ms, done)
                if self._blobs_ms is None or now - self._blobs_ms >= BLOBS_EVERY_MS:
                    await self._kept(now - self._policy.content_ms, done)
                    await self._faded()
                    await self._blobs(now - self._policy.content_ms - BLOB_SLACK_MS, now, done)
                    self._blobs_ms = now
            if self._policy.metadata_ms:
                await self._months(now - self._policy.metadata_ms, done)
            while await self._paced(self._store.forget_keys):
                pass
            await self._shrink(done)
            await self._cut(deleted=bool(done["bytes"] or done["months"]))
        finally:
            self._running = False
        done["took_ms"] = round((perf_counter() - begun) * 1_000)
        done["slowest_step_ms"] = round(self._slowest_ms, 1)
        self._last = done
        return done

    async def _say(self, event: Event, *, by: str = "daemon", key: Idempotency | None = None) -> int:
        return (await self._router.say(event, principal=by, idempotency=key)).last

    async def _paced(self, step: Callable[[], Awaitable[T]]) -> T:
        begun = perf_counter()
        result = await step()
        took = perf_counter() - begun
        self._slowest_ms = max(self._slowest_ms, took * 1_000)
        await anyio.sleep(max(PAUSE_S, took * self._pause_share) if self._pause_share else 0)
        return result

    # -- content ------------------------------------------------------------------------------

    async def _resume(self, done: dict[str, Any]) -> None:
        """Finish what an earlier boot, or a run that failed, had begun."""
        work = await self._store.work_at_hand()
        if work is None:
            return
        if work.event.what == "blobs":
            await self._finish_blobs(work, done)
        else:
            await self._finish_content(work, done)

    async def _content(self, cutoff_ms: int, done: dict[str, Any]) -> None:
        while (found := await self._store.due_content(cutoff_ms)) is not None:
            first, last = found
            event = rev.RetentionSwept(
                what="content", policy=self._policy.content, cutoff_ms=cutoff_ms, first=first, last=last
            )
            await self._finish_content(await self._store.begin_work(event), done)

    async def _finish_content(self, work: Work, done: dict[str, Any]) -> None:
        known: dict[int, Protection] = {}
        while not work.done:
            at = work
            work = await self._paced(lambda: self._store.sweep_content(at, self._context, known))  # noqa: B023
        await self._tell(work, done, "content")

    async def _tell(self, work: Work, done: dict[str, Any], what: str) -> None:
        if work.event.count:
            await self._say(work.event)
            self._deleted()
            done[what] += work.event.count
            done["bytes"] += work.event.bytes

    async def _kept(self, cutoff_ms: int, done: dict[str, Any]) -> None:
        """What sessions kept beyond its age: the hold was released, the session ended, its context moved on."""
        async for kept in self._each_kept():
            current: Kept | None = kept
            while current is not None:
                now = current
                work = await self._paced(
                    lambda: self._store.sweep_kept(now, self._context, self._policy.content, cutoff_ms)  # noqa: B023
                )
                if work is None:
                    break
                await self._tell(work, done, "content")
                rest = await self._store.kept_sessions(kept.num - 1)
                current = rest[0] if rest and rest[0].num == kept.num else None

    async def _each_kept(self) -> AsyncIterator[Kept]:
        after = 0
        while page := await self._store.kept_sessions(after):
            for kept in page:
                yield kept
            after = page[-1].num

    async def _faded(self) -> None:
        """States of ended sessions remember what was said last; so do the tables beside them."""
        highest = await self._store.last_number()
        for first in range(1, highest + 1, FADED_AT_ONCE):
            begin = first
            if await self._paced(lambda: self._store.fade(begin, begin + FADED_AT_ONCE - 1)):  # noqa: B023
                self._deleted()

    # -- blobs --------------------------------------------------------------------------------

    async def _blobs(self, cutoff_ms: int, now: int, done: dict[str, Any]) -> None:
        async for kept in self._each_kept():
            after, last = kept.first - 1, kept.last
            while after < last:
                at, whose = after, kept
                after = await self._paced(lambda: self._store.note_needed(whose, at, now))  # noqa: B023
                if after == at:
                    break
        highest = await self._store.last_number()
        for first in range(1, highest + 1, NUMBERS_AT_ONCE):
            begin = first
            await self._paced(
                lambda: self._store.note_founded(begin, begin + NUMBERS_AT_ONCE - 1, cutoff_ms, now)  # noqa: B023
            )
        event = rev.RetentionSwept(what="blobs", policy=self._policy.content, cutoff_ms=cutoff_ms)
        await self._finish_blobs(await self._store.begin_work(event), done)

    async def _finish_blobs(self, work: Work, done: dict[str, Any]) -> None:
        while not work.done:
            at = work
            work = await self._paced(lambda: self._store.sweep_blobs(at))  # noqa: B023
        await self._tell(work, done, "blobs")

    # -- months -------------------------------------------------------------------------------

    async def _months(self, cutoff_ms: int, done: dict[str, Any]) -> None:
        level = (await self._store.upkeep_state())["content_seq"]
        for segment in await self._store.segments():
            if segment.deleted_ms is None:
                if segment.last_ms >= cutoff_ms or segment.last_seq > level:
                    continue
                if await self._store.keepers(segment):
                    continue
                await self._say(await self._store.put_links(segment, self._policy.metadata, cutoff_ms))
                done["months"].append(segment.month)
            at = segment
            while await self._paced(lambda: self._store.drop_rows(at)):  # noqa: B023
                self._deleted()
            while gone := await self._store.forgettable(segment):
                known = [(num, sid) for num, sid in gone if self._router.forget(sid)]
                if not known:
                    break
                nums, sids = zip(*known, strict=True)
                await self._say(rev.RetentionForgot(nums=nums, sids=sids))
                done["sessions"] += len(known)

    async def _shrink(self, done: dict[str, Any]) -> None:
        free = await self._store.free_pages()
        done["pages"] = 0
        while free > FREE_PAGES_KEPT:
            pages = min(PAGES_AT_ONCE, free - FREE_PAGES_KEPT)
            await self._paced(lambda: self._store.give_back(pages))  # noqa: B023
            done["pages"] += pages
            left = await self._store.free_pages()
            if left >= free:
                return  # others take and give meanwhile; there will be another time
            free = left

    async def _cut(self, *, deleted: bool) -> None:
        """Deleted content still stands in the write-ahead log, also in one that a killed boot left."""
        self._uncut = self._uncut or deleted
        for _ in range(CUTS_TRIED if self._uncut else 0):
            if await self._paced(self._store.cut_log):
                self._uncut = False
                return

    # -- commands -----------------------------------------------------------------------------

    async def answer(
        self,
        command: rc.AnyRetentionCommand,
        caller: Caller,
        stored: Callable[[dict[str, Any]], Idempotency] | None,
    ) -> Answer:
        """Carry out one command."""
        head = self._router.store.head
        match command:
            case rc.RetentionStatus():
                return Answer(seq=head, result=await self.status())
            case rc.RetentionRun(dry_run=True):
                return Answer(seq=head, result=await self.due())
            case rc.RetentionRun():
                self._blobs_ms = None
                self._asked.set()
                return Answer(seq=head, result={"started": True, "running": self._running})
            case rc.RetentionHold():
                row = self._router.rows[self._router.resolve(command.sid)]
                by = caller.principal
                result: dict[str, Any] = {"sid": row.sid, "name": row.name, "held": True}
                held = rev.RetentionHeld(
                    sid=row.sid, num=row.num, name=row.name, by=by, reason=command.reason
                )
                seq = await self._say(held, by=by, key=None if stored is None else stored(result))
                return Answer(seq=seq, result={**result, "seq": seq})
            case rc.RetentionRelease():
                row = self._router.rows[self._router.resolve(command.sid)]
                holds = (await self._store.upkeep_state())["holds"]
                if all(hold["sid"] != row.sid for hold in holds):
                    raise Refused("conflict", f"session {row.name!r} is not under legal hold")
                by = caller.principal
                result = {"sid": row.sid, "name": row.name, "held": False}
                released = rev.RetentionReleased(sid=row.sid, num=row.num, by=by, reason=command.reason)
                seq = await self._say(released, by=by, key=None if stored is None else stored(result))
                return Answer(seq=seq, result={**result, "seq": seq})
            case rc.DbStatus():
                return Answer(seq=head, result=await self._store.measures())
            case rc.DbSnapshot():
                path = Path(command.path)
                if not path.is_absolute():
                    raise Refused(
                        "invalid", f"path is {command.path!r}; expected an absolute one", path="$.path"
                    )
                return Answer(seq=head, result=await self._store.snapshot(path, verify=command.verify))

    async def status(self) -> dict[str, Any]:
        """The answer to `retention.status`."""
        state = await self._store.upkeep_state()
        told = []
        for seq, at_ms, event in (await self._store.deletions())[-LAST_TOLD:]:
            told.append({"seq": seq, "at_ms": at_ms, **msgspec.to_builtins(event)})
        now = self._router.clock.now_ms()
        for segment in await self._store.segments():
            if segment.deleted_ms is None and segment.last_ms < now - self._policy.metadata_ms:
                why = await self._store.keepers(segment)
                state["segments"][segment.n - 1]["kept_for"] = [
                    {"sid": sid, "why": word} for sid, word in why
                ]
        return {
            "content_days": self._policy.content_ms // DAY_MS,
            "metadata_days": self._policy.metadata_days,
            "running": self._running,
            "last": self._last,
            **state,
            "deletions": told,
        }

    async def due(self) -> dict[str, Any]:
        """What a run would delete now."""
        now = self._router.clock.now_ms()
        events = size = 0
        through = 0
        if self._policy.content_ms and (
            found := await self._store.due_through(now - self._policy.content_ms)
        ):
            first, through = found
            for start in range(first, through + 1, ESTIMATE_EVENTS):
                some, more = await self._store.estimate(start, min(through, start + ESTIMATE_EVENTS - 1))
                events, size = events + some, size + more
        months = []
        if self._policy.metadata_ms:
            for segment in await self._store.segments():
                if segment.deleted_ms is None and segment.last_ms < now - self._policy.metadata_ms:
                    kept = await self._store.keepers(segment)
                    months.append(
                        {
                            "month": segment.month,
                            "first": segment.first_seq,
                            "last": segment.last_seq,
                            "kept_for": [{"sid": sid, "why": why} for sid, why in kept],
                        }
                    )
        return {
            "content": {"events": events, "bytes": size, "through": through, "policy": self._policy.content},
            "months": months,
        }
