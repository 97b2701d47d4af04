"""What the daemon lends to drivers: settings for all sessions of a kind, and services of the house."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio.abc

from loopd.drivers.acp.launch import Premises
from loopd.drivers.chat_settings import ChatSettings
from loopd.drivers.proxy.door import ProxyDoor
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import BOOT


class AgentDoor(Protocol):
    """Where hosted agents reach loopd; see `loopd.server.agent_door`."""

    def server_for(self, sid: str) -> Mapping[str, Any]:
        """`{name, command, args, env}` of the MCP server (stdio) that speaks for this session."""


@dataclass(frozen=True, kw_only=True)
class Fittings:
    """Lent to every driver that is made; all of it may be missing in tests.

    Attributes:
        chat: `[drivers.chat]` of the configuration.
        proxy: the loopback model proxy, or None where there is none.
        agents: where hosted agents live, or None where there are none.
        tasks: where a driver's own tasks run that outlive a turn (MCP servers, hosted agents).
        agent_door: gives a hosted agent its `loopd` MCP server, or None where there is no such socket.
        run_as: the user that agents and their tools run as, or None for the daemon's own.
    """

    chat: ChatSettings = field(default_factory=ChatSettings)
    proxy: ProxyDoor | None = None
    tasks: anyio.abc.TaskGroup | None = None
    agents: Premises | None = None
    agent_door: AgentDoor | None = None
    run_as: RunAs | None = None

    @property
    def boot_mark(self) -> dict[str, str]:
        """Environment by which the next boot finds, and ends, what this one left running."""
        return {} if self.agents is None else {BOOT: f"{self.agents.house}.{self.agents.boot}"}
