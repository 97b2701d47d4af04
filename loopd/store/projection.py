"""Projections: what lists, timers and queries need, computed as a difference and written with it.

A `Plan` collects one transaction's changes. Rows that mirror the state (session, hold, inbox, cron)
are the difference of the state before the first and after the last event; rows that only events
know (turn, cron_occurrence, effect, frozen) are folded from the events. `verify` uses the same code
to refold the journal, so there is one definition.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from loopd.core.effects import RESOLUTIONS
from loopd.core.inputs import tokens_of
from loopd.core.passive import passive_row
from loopd.core.state import Session, Waiting
from loopd.core.writes import PassiveRow
from loopd.store import books
from loopd.store.statements import Table, delete, insert, overwriting
from loopd_protocol import events as ev

PASSIVE_COLUMNS: tuple[str, ...] = PassiveRow.__struct_fields__
SESSION_COLUMNS = (*PASSIVE_COLUMNS, "ss", "state")

_INBOX_KEY = ("sid", "ss")
_TURN_UPDATE = """outcome = excluded.outcome, ended_ms = excluded.ended_ms,
    last_seq = excluded.last_seq, last_ss = excluded.last_ss, steps = excluded.steps,
    tokens = excluded.tokens"""
"""A turn's row is written when it begins and when it ends, not at each step."""

_SELDOM = ("name", "status", "preset", "labels")
"""Columns of indexes, and those that a session keeps for life: left out of the usual update, which then
touches no index. They are written by themselves when they change."""

SESSION = Table(
    "session",
    SESSION_COLUMNS,
    ("num",),
    overwriting([c for c in SESSION_COLUMNS if c not in {"num", "sid", "created_ms", *_SELDOM}]),
)
_UPDATE_SELDOM = f"UPDATE session SET {', '.join(f'{c} = ?' for c in _SELDOM)} WHERE num = ?"  # noqa: S608  (constants)
HOLD = Table("hold", ("sid", "kind", "until_ms", "body"), ("sid", "kind"), overwriting(("until_ms", "body")))
INBOX = Table(
    "inbox",
    ("sid", "ss", "id", "source", "at_ms", "job", "due_ms", "count", "held"),
    _INBOX_KEY,
    overwriting(("count", "held")),
)
CRON = Table(
    "cron",
    ("sid", "job", "next_ms", "paused", "body"),
    ("sid", "job"),
    overwriting(("next_ms", "paused", "body")),
)
TURN = Table(
    "turn",
    (
        "sid",
        "n",
        "trigger",
        "outcome",
        "first_seq",
        "last_seq",
        "first_ss",
        "last_ss",
        "started_ms",
        "ended_ms",
        "steps",
        "tokens",
        "manifest",
        "consumed",
    ),
    ("sid", "n"),
    _TURN_UPDATE,
)
OCCURRENCE = Table(
    "cron_occurrence",
    ("sid", "job", "due_ms", "manual", "result", "envelope", "late_ms", "at_ms", "seq"),
    ("sid", "job", "due_ms", "manual"),
    overwriting(("result", "envelope", "late_ms", "at_ms", "seq")),
)
EFFECT = Table(
    "effect",
    (
        "sid",
        "id",
        "n",
        "call",
        "tool",
        "tool_class",
        "args_sha256",
        "intent_seq",
        "outcome",
        "outcome_seq",
        "resolved_by",
        "resolved_ms",
        "note",
    ),
)
RECOVERY = Table("recovery", ("boot", "at_ms", "body"), ("boot",), overwriting(("at_ms", "body")))

FOLDED = (
    ("session", SESSION_COLUMNS, ("num",)),
    ("hold", HOLD.columns, ("sid", "kind")),
    ("inbox", INBOX.columns, _INBOX_KEY),
    ("cron", CRON.columns, ("sid", "job")),
    ("turn", TURN.columns, ("sid", "n")),
    ("cron_occurrence", OCCURRENCE.columns, ("sid", "job", "due_ms", "manual")),
    ("effect", EFFECT.columns, ("sid", "id")),
)
"""(table, columns, key) of everything that a refold of a session must reproduce."""

FINAL_RESULTS = frozenset({"fired", "late", "coalesced", "skipped", "missed"})

_encode_state = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
decode_state = msgspec.msgpack.Decoder(Session).decode
"""The state from its column; fields that a newer version added get their defaults."""


class Placed(NamedTuple):
    """An event with the place it got in the log."""

    seq: int
    ss: int
    at_ms: int
    event: ev.Event
    body: bytes


class Plan:
    """The projection changes of one transaction.

    Appends of one session are merged: its row is written once, from the last state.

    Attributes:
        rows: passive rows of the sessions that were written.
        frozen: what became of the daemon-wide freeze, in order: the event's body, or None for thawed.
    """

    def __init__(self) -> None:
        self._spans: dict[int, list[Session | None]] = {}
        self._turns: dict[tuple[int, int], dict[str, Any]] = {}
        self._occurrences: dict[tuple[int, str, int, bool], tuple[Any, ...]] = {}
        self._effects: dict[tuple[int, str], list[Any]] = {}
        self._outcomes: list[tuple[Any, ...]] = []
        self._recovered: dict[int, tuple[Any, ...]] = {}
        self._books: list[Placed] = []
        self._waiting: dict[str, int] | None = None
        self.rows: dict[int, PassiveRow] = {}
        self.frozen: list[bytes | None] = []

    def add(
        self,
        num: int | None,
        before: Session | None,
        after: Session | None,
        placed: Sequence[Placed],
    ) -> None:
        """Take in one append, in the order of the log."""
        self._waiting = None
        for row in placed:
            fold = _FOLDS.get(type(row.event))
            if fold is not None:
                getattr(self, fold)(num or 0, before, placed, row)
        if num is not None and after is not None:
            span = self._spans.get(num)
            if span is None:
                self._spans[num] = [before, after]
            else:
                span[1] = after

    def write(self, connection: sqlite3.Connection) -> None:
        """Carry the changes out, inside the caller's transaction."""
        gone: dict[str, list[tuple[Any, ...]]] = {"hold": [], "inbox": [], "cron": []}
        sessions: list[tuple[Any, ...]] = []
        holds: list[tuple[Any, ...]] = []
        inbox: list[tuple[Any, ...]] = []
        crons: list[tuple[Any, ...]] = []
        seldom: list[tuple[Any, ...]] = []
        for num, (before, after) in self._spans.items():
            assert after is not None
            passive = self.rows[num] = passive_row(after)
            sessions.append((*astuple(passive), after.ss, _encode_state(after)))
            if before is not None and _changed_seldom(before, after):
                seldom.append((*(getattr(passive, c) for c in _SELDOM), num))
            # Nearly always the very same objects: a step changes no hold, no envelope and no job.
            if before is None or before.gate is not after.gate:
                _holds(num, before, after, holds, gone["hold"])
            if before is None or before.inbox is not after.inbox:
                _inbox(num, before, after, inbox, gone["inbox"])
            if before is None or before.crons is not after.crons:
                _crons(num, before, after, crons, gone["cron"])
        insert(connection, SESSION, sessions)
        for row in seldom:
            connection.execute(_UPDATE_SELDOM, row)
        for table, key in (("hold", ("sid", "kind")), ("inbox", _INBOX_KEY), ("cron", ("sid", "job"))):
            if gone[table]:
                delete(connection, table, key, gone[table])
        for table_, rows in ((HOLD, holds), (INBOX, inbox), (CRON, crons)):
            if rows:
                insert(connection, table_, rows)
        if self._turns:
            insert(connection, TURN, [tuple(t.values()) for t in self._turns.values()])
        if self._occurrences:
            insert(connection, OCCURRENCE, list(self._occurrences.values()))
        if self._effects:
            insert(connection, EFFECT, [tuple(e) for e in self._effects.values()])
        for outcome in self._outcomes:
            connection.execute(
                "UPDATE effect SET outcome = ?, outcome_seq = ?, resolved_by = ?, resolved_ms = ?, note = ? "
                "WHERE sid = ? AND id = ?",
                outcome,
            )
        if self._recovered:
            insert(connection, RECOVERY, list(self._recovered.values()))
        if self.frozen:
            body = self.frozen[-1]
            connection.execute("UPDATE meta SET frozen = ?", (None if body is None else body.decode(),))
        for row in self._books:
            books.enter(connection, row.event, row.at_ms)

    # -- events ---------------------------------------------------------------------------------

    def _turn(self, num: int, row: Placed, n: int) -> dict[str, Any]:
        known = self._turns.get((num, n))
        if known is None:
            known = self._turns[num, n] = {
                "sid": num,
                "n": n,
                "trigger": "",
                "outcome": "",
                "first_seq": row.seq,
                "last_seq": row.seq,
                "first_ss": row.ss,
                "last_ss": row.ss,
                "started_ms": row.at_ms,
                "ended_ms": None,
                "steps": 0,
                "tokens": 0,
                "manifest": None,
                "consumed": "[]",
            }
        known["last_seq"], known["last_ss"] = row.seq, row.ss
        return known

    def _started(self, num: int, before: Session | None, placed: Sequence[Placed], row: Placed) -> None:
        event: ev.TurnStarted = row.event  # type: ignore[assignment]
        turn = self._turn(num, row, event.n)
        turn["trigger"], turn["manifest"] = str(event.trigger), event.manifest
        if event.envelopes:
            where = self._waiting
            if where is None:  # once for an append: those of a refold are pages with hundreds of turns
                where = {w.id: w.ss for w in before.inbox} if before is not None else {}
                where |= {p.event.id: p.ss for p in placed if isinstance(p.event, ev.EnvelopeAccepted)}
                self._waiting = where
            turn["consumed"] = _encode_json(sorted(where.get(e, 0) for e in event.envelopes)).decode()

    def _ended(self, num: int, before: Session | None, placed: Sequence[Placed], row: Placed) -> None:
        event: ev.TurnCompleted | ev.TurnInterrupted = row.event  # type: ignore[assignment]
        turn = self._turn(num, row, event.n)
        turn["outcome"] = event.outcome if isinstance(event, ev.TurnCompleted) else "interrupted"
        turn["ended_ms"] = row.at_ms
        turn["steps"], turn["tokens"] = _used(event.n, before, placed, row)

    def _occurred(self, num: int, _before: Any, _placed: Any, row: Placed) -> None:
        event: ev.CronOccurrence = row.event  # type: ignore[assignment]
        key = (num, event.job, event.due_ms, event.manual)
        self._occurrences[key] = (
            *key,
            event.result,
            event.envelope,
            event.late_ms,
            row.at_ms,
            row.seq,
        )

    def _intended(self, num: int, _before: Any, _placed: Any, row: Placed) -> None:
        event: ev.EffectIntent = row.event  # type: ignore[assignment]
        self._effects[num, event.id] = [
            num,
            event.id,
            event.n,
            event.call,
            event.tool,
            event.tool_class,
            event.args_sha256,
            row.seq,
            "",
            None,
            None,
            None,
            None,
        ]

    def _turned_out(self, num: int, _before: Any, _placed: Any, row: Placed) -> None:
        event: ev.EffectOutcome = row.event  # type: ignore[assignment]
        fresh = self._effects.get((num, event.id))
        settled = event.outcome in RESOLUTIONS
        by, at_ms = (event.by, row.at_ms) if settled else (None, None)
        found = (event.outcome, row.seq, by, at_ms, event.note or None)
        if fresh is not None:
            fresh[-5:] = found
        else:
            self._outcomes.append((*found, num, event.id))

    def _booted(self, _num: int, _before: Any, _placed: Any, row: Placed) -> None:
        event: ev.DaemonRecovered = row.event  # type: ignore[assignment]
        self._recovered[event.boot] = (event.boot, row.at_ms, row.body)

    def _froze(self, _num: int, _before: Any, _placed: Any, row: Placed) -> None:
        self.frozen.append(row.body if isinstance(row.event, ev.DaemonFrozen) else None)

    def _booked(self, _num: int, _before: Any, _placed: Any, row: Placed) -> None:
        self._books.append(row)


_FOLDS: dict[type[ev.Event], str] = {
    **dict.fromkeys(books.BOOKED, "_booked"),
    ev.TurnStarted: "_started",
    ev.TurnCompleted: "_ended",
    ev.TurnInterrupted: "_ended",
    ev.CronOccurrence: "_occurred",
    ev.EffectIntent: "_intended",
    ev.EffectOutcome: "_turned_out",
    ev.DaemonRecovered: "_booted",
    ev.DaemonFrozen: "_froze",
    ev.DaemonUnfrozen: "_froze",
}


def _used(n: int, before: Session | None, placed: Sequence[Placed], end: Placed) -> tuple[int, int]:
    """Steps and tokens of the turn that ends here: what the state knew, and the steps since."""
    steps = tokens = 0
    for at in range(min(end.ss - placed[0].ss, len(placed)) - 1, -1, -1):
        row = placed[at]
        if isinstance(row.event, ev.TurnStep):
            steps = max(steps, row.event.step)
            tokens += tokens_of(row.event.usage)
        elif isinstance(row.event, ev.ContextCompacted):
            tokens += tokens_of(row.event.usage)
        elif isinstance(row.event, ev.TurnStarted):
            return steps, tokens
    turn = before.turn if before is not None else None
    if turn is None or turn.n != n:
        return steps, tokens
    return max(steps, turn.steps), tokens + turn.tokens


# -- state ------------------------------------------------------------------------------------------


def _changed_seldom(before: Session, after: Session) -> bool:
    return (
        before.status != after.status
        or before.name != after.name
        or before.preset != after.preset
        or before.labels != after.labels
    )


def _holds(num: int, before: Session | None, after: Session, put: list[Any], gone: list[Any]) -> None:
    old = before.gate.holds if before is not None else ()
    new = after.gate.holds
    if old == new:
        return
    kept = {hold.kind: hold for hold in old}
    changed = [hold for hold in new if kept.pop(hold.kind, None) != hold]
    put.extend((num, hold.kind, hold.until_ms, _encode_json(hold)) for hold in changed)
    gone.extend((num, kind) for kind in kept)


def _inbox(num: int, before: Session | None, after: Session, put: list[Any], gone: list[Any]) -> None:
    old = before.inbox if before is not None else ()
    new = after.inbox
    if old == new:
        return
    kept: dict[int, Waiting] = {waiting.ss: waiting for waiting in old}
    changed = [w for w in new if kept.pop(w.ss, None) != w]
    put.extend(
        (num, w.ss, w.id, str(w.source), w.at_ms, w.job, w.due_ms, w.count, int(w.held)) for w in changed
    )
    gone.extend((num, ss) for ss in kept)


def _crons(num: int, before: Session | None, after: Session, put: list[Any], gone: list[Any]) -> None:
    old = before.crons if before is not None else ()
    new = after.crons
    if old == new:
        return
    kept = {job.job: job for job in old}
    changed = [job for job in new if kept.pop(job.job, None) != job]
    put.extend((num, job.job, job.next_ms, int(job.paused), _encode_json(job)) for job in changed)
    gone.extend((num, name) for name in kept)
