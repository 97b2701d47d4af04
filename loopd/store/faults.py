"""What SQLite and the machine say, as errors with a stable code."""

from __future__ import annotations

import errno
import sqlite3

from loopd_protocol.errors import Refused

_FSYNC_FAILED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})


def of_the_storage(error: Exception) -> bool:
    """Whether the storage failed, and not one of the items."""
    if not isinstance(error, sqlite3.Error) or isinstance(
        error, sqlite3.IntegrityError | sqlite3.InterfaceError | sqlite3.ProgrammingError | sqlite3.DataError
    ):
        return False
    return _primary_code(error) not in (None, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG)


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def refusal(error: BaseException) -> Refused:
    """The error that a producer gets for what SQLite or the machine said."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, sqlite3.IntegrityError):
        return _constraint(str(error))
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return Refused("storage_full" if full else "storage_readonly", f"the journal: {error}")
    if isinstance(error, sqlite3.Error):
        code = _primary_code(error)
        if code == sqlite3.SQLITE_FULL:
            return Refused("storage_full", "the journal has no room left; nothing was stored")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Refused("corrupt", f"the journal: {error}")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Refused("overloaded", f"another process holds the journal: {error}")
        if code in (
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
        ):
            return Refused("storage_readonly", f"the journal: {error}")
        if str(error).startswith(("no such table", "no such column")):
            return Refused("corrupt", f"the journal has other tables than this loopd expects: {error}")
    return Refused("invalid", f"the events cannot be stored: {type(error).__name__}: {error}")


def breaks_the_storage(error: BaseException) -> bool:
    """Whether nothing may be written any more until the file was opened anew.

    After a failed fsync the system may have forgotten the dirty pages while calling them clean, so a
    retry would succeed without being durable; and damage must not be written over.
    """
    if not isinstance(error, sqlite3.Error):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    return code in _FSYNC_FAILED or _primary_code(error) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _constraint(message: str) -> Refused:
    if "session.name" in message or "session_live_name" in message:
        return Refused("already_exists", "a live session has that name")
    if "idempotency" in message:
        return Refused("idempotency_conflict", "the key was used before")
    if "UNIQUE" in message:
        return Refused("conflict", f"the journal has such a row already: {message}")
    return Refused("invalid", f"the journal refuses the row: {message}")
