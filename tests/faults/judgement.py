"""What became of a damaged copy of a database: compared, row for row, with the whole one and its earlier commits.

Not every byte of an SQLite file means something: free pages, the room between cells, counters of the header,
frames of the write-ahead log behind the last commit. So files are never compared, only what they say: all
rows of all tables, and for a log whose tail is gone, all rows of all tables as of each commit that was in it.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

from loopd.store import opening
from loopd.store.request import Request
from loopd.store.verify import run as run_verification
from tests.faults.disk import FRAME_HEADER, WAL_HEADER, copied, cut_wal_at

Content = dict[str, list[Any]]

NOT_COMPARED: dict[str, tuple[str, ...]] = {
    "blob": ("id", "at_ms", "used_ms"),  # the content is what counts; these say when retention may let it go
    "boot": ("at_ms", "id", "version", "derivation"),  # checked where the boot lived to tell of itself
    "meta": ("created_ms",),
    "idempotency": ("id",),
    "turn": ("id",),
    "cron_occurrence": ("id",),
    "effect": ("rowid_",),
}
"""Columns that nobody relies on: surrogate keys, dates for people. The list is in docs/explanation/guarantees.md."""

WORDS = ("harmless", "prefix", "found", "refused", "silent")
"""`refused`: a start does not take it. `found`: verification names it. `prefix`: all tables are as of an
earlier commit, so only a tail is missing. `harmless`: everything reads as before. `silent`: something reads
otherwise and nobody says so; the one that must not be."""


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


def content(path: Path) -> Content:
    """All rows of all tables, but for the columns in `NOT_COMPARED`.

    Raises:
        sqlite3.Error: it cannot be read.
    """
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    try:
        found: Content = {"user_version": connection.execute("PRAGMA user_version").fetchall()}
        named = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
        for (name,) in named:
            table = name.decode()
            columns = [row[1].decode() for row in connection.execute(f'PRAGMA table_info("{table}")')]
            shown = ", ".join(f'"{c}"' for c in columns if c not in NOT_COMPARED.get(table, ()))
            found[table] = connection.execute(f'SELECT {shown} FROM "{table}" NOT INDEXED').fetchall()
        return found
    finally:
        connection.close()


def commits(wal: Path) -> list[int]:
    """Where the commits of a write-ahead log end, in bytes; those of its present generation only."""
    if not wal.exists() or wal.stat().st_size <= WAL_HEADER:
        return []
    data = wal.read_bytes()
    page = struct.unpack(">I", data[8:12])[0]
    salts = data[16:24]
    found = []
    for at in range(WAL_HEADER, len(data) - FRAME_HEADER - page + 1, FRAME_HEADER + page):
        if data[at + 8 : at + 16] != salts:
            break  # left over from before the log was begun anew
        if data[at + 4 : at + 8] != b"\0\0\0\0":  # the size of the database after a commit
            found.append(at + FRAME_HEADER + page)
    return found


class Whole:
    """The undamaged copy that damaged ones are made of, and what it said after each of its commits.

    Args:
        base: nobody has it open, and nobody ever opens it.
        scratch: a folder for copies of it.
    """

    def __init__(self, base: Path, scratch: Path) -> None:
        self.base = base
        self._scratch = scratch
        self._commits = commits(base.with_name(f"{base.name}-wal"))
        self._cut: dict[int, Content] = {}
        self.content = content(copied(base.parent, scratch / "whole"))

    def has_been(self, seen: Content) -> bool:
        """Whether all tables were like this after one of the commits in the log, or before the first."""
        head = _head(seen)
        low, high = 0, len(self._commits)
        while low < high:  # the first commit with that head; several may follow that journal nothing
            middle = (low + high) // 2
            if _head(self._after(middle)) < head:
                low = middle + 1
            else:
                high = middle
        while low <= len(self._commits) and _head(self._after(low)) == head:
            if self._after(low) == seen:
                return True
            low += 1
        return False

    def _after(self, count: int) -> Content:
        """What the first `count` commits of the log make of the database."""
        if count not in self._cut:
            copy = copied(self.base.parent, self._scratch / "cut")
            cut_wal_at(copy, self._commits[count - 1] if count else 0)
            self._cut[count] = content(copy)
        return self._cut[count]


def _head(seen: Content) -> int:
    rows = seen.get("journal", [])
    return int(rows[-1][0]) if rows else 0


def judged(whole: Whole, damaged: Path) -> tuple[str, str]:
    """What became of a damaged copy: one of `WORDS`, and details."""
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
    if after == whole.content:
        return "harmless", ""
    try:
        if whole.has_been(after):
            return "prefix", f"{_head(after)} of {_head(whole.content)} events"
    except sqlite3.Error as error:
        return "silent", f"the commits before cannot be read: {error}"
    return "silent", "; ".join(differences(whole.content, after))


def differences(before: Content, after: Content) -> list[str]:
    """In which rows of which tables two contents differ, shortly."""
    said = []
    for table in sorted(before.keys() | after.keys()):
        one, other = before.get(table, []), after.get(table, [])
        if one == other:
            continue
        pairs = [(a, b) for a, b in zip(one, other, strict=False) if a != b][:1]
        said.append(f"{table}: {len(one)} rows, now {len(other)}; {str(pairs)[:600]}")
    return said
