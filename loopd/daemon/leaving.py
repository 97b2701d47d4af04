"""How a daemon leaves: no new work, turns finish within the budget, the rest is interrupted."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from loopd import failpoints, systemd
from loopd.drivers import end_boot
from loopd.engine.router import Router
from loopd_protocol import events as ev

if TYPE_CHECKING:
    from loopd.daemon.house import Daemon

logger = logging.getLogger("loopd")

STUCK_S = 5.0
"""How long a drain waits for turns that were cancelled: twice, once for all together, once for the rest."""


async def drain(
    daemon: Daemon, router: Router, turns: anyio.abc.TaskGroup, lasting: anyio.abc.TaskGroup
) -> int:
    """Empty the house; returns how many turns were cut.

    A turn that cannot be stopped holds it no longer than twice `STUCK_S`.
    """
    router.draining = True
    if failpoints.armed:
        failpoints.hit("drain.begun")
    systemd.notify("STOPPING=1\nSTATUS=draining")
    logger.info("draining", extra={"running": len(router.running()), "budget_ms": daemon.budget_ms})
    with anyio.move_on_after(daemon.budget_ms / 1_000) as daemon.patience:
        await router.finished()
    cut = await router.cut_all("drain", by="daemon", within_s=STUCK_S)
    lasting.start_soon(_leave_anyway, daemon, router, cut)
    turns.cancel_scope.cancel()
    return cut


async def _leave_anyway(daemon: Daemon, router: Router, cut: int) -> None:
    """Somebody's turn does not hear its cancellation: everything is written, so go without it."""
    await anyio.sleep(STUCK_S)
    assert daemon.store is not None
    stuck = [loop.session.sid for loop in router.running()]
    logger.error("turns do not end, leaving without them", extra={"sids": stuck[:10], "count": len(stuck)})
    await daemon.say(ev.DaemonStopped(reason=daemon.stop_reason, interrupted=cut))
    await daemon.store.aclose()
    await anyio.to_thread.run_sync(end_boot, daemon.premises)
    sys.stdout.flush()
    os._exit(0)  # the stuck task would hold an orderly return for ever
