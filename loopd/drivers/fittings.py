"""What the daemon lends to drivers: settings for all sessions of a kind, and services of the house."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio.abc

from loopd.drivers.chat_settings import ChatSettings
from loopd.drivers.proxy.door import ProxyDoor


@dataclass(frozen=True, kw_only=True)
class Fittings:
    """Lent to every driver that is made; all of it may be missing in tests.

    Attributes:
        chat: `[drivers.chat]` of the configuration.
        proxy: the loopback model proxy, or None where there is none.
        tasks: where a driver's own tasks run that outlive a turn (MCP servers, hosted agents).
    """

    chat: ChatSettings = field(default_factory=ChatSettings)
    proxy: ProxyDoor | None = None
    tasks: anyio.abc.TaskGroup | None = None
