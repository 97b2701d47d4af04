"""Commands that explain and hand on what happened: replay, fork, compare, anchors, export, import."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import AtMs, Count, Digest, Key, Label, Name, Seq, SessionRef
from loopd_protocol.command import Command, Labels, Page

CHUNK_BYTES = 512 << 10
"""Most bytes of a file in one frame, before base64."""

Redaction = Literal["none", "secrets", "content"]
Chunk = Annotated[str, Meta(max_length=(CHUNK_BYTES + 2) // 3 * 4)]
"""At most `CHUNK_BYTES`, base64."""


class AnchorRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signed head of a log: its event `seq` had the hash `h` (hex); `sig` is base64."""

    log: Label
    seq: Seq
    h: Digest
    at_ms: AtMs
    key: Label
    sig: Label


class SessionReplay(Command, frozen=True, kw_only=True, tag="replay"):
    """Decides everything that the session has recorded once more, without a model, a tool or a clock.

    → `{"status", "events", "decisions", "verdicts", "difference"}`: `same` when every event came out byte for
    byte; `different` with the first difference; `ended` where the record does not go on. `set` asks what
    would have happened with other settings.
    """

    sid: SessionRef
    set: Annotated[dict[Label, Any], Meta(max_length=200)] = {}


class SessionFork(Command, frozen=True, kw_only=True, tag="session.fork"):
    """Starts a session that knows what another one knew when its turn `n` was over.

    → `{"sid", "name", "parent", "workspace", "note"}`. The history up to that turn, driver, settings, labels
    and goal come along; rules look at the new session afresh. Cron jobs, wake-ups, waiting messages and
    effects stay with the parent, and files are not turned back: the workspace is the operator's business.

    Attributes:
        n: the turn, which must be over; None is the last one that is, 0 is before the first.
        suspended: begin suspended; else it goes on at once if its goal is active.
        goal: another goal; empty for none.
    """

    sid: SessionRef
    n: Count | None = None
    name: Name | None = None
    suspended: bool = True
    goal: Annotated[str, Meta(max_length=1_000_000)] | None = None
    workspace: Annotated[str, Meta(max_length=4_096)] | None = None
    labels: Labels | None = None
    set: Annotated[dict[Label, Any], Meta(max_length=200)] = {}


class TurnDiff(Command, frozen=True, kw_only=True, tag="turn.diff"):
    """→ `{"a", "b", "ops", "same"}`: which messages the model saw in one turn and not in another.

    `other_sid` None is the same session; `step` picks the request of a later step.
    """

    sid: SessionRef
    n: Count
    other_n: Count
    other_sid: SessionRef | None = None
    step: Count = 1
    other_step: Count = 1


class AnchorList(Command, frozen=True, kw_only=True, tag="anchor.list"):
    """→ `{"anchors": […], "keys": […]}`: signed heads of the log in order of `seq`, and their public keys."""

    after: Seq = 0
    limit: Page = 1_000


class ExportOpen(Command, frozen=True, kw_only=True, tag="export.open"):
    """Makes an archive of one session or of the whole log; → `{"id", "bytes", "sha256", "manifest"}`.

    It is read with `export.read`, and forgotten ten minutes after the last look.

    Attributes:
        since, until: moments; only events from the one to before the other.
        redact: profile by which secrets or all content are replaced.
        links: also what ties the session to the log: hashed metadata of the events in between, of others too.
    """

    sid: SessionRef | None = None
    since: AtMs | None = None
    until: AtMs | None = None
    redact: Redaction = "none"
    links: bool = False


class ExportRead(Command, frozen=True, kw_only=True, tag="export.read"):
    """→ `{"data", "next"}`: the next piece, base64; `next` is null at the end."""

    id: Key
    offset: Count = 0


class ExportClose(Command, frozen=True, kw_only=True, tag="export.close"):
    """Forgets an archive before its time."""

    id: Key


class ImportOpen(Command, frozen=True, kw_only=True, tag="import.open"):
    """Begins to bring an archive in: → `{"id"}`. Its pieces follow with `import.write`."""

    bytes: Annotated[int, Meta(ge=1, le=1 << 40)]
    sha256: Digest


class ImportWrite(Command, frozen=True, kw_only=True, tag="import.write"):
    """The next piece; → `{"next"}`. Pieces come in order."""

    id: Key
    offset: Count
    data: Chunk


class ImportFinish(Command, frozen=True, kw_only=True, tag="import.finish"):
    """Verifies the archive and adds its sessions, read-only: → `{"sessions": […], "dup"}`.

    The same archive again changes nothing.
    """

    id: Key


class ImportDrop(Command, frozen=True, kw_only=True, tag="import.drop"):
    """Forgets an imported session."""

    sid: SessionRef


AnyForensicCommand = (
    SessionReplay
    | SessionFork
    | TurnDiff
    | AnchorList
    | ExportOpen
    | ExportRead
    | ExportClose
    | ImportOpen
    | ImportWrite
    | ImportFinish
    | ImportDrop
)

FORENSIC_SCOPES: dict[str, str] = {
    "replay": "read.content",
    "session.fork": "create",
    "turn.diff": "read.content",
    "anchor.list": "read",
    "export.open": "export",
    "export.read": "export",
    "export.close": "export",
    "import.open": "create",
    "import.write": "create",
    "import.finish": "create",
    "import.drop": "create",
}

READ_BY_EXPORTERS: frozenset[str] = frozenset({"export.open", "export.read", "export.close"})
"""Commands that change nothing of any session although their scope is not one of reading."""
