"""The daemon gives many sessions an input of its own: a deadline has come, the house opened, a budget changed.

Those in memory are given it at once. The others are read from the journal first, several at the same time: at a
full minute the cron jobs of hundreds of sessions are due together, and nobody's hold is to wait until all of
them have been read one after the other.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from loopd.core.inputs import HoldReleased, HoldRequested, Reconsidered, Ticked
from loopd.engine.office import Pending
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from loopd.engine.router import Router
    from loopd.engine.session_loop import SessionLoop

logger = logging.getLogger("loopd.engine")

FIRED_AT_ONCE = 256
"""Deadlines that are carried out together; those in memory share a commit."""

READ_AT_ONCE = 16

RETRY_MS = 1_000
"""A deadline that could not be carried out is looked at again after this time."""

OwnInput = Ticked | Reconsidered | HoldRequested | HoldReleased


async def feed(router: Router, sids: Sequence[str], given: OwnInput) -> int:
    """Give these sessions an input; returns how many it changed, durably.

    Who refuses it, or cannot be read, is left out: one broken session must not stop all.
    """
    count = 0
    for start in range(0, len(sids), FIRED_AT_ONCE):
        part = sids[start : start + FIRED_AT_ONCE]
        here = [sid for sid in part if sid in router.residents]
        known = frozenset(here)
        written: list[Pending] = []
        for sid in here:
            await _give(router, sid, given, written)
        places = anyio.Semaphore(READ_AT_ONCE)

        async def read_and_give(sid: str) -> None:
            async with places:  # noqa: B023  (all of them have ended before the next part begins)
                await _give(router, sid, given, written)  # noqa: B023  (as above)

        async with anyio.create_task_group() as reading:
            for sid in [sid for sid in part if sid not in known]:
                reading.start_soon(read_and_give, sid)
        for pending in written:
            with contextlib.suppress(Refused):  # `lost` has armed it again
                await pending.committed()
                count += 1
    return count


async def _give(router: Router, sid: str, given: OwnInput, written: list[Pending]) -> None:
    try:
        loop = await router.loop_of(sid)
        pending = loop.apply(given)
    except Exception as error:  # noqa: BLE001  the wall: one broken session must not stop all
        logger.error("session not carried on", extra={"sid": sid, "code": code_of(error)})
        if sid in router.rows and sid not in router.unwell:  # else only a new start helps, or nothing
            router.timers.arm(sid, router.clock.now_ms() + RETRY_MS)
        return
    if pending.advanced.events:
        written.append(pending)
    elif not loop.writing:
        _look_again(router, loop)
    # else the session is ahead of its row; the commit that is on its way arms it anew


def _look_again(router: Router, loop: SessionLoop) -> None:
    """Nothing was due after all: its row is out of date, for example because the house closed."""
    router.changed(loop)
    now = router.clock.now_ms()
    armed = router.timers.deadline_of(loop.session.sid)
    if armed is not None and armed <= now:
        router.timers.arm(loop.session.sid, now + RETRY_MS)  # never spin on a deadline


def code_of(error: BaseException) -> str:
    """Its stable code, or its class."""
    return error.code if isinstance(error, Refused) else type(error).__name__
