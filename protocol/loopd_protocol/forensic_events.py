"""Events about copies of what happened: forks, exports, imports."""

from __future__ import annotations

from loopd_protocol.bounds import AtMs, Count, Digest, Key, Label, Name, Seq
from loopd_protocol.event import Event


class SessionForked(Event, frozen=True, kw_only=True, tag="session.forked"):
    """The session begins with what another one knew; always its second event.

    Attributes:
        parent: the other session; `n`, `seq`: the turn after which it was forked, and its last event.
        log, head_hash: the parent's log, and the hash of that event in the parent's own chain.
        turns, steps: how many the parent had taken; the fork goes on counting.
        messages: how many messages it begins with; they are in the blob `history`.
    """

    parent: Key
    n: Count
    seq: Seq
    log: Label = ""
    head_hash: Digest = ""
    turns: Count = 0
    steps: Count = 0
    messages: Count = 0
    history: Digest | None = None
    by: Label = ""


class ExportMade(Event, frozen=True, kw_only=True, tag="export.made"):
    """Somebody took a copy of a session, or of the whole log (`sid` None)."""

    sid: Key | None = None
    first_seq: Seq
    last_seq: Seq
    events: Count
    redaction: Label
    sha256: Digest
    by: Label = ""


class SessionImported(Event, frozen=True, kw_only=True, tag="session.imported"):
    """A session of another log can be read here. It never runs.

    Attributes:
        sid, name: what it is called here.
        log, of: its own log, and its id there.
        archive: SHA-256 of the archive it came in.
    """

    sid: Key
    name: Name
    log: Label
    of: Key
    first_seq: Seq
    last_seq: Seq
    events: Count
    head_hash: Digest
    redaction: Label
    archive: Digest
    by: Label = ""


class ImportDropped(Event, frozen=True, kw_only=True, tag="import.dropped"):
    """An imported session was forgotten."""

    sid: Key
    by: Label = ""


class AnchorSigned(Event, frozen=True, kw_only=True, tag="anchor.signed"):
    """The daemon signed the head of its log: event `seq` had the hash `h` (hex). Kept elsewhere, it dates the log.

    Attributes:
        key: name of the public key; sig: Ed25519, base64, over "loopd anchor 1", log, seq, h and at_ms, a line each.
    """

    log: Label
    seq: Seq
    h: Digest
    at_ms: AtMs
    key: Label
    sig: Label


AnyForensicEvent = SessionForked | ExportMade | SessionImported | ImportDropped | AnchorSigned
