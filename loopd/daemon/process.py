"""The process of a daemon: the lock on its data folder, the event loop, the first refusal on the way out."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path

import anyio

from loopd import allocator
from loopd.config import Config
from loopd.daemon.house import Daemon
from loopd.instance import InstanceLock
from loopd.server.lineage import adopt_orphans, close_memory, own_lineage
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd")

SWITCH_INTERVAL_S = 0.0005
"""Beside a busy event loop the journal's thread fell to 4 k rows/s; with this interval it held 45 k."""

GC_THRESHOLDS = (20_000, 20, 20)
"""Python's own (700, 10, 10) spent a fifth of a busy daemon's processor time looking for garbage.
What lives longer is looked at by `loopd.daemon.sweep`."""


def run(config: Config) -> None:
    """Run a daemon in the foreground until it is stopped.

    Raises:
        Refused: it could not start; nothing was changed.
    """
    if config.data is None:
        raise Refused("invalid", "no data folder; expected `--data DIR` or `data` in the configuration")
    allocator.limit_arenas()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    with InstanceLock(Path(config.data)):
        adopt_orphans()
        close_memory()
        anyio.run(_serve, config, backend="asyncio", backend_options={"use_uvloop": _has_uvloop()})


async def _serve(config: Config) -> None:
    try:
        await Daemon(config, lineage=own_lineage()).run()
    except* Refused as group:
        refusals = [error for error in _leaves(group) if isinstance(error, Refused)]
        raise refusals[0] from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401, PLC0415
    except ImportError:
        logger.warning("uvloop is not installed; the standard event loop is used and is slower")
        return False
    return True
