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
from typing import Any

import msgspec

from loopd.store import opening
from loopd.store.projection import FOLDED
from loopd.store.request import Request
from loopd.store.verify import run as run_verification
from tests.e2e.audit import Journal


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


def proof(path: Path) -> dict[str, Any]:
    """The proof object of a database nobody has open."""
    connection = opening.connect(str(path))
    try:
        made = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone()
        log_id = None if made is None else connection.execute("SELECT log_id FROM meta").fetchone()
        if log_id is None:  # it died before its first use was durable
            return {"ok": True, "findings": [], "checked": {"events": 0}}
        return run_verification(connection, Request(log_id=log_id[0]))
    finally:
        connection.close()


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


# -- damage ------------------------------------------------------------------------------------------


def content(path: Path) -> dict[str, list[Any]]:
    """Everything that verification answers for, as values.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    try:
        found = {"journal": connection.execute("SELECT * FROM journal ORDER BY seq").fetchall()}
        for table, columns, key in FOLDED:
            named, order = ", ".join(columns), ", ".join(key)
            found[table] = connection.execute(f"SELECT {named} FROM {table} ORDER BY {order}").fetchall()
        found["blob"] = connection.execute("SELECT sha, len, data FROM blob ORDER BY sha").fetchall()
        return found
    finally:
        connection.close()


def judged(whole: dict[str, list[Any]], damaged: Path) -> tuple[str, str]:
    """What became of a damaged copy: a word and details; `silent` is the one that must not be.

    `refused`: it is not opened. `found`: verification names it. `prefix`: a shorter log that is whole in
    itself. `harmless`: everything reads as before. `silent`: something reads otherwise and nobody says so.
    """
    try:
        connection = opening.connect(str(damaged))
        try:
            opening.check_tail(connection, opening.identify(connection).log_id)  # what each start looks at
        finally:
            connection.close()
    except Exception as error:  # noqa: BLE001  (whatever it is, it was noticed)
        return "refused", f"{type(error).__name__}: {error}"[:300]
    try:
        seen = proof(damaged)
        if not seen["ok"]:
            return "found", json.dumps(seen["findings"][0])[:300]
        after = content(damaged)
    except Exception as error:  # noqa: BLE001
        return "found", f"{type(error).__name__}: {error}"[:300]
    if after == whole:
        return "harmless", ""
    rows, before = after["journal"], whole["journal"]
    if len(rows) < len(before) and rows == before[: len(rows)]:
        return "prefix", f"{len(rows)} of {len(before)} events"
    differing = [table for table in whole if after[table] != whole[table]]
    return "silent", f"tables that read otherwise: {', '.join(differing)}"
