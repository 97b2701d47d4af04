"""Starts of processes are carried through: what has begun must be known, or nobody could end it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


async def carried_through(start: Coroutine[Any, Any, T]) -> T:
    """What `start` returns, also when the caller is cancelled meanwhile; the next await tells it so.

    Raises:
        Exception: whatever `start` raises.
    """
    begun: list[T] = []
    try:
        await anyio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        start.close()
        raise
    with anyio.CancelScope(shield=True):
        begun.append(await start)
    return begun[0]
