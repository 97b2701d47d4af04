"""One append on its way into the journal: encoded, sized, and whether it follows what is there."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence

import msgspec

from loopd.core.writes import Append, Appended, PassiveRow, StoredEvent
from loopd.store import chain
from loopd_protocol.errors import Refused
from loopd_protocol.events import EVENT_VERSION

_encode = msgspec.json.Encoder().encode


class Item:
    """One append on its way: encoded when it was handed in, placed when it is committed."""

    __slots__ = ("append", "bodies", "digests", "failure", "first", "future", "num", "row", "size")

    def __init__(self, append: Append, future: Future[Appended]) -> None:
        self.append = append
        self.future = future
        self.bodies: list[bytes] = []
        self.digests: list[bytes] = []
        self.first = 0
        self.row: PassiveRow | None = None
        self.failure: Refused | None = None
        session = append.after if append.after is not None else append.before
        self.num = session.num if session is not None else None
        self.size = 256
        for fact in append.facts:
            body = _encode(fact.event)
            self.bodies.append(body)
            self.digests.append(chain.body_digest(body))
            self.size += len(body) + 256
        for content in append.blobs.values():
            self.size += len(content)

    def stored(self) -> list[StoredEvent]:
        """The events as readers see them; only after the commit."""
        append = self.append
        return [
            StoredEvent(
                seq=seq,
                sid=append.sid,
                ss=fact.ss,
                at_ms=append.at_ms,
                kind=fact.event.kind,
                kv=EVENT_VERSION,
                body=body,
                turn=fact.turn,
                cause=append.cause_seq,
                blob=fact.blob,
                principal=append.principal,
            )
            for seq, (fact, body) in enumerate(zip(append.facts, self.bodies, strict=True), self.first)
        ]


def kinds(items: Sequence[Item]) -> set[str]:
    """Kinds of all events of some items."""
    return {fact.event.kind for item in items for fact in item.append.facts}


def out_of_order(append: Append, ss: int) -> Refused | None:
    """Why an append does not follow event `ss` of its session, or None."""
    facts = append.facts
    if not facts:
        return Refused("invalid", f"an append to {append.sid!r} has no events")
    where = f"session {append.sid!r} is at event {ss}"
    first, last = facts[0].ss, facts[-1].ss
    if first != ss + 1:
        return Refused("conflict", f"{where}; the batch begins at {first} (an earlier one failed?)")
    if len(facts) > 1 and any(fact.ss != ss + i for i, fact in enumerate(facts, 1)):
        return Refused("conflict", f"{where}; the batch has {[f.ss for f in facts]}, which is no run")
    if append.after is None or append.after.ss != last:
        found = append.after.ss if append.after is not None else None
        return Refused("conflict", f"{where}; the state is at {found}, its last event at {last}")
    if (append.before.ss if append.before is not None else 0) != ss:
        return Refused("conflict", f"{where}; the batch builds on another state")
    return None
