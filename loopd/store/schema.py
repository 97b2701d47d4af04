"""Migrations: numbered plain SQL files, forward only, one transaction each.

`PRAGMA user_version` is the number of the last file that was applied; `application_id` says that
the file is ours.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from loopd_protocol.errors import Refused

APPLICATION_ID = 0x6C6F6F70
"""'loop' in ASCII; set by the first migration."""

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


def migrations_folder() -> Path:
    """Where the SQL files are: the checkout's own folder if there is one, else the wheel's.

    An editable install can leave a stale copy inside the package, so the checkout wins.
    """
    checkout = Path(__file__).parents[2] / "migrations" / "sqlite"
    return checkout if checkout.is_dir() else Path(__file__).parents[1] / "migrations" / "sqlite"


def migrations(folder: Path | None = None) -> list[tuple[int, Path]]:
    """All migrations in order.

    Raises:
        RuntimeError: the numbers have a hole or begin elsewhere than at 1: a broken installation.
    """
    where = folder or migrations_folder()
    found = sorted((int(m[1]), path) for path in where.glob("*.sql") if (m := _FILE.fullmatch(path.name)))
    if [number for number, _ in found] != list(range(1, len(found) + 1)) or not found:
        raise RuntimeError(f"migrations in {str(where)!r} are {[n for n, _ in found]}; expected 1, 2, …")
    return found


def migrate(connection: sqlite3.Connection, *, folder: Path | None = None) -> Sequence[int]:
    """Bring a database to the newest schema; a new file gets all of it.

    Each file runs in its own transaction: on failure the database stays at the last whole version.

    Returns:
        The numbers that were applied now.

    Raises:
        Refused: `corrupt` when the file is another program's database; `unsupported_version` when it
            was written by a newer loopd. Nothing is changed.
    """
    known = migrations(folder)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    check_identity(connection, newest=known[-1][0])
    applied = []
    for number, path in known[version:]:
        # executescript commits an open transaction first, so the transaction is inside the script.
        script = f"BEGIN IMMEDIATE;\n{path.read_text('utf-8')}\nPRAGMA user_version = {number};\nCOMMIT;"
        try:
            connection.executescript(script)
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        applied.append(number)
    return applied


def check_identity(connection: sqlite3.Connection, *, newest: int) -> None:
    """Refuse a database that is not ours or is from the future.

    Raises:
        Refused: `corrupt` or `unsupported_version`, see `migrate`.
    """
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    blank = version == 0 and not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if application != APPLICATION_ID and not (blank and application == 0):
        raise Refused(
            "corrupt",
            f"the database has application_id {application:#x}; "
            f"expected {APPLICATION_ID:#x}: it was made by another program",
        )
    if version > newest:
        raise Refused(
            "unsupported_version",
            f"the database has schema {version}; this loopd knows up to {newest}: use a newer loopd",
        )
