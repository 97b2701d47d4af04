"""Verbs about the age and the size of the journal."""

from __future__ import annotations

from loopd.cli import arguments as arg
from loopd.cli import retention
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "retention status": Verb(
        "what is kept for how long, and what is gone",
        "keeping:status",
        arg.nothing,
        "loopctl retention status",
        "loopctl retention status -o json | jq '.segments[] | select(.deleted_ms)'",
    ),
    "retention run": Verb(
        "delete now what is due",
        "keeping:run_now",
        retention.run_arguments,
        "loopctl retention run --dry-run",
        "loopctl retention run --wait",
    ),
    "retention hold": Verb(
        "legal hold: keep everything of a session",
        "keeping:hold",
        retention.hold_arguments,
        "loopctl retention hold mapper --reason 'case 2026-117'",
        "loopctl retention hold -l client=acme --dry-run",
    ),
    "retention release": Verb(
        "end a legal hold",
        "keeping:release",
        retention.hold_arguments,
        "loopctl retention release mapper --reason 'case closed'",
    ),
    "db status": Verb("how large the journal is", "keeping:db_status", arg.nothing, "loopctl db status"),
    "db snapshot": Verb(
        "copy the journal while it is written",
        "keeping:snapshot",
        retention.snapshot_arguments,
        "loopctl db snapshot /backup/journal-copy.sqlite",
        "loopctl db snapshot /backup/journal.sqlite --verify",
    ),
}

GROUPS = {
    "retention": "how long the journal keeps what happened",
    "db": "the database behind the journal",
}
DEFAULT_MEMBERS = {"retention": "status", "db": "status"}
