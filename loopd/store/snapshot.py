"""A copy of one moment of the log, taken while others write, and checked before anybody relies on it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from loopd.store import opening
from loopd.store.request import File, Request
from loopd.store.verify import run as run_verification
from loopd_protocol.errors import Refused

PAGES_AT_ONCE = 2_048


def take(
    source: sqlite3.Connection, target: Path, *, verify: bool, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Copy the database that a reading connection sees.

    The copy is written beside the target, forced to the disk, checked and only then given its name, so a
    file of that name is always whole.

    Args:
        source: a reading connection of its own; it sees one moment until this returns.
        target: must not exist.
        verify: check chains, invariants and projections too, not only pages and the end of the chain.
        stopped: asked between pieces.

    Raises:
        Refused: `already_exists`, `invalid` for a place that cannot be written, `corrupt`, `cancelled`, or a storage code; then no file is left.
    """
    if target.exists():
        raise Refused("already_exists", f"{str(target)!r} exists; a snapshot never replaces a file")
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        what = f"the daemon cannot make a file in {str(target.parent)!r} on its machine: {error.strerror}"
        raise Refused("invalid", f"{what}; expected a folder that it may write to", path="$.path") from error
    os.close(descriptor)
    try:
        found = _copy(source, part, stopped)
        found |= _check(part, verify=verify, stopped=stopped)
        _force(part)
        os.link(part, target)  # unlike a rename, this never replaces what somebody else put there
        _force(target.parent)
    except FileExistsError:
        raise Refused("already_exists", f"{str(target)!r} exists; a snapshot never replaces a file") from None
    finally:
        part.unlink(missing_ok=True)
    return {"path": str(target), "bytes": target.stat().st_size, **found}


def _copy(source: sqlite3.Connection, part: Path, stopped: Callable[[], bool]) -> dict[str, Any]:
    def look(_status: int, _left: int, _total: int) -> None:
        if stopped():
            raise Refused("cancelled", "the snapshot was called off")

    copy = sqlite3.connect(part, isolation_level=None)
    source.execute("BEGIN")  # all pieces come from one moment, whatever is written meanwhile
    try:
        head = source.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0]
        source.backup(copy, pages=PAGES_AT_ONCE, progress=look, sleep=0)
        copy.execute("PRAGMA journal_mode = DELETE")
        if copy.execute("PRAGMA user_version").fetchone()[0] >= 3:
            copy.execute("UPDATE meta SET copied = 1")  # who starts it goes on with a log of its own
    finally:
        source.execute("COMMIT")
        copy.close()
    return {"head": int(head)}


def _check(part: Path, *, verify: bool, stopped: Callable[[], bool]) -> dict[str, Any]:
    connection = opening.connect_reader(part, alone=True)
    try:
        identity = opening.identify(connection)
        pages = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if pages != "ok":
            raise Refused("corrupt", f"the copy is damaged: {pages}")
        opening.check_tail(connection, identity.log_id)
        row = connection.execute("SELECT h FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        found: dict[str, Any] = {"log": identity.log_id, "head_hash": None if row is None else row[0].hex()}
        if verify:
            request = Request(
                log_id=identity.log_id, stopped=stopped, file=File(path=part, alone=True, gently=True)
            )
            proof = run_verification(connection, request)
            if not proof["ok"]:
                raise Refused("corrupt", f"the copy does not verify: {proof['findings'][0]['what']}")
            found["verified"] = proof["checked"]
    finally:
        connection.close()
    digest = sha256()
    with part.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {**found, "sha256": digest.hexdigest()}


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
