"""Talking to the service manager: `sd_notify` over its datagram socket, nothing when there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import anyio


def notify(message: str) -> bool:
    """Send one state line, for example `READY=1`; false when no manager listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect(target)
            sock.sendall(message.encode())
        except OSError:
            return False
    return True


def watchdog_s() -> float | None:
    """How often the manager wants to hear from us (half of its limit), or None."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit_us) / 2_000_000 if limit_us.isdigit() and int(limit_us) > 0 and ours else None


async def feed_watchdog(healthy: Callable[[], bool]) -> None:
    """Ping the manager while the daemon is healthy; a daemon that hangs is then restarted."""
    every_s = watchdog_s()
    if every_s is None:
        return
    while True:
        if healthy():
            notify("WATCHDOG=1")
        await anyio.sleep(every_s)
