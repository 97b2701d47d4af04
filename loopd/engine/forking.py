"""Forks: a new session that knows what another one knew when one of its turns was over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from loopd.core.state import Session
from loopd.core.writes import StoredEvent
from loopd.engine.absence import deletion_of, said
from loopd.engine.history import CONTEXT_BYTES, KINDS, History
from loopd.engine.loading import HISTORY_EVENTS, SUMMARIES, blob_names, summing
from loopd.engine.manifest import sha256
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_events import SessionForked

_SAID = frozenset({"envelope.accepted", "turn.step", "turn.interrupted", "context.compacted"})
"""Events that hold what was said; without it a fork would begin with holes, and not know it."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork comes from: its event, the content it names, and the parent's state at that moment."""

    event: SessionForked
    history: bytes
    state: Session

    def blobs(self) -> dict[str, bytes]:
        """The content that the event names."""
        return {} if self.event.history is None else {self.event.history: self.history}


class Past(Protocol):
    """What is needed of the parent's store."""

    @property
    def log_id(self) -> str:
        """Identity of the log."""

    async def turn_events(self, sid: str, n: int) -> list[StoredEvent]:
        """Events of a turn."""

    async def events_at(self, sid: str, numbers: Any) -> list[StoredEvent]:
        """Events by their `ss`."""

    async def page(
        self,
        *,
        sid: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        kinds: Any = (),
        newest: bool = False,
        max_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Events in order."""

    async def blob(self, sha: str) -> bytes | None:
        """Content."""

    async def deletions(self) -> Sequence[tuple[int, int, Any]]:
        """(seq, at_ms, event) of what retention has deleted."""

    async def state_at(
        self, sid: str, *, seq: int | None = None, at_ms: int | None = None
    ) -> tuple[Session, dict[str, int]]:
        """A session as it was."""

    async def link(self, sid: str, ss: int) -> tuple[int, str] | None:
        """`seq` and hash of an event in the session's own chain."""


async def origin_of(store: Past, parent: Session, n: int | None) -> Origin:
    """What a fork of `parent` behind turn `n` begins with.

    Raises:
        Refused: `not_found` for a turn that it does not have, `conflict` for one that runs, or `not_found` when
            content that is needed was deleted.
    """
    running = None if parent.turn is None else parent.turn.n
    if n is None:
        n = parent.turns - (running is not None)
    if n > parent.turns:
        raise Refused("not_found", f"turn {n} of {parent.name!r}; it has {parent.turns}", path="$.n")
    if n == running:
        raise Refused(
            "conflict", f"turn {n} of {parent.name!r} still runs; only a turn that is over can be forked"
        )
    ss = await _end_of(store, parent, n)
    linked = await store.link(parent.sid, ss)
    if linked is None:
        raise Refused(
            "not_found", f"the end of turn {n} of {parent.name!r} is not stored any more", path="$.n"
        )
    seq, head_hash = linked
    state, _ = await store.state_at(parent.sid, seq=seq)
    lost: list[StoredEvent] = []
    history = History(context_bytes=int(state.driver.get("context_bytes") or CONTEXT_BYTES))
    read = await store.page(
        sid=parent.sid, after=None, before=seq + 1, limit=HISTORY_EVENTS, kinds=KINDS, newest=True
    )
    if len(read) == HISTORY_EVENTS:  # the summary that stands for what is older
        summed = await store.page(
            sid=parent.sid,
            after=None,
            before=read[0].seq,
            limit=SUMMARIES,
            kinds=("context.compacted",),
            newest=True,
        )
        read = [*summing(summed), *read]
    for stored in read:
        if stored.reduced:
            if stored.kind in _SAID:
                lost.append(stored)
            continue
        event = ev.decode(stored.body)
        if isinstance(event, ev.ContextCompacted) and event.upto_ss:
            lost = [gone for gone in lost if gone.ss > event.upto_ss]  # its summary stands for them
        history.feed(event, stored.ss, await _blobs(store, event))
    if lost:
        deletion = await deletion_of(store, lost)
        what = f"what was said in {len(lost)} events up to turn {n} of {parent.name!r}"
        known = deletion is not None and deletion["at_ms"] is not None
        why = said(deletion, what) if deletion is not None and known else f"{what} is not stored any more"
        raise Refused("not_found", f"{why}; a fork would not know it", path="$.n")
    inherited = history.inheritance()
    data = msgspec.json.encode(inherited)
    count = len(inherited.messages())
    event = SessionForked(
        parent=parent.sid,
        n=n,
        seq=seq,
        log=store.log_id,
        head_hash=head_hash,
        turns=n,
        steps=state.steps,
        messages=count,
        history=sha256(data) if count else None,
    )
    return Origin(event=event, history=data, state=state)


async def _end_of(store: Past, parent: Session, n: int) -> int:
    """`ss` of the last event that belongs to turn `n`; of the creation for 0."""
    if n == 0:
        return 1
    ends = [
        stored.ss
        for stored in await store.turn_events(parent.sid, n)
        if stored.kind in {"turn.completed", "turn.interrupted"}
    ]
    if not ends:
        raise Refused(
            "not_found", f"the end of turn {n} of {parent.name!r} is not stored any more", path="$.n"
        )
    return ends[-1]


async def _blobs(store: Past, event: ev.Event) -> dict[str, bytes]:
    blobs = {}
    for digest in blob_names(event):
        data = await store.blob(digest)
        if data is not None:
            blobs[digest] = data
    return blobs
