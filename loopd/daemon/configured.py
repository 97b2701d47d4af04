"""What the configuration means to each room."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loopd.config import Config
from loopd.core.account import Price
from loopd.core.prices import Prices
from loopd.drivers import make_driver
from loopd.drivers.fittings import Fittings
from loopd.drivers.run_as import RunAs
from loopd.engine.ports import Driver, DriverFactory
from loopd.engine.retention import Policy as RetentionPolicy
from loopd.server.auth import PeerPolicy
from loopd.server.limits import SocketLimits
from loopd.server.lineage import Lineage


def driver_factory(fittings: Callable[[], Fittings]) -> DriverFactory:
    """The driver factory of the daemon; proves that the drivers fit the engine's port."""

    def make(sid: str, spec: Mapping[str, Any], workspace: str | None) -> Driver:
        return make_driver(sid, spec, workspace, fittings())

    return make


def agent_socket(data: Path, agents: RunAs | None) -> str:
    """Where the socket of hosted agents is: beside the journal, unless agents are somebody else."""
    if agents is None:
        return str(data / "agent.sock")
    # That folder is closed to them; only root can put anything into /run, so nobody is there before us.
    folder = Path("/run") / f"loopd-agents-{hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:12]}"
    folder.mkdir(mode=0o711, exist_ok=True)
    return str(folder / "agent.sock")


def prices(config: Config) -> Prices:
    """What models cost."""
    table = {
        name: Price(input=price.input, output=price.output, cached=price.cached)
        for name, price in config.costs.prices.items()
    }
    return Prices(table, config.costs.currency)


def policy(config: Config, lineage: Lineage | None) -> PeerPolicy:
    """Who may do what on the control socket."""
    return PeerPolicy(
        lineage=lineage,
        uids={int(uid): frozenset(scopes) for uid, scopes in config.access.uids.items()},
        gids={int(gid): frozenset(scopes) for gid, scopes in config.access.gids.items()},
    )


def retention(config: Config) -> RetentionPolicy:
    """How long content and metadata are kept."""
    ages = config.retention
    return RetentionPolicy(
        content_days=ages.content_days, metadata_days=ages.metadata_days, every_s=ages.every_s
    )


def limits(config: Config) -> SocketLimits:
    """Bounds of each connection."""
    limits = config.limits
    return SocketLimits(inflight=limits.inflight, subs=limits.subscriptions, connections=limits.connections)
