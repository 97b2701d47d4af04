"""Events about what is deleted from the journal, and what must stay."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from loopd_protocol.bounds import AtMs, Count, Digest, Key, Label, Name, Reason, Seq
from loopd_protocol.event import Event

Run = tuple[Seq, Seq]
"""First and last of a run of numbers, both included."""


class RetentionSealed(Event, frozen=True, kw_only=True, tag="retention.sealed"):
    """A month of the log has ended; from now on it is deleted as a whole or not at all.

    Attributes:
        n: number of the segment, from 1.
        month: for example `2026-11` (UTC), by the moment of its first event.
        first, last: its events by `seq`.
        prev_hash, head_hash: the chain before the first and at the last of them.
    """

    n: Count
    month: Label
    first: Seq
    last: Seq
    first_ms: AtMs
    last_ms: AtMs
    prev_hash: Digest
    head_hash: Digest


class RetentionSwept(Event, frozen=True, kw_only=True, tag="retention.swept"):
    """Content was deleted; written in the transaction that ends the work.

    Attributes:
        what: `content` (of events: their digests and metadata stay) or `blobs`.
        policy: the rule it followed, for example `content 30 d`.
        cutoff_ms: nothing younger was touched.
        first, last: for content: the events that were looked through, by `seq`.
        sid: for content that had been left out before: the session whose `ss` are in `runs`.
        count, bytes: of what was deleted.
        digest: over the digests of the deleted bodies and of what stands in their place.
    """

    what: Label
    policy: Label
    cutoff_ms: AtMs
    first: Seq = 0
    last: Seq = 0
    sid: Key | None = None
    num: Count = 0
    runs: Annotated[tuple[Run, ...], Meta(max_length=1_000)] = ()
    count: Count = 0
    bytes: Count = 0
    digest: Digest = ""


class RetentionDeleted(Event, frozen=True, kw_only=True, tag="retention.deleted"):
    """The rows of a sealed month are deleted; this is written before the first one goes.

    Attributes:
        n: number of the segment; its range and hashes are repeated here.
        sessions: how many had events in it; each leaves a link from which its own chain goes on.
        links: digest over those links.
    """

    n: Count
    month: Label
    policy: Label
    cutoff_ms: AtMs
    first: Seq
    last: Seq
    prev_hash: Digest
    head_hash: Digest
    sessions: Count
    links: Digest


class RetentionForgot(Event, frozen=True, kw_only=True, tag="retention.forgot"):
    """Ended sessions of which no event is left are forgotten altogether."""

    sids: Annotated[tuple[Key, ...], Meta(max_length=1_000)]
    nums: Annotated[tuple[Count, ...], Meta(max_length=1_000)]


class RetentionHeld(Event, frozen=True, kw_only=True, tag="retention.held"):
    """Nothing of this session may be deleted until `retention.released`."""

    sid: Key
    num: Count
    name: Name
    by: Label
    reason: Reason = ""


class RetentionReleased(Event, frozen=True, kw_only=True, tag="retention.released"):
    """Retention goes by age again for this session."""

    sid: Key
    num: Count
    by: Label
    reason: Reason = ""


AnyRetentionEvent = (
    RetentionSealed | RetentionSwept | RetentionDeleted | RetentionForgot | RetentionHeld | RetentionReleased
)
