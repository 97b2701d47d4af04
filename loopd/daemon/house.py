"""The life of one daemon: its rooms are opened in order, and closed in order.

lock ─▶ journal open (new boot) ─▶ sessions recovered ─▶ sockets ─▶ READY ─▶ … ─▶ drain ─▶ closed
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

import loopd
from loopd import failpoints, systemd
from loopd.bus import Bus
from loopd.config import Config
from loopd.core.account import Price
from loopd.core.prices import Prices
from loopd.daemon import standing
from loopd.daemon.forensics import Forensics
from loopd.drivers import end_leftovers, make_driver
from loopd.drivers.acp.catalogue import kinds_folder, list_agents
from loopd.drivers.acp.launch import Premises
from loopd.drivers.chat_settings import ChatSettings
from loopd.drivers.fittings import Fittings
from loopd.drivers.model import Limits
from loopd.drivers.proxy.server import ModelProxy
from loopd.drivers.run_as import RunAs, run_as
from loopd.engine.boot import Boot
from loopd.engine.clock import OffsetClock, SystemClock
from loopd.engine.commands import Dispatcher
from loopd.engine.issues import file_missing
from loopd.engine.keyring import Keyring
from loopd.engine.maintenance import Maintenance
from loopd.engine.model_witness import ModelWitness
from loopd.engine.ports import Driver, DriverFactory
from loopd.engine.queries import Queries
from loopd.engine.rates import Rates
from loopd.engine.router import Router
from loopd.engine.upkeep import Policy as RetentionPolicy
from loopd.engine.upkeep import Upkeep
from loopd.server.agent_door import AgentDoor, AgentServer
from loopd.server.auth import PeerPolicy
from loopd.server.limits import SocketLimits
from loopd.server.lineage import Lineage, reap
from loopd.server.unix import UnixServer, clear_stale, inherited_socket
from loopd.store.ballast import MARGIN_BYTES, Ballast
from loopd.store.sqlite import SqliteStore
from loopd.telemetry import Gauges, LoopLag, Metrics
from loopd.webhooks import Deliveries
from loopd.webhooks.signature import new_secret
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.event import Event

logger = logging.getLogger("loopd")

DATABASE = "journal.sqlite"
LAG_LIMIT_S = 1.0
STALL_LIMIT_MS = 10_000
REAP_S = 30.0
STUCK_S = 5.0
"""How long a drain waits for turns that were cancelled: twice, once for all together, once for the rest."""



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
        self.run_as: RunAs | None = None if config.agents.user is None else run_as(config.agents.user)
        self.agent_door = AgentDoor(config.agents.socket or agent_socket(self.data, self.run_as))
        self.http: str | None = None
        self.boot = f"boot_{secrets.token_hex(6)}"
        moved_by = config.testing.clock_offset_file
        self.clock = SystemClock() if moved_by is None else OffsetClock(moved_by)
        self.ballast = Ballast(self.data, config.store.ballast_bytes)
        self.lag = LoopLag()
        self.started_ms = self.clock.monotonic_ms()
        self.ready = False
        self._lasting: anyio.abc.TaskGroup | None = None
        self._proxy: ModelProxy | None = None
        self._chat = ChatSettings.of(msgspec.structs.asdict(config.drivers.chat))
        self.stopping = anyio.Event()
        self._hurry = anyio.Event()
        self._cut = 0
        self.stop_reason = ""
        self.budget_ms = config.drain.budget_ms
        self.store: SqliteStore | None = None
        self.bus: Bus | None = None
        self.router: Router | None = None
        self.server: UnixServer | None = None

    # -- what others ask ----------------------------------------------------------------------

    def health(self) -> Sequence[str]:
        """Why the daemon is not ready; empty when it is."""
        reasons = [] if self.ready else ["starting"]
        if self.stopping.is_set() or (self.router is not None and self.router.draining):
            reasons.append("draining")
        if self.router is not None and self.router.maintenance:
            reasons.append("storage_full")
        if self.store is not None and self.store.refused is not None:
            reasons.append(self.store.refused.code)
        return list(dict.fromkeys(reasons))

    def healthy(self) -> bool:
        """Whether the watchdog may be fed: the loop turns, deadlines are looked at."""
        timers_ok = self.router is None or self.router.timers.stalled_ms() < STALL_LIMIT_MS
        return self.lag.max_s < LAG_LIMIT_S and timers_ok

    def status(self) -> dict[str, Any]:
        """The answer to `daemon.status`."""
        return standing.status(self)

    def gauges(self) -> Gauges:
        """What the metrics page shows of the daemon itself."""
        return standing.gauges(self)

    def stop(self, reason: str, budget_ms: int | None) -> None:
        """Ask the daemon to end: `drain` lets turns finish within the budget, `stop` does not."""
        self.budget_ms = self.config.drain.budget_ms if budget_ms is None else budget_ms
        self.stop_reason = self.stop_reason or reason
        self.stopping.set()

    @property
    def _premises(self) -> Premises:
        return Premises(data=self.data, boot=self.boot, kinds=kinds_folder())

    def _fittings(self) -> Fittings:
        return Fittings(
            chat=self._chat,
            proxy=self._proxy,
            agents=self._premises,
            tasks=self._lasting,
            agent_door=self.agent_door,
            run_as=self.run_as,
        )

    async def _agents(self) -> list[dict[str, Any]]:
        return await list_agents(self._premises)

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            Refused: it could not start, or another daemon has the data folder.
        """
        config = self.config
        sock = inherited_socket()
        # else not even this boot could be written down
        full = self.ballast.laid and self.ballast.free_bytes() < MARGIN_BYTES and self.ballast.drop()
        async with await self._opened() as store:
            failpoints.arm(config.testing.failpoints)
            if failpoints.armed:
                failpoints.hit("boot.opened")
            self.store = store
            self.bus = bus = Bus(log_id=store.log_id, head=store.head, pages=store)
            self.router = router = Router(
                store=store,
                clock=self.clock,
                make_driver=driver_factory(self._fittings),
                on_delta=bus.publish_delta,
                end_leftovers=lambda sids: end_leftovers(sids, self._premises),
                concurrent_turns=config.limits.concurrent_turns,
                max_sessions=config.limits.max_sessions,
                crash_loop_boots=config.recovery.crash_loop_boots,
                boot=Boot(
                    unstable_boots=config.recovery.unstable_boots,
                    unstable_wait_ms=config.recovery.unstable_wait_s * 1_000,
                ),
                default_preset=config.sessions.preset,
                default_overrides=config.session_overrides,
                prices=_prices(config),
            )
            metrics = Metrics(
                version=loopd.__version__,
                now_ms=self.clock.now_ms,
                directory=router.directory.rows_of,
                gauges=self.gauges,
                top_k=config.metrics.top_k,
            )

            def committed(events: list[Any]) -> None:
                bus.publish(events)
                metrics.committed(events)

            store.on_commit = committed
            store.on_group = metrics.commit
            self.keyring = Keyring(self.clock)
            rates = Rates(config.access.rate_per_s, config.access.burst)
            queries = Queries(router, self.status, self._agents)
            dispatcher = Dispatcher(
                router,
                queries,
                self.stop,
                keyring=self.keyring,
                rates=rates,
                new_secret=new_secret,
            )
            await dispatcher.open()
            deliveries = Deliveries(bus, dispatcher.hooks, now_ms=self.clock.now_ms)
            forensics = Forensics(self.data, config, store, self.clock)
            dispatcher.forensics = forensics.desk(router, queries)
            doors: list[anyio.CancelScope] = []
            async with anyio.create_task_group() as tasks:
                self._lasting = tasks
                self._proxy = ModelProxy(
                    tasks,
                    ModelWitness(router),
                    limits=Limits(
                        first_s=config.drivers.proxy.first_s, silence_s=config.drivers.proxy.silence_s
                    ),
                    keep_bodies=config.drivers.proxy.keep_bodies,
                )
                async with anyio.create_task_group() as turns:
                    tasks.start_soon(self._signals)
                    tasks.start_soon(self.lag.run)
                    if self.lineage is not None:
                        tasks.start_soon(_reap)
                    if store.readonly and store.refused is not None:
                        await router.look(turns, store.refused)
                    else:
                        await router.open(turns, frozen=store.frozen is not None)
                        took_ms = self.clock.monotonic_ms() - self.started_ms
                        await self._say(router.boot.event(boot=store.boots, took_ms=took_ms))
                    if failpoints.armed:
                        failpoints.hit("boot.recovered")
                    if not store.readonly:
                        await file_missing(store)
                    gc.collect()
                    gc.freeze()  # what a boot makes stays: no collection ever looks at it again
                    dispatcher.upkeep = upkeep = Upkeep(
                        router, store, _retention(config), deleted=bus.forget
                    )
                    if not store.readonly:
                        maintenance = Maintenance(router, self.ballast, lambda: store.refused)
                        await maintenance.open(dropped=full)
                        store.on_refused = maintenance.look
                        tasks.start_soon(maintenance.run)
                        tasks.start_soon(upkeep.run)
                    tasks.start_soon(router.run)
                    tasks.start_soon(deliveries.run)
                    if sock is None:
                        clear_stale(self.socket)
                    self.server = server = UnixServer(
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
                        keys=self.keyring,
                    )
                    await tasks.start(_within, doors, server.serve)
                    clear_stale(self.agent_door.path)
                    agents = AgentServer(
                        self.agent_door,
                        dispatcher,
                        bus,
                        now_ms=self.clock.now_ms,
                        version=loopd.__version__,
                        boot=self.boot,
                        owner=None if self.run_as is None else (self.run_as.uid, self.run_as.gid),
                        observe=metrics.command,
                    )
                    await tasks.start(_within, doors, agents.serve)
                    if config.http.listen is not None:
                        await self._open_http(tasks, metrics)
                    await self._say(self._started(router, store))
                    if failpoints.armed:
                        failpoints.hit("boot.ready")
                    tasks.start_soon(forensics.keep_anchored, bus)
                    tasks.start_soon(forensics.send_spans, bus)
                    self._announce()
                    tasks.start_soon(systemd.feed_watchdog, self.healthy)
                    await self.stopping.wait()
                    await self._drain(router, turns)
                await self._say(ev.DaemonStopped(reason=self.stop_reason, interrupted=self._cut))
                with suppress(Refused):
                    await forensics.anchor_now()
                await forensics.aclose()
                await router.aclose()
                for door in doors:
                    door.cancel()
                tasks.cancel_scope.cancel()
        logger.info("stopped", extra={"reason": self.stop_reason})

    async def _opened(self) -> SqliteStore:
        """The journal; opened for reading alone when its end does not verify.

        Raises:
            Refused: it cannot even be read.
        """
        path = self.data / DATABASE
        try:
            return await SqliteStore.open(
                path,
                boot=self.boot,
                now_ms=self.clock.now_ms(),
                max_bytes=self.config.store.max_bytes or None,
            )
        except Refused as refusal:
            if refusal.code != "corrupt":
                raise
            try:
                store = await SqliteStore.open(path, boot=self.boot, readonly=True, unwritable=refusal)
                await store.directory()
            except Refused:
                raise refusal from None
            logger.error("the journal is damaged, reading only", extra={"found": refusal.message})
            return store

    async def _say(self, event: Event) -> None:
        """Journal an event of the daemon, if anything can be journaled: a full or damaged disk stops nobody."""
        assert self.router is not None
        try:
            await self.router.say(event, principal="daemon")
        except Refused as refusal:
            logger.warning("not journaled", extra={"kind": event.kind, "code": refusal.code})

    async def _open_http(self, tasks: anyio.abc.TaskGroup, metrics: Metrics) -> None:
        # A quarter of what a start imports, for those who listen.
        from loopd.server.http import Tls, serve_http  # noqa: PLC0415
        from loopd.server.http.desk import Cookies, Desk, cookie_key  # noqa: PLC0415

        http = self.config.http
        assert http.listen is not None
        unix = http.listen.startswith("unix:")
        host, _, port = (http.listen, "", "0") if unix else http.listen.rpartition(":")
        assert self.server is not None
        desk = Desk(self.server, self.keyring, cookies=Cookies(cookie_key(self.data / "cookie.key")))
        tls = None
        if http.tls_certificate is not None and http.tls_key is not None:
            tls = Tls(certificate=http.tls_certificate, key=http.tls_key)

        async def serve(*, task_status: anyio.abc.TaskStatus[tuple[str, int]]) -> None:
            await serve_http(
                host.strip("[]"),
                int(port),
                metrics=metrics.render,
                health=self.health,
                hosts=self.config.http.allowed_hosts,
                allow_remote=self.config.http.allow_remote,
                desk=desk,
                tls=tls,
                metrics_auth=http.metrics_auth,
                connections=http.connections,
                task_status=task_status,
            )

        bound = await tasks.start(serve)
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.http = bound[0] if unix else f"http{'' if tls is None else 's'}://{name}:{bound[1]}"

    def _started(self, router: Router, store: SqliteStore) -> ev.DaemonStarted:
        return ev.DaemonStarted(
            version=loopd.__version__,
            boot=self.boot,
            pid=os.getpid(),
            epoch=store.epoch,
            recovered=router.recovered,
            clean=router.boot.clean,
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
        if failpoints.armed:
            failpoints.hit("drain.begun")
        systemd.notify("STOPPING=1\nSTATUS=draining")
        logger.info("draining", extra={"running": len(router.running()), "budget_ms": self.budget_ms})
        with anyio.move_on_after(self.budget_ms / 1_000):
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(self._leave_early, waiting.cancel_scope)
                await router.finished()
                waiting.cancel_scope.cancel()
        self._cut = await router.cut_all("drain", by="daemon", within_s=STUCK_S)
        assert self._lasting is not None
        self._lasting.start_soon(self._leave_anyway)
        turns.cancel_scope.cancel()

    async def _leave_anyway(self) -> None:
        """Somebody's turn does not hear its cancellation: everything is written, so go without it."""
        await anyio.sleep(STUCK_S)
        assert self.router is not None
        assert self.store is not None
        stuck = [loop.session.sid for loop in self.router.running()]
        logger.error("turns do not end, leaving without them", extra={"sids": stuck[:10], "count": len(stuck)})
        await self._say(ev.DaemonStopped(reason=self.stop_reason, interrupted=self._cut))
        await self.store.aclose()
        sys.stdout.flush()
        os._exit(0)  # the stuck task would hold an orderly return for ever

    async def _leave_early(self, scope: anyio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()


async def _within(
    doors: list[anyio.CancelScope],
    serve: Callable[..., Any],
    *,
    task_status: anyio.abc.TaskStatus[Any] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.CancelScope() as scope:
        doors.append(scope)
        await serve(task_status=task_status)


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


async def _reap() -> None:
    ended: frozenset[int] = frozenset()
    while True:
        await anyio.sleep(REAP_S)
        ended = await anyio.to_thread.run_sync(reap, ended)


def _prices(config: Config) -> Prices:
    table = {
        name: Price(input=price.input, output=price.output, cached=price.cached)
        for name, price in config.costs.prices.items()
    }
    return Prices(table, config.costs.currency)


def _policy(config: Config, lineage: Lineage | None) -> PeerPolicy:
    return PeerPolicy(
        lineage=lineage,
        uids={int(uid): frozenset(scopes) for uid, scopes in config.access.uids.items()},
        gids={int(gid): frozenset(scopes) for gid, scopes in config.access.gids.items()},
    )


def _retention(config: Config) -> RetentionPolicy:
    ages = config.retention
    return RetentionPolicy(
        content_days=ages.content_days, metadata_days=ages.metadata_days, every_s=ages.every_s
    )


def _limits(config: Config) -> SocketLimits:
    limits = config.limits
    return SocketLimits(inflight=limits.inflight, subs=limits.subscriptions, connections=limits.connections)
