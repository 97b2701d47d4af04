"""The composition root: the only place that knows all rooms, and the life of one daemon.

lock ─▶ journal open (new boot) ─▶ sessions recovered ─▶ sockets ─▶ READY ─▶ … ─▶ drain ─▶ closed
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

import loopd
from loopd import systemd
from loopd.bus import Bus
from loopd.config import Config
from loopd.drivers import end_leftovers, make_driver
from loopd.engine.clock import SystemClock
from loopd.engine.commands import Dispatcher
from loopd.engine.issues import file_missing
from loopd.engine.ports import Driver
from loopd.engine.queries import Queries
from loopd.engine.router import Router
from loopd.instance import InstanceLock
from loopd.server.auth import PeerPolicy
from loopd.server.http import serve_http
from loopd.server.limits import SocketLimits
from loopd.server.lineage import Lineage, adopt_orphans, close_memory, own_lineage, reap
from loopd.server.unix import UnixServer, clear_stale, inherited_socket
from loopd.store.sqlite import SqliteStore
from loopd.telemetry import Gauges, LoopLag, Metrics
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd")

DATABASE = "journal.sqlite"
LAG_LIMIT_S = 1.0
STALL_LIMIT_MS = 10_000
SWITCH_INTERVAL_S = 0.0005
"""Beside a busy event loop the journal's thread fell to 4 k rows/s; with this interval it held 45 k."""

REAP_S = 30.0
GC_THRESHOLDS = (20_000, 20, 20)
"""Python's own (700, 10, 10) spent a fifth of a busy daemon's processor time looking for garbage."""


class Daemon:
    """One running daemon: its rooms and why it is or is not ready.

    Args:
        config: with a data folder.
        lineage: how to tell agents on the control socket; None for a daemon that shares its process.
    """

    def __init__(self, config: Config, *, lineage: Lineage | None = None) -> None:
        assert config.data is not None
        self.config = config
        self.lineage = lineage
        self.data = Path(config.data)
        self.socket = config.socket_path or str(self.data / "control.sock")
        self.http: str | None = None
        self.boot = f"boot_{secrets.token_hex(6)}"
        self.clock = SystemClock()
        self.lag = LoopLag()
        self.started_ms = self.clock.monotonic_ms()
        self.ready = False
        self.stopping = anyio.Event()
        self._hurry = anyio.Event()
        self._cut = 0
        self.stop_reason = ""
        self.budget_ms = config.drain.budget_ms
        self._store: SqliteStore | None = None
        self._bus: Bus | None = None
        self._router: Router | None = None
        self._server: UnixServer | None = None

    # -- what others ask ----------------------------------------------------------------------

    def health(self) -> Sequence[str]:
        """Why the daemon is not ready; empty when it is."""
        reasons = [] if self.ready else ["starting"]
        if self.stopping.is_set() or (self._router is not None and self._router.draining):
            reasons.append("draining")
        if self._store is not None and self._store.refused is not None:
            reasons.append(self._store.refused.code)
        return reasons

    def healthy(self) -> bool:
        """Whether the watchdog may be fed: the loop turns, deadlines are looked at."""
        timers_ok = self._router is None or self._router.timers.stalled_ms() < STALL_LIMIT_MS
        return self.lag.max_s < LAG_LIMIT_S and timers_ok

    def status(self) -> dict[str, Any]:
        """The answer to `daemon.status`."""
        assert self._router is not None
        assert self._store is not None
        live = [row for row in self._router.rows.values() if row.status == "live"]
        holds: dict[str, int] = {}
        for row in live:
            for kind in row.holds.split(",") if row.holds else ():
                holds[kind] = holds.get(kind, 0) + 1
        return {
            "version": loopd.__version__,
            "boot": self.boot,
            "pid": os.getpid(),
            "uptime_ms": self.clock.monotonic_ms() - self.started_ms,
            "log": self._store.log_id,
            "head": self._store.head,
            "frozen": self._router.frozen,
            "draining": self._router.draining,
            "ready": not self.health(),
            "reasons": list(self.health()),
            "sessions": {
                "live": len(live),
                "ended": len(self._router.rows) - len(live),
                "running": sum(1 for row in live if row.running),
                "closed": sum(1 for row in live if row.holds),
            },
            "holds": holds,
            "recovered": self._router.recovered,
            "socket": os.path.abspath(self.socket),
            "http": self.http,
            "data": str(self.data),
            # Said aloud, because people expect otherwise: see docs/explanation/security.md.
            "isolation": "none",
            "agents_refused": self.lineage is not None and sys.platform == "linux",
        }

    def gauges(self) -> Gauges:
        """What the metrics page shows of the daemon itself."""
        assert self._router is not None
        assert self._store is not None
        assert self._bus is not None
        return Gauges(
            head=self._store.head,
            uptime_ms=self.clock.monotonic_ms() - self.started_ms,
            next_deadline_ms=self._router.timers.next_ms(),
            frozen=self._router.frozen,
            draining=self._router.draining,
            bus_subscribers=0 if self._server is None else self._server.fanout.subscribers,
            bus_lag_max=0 if self._server is None else self._server.fanout.lag_max,
            wal_bytes=self._store.commits.wal_bytes,
            loop_lag_s=self.lag.max_s,
        )

    def stop(self, reason: str, budget_ms: int | None) -> None:
        """Ask the daemon to end: `drain` lets turns finish within the budget, `stop` does not."""
        self.budget_ms = self.config.drain.budget_ms if budget_ms is None else budget_ms
        self.stop_reason = self.stop_reason or reason
        self.stopping.set()

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            Refused: it could not start, or another daemon has the data folder.
        """
        config = self.config
        sock = inherited_socket()
        async with await SqliteStore.open(
            self.data / DATABASE,
            boot=self.boot,
            now_ms=self.clock.now_ms(),
            max_bytes=config.store.max_bytes or None,
        ) as store:
            self._store = store
            self._bus = bus = Bus(log_id=store.log_id, head=store.head, pages=store)
            self._router = router = Router(
                store=store,
                clock=self.clock,
                make_driver=driver_for,
                on_delta=bus.publish_delta,
                end_leftovers=end_leftovers,
                concurrent_turns=config.limits.concurrent_turns,
                max_sessions=config.limits.max_sessions,
                crash_loop_boots=config.recovery.crash_loop_boots,
                default_preset=config.sessions.preset,
                default_overrides=config.session_overrides,
            )
            metrics = Metrics(
                version=loopd.__version__,
                now_ms=self.clock.now_ms,
                directory=router.rows_of,
                gauges=self.gauges,
                top_k=config.metrics.top_k,
            )

            def committed(events: list[Any]) -> None:
                bus.publish(events)
                metrics.committed(events)

            store.on_commit = committed
            store.on_group = metrics.commit
            dispatcher = Dispatcher(router, Queries(router, self.status), self.stop)
            doors = anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                async with anyio.create_task_group() as turns:
                    tasks.start_soon(self._signals)
                    tasks.start_soon(self.lag.run)
                    if self.lineage is not None:
                        tasks.start_soon(_reap)
                    await router.open(turns, frozen=store.frozen is not None)
                    await file_missing(store)
                    gc.collect()
                    gc.freeze()  # what a boot makes stays: no collection ever looks at it again
                    tasks.start_soon(router.run)
                    if sock is None:
                        clear_stale(self.socket)
                    self._server = server = UnixServer(
                        self.socket,
                        dispatcher,
                        bus,
                        now_ms=self.clock.now_ms,
                        version=loopd.__version__,
                        boot=self.boot,
                        policy=_policy(config, self.lineage),
                        limits=_limits(config),
                        sock=sock,
                        observe=metrics.command,
                    )
                    await tasks.start(_within, doors, server.serve)
                    if config.http.listen is not None:
                        await self._open_http(tasks, metrics)
                    await router.say(self._started(router, store), principal="daemon")
                    self._announce()
                    tasks.start_soon(systemd.feed_watchdog, self.healthy)
                    await self.stopping.wait()
                    await self._drain(router, turns)
                await router.say(
                    ev.DaemonStopped(reason=self.stop_reason, interrupted=self._cut), principal="daemon"
                )
                await router.aclose()
                doors.cancel()
                tasks.cancel_scope.cancel()
        logger.info("stopped", extra={"reason": self.stop_reason})

    async def _open_http(self, tasks: anyio.abc.TaskGroup, metrics: Metrics) -> None:
        assert self.config.http.listen is not None
        host, _, port = self.config.http.listen.rpartition(":")

        async def serve(*, task_status: anyio.abc.TaskStatus[tuple[str, int]]) -> None:
            await serve_http(
                host.strip("[]"),
                int(port),
                metrics=metrics.render,
                health=self.health,
                hosts=self.config.http.allowed_hosts,
                allow_remote=self.config.http.allow_remote,
                task_status=task_status,
            )

        bound = await tasks.start(serve)
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.http = f"http://{name}:{bound[1]}"

    def _started(self, router: Router, store: SqliteStore) -> ev.DaemonStarted:
        return ev.DaemonStarted(
            version=loopd.__version__,
            boot=self.boot,
            pid=os.getpid(),
            epoch=store.epoch,
            recovered=router.recovered,
        )

    def _announce(self) -> None:
        self.ready = True
        line = {"ready": True, "socket": os.path.abspath(self.socket), "http": self.http, "boot": self.boot}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()
        systemd.notify(f"READY=1\nSTATUS=serving on {self.socket}")
        logger.info("ready", extra={"socket": self.socket, "http": self.http, "boot": self.boot})

    async def _signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async for signum in received:
                again = self.stopping.is_set()
                logger.info("signal", extra={"signal": signal.Signals(signum).name})
                if again:
                    self.budget_ms = 0
                    self._hurry.set()
                self.stop(signal.Signals(signum).name, None if not again else 0)

    async def _drain(self, router: Router, turns: anyio.abc.TaskGroup) -> None:
        """Take no new work, let turns finish within the budget, interrupt the rest."""
        router.draining = True
        systemd.notify("STOPPING=1\nSTATUS=draining")
        logger.info("draining", extra={"running": len(router.running()), "budget_ms": self.budget_ms})
        with anyio.move_on_after(self.budget_ms / 1_000):
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(self._leave_early, waiting.cancel_scope)
                await router.finished()
                waiting.cancel_scope.cancel()
        self._cut = await router.cut_all("drain", by="daemon")
        turns.cancel_scope.cancel()

    async def _leave_early(self, scope: anyio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()


async def _within(
    scope: anyio.CancelScope,
    serve: Callable[..., Any],
    *,
    task_status: anyio.abc.TaskStatus[Any] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with scope:
        await serve(task_status=task_status)


def driver_for(sid: str, spec: Mapping[str, Any], workspace: str | None) -> Driver:
    """The driver factory of the daemon; proves that the drivers fit the engine's port."""
    return make_driver(sid, spec, workspace)


async def _reap() -> None:
    ended: frozenset[int] = frozenset()
    while True:
        await anyio.sleep(REAP_S)
        ended = await anyio.to_thread.run_sync(reap, ended)


def _policy(config: Config, lineage: Lineage | None) -> PeerPolicy:
    return PeerPolicy(
        lineage=lineage,
        uids={int(uid): frozenset(scopes) for uid, scopes in config.access.uids.items()},
        gids={int(gid): frozenset(scopes) for gid, scopes in config.access.gids.items()},
    )


def _limits(config: Config) -> SocketLimits:
    limits = config.limits
    return SocketLimits(inflight=limits.inflight, subs=limits.subscriptions, connections=limits.connections)


def run(config: Config) -> None:
    """Run a daemon in the foreground until it is stopped.

    Raises:
        Refused: it could not start; nothing was changed.
    """
    if config.data is None:
        raise Refused("invalid", "no data folder; expected `--data DIR` or `data` in the configuration")
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
