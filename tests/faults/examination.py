"""What must be true of a data folder whose daemon is dead, found out without a daemon.

`examine` copies the files and looks at the copy: the proof of `loopd verify`, the independent audit
of the end-to-end tests, what a client saw acknowledged, and the file that the test tool writes to.
"""

from __future__ import annotations

import collections
import hashlib
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.e2e.audit import Journal
from tests.faults.judgement import proof


class Acknowledged(msgspec.Struct):
    """What a client was told: `seq`, and for envelopes their id and text."""

    seq: int
    kind: str
    sid: str = ""
    envelope: str = ""
    text: str = ""


class Examination(msgspec.Struct, kw_only=True):
    """What was found.

    Attributes:
        findings: of the verification and the audit.
        lost: acknowledged facts that are not in the journal.
        doubled: effects that ran more than once, and texts that were accepted more than once.
        unrecorded: effects that ran without an intent.
        unreported: effects of dead daemons that no later one called uncertain.
    """

    events: int = 0
    acknowledged: int = 0
    effects: int = 0
    uncertain: int = 0
    boots: int = 0
    findings: list[str] = []
    lost: list[str] = []
    doubled: list[str] = []
    unrecorded: list[str] = []
    unreported: list[str] = []

    @property
    def wrong(self) -> list[str]:
        """Everything that breaks a promise."""
        return [*self.findings, *self.lost, *self.doubled, *self.unrecorded, *self.unreported]


def command_digest(command: str) -> str:
    """`args_sha256` of a shell call."""
    return hashlib.sha256(msgspec.json.encode({"command": command}, order="sorted")).hexdigest()


def examine(
    path: Path, acknowledged: Iterable[Acknowledged], tool_file: Path, commands: dict[str, str]
) -> Examination:
    """Look at a copy of a database.

    Args:
        path: the copy.
        acknowledged: what clients were told in all its boots.
        tool_file: one line for each time that the test tool really ran.
        commands: digest of a command → token that it writes.
    """
    found = Examination()
    checked = proof(path)
    found.findings = [f"verify: {json.dumps(f)}" for f in checked["findings"]]
    found.events = checked["checked"]["events"]
    if not found.events:
        found.lost = [f"{a.kind} seq {a.seq}" for a in acknowledged]
        return found
    try:
        journal = Journal(path)
        journal.check()
        journal.texts_are_unique("note ")
    except AssertionError as error:
        found.findings.append(f"audit: {str(error)[:500]}")
        return found
    _acknowledged(found, journal, acknowledged)
    _effects(found, path, tool_file, commands)
    return found


def _acknowledged(found: Examination, journal: Journal, acknowledged: Iterable[Acknowledged]) -> None:
    texts = {e["b"]["id"]: e["b"]["text"] for e in journal.events if e["k"] == "envelope.accepted"}
    nums = journal.sids
    by_seq = {event["seq"]: event for event in journal.events}
    for told in acknowledged:
        found.acknowledged += 1
        event = by_seq.get(told.seq)
        if event is None:
            found.lost.append(f"{told.kind} of {told.sid} was acknowledged as seq {told.seq}")
        elif told.envelope and nums.get(told.sid) != event["num"]:  # others may have changed nothing
            found.lost.append(f"seq {told.seq} belongs to another session than {told.sid}")
        if told.envelope and texts.get(told.envelope) != told.text:
            found.lost.append(f"envelope {told.envelope} of {told.sid}: {told.text!r} was acknowledged")


def _effects(found: Examination, path: Path, tool_file: Path, commands: dict[str, str]) -> None:
    lines = tool_file.read_text().split() if tool_file.exists() else []
    ran = collections.Counter(lines)
    found.effects = len(lines)
    found.doubled += [f"effect {token} ran {count} times" for token, count in ran.items() if count > 1]
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(
            "SELECT e.id, e.args_sha256, e.outcome, j.boot FROM effect AS e JOIN journal AS j ON j.seq = e.intent_seq"
        ).fetchall()
        found.boots = connection.execute("SELECT boots FROM meta").fetchone()[0]
        recovered = connection.execute("SELECT coalesce(max(boot), 0) FROM recovery").fetchone()[0]
    finally:
        connection.close()
    intents = collections.Counter(commands.get(digest, "") for _, digest, _, _ in rows)
    found.unrecorded = [f"effect {token} ran and was never intended" for token in ran if not intents[token]]
    found.doubled += [f"effect {t} was intended {n} times" for t, n in intents.items() if t and n > 1]
    for effect, digest, outcome, boot in rows:
        token = commands.get(digest, "")
        found.uncertain += outcome == "uncertain"
        if outcome == "ok" and token and not ran[token]:
            found.findings.append(f"effect {effect} ({token}) is said to have ended well and never ran")
        if outcome == "" and boot < recovered:
            found.unreported.append(f"effect {effect} of boot {boot} has no outcome after boot {recovered}")
