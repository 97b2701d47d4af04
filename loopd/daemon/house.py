"""The life of one daemon: its rooms are opened in order, and closed in order.

lock ─▶ journal open (new boot) ─▶ sessions recovered ─▶ sockets ─▶ READY ─▶ … ─▶ drain ─▶ closed
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
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
from loopd.daemon import configured, standing
from loopd.daemon.anchoring import Anchoring
from loopd.daemon.doors import Doors
from loopd.daemon.forensics import Forensics
from loopd.daemon.leaving import drain
from loopd.daemon.sweep import Sweep
from loopd.drivers import end_leftovers
from loopd.drivers.acp.catalogue import kinds_folder, list_agents
from loopd.drivers.acp.launch import Premises
from loopd.drivers.acp.strays import remove_strays
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
from loopd.engine.queries import Queries
from loopd.engine.rates import Rates
from loopd.engine.router import Router
from loopd.engine.strangers import Strangers
from loopd.engine.upkeep import Upkeep
from loopd.server.agent_door import AgentDoor
from loopd.server.lineage import Lineage, reap
from loopd.server.unix import UnixServer, inherited_socket
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
TIDY_S = 3_600.0


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
        self.agent_door = AgentDoor(config.agents.socket or configured.agent_socket(self.data, self.run_as))
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
        self.patience: anyio.CancelScope | None = None
        self.stop_reason = ""
        self.budget_ms = config.drain.budget_ms
        self.store: SqliteStore | None = None
        self.bus: Bus | None = None
        self.router: Router | None = None
        self.anchoring: Anchoring | None = None
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
        """Ask the daemon to end: `drain` lets turns finish within the budget, `stop` does not.

        Asked again, whoever has the least patience counts.
        """
        asked_ms = self.config.drain.budget_ms if budget_ms is None else budget_ms
        self.budget_ms = min(asked_ms, self.budget_ms) if self.stopping.is_set() else asked_ms
        if self.patience is not None:
            until = anyio.current_time() + asked_ms / 1_000
            self.patience.deadline = min(self.patience.deadline, until)
        self.stop_reason = self.stop_reason or reason
        self.stopping.set()

    @property
    def premises(self) -> Premises:
        """Where hosted agents live."""
        return Premises(data=self.data, boot=self.boot, kinds=kinds_folder())

    def _fittings(self) -> Fittings:
        return Fittings(
            chat=self._chat,
            proxy=self._proxy,
            agents=self.premises,
            tasks=self._lasting,
            agent_door=self.agent_door,
            run_as=self.run_as,
        )

    async def _agents(self) -> list[dict[str, Any]]:
        return await list_agents(self.premises)

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
            self.bus = bus = Bus(log_id=store.cursor_log, head=store.head, pages=store)
            self.router = router = Router(
                store=store,
                clock=self.clock,
                make_driver=configured.driver_factory(self._fittings),
                on_delta=bus.publish_delta,
                end_leftovers=lambda sids: end_leftovers(sids, self.premises),
                concurrent_turns=config.limits.concurrent_turns,
                idle_bytes=config.limits.idle_bytes,
                max_sessions=config.limits.max_sessions,
                crash_loop_boots=config.recovery.crash_loop_boots,
                boot=Boot(
                    unstable_boots=config.recovery.unstable_boots,
                    unstable_wait_ms=config.recovery.unstable_wait_s * 1_000,
                ),
                default_preset=config.sessions.preset,
                default_overrides=config.session_overrides,
                prices=configured.prices(config),
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
            deliveries = Deliveries(bus, dispatcher.hooks, now_ms=self.clock.now_ms, observe=metrics.delivery)
            forensics = Forensics(self.data, config, store, self.clock, metrics.anchor)
            self.anchoring = forensics.anchoring
            dispatcher.forensics = forensics.desk(router, queries)
            strangers = Strangers(self.clock, router.say, counted=metrics.stranger)
            doors = Doors(self, dispatcher, bus, self.keyring, metrics, strangers.knocked)
            cut = 0
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
                        await self.say(router.boot.event(boot=store.boots, took_ms=took_ms))
                    if failpoints.armed:
                        failpoints.hit("boot.recovered")
                    if not store.readonly:
                        await file_missing(store)
                    gc.collect()
                    gc.freeze()  # what a boot makes stays: no collection ever looks at it again
                    dispatcher.upkeep = upkeep = Upkeep(
                        router, store, configured.retention(config), deleted=bus.forget
                    )
                    if not store.readonly:
                        maintenance = Maintenance(router, self.ballast, lambda: store.refused)
                        await maintenance.open(dropped=full)
                        store.on_refused = maintenance.look
                        tasks.start_soon(maintenance.run)
                        tasks.start_soon(upkeep.run)
                        tasks.start_soon(_tidy, self.premises, router)
                    tasks.start_soon(Sweep().run)
                    tasks.start_soon(router.run)
                    tasks.start_soon(deliveries.run)
                    tasks.start_soon(strangers.run)
                    await doors.open(tasks, sock)
                    self.server, self.http = doors.server, doors.http
                    await self.say(self._started(router, store))
                    if failpoints.armed:
                        failpoints.hit("boot.ready")
                    tasks.start_soon(forensics.anchoring.keep, bus, router.say)
                    tasks.start_soon(forensics.send_spans, bus)
                    self._announce()
                    tasks.start_soon(systemd.feed_watchdog, self.healthy)
                    await self.stopping.wait()
                    cut = await drain(self, router, turns, tasks)
                await strangers.write()
                doors.farewell()
                await self.say(ev.DaemonStopped(reason=self.stop_reason, interrupted=cut))
                with suppress(Refused):
                    await forensics.anchoring.sign()
                await forensics.aclose()
                await router.aclose()
                doors.close()
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

    async def say(self, event: Event) -> None:
        """Journal an event of the daemon, if anything can be journaled: a full or damaged disk stops nobody."""
        assert self.router is not None
        try:
            await self.router.say(event, principal="daemon")
        except Refused as refusal:
            logger.warning("not journaled", extra={"kind": event.kind, "code": refusal.code})

    def _started(self, router: Router, store: SqliteStore) -> ev.DaemonStarted:
        return ev.DaemonStarted(
            version=loopd.__version__,
            boot=self.boot,
            pid=os.getpid(),
            epoch=store.epoch,
            recovered=router.boot.recovered,
            clean=router.boot.clean,
            log=store.cursor_log,
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
                self.stop(signal.Signals(signum).name, None if not again else 0)


async def _reap() -> None:
    ended: frozenset[int] = frozenset()
    while True:
        await anyio.sleep(REAP_S)
        ended = await anyio.to_thread.run_sync(reap, ended)


async def _tidy(premises: Premises, router: Router) -> None:
    """Remove what the agents of forgotten sessions left on the disk, now and then."""
    while True:
        await anyio.to_thread.run_sync(remove_strays, premises, router.directory.rows.__contains__)
        await anyio.sleep(TIDY_S)
