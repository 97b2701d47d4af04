"""What an archive says of itself, checked before anybody counts on it. Unknown fields are a newer version's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd.store import export
from loopd.store.anchors import Anchor
from loopd_protocol.bounds import AtMs, Count, Label, Seq, SessionRef

Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Before = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
"""The hash before the first row; nothing when that row went with its month."""
Number = Annotated[int, Meta(ge=1, le=2**53 - 1)]


class Range(msgspec.Struct, kw_only=True):
    """First and last event."""

    first: Seq
    last: Seq


class Head(msgspec.Struct, kw_only=True):
    """The last event and its hash."""

    seq: Seq
    hash: Hash


class File(msgspec.Struct, kw_only=True):
    """Size and digest of a file of the archive."""

    bytes: Count
    sha256: Hash


class Redaction(msgspec.Struct, kw_only=True):
    """By which profile content was replaced."""

    profile: Label


class LinkRange(msgspec.Struct, kw_only=True):
    """What ties a session to its log: the chain from its first event to an anchor (or the head)."""

    first: Number
    last: Number
    previous_hash: Hash
    foreign: Count
    anchor: Seq | None


class Manifest(msgspec.Struct, kw_only=True):
    """`manifest.json`."""

    log: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.-]+\Z")]
    scope: Literal["log", "session"]
    sid: SessionRef | None
    range: Range
    previous_hash: Before | None
    head: Head
    counts: dict[str, Count]
    redaction: Redaction
    files: dict[str, File]
    key: Label | None = None
    links: LinkRange | None = None


class Place(msgspec.Struct, kw_only=True):
    """An event of a session."""

    seq: Number
    ss: Number


class Session(msgspec.Struct, kw_only=True):
    """A line of `sessions.ndjson`."""

    num: Number
    sid: SessionRef
    name: SessionRef
    status: Label
    first: Place
    last: Place
    previous_hash: Before
    head_hash: Before


class Boot(msgspec.Struct, kw_only=True):
    """A line of `boots.ndjson`."""

    n: Number
    id: Label
    version: Label
    epoch: Count
    at_ms: AtMs
    head: Seq
    derivation: Any


SHAPES: dict[str, type] = {export.SESSIONS: Session, export.BOOTS: Boot, export.ANCHORS: Anchor}
"""File → shape of its lines."""
