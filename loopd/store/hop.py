"""One hop: run a whole function on the thread of an aiosqlite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import aiosqlite
import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


async def hop(
    connection: aiosqlite.Connection,
    function: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call `function(raw connection, …)` on the connection's thread.

    aiosqlite's public methods hop once for each statement, which costs a wake-up of the thread and
    one of the loop every time; a group of statements must take one hop in all.
    """
    private = cast("Any", connection)
    return cast("T", await private._execute(function, private._conn, *args, **kwargs))  # noqa: SLF001


async def close(connection: aiosqlite.Connection) -> None:
    """Close a connection; one that never opened is fine."""
    private = cast("Any", connection)
    if private._connection is not None:  # noqa: SLF001
        await connection.close()
    elif private._thread.is_alive():  # noqa: SLF001
        # aiosqlite tells the thread of a connection that failed to open to stop, and does not wait: its
        # answer would meet a closed loop.
        await anyio.to_thread.run_sync(private._thread.join)  # noqa: SLF001
