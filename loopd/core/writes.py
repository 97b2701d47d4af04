"""What is handed to the journal and what comes back: plain data, no storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from loopd.core.state import Session
from loopd_protocol.events import Event

LAZY_MS = 50
"""How long notes, facts that nobody waits for, wait for company on their way to the disk."""


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """Stored with the effect of a command: the same key later gets the same result."""

    principal: str
    key: str
    command_sha256: str
    result: bytes


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way into the journal.

    Attributes:
        ss: session sequence number, contiguous from 1; 0 for events of the daemon itself.
        turn: number of the turn it belongs to, or None.
        blob: SHA-256 (hex) of content that belongs to this row, among the batch's `blobs`.
    """

    event: Event
    ss: int
    turn: int | None = None
    blob: str | None = None


class HouseRow(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to the daemon and to no session: a token, a consumer, a webhook. `body` None forgets it."""

    kind: str
    id: str
    body: bytes | None


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic write: events of one session (or of the daemon) and the state after them.

    Attributes:
        sid: the session, or None for events of the daemon.
        at_ms: wall time of all events in it.
        before, after: state of the session around the events; None before creation, and both
            None for events of the daemon. Projections are the difference.
        blobs: content by SHA-256 (hex) of the bytes.
        cause_seq: `seq` of the event that led to these, or None.
        house: rows of the house that are written with them; an append of the daemon may be these alone.
        lazy: a note: nobody waits for it. It goes with the next append that somebody waits for, or by itself
            after `LAZY_MS`; a crash may lose it, and never anything before it.
    """

    sid: str | None
    at_ms: int
    facts: tuple[Fact, ...]
    before: Session | None = None
    after: Session | None = None
    principal: str = ""
    blobs: Mapping[str, bytes] = {}
    cause_seq: int | None = None
    idempotency: Idempotency | None = None
    house: tuple[HouseRow, ...] = ()
    lazy: bool = False


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Where the events of a batch are now: `seq` from `first` to `last`, contiguous.

    Attributes:
        row: the session as it was stored, with this batch or one that was committed together with it.
    """

    first: int
    last: int
    row: PassiveRow | None = None


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One committed row of the journal. `body` is the JSON of the event, as hashed.

    Attributes:
        reduced: retention deleted the content; `body` is what is left of it.
    """

    seq: int
    sid: str | None
    ss: int
    at_ms: int
    kind: str
    kv: int
    body: bytes
    turn: int | None = None
    cause: int | None = None
    blob: str | None = None
    principal: str = ""
    reduced: bool = False


Status = Literal["live", "done_success", "done_partial", "aborted_stuck", "aborted_constraint"]
Preset = Literal["published", "hardened"]
GoalStatus = Literal["", "active", "paused", "complete", "infeasible", "blocked"]
TriggerWord = Literal["", "human", "cron", "rewake", "agent", "channel", "continuation"]
"""Literals, because msgspec decodes them to one shared object each: 240 bytes less for each session."""


class PassiveRow(msgspec.Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """A session that is not loaded, as lists, metrics and timers need it.

    Attributes:
        deadline_ms: earliest moment at which the session must be looked at, or None.
        holds: kinds of its holds, joined by commas.
        trigger: trigger of the running turn, or empty.

    It is an array where it is encoded: the store lets SQLite write the arrays of all sessions as one
    JSON text, which is half the price of fetching the columns one by one.
    """

    sid: str
    num: int
    name: str
    status: Status
    preset: Preset
    goal: GoalStatus
    holds: str
    until_ms: int | None
    deadline_ms: int | None
    inbox: int
    inbox_oldest_ms: int | None
    turns: int
    steps: int
    tokens: int
    tokens_barren: int
    repeat_streak: int
    barren_streak: int
    progress_ms: int
    created_ms: int
    last_turn_ms: int
    running: int
    trigger: TriggerWord
    labels: str
