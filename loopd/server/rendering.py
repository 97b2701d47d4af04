"""Events as bytes of one subscription: filtered, spliced together, encoded once for all who share.

The stored payload is never decoded on the way out (except to take content away, and for msgpack).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from loopd.core.writes import StoredEvent
from loopd.server.redaction import may_pass, redacted_body
from loopd_protocol.codec import pack

_FRAME_BYTES = 160
"""About what stands around a payload."""

_SHARED_MAX = 4
"""Renderings of one slice that are kept: more different ones are rarely shared by many."""

_string = msgspec.json.Encoder().encode
Encoding = Literal["json", "msgpack"]


class EventFilter(msgspec.Struct, frozen=True, cache_hash=True):
    """Which events pass. None means no condition.

    Attributes:
        prefixes: beginnings of kinds, with their dot.
        metadata: content is taken out, unknown kinds do not pass.
        sees: whether an event of (sid, kind) exists for the reader at all.
    """

    sids: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    metadata: bool = False
    sees: Callable[[str | None, str], bool] | None = None

    @property
    def is_open(self) -> bool:
        """Whether everything passes as it is."""
        return self.sids is None and self.kinds is None and not self.metadata and self.sees is None

    def passes(self, event: StoredEvent) -> bool:
        """Whether the subscription wants this event."""
        if self.sids is not None and event.sid not in self.sids:
            return False
        if (
            self.kinds is not None
            and event.kind not in self.kinds
            and not event.kind.startswith(self.prefixes)
        ):
            return False
        if self.sees is not None and not self.sees(event.sid, event.kind):
            return False
        return not self.metadata or may_pass(event.kind)


def make_filter(
    sids: frozenset[str] | None,
    kinds: Sequence[str],
    *,
    metadata: bool,
    sees: Callable[[str | None, str], bool] | None = None,
) -> EventFilter:
    """A filter of exact kinds and patterns such as `gate.*`."""
    exact = frozenset(kind for kind in kinds if not kind.endswith("*"))
    prefixes = tuple(sorted(kind[:-1] for kind in kinds if kind.endswith("*")))
    wanted = exact if kinds and "" not in prefixes else None
    return EventFilter(sids, wanted, prefixes if wanted is not None else (), metadata, sees)


class Slice:
    """A run of consecutive events on their way to many subscribers.

    Attributes:
        events: at least one.
        first, last: their sequence numbers.
        size_bytes: about what they have as frames.
    """

    __slots__ = ("_asked", "_ready", "_tails", "events", "first", "last", "size_bytes")

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        self.events = events
        self.first = events[0].seq
        self.last = events[-1].seq
        self.size_bytes = sum(len(event.body) + _FRAME_BYTES for event in events)
        self._asked: set[int] = set()
        self._tails: dict[tuple[int, bool], bytes] = {}
        self._ready: dict[tuple[str, EventFilter, Encoding, int, int], tuple[bytes, int]] = {}

    def render(
        self, sub: str, wanted: EventFilter, enc: Encoding, *, after: int, prev: int
    ) -> tuple[bytes, int]:
        """Frames of the events after `after`, and the new `prev`; empty when none passes."""
        key = (sub, wanted, enc, after if after >= self.first else 0, prev)
        ready = self._ready.get(key)
        if ready is None:
            ready = self._render(sub, wanted, enc, after, prev)
            # Kept from the second time on: what only one subscriber wants is not worth the memory.
            name = hash(key)
            if name in self._asked and len(self._ready) < _SHARED_MAX:
                self._ready[key] = ready
            self._asked.add(name)
        return ready

    def _render(
        self, sub: str, wanted: EventFilter, enc: Encoding, after: int, prev: int
    ) -> tuple[bytes, int]:
        head = b'{"t":"ev","sub":%b,"seq":' % _string(sub)
        parts: list[bytes] = []
        everything = wanted.is_open
        for event in self.events:
            if event.seq <= after or not (everything or wanted.passes(event)):
                continue
            frame = b'%b%d,"prev":%d,%b' % (head, event.seq, prev, self._tail(event, wanted.metadata))
            parts.append(frame if enc == "json" else pack(frame))
            prev = event.seq
        return b"".join(parts), prev

    def _tail(self, event: StoredEvent, metadata: bool) -> bytes:  # noqa: FBT001
        tail = self._tails.get((event.seq, metadata))
        if tail is None:
            tail = b'%b%b%b"ss":%d,"ts":%d,"k":%b,"kv":%d,"b":%b}\n' % (
                b"" if event.sid is None else b'"sid":%b,' % _string(event.sid),
                b"" if event.cause is None else b'"cause":%d,' % event.cause,
                b"" if event.turn is None else b'"turn":%d,' % event.turn,
                event.ss,
                event.at_ms,
                _string(event.kind),
                event.kv,
                redacted_body(event) if metadata else event.body,
            )
            self._tails[event.seq, metadata] = tail
        return tail


def slices(events: Sequence[StoredEvent], size_bytes: int) -> list[Slice]:
    """Cut a run of events into pieces of about `size_bytes`, at least one event each."""
    found: list[Slice] = []
    begin = size = 0
    for at, event in enumerate(events):
        size += len(event.body) + _FRAME_BYTES
        if size >= size_bytes:
            found.append(Slice(events[begin : at + 1]))
            begin, size = at + 1, 0
    if begin < len(events):
        found.append(Slice(events[begin:]))
    return found
