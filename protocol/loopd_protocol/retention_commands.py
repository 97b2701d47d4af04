"""Commands about the size and the age of the journal."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from loopd_protocol.bounds import Reason, SessionRef
from loopd_protocol.command import Command

FilePath = Annotated[str, Meta(min_length=1, max_length=4_096)]


class RetentionStatus(Command, frozen=True, kw_only=True, tag="retention.status"):
    """→ ages, what is due, what runs now, sealed months, sessions under legal hold, last deletions."""


class RetentionRun(Command, frozen=True, kw_only=True, tag="retention.run"):
    """Deletes what is due now instead of within the hour; → `{"started": true}`, or what would go.

    The work goes on in the background in small steps; `retention.status` shows how far it is.
    """

    dry_run: bool = False


class RetentionHold(Command, frozen=True, kw_only=True, tag="retention.hold"):
    """Legal hold: nothing of this session is deleted, whatever its age, until `retention.release`."""

    sid: SessionRef
    reason: Reason = ""


class RetentionRelease(Command, frozen=True, kw_only=True, tag="retention.release"):
    """Ends a legal hold; the session's old content goes with the next run."""

    sid: SessionRef
    reason: Reason = ""


class DbStatus(Command, frozen=True, kw_only=True, tag="db.status"):
    """→ sizes of the database and its write-ahead log, free pages, schema, oldest event, rows."""


class DbSnapshot(Command, frozen=True, kw_only=True, tag="db.snapshot"):
    """Copies the journal to a new file on the daemon's machine while it is written; → `{"path", "head", …}`.

    The copy is one moment of the log, checked page by page; with `verify` its chains and projections too.
    """

    path: FilePath
    verify: bool = False


AnyRetentionCommand = (
    RetentionStatus | RetentionRun | RetentionHold | RetentionRelease | DbStatus | DbSnapshot
)

RETENTION_SCOPES: dict[str, str] = {
    "retention.status": "read",
    "retention.run": "admin",
    "retention.hold": "admin",
    "retention.release": "admin",
    "db.status": "read",
    "db.snapshot": "admin",
}
