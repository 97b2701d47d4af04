"""Which session? Keeps all sessions as passive rows and loads the ones that have work.

A session that waits is a row of plain values and at most one entry in the deadline heap: no task, no
history, no driver. It is loaded when something arrives or comes due, and unloaded again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc

from loopd.core.account import Purse
from loopd.core.inputs import CutCause, Reconsidered, Recovered, Ticked
from loopd.core.passive import passive_row
from loopd.core.prices import Prices
from loopd.core.state import Session
from loopd.core.writes import PassiveRow
from loopd.engine import endings
from loopd.engine.boot import Boot
from loopd.engine.directory import Directory, unknown
from loopd.engine.feeding import RETRY_MS, OwnInput, code_of, feed
from loopd.engine.house_log import HouseLog
from loopd.engine.live_turn import LiveTurn
from loopd.engine.loading import read_session
from loopd.engine.pace import Pace
from loopd.engine.ports import Clock, DriverFactory, Store
from loopd.engine.questions import Place
from loopd.engine.residents import Residents
from loopd.engine.seats import Seats
from loopd.engine.session_loop import SessionLoop
from loopd.engine.timers import Timers
from loopd.engine.treasury import Treasury
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd.engine")

DeltaSink = Callable[[str, int, str], None]


class Router:
    """Hosts all sessions of one daemon.

    Attributes:
        rows: passive row of every session, by sid.
        residents: sessions in memory.
        closed_by: `drain`, `maintenance` or `freeze` while no session may admit work.
        maintenance: the disk is full; see `loopd.engine.maintenance`.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        make_driver: DriverFactory,
        on_delta: DeltaSink,
        end_leftovers: Callable[[Collection[str]], int] = lambda _: 0,
        concurrent_turns: int = 64,
        idle_bytes: int | None = None,
        max_sessions: int = 100_000,
        crash_loop_boots: int = 3,
        boot: Boot | None = None,
        default_preset: str = "hardened",
        default_overrides: Mapping[str, Any] | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.make_driver = make_driver
        self._end_leftovers = end_leftovers
        self.told: DeltaSink = on_delta
        self.timers = Timers(clock)
        self.directory = Directory(max_sessions)
        self.prices = prices or Prices()
        self.treasury = Treasury()
        self.rows = self.directory.rows
        self.frozen = False
        self.draining = False
        self.maintenance = False
        self.unwritable: Refused | None = None
        self.crash_loop_boots = crash_loop_boots
        self.boot = boot or Boot()
        self.unwell: dict[str, str] = {}
        self._trusted: set[str] = set()
        self.defaults = (default_preset, dict(default_overrides or {}))
        house_log = HouseLog(store, clock)
        self.say, self.tell, self.keep = house_log.say, house_log.tell, house_log.keep
        self.note = house_log.note
        self.residents = Residents(idle_bytes=idle_bytes)
        self.seats = Seats()
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._places = anyio.CapacityLimiter(concurrent_turns)
        self._pace = Pace()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def scheduled_from_ms(self) -> int:
        """Cron and wake-ups wait until then."""
        return self.boot.scheduled_from_ms

    @property
    def closed_by(self) -> str | None:
        """Why no session admits work, or None."""
        if self.unwritable is not None:
            return self.unwritable.code
        if self.draining:
            return "drain"
        if self.maintenance:
            return "maintenance"
        return "freeze" if self.frozen else None

    # -- life -----------------------------------------------------------------------------

    async def open(self, tasks: anyio.abc.TaskGroup, *, frozen: bool) -> None:
        """Read all sessions, recover those that were in the middle of a turn, arm the deadlines."""
        self._tasks = tasks
        self.frozen = frozen
        now = self.clock.now_ms()
        await self.boot.look_back(self.store, now)
        self.directory.begin_after(await self.store.last_number())
        rows = await self.store.directory()
        self.boot.count(rows, now, int(self._places.total_tokens))
        running = [row.sid for row in rows if row.running]
        for row in rows:
            self.directory.follow(row)
            if row.deadline_ms is not None and not row.running:
                late = row.deadline_ms <= now
                spread = now + random.randrange(self.boot.spread_ms) if late else row.deadline_ms
                self.timers.arm(row.sid, spread)
        await self.treasury.open(self.store, self.rows, now)
        # A tool may outlive its turn: the daemon died while it was being ended.
        cut = [sid for sid in await self.store.with_open_effects() if not self.rows[sid].running]
        if ended := self._end_leftovers([*running, *cut]):  # also what outlived a boot without a running turn
            logger.warning("processes of the last boot ended", extra={"processes": ended})
            self.boot.leftovers = ended
        await self.feed([*running, *cut], Ticked())  # loading them is recovering them
        for scope in self.treasury.spent():  # it died before all members had looked
            await self.reconsider_some(self.treasury.members(scope, self.rows), Reconsidered())

    async def look(self, tasks: anyio.abc.TaskGroup, why: Refused) -> None:
        """Read all sessions, to be looked at and nothing else: the journal is damaged."""
        self._tasks = tasks
        self.unwritable = why
        for row in await self.store.directory():
            self.directory.follow(row)

    async def run(self) -> None:
        """Carry out deadlines, for ever."""
        await self.timers.run(lambda due: self.feed(due, Ticked()))

    async def aclose(self) -> None:
        """Release all drivers, all at the same time: a hosted agent takes a moment to end."""
        async with anyio.create_task_group() as ending:
            for loop in self.residents:
                ending.start_soon(loop.aclose)

    async def feed(self, sids: Sequence[str], given: OwnInput) -> int:
        """Give many sessions an input of the daemon's own; see `loopd.engine.feeding`."""
        return await feed(self, sids, given)

    # -- finding and loading ----------------------------------------------------------------

    def resolve(self, ref: str) -> str:
        """The sid of a session that is stored or in memory; see `Directory.resolve`."""
        sid = self.directory.resolve(ref)
        if sid not in self.rows and sid not in self.residents:  # its creation has only begun
            raise unknown(ref)
        return sid

    def loaded(self, sid: str) -> SessionLoop | None:
        """The session if it is in memory; it stays where it is in the order of unloading."""
        return self.residents.get(sid)

    async def loop_of(self, ref: str) -> SessionLoop:
        """The loaded session.

        Raises:
            Refused: `not_found`, or a storage code when it cannot be read.
        """
        sid = self.resolve(ref)
        while (loop := self.residents.use(sid) or await self._load(sid)).forgotten:
            pass  # it left memory between its recovery and now
        return loop

    async def state_of(self, ref: str) -> Session:
        """The committed state of a session, without loading what it needs to work.

        Raises:
            Refused: `not_found`, or a storage code when it cannot be read.
        """
        sid = self.resolve(ref)
        return (await self.states_of([sid]))[sid]

    async def states_of(self, sids: Sequence[str]) -> dict[str, Session]:
        """The committed states of many sessions, by sid."""
        here = map(self.residents.get, sids)
        known = {loop.session.sid: loop.durable for loop in here if loop is not None}
        return known | await self.store.load_sessions([sid for sid in sids if sid not in known])

    async def _load(self, sid: str) -> SessionLoop:
        while (waiting := self._loading.get(sid)) is not None:
            await asyncio.wait([waiting])
            if loop := self.residents.use(sid):
                return loop
            # whoever loaded it failed or went away; the next one tries for itself
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loading[sid] = future
        try:
            lost = await self.residents.left(sid)
            loop = await read_session(self, sid, trusted=sid in self._trusted)
            loop.previous = None if lost is None else lost.ends()
            self.residents.add(loop)
            self._trusted.add(sid)
        except Refused as refusal:
            if refusal.code == "corrupt":
                self.unwell[sid] = refusal.message
                self.boot.refused(sid, refusal.message)
            raise
        finally:
            del self._loading[sid]
            future.set_result(None)
        self._make_room(loop)
        if loop.session.turn is not None or any(not effect.uncertain for effect in loop.session.effects):
            given = Recovered(boot=self.store.boots, crash_loop_boots=self.crash_loop_boots)
            try:
                self.boot.settled(sid, await loop.apply(given, principal="daemon").committed())
            except Refused as refusal:
                self.boot.postponed(sid, refusal.message)
                raise
            await self.boot.look_at_calls(self.store, sid)
        return loop

    def host(self, loop: SessionLoop) -> None:
        """Keep a session in memory that was made just now."""
        self.residents.add(loop)

    def rested(self, loop: SessionLoop) -> None:
        """See `office.Office`."""
        if loop.idle and loop.session.status != "live" and self.residents.get(loop.session.sid) is loop:
            self._unload(loop)
        else:
            self._make_room(loop)

    def _make_room(self, newest: SessionLoop) -> None:
        self.residents.rested(newest)
        for loop in self.residents.surplus():
            self._unload(loop)

    def _unload(self, loop: SessionLoop) -> None:
        self.residents.remove(loop)
        loop.forgotten = True
        self.release(loop)

    def forget(self, sid: str) -> bool:
        """Let go of an ended session for good; false when it lives again or somebody uses it now."""
        row = self.rows.get(sid)
        loop = self.residents.get(sid)
        if row is None:
            return True
        if row.status == "live" or sid in self._loading or (loop is not None and not loop.idle):
            return False
        if loop is not None:
            self._unload(loop)
        self.directory.forget(sid)
        self._trusted.discard(sid)
        return True

    # -- office of the session loops ----------------------------------------------------------

    def spawn(self, loop: SessionLoop, turn: LiveTurn) -> None:
        """See `office.Office`."""
        assert self._tasks is not None
        self._tasks.start_soon(loop.run_turn, turn, Place(self._places, self._pace))

    def release(self, loop: SessionLoop) -> None:
        """See `office.Office`."""
        if loop.drives and self._tasks is not None:
            self._tasks.start_soon(loop.aclose)

    def changed(self, loop: SessionLoop, row: PassiveRow | None = None) -> None:
        """See `office.Office`."""
        self._trusted.add(loop.session.sid)
        if row is None or self.closed_by is not None or self.scheduled_from_ms:
            row = passive_row(
                loop.durable, closed_by=self.closed_by, scheduled_from_ms=self.scheduled_from_ms
            )
        self.directory.follow(row)
        self.timers.arm(row.sid, row.deadline_ms)
        self.rested(loop)

    def lost(self, loop: SessionLoop, error: BaseException) -> None:
        """See `office.Office`."""
        if loop.forgotten:
            return
        logger.error(
            "write failed, session reloaded", extra={"sid": loop.session.sid, "code": code_of(error)}
        )
        loop.forgotten = True
        self.residents.lose(loop)
        if loop.turn is not None:
            loop.turn.cut = True
            loop.turn.questions.give_up()
            loop.turn.scope.cancel()
        else:
            self.release(loop)
        if loop.session.sid not in self.rows:  # its creation failed: there is nothing to look at
            self.directory.names.release(loop.session.name, loop.session.sid)
            self.residents.forget(loop.session.sid)
            return
        # looked at again soon: its turn, if one ran, is then recovered like after a crash
        self.timers.arm(loop.session.sid, self.clock.now_ms() + RETRY_MS)

    def purses(self, session: Session) -> tuple[Purse, ...]:
        """See `office.Office`."""
        return self.treasury.purses(session, self.clock.now_ms()) if self.treasury else ()

    def spent(self, before: Session, after: Session, at_ms: int, seq: int) -> None:
        """See `office.Office`."""
        for scope in self.treasury.follow(before, after, at_ms, seq):
            members = self.treasury.members(scope, self.rows)
            assert self._tasks is not None
            self._tasks.start_soon(self.reconsider_some, members, Reconsidered())

    def durable(self, sid: str) -> Session | None:
        """The committed state of a session that is loaded."""
        return None if (loop := self.residents.get(sid)) is None else loop.durable

    # -- the whole house ----------------------------------------------------------------------

    def running(self) -> list[SessionLoop]:
        """Sessions with a turn in progress."""
        return [loop for loop in self.residents if loop.session.turn is not None or loop.turn is not None]

    async def finished(self) -> None:
        """Wait until no turn runs. Only useful while no new one may start."""
        await endings.finished(self.running())

    async def cut_all(self, cause: CutCause, *, by: str, within_s: float | None = None) -> int:
        """Interrupt every running turn and wait until its driver has stopped; returns how many."""
        return await endings.cut(self.running(), cause, by=by, within_s=within_s)

    async def reconsider_some(self, sids: Iterable[str], given: Reconsidered) -> None:
        """What binds these sessions changed: judge those that live again."""
        live = [sid for sid in sids if sid in self.rows and self.rows[sid].status == "live"]
        await self.feed(live, given)

    async def reconsider(self) -> None:
        """The house opened again: judge every session that has something to do."""
        rows = [row for row in self.rows.values() if row.status == "live"]
        await self.feed([row.sid for row in rows if row.inbox or row.goal == "active"], Reconsidered())
