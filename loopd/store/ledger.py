"""The ledger: one open database that batches are committed to, in order, each one whole.

Everything here is synchronous and runs on one thread at a time; `loopd.store.writer` puts it on the
connection's thread, `loopd.store.memory` calls it inline.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from loopd import failpoints
from loopd.store import chain, house
from loopd.store.content import packed
from loopd.store.faults import breaks_the_storage, of_the_storage, refusal
from loopd.store.item import Item, kinds, out_of_order
from loopd.store.projection import Placed, Plan
from loopd.store.statements import Table, delete, insert
from loopd.store.sums import row_sum
from loopd_protocol.errors import Refused
from loopd_protocol.events import EVENT_VERSION

JOURNAL_COLUMNS = (
    "seq",
    "sid",
    "ss",
    "epoch",
    "boot",
    "at_ms",
    "kind",
    "kv",
    "turn",
    "cause_seq",
    "principal",
    "body",
    "blob",
    "h",
    "sh",
)
JOURNAL = Table("journal", JOURNAL_COLUMNS)
BLOB = Table(
    "blob",
    ("sha", "at_ms", "used_ms", "codec", "len", "data"),
    ("sha",),
    "used_ms = max(used_ms, excluded.used_ms)",
)
IDEMPOTENCY = Table("idempotency", ("principal", "key", "command_sha256", "result", "seq", "at_ms", "sum"))
IDEMPOTENCY_KEPT_MS = 7 * 86_400_000

_TIPS_KEPT = 16_384
"""Sessions whose last `ss` and hash are remembered; the others are looked up in the journal."""

_BLOBS_KEPT = 8_192
"""Digests that are known to be stored: system prompts and tool schemas come again with each turn."""

BLOB_USE_MS = 86_400_000
"""How old the noted use of a blob may be before it is noted again: retention must not delete what is in use."""


T = TypeVar("T")


class _Tips:
    """Last `ss` and `sh` of sessions; an overlay that is thrown away when a transaction fails."""

    __slots__ = ("h", "seq", "sessions")

    def __init__(self, seq: int, h: bytes) -> None:
        self.seq = seq
        self.h = h
        self.sessions: dict[int, tuple[int, bytes]] = {}

    def copy(self) -> _Tips:
        twin = _Tips(self.seq, self.h)
        twin.sessions = dict(self.sessions)
        return twin


class Ledger:
    """Appends batches to the journal and keeps chain, projections and blobs with them.

    Attributes:
        seq, h: sequence number and hash of the last committed event.
        connection: the one that writes; only for upkeep, inside `tend`.
        cursor_log: what cursors call the log; see `Reading.cursor_log`.
        frozen: body of the `daemon.frozen` event that stands, or None.
        broken: why nothing is written any more until the file is opened anew, or None.
    """

    def __init__(
        self, connection: sqlite3.Connection, *, log_id: str, epoch: int, boot: int, seq: int, h: bytes
    ) -> None:
        self.connection = connection
        self.log_id = self.cursor_log = log_id
        self.epoch = epoch
        self.boot = boot
        self.seq = seq
        self.h = h
        self.last_at_ms = 0
        self.frozen: bytes | None = None
        self.broken: Refused | None = None
        self._known: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        self._stored: OrderedDict[str, int] = OrderedDict()

    def commit(self, items: Sequence[Item]) -> None:
        """Commit all items in one transaction; those that cannot be stored get a `failure`.

        One bad item never takes others with it: when the whole does not go in, the items are tried
        one by one in savepoints. Errors of the storage itself fail them all.
        """
        try:
            if self.broken is not None:
                raise self.broken
            if not self._together(items):
                self._one_by_one(items)
        except Exception as error:  # noqa: BLE001  (the wall: nobody else could answer these futures)
            if breaks_the_storage(error):
                self.broken = refusal(error)
            for item in items:
                failure = refusal(error)
                item.failure = item.failure or Refused(failure.code, failure.message)

    # -- transactions ---------------------------------------------------------------------------

    def _together(self, items: Sequence[Item]) -> bool:
        tips = _Tips(self.seq, self.h)
        rows: list[tuple[Any, ...]] = []
        plan = Plan()
        if failpoints.armed:
            failpoints.hit("commit.begin", kinds(items))
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for item in items:
                self._place(item, tips, rows, plan)
            self._write([item for item in items if item.failure is None], rows, plan)
            if failpoints.armed:
                failpoints.hit("commit.written", kinds(items))
            self.connection.execute("COMMIT")
        except Exception as error:
            self._rollback()
            for item in items:
                item.failure = None
            if len(items) == 1 or of_the_storage(error):
                raise
            return False
        if failpoints.armed:
            failpoints.hit("commit.done", kinds(items))
        self._advance(tips, items, plan.frozen)
        return True

    def _one_by_one(self, items: Sequence[Item]) -> None:
        tips = _Tips(self.seq, self.h)
        frozen: list[bytes | None] = []
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for item in items:
                trial = tips.copy()
                self.connection.execute("SAVEPOINT item")
                try:
                    rows: list[tuple[Any, ...]] = []
                    plan = Plan()
                    self._place(item, trial, rows, plan)
                    if item.failure is None:
                        self._write([item], rows, plan)
                except Exception as error:
                    if of_the_storage(error):
                        raise
                    self.connection.execute("ROLLBACK TO item")
                    item.failure = refusal(error)
                else:
                    tips = trial
                    frozen += plan.frozen
                self.connection.execute("RELEASE item")
            self.connection.execute("COMMIT")
        except Exception:
            self._rollback()
            raise
        self._advance(tips, items, frozen)

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def _advance(self, tips: _Tips, items: Sequence[Item], frozen: Sequence[bytes | None]) -> None:
        self.seq, self.h = tips.seq, tips.h
        if frozen:
            self.frozen = frozen[-1]
        for num, tip in tips.sessions.items():
            self._known[num] = tip
            self._known.move_to_end(num)
        while len(self._known) > _TIPS_KEPT:
            self._known.popitem(last=False)
        for item in items:
            if item.failure is None:
                for sha in item.append.blobs:
                    if self._unused(sha, item.append.at_ms):
                        self._stored[sha] = item.append.at_ms
                        self._stored.move_to_end(sha)
        while len(self._stored) > _BLOBS_KEPT:
            self._stored.popitem(last=False)
        # Not the latest: a clock that was wrong for a moment must not make all keys a month old.
        self.last_at_ms = next(
            (i.append.at_ms for i in reversed(items) if i.failure is None), self.last_at_ms
        )

    # -- one item -------------------------------------------------------------------------------

    def _place(self, item: Item, tips: _Tips, rows: list[tuple[Any, ...]], plan: Plan) -> None:
        append, num = item.append, item.num
        item.first = tips.seq + 1
        if num is None:
            if append.sid is not None or any(fact.ss for fact in append.facts):
                raise Refused("invalid", f"events of {append.sid!r} come without its state")
            ss, sh = 0, None
        else:
            ss, sh = tips.sessions.get(num) or self._tip(num)
            item.failure = out_of_order(append, ss)
            if item.failure is not None:
                return
        seq, h = tips.seq, tips.h
        epoch, boot, at_ms = self.epoch, self.boot, append.at_ms
        cause, principal = append.cause_seq, append.principal
        placed = []
        for fact, body, digest in zip(append.facts, item.bodies, item.digests, strict=True):
            seq += 1
            blob = bytes.fromhex(fact.blob) if fact.blob is not None else None
            kind = fact.event.kind
            row = chain.row_bytes(
                seq=seq,
                sid=num,
                ss=fact.ss,
                epoch=epoch,
                boot=boot,
                at_ms=at_ms,
                kv=EVENT_VERSION,
                turn=fact.turn,
                cause_seq=cause,
                kind=kind,
                principal=principal,
                body_sha=digest,
                blob=blob,
            )
            h = chain.link(h, row)
            if sh is not None:
                sh = chain.link(sh, row)
            rows.append(
                (
                    seq,
                    num,
                    fact.ss,
                    epoch,
                    boot,
                    at_ms,
                    kind,
                    EVENT_VERSION,
                    fact.turn,
                    cause,
                    principal,
                    body,
                    blob,
                    h,
                    sh,
                )
            )
            placed.append(Placed(seq, fact.ss, at_ms, fact.event, body))
        plan.add(num, append.before, append.after, placed)
        tips.seq, tips.h = seq, h
        if num is not None and sh is not None:
            tips.sessions[num] = (ss + len(placed), sh)

    def _tip(self, num: int) -> tuple[int, bytes]:
        known = self._known.get(num)
        if known is not None:
            return known
        row = self.connection.execute(
            "SELECT ss, sh FROM journal WHERE sid = ? UNION ALL "
            "SELECT last_ss, sh FROM session_link WHERE sid = ? ORDER BY 1 DESC LIMIT 1",
            (num, num),
        ).fetchone()
        return (row[0], row[1]) if row else (0, chain.session_genesis(self.log_id, num))

    def _write(self, items: Sequence[Item], rows: list[tuple[Any, ...]], plan: Plan) -> None:
        blobs: dict[str, tuple[bytes, int]] = {}
        keys = []
        for item in items:
            for sha, content in item.append.blobs.items():
                if self._unused(sha, item.append.at_ms):
                    blobs[sha] = content, item.append.at_ms
            key = item.append.idempotency
            if key is not None:
                last = item.first + len(item.bodies) - 1
                answer = (key.principal, key.key, key.command_sha256, key.result, last, item.append.at_ms)
                keys.append((*answer, row_sum(*answer)))
        if blobs:
            insert(self.connection, BLOB, [packed(sha, *blob) for sha, blob in blobs.items()])
        plan.write(self.connection)
        for item in items:
            if item.num is not None:
                item.row = plan.rows.get(item.num)
        insert(self.connection, JOURNAL, rows)
        for item in items:
            if item.append.house:
                house.write(self.connection, item.append.house)
        if keys:
            self._make_way(keys)
            insert(self.connection, IDEMPOTENCY, keys)

    def _make_way(self, keys: Sequence[tuple[Any, ...]]) -> None:
        """Delete uses of these keys that nobody remembers any more, but that are not forgotten yet."""
        # The earliest moment of the group: for whom that is too early by a moment, the retry by itself is not.
        newest_ms = max(self.last_at_ms, min(key[5] for key in keys))
        names = [(key[0], key[1]) for key in keys]
        delete(
            self.connection,
            "idempotency",
            ("principal", "key"),
            names,
            before_ms=newest_ms - IDEMPOTENCY_KEPT_MS,
        )

    def tend(self, chore: Callable[[Ledger], T]) -> T:
        """Run a piece of upkeep in a transaction of its own; see `loopd.store.upkeep`."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            done = chore(self)
            self.connection.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise
        return done

    def forget_blobs(self, digests: Iterable[str]) -> None:
        """These blobs are deleted: whoever hands one in again stores it again."""
        for sha in digests:
            self._stored.pop(sha, None)

    def _unused(self, sha: str, at_ms: int) -> bool:
        """Whether the use of a blob must be noted: it is new here, or was last noted long ago."""
        noted = self._stored.get(sha)
        return noted is None or at_ms - noted >= BLOB_USE_MS

    def probe(self, size: int) -> None:
        """Raise what a write of `size` bytes would meet; nothing is kept."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            self.connection.execute(
                "INSERT INTO blob (sha, at_ms, used_ms, codec, len, data) "
                "VALUES (zeroblob(32), 0, 0, 'raw', ?, zeroblob(?))",
                (size, size),
            )
        finally:
            self._rollback()
        # A row that comes and goes: an update to the same values would write nothing, and find nothing.
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            self.connection.execute(
                "INSERT INTO idempotency (principal, key, command_sha256, result, seq, at_ms) "
                "VALUES ('', 'probe', '', x'', 0, 0)"
            )
            self.connection.execute("DELETE FROM idempotency WHERE principal = '' AND key = 'probe'")
            self.connection.execute("COMMIT")
        finally:
            self._rollback()

    def forget_keys(self, limit: int = 500) -> int:
        """Delete idempotency keys older than seven days (by the log's own time); returns how many."""
        cursor = self.connection.execute(
            "DELETE FROM idempotency WHERE id IN "
            "(SELECT id FROM idempotency ORDER BY id LIMIT ?) AND at_ms < ?",
            (limit, self.last_at_ms - IDEMPOTENCY_KEPT_MS),
        )
        return cursor.rowcount
