"""The doors of a daemon: control socket, agents' socket, HTTP. Opened when all is recovered, closed last."""

from __future__ import annotations

import socket as sockets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

import loopd
from loopd.bus import Bus
from loopd.daemon import configured
from loopd.engine.commands import Dispatcher
from loopd.engine.keyring import Keyring
from loopd.server.agent_door import AgentServer
from loopd.server.attendance import Attendance
from loopd.server.ports import Knock
from loopd.server.unix import UnixServer, clear_stale
from loopd.telemetry import Metrics

if TYPE_CHECKING:
    from loopd.daemon.house import Daemon


class Doors:
    """Everything that listens.

    Attributes:
        server: the control socket; its fan-out serves all others.
        http: address of the HTTP door, or None.
    """

    def __init__(  # noqa: PLR0917
        self,
        daemon: Daemon,
        dispatcher: Dispatcher,
        bus: Bus,
        keyring: Keyring,
        metrics: Metrics,
        knocked: Knock,
    ) -> None:
        self._daemon = daemon
        self._metrics = metrics
        self._keyring = keyring
        self._dispatcher = dispatcher
        self._bus = bus
        self._knocked = knocked
        self._scopes: list[anyio.CancelScope] = []
        self.server: UnixServer | None = None
        self.attendance: Attendance | None = None
        self.http: str | None = None

    async def open(self, tasks: anyio.abc.TaskGroup, sock: sockets.socket | None) -> None:
        """Listen on all of them; `sock` is the control socket that systemd handed over, or None."""
        daemon = self._daemon
        config = daemon.config
        if sock is None:
            clear_stale(daemon.socket)
        common: dict[str, Any] = {
            "now_ms": daemon.clock.now_ms,
            "version": loopd.__version__,
            "boot": daemon.boot,
            "observe": self._metrics.command,
            "knocked": self._knocked,
        }
        self.server = UnixServer(
            daemon.socket,
            self._dispatcher,
            self._bus,
            policy=configured.policy(config, daemon.lineage),
            limits=configured.limits(config),
            sock=sock,
            keys=self._keyring,
            **common,
        )
        assert daemon.router is not None
        self.attendance = self.server.fanout.attendance = Attendance(daemon.router.note)
        await tasks.start(self._within, self.server.serve)
        clear_stale(daemon.agent_door.path)
        owner = None if daemon.run_as is None else (daemon.run_as.uid, daemon.run_as.gid)
        agents = AgentServer(daemon.agent_door, self._dispatcher, self._bus, owner=owner, **common)
        await tasks.start(self._within, agents.serve)
        if config.http.listen is not None:
            await self._open_http(tasks)

    def farewell(self) -> None:
        """Tell no more of who comes and goes: the daemon's own last event says that everybody is gone."""
        if self.attendance is not None:
            self.attendance.end()

    def close(self) -> None:
        """Hang up on everybody."""
        for scope in self._scopes:
            scope.cancel()

    async def _within(
        self, serve: Callable[..., Any], *, task_status: anyio.abc.TaskStatus[Any] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            await serve(task_status=task_status)

    async def _open_http(self, tasks: anyio.abc.TaskGroup) -> None:
        # A quarter of what a start imports, for those who listen.
        from loopd.server.http import Tls, serve_http  # noqa: PLC0415
        from loopd.server.http.cookies import Cookies  # noqa: PLC0415
        from loopd.server.http.desk import Desk  # noqa: PLC0415

        http = self._daemon.config.http
        assert http.listen is not None
        unix = http.listen.startswith("unix:")
        host, _, port = (http.listen, "", "0") if unix else http.listen.rpartition(":")
        assert self.server is not None
        desk = Desk(self.server, self._keyring, cookies=Cookies(self._daemon.data / "cookie.key"))
        tls = None
        if http.tls_certificate is not None and http.tls_key is not None:
            tls = Tls(certificate=http.tls_certificate, key=http.tls_key)

        async def serve(*, task_status: anyio.abc.TaskStatus[tuple[str, int]]) -> None:
            await serve_http(
                host.strip("[]"),
                int(port),
                metrics=self._metrics.render,
                health=self._daemon.health,
                hosts=http.allowed_hosts,
                allow_remote=http.allow_remote,
                desk=desk,
                tls=tls,
                metrics_auth=http.metrics_auth,
                connections=http.connections,
                task_status=task_status,
            )

        bound = await tasks.start(serve)
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.http = bound[0] if unix else f"http{'' if tls is None else 's'}://{name}:{bound[1]}"
