"""The real engine on a store without a disk, with a clock that the test moves and drivers that it plays.

The driver is a small real one: what it does in a turn is a coroutine that the test names in the
session's `script`. After each test the journal of every session is audited and verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from loopd.core.access import ALL_SCOPES, Answer, Caller
from loopd.core.conversation import Message, StepDone, TurnEnd, TurnRequest
from loopd.core.inputs import Ticked
from loopd.core.settings import settings_for
from loopd.core.state import Session
from loopd.core.writes import StoredEvent
from loopd.engine.clock import ManualClock
from loopd.engine.commands import Dispatcher
from loopd.engine.ports import TurnHost
from loopd.engine.queries import Queries
from loopd.engine.router import Router
from loopd.store.memory import MemoryStore
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source
from tests.core.audit import Auditor

HUMAN = Caller(principal="uid:1000", scopes=ALL_SCOPES, source=Source.HUMAN)
AGENT = Caller(principal="token:a", scopes=ALL_SCOPES, source=Source.AGENT)
CHANNEL = Caller(principal="token:c", scopes=ALL_SCOPES, source=Source.CHANNEL)

Play = Callable[[TurnRequest, TurnHost], Awaitable[TurnEnd]]


async def say(host: TurnHost, text: str = "done", **given: Any) -> Any:
    """One step."""
    return await host.step(StepDone(text=text, **given))


async def one_step(request: TurnRequest, host: TurnHost) -> TurnEnd:
    """The plainest turn."""
    await say(host, f"turn {request.n}")
    return TurnEnd(outcome="completed")


def rendered(request: TurnRequest, more: tuple[Message, ...] = ()) -> bytes:
    """The bytes that this driver would send to a model."""
    shown = [
        (m.role, m.text, m.call_id, [(c.id, c.name, c.args) for c in m.calls])
        for m in (*request.messages, *more)
    ]
    return msgspec.json.encode([request.tools_withheld, shown])


class PlayedDriver:
    """Plays what the test wrote; remembers what it was asked and how it was stopped."""

    def __init__(self, stage: Stage, play: str) -> None:
        self._stage = stage
        self._play = play
        self.closed = 0

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        stage = self._stage
        stage.requests.append(request)
        key = (request.sid, request.n)
        assert request.sid not in stage.active, f"two turns of {request.sid} at once"
        stage.active.add(request.sid)
        try:
            return await stage.plays.get(self._play, one_step)(request, host)
        except anyio.get_cancelled_exc_class():
            stage.cancelled.append(key)
            raise
        finally:
            stage.active.discard(request.sid)

    def render(self, request: TurnRequest) -> bytes:
        return rendered(request)

    async def aclose(self) -> None:
        self.closed += 1
        await anyio.lowlevel.checkpoint()


class HeldStore(MemoryStore):
    """A store whose commits wait while `held`, like a slow disk; it is told by the test when to go on."""

    held = False
    slow_reads = False

    def _flush(self) -> None:
        if not self.held:
            super()._flush()

    def release_one(self) -> None:
        """Commit the oldest append that waits, and nothing else."""
        waiting, self._queue = self._queue[1:], self._queue[:1]
        super()._flush()
        self._queue = waiting

    def release(self) -> None:
        """Commit what has gathered, and everything from now on."""
        self.held = False
        self._flush()

    async def load_session(self, sid: str) -> Session | None:
        if self.slow_reads:
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
        return await super().load_session(sid)


class Stage:
    """A running engine."""

    def __init__(self, store: HeldStore, clock: ManualClock, **options: Any) -> None:
        self.store = store
        self.clock = clock
        self.plays: dict[str, Play] = {}
        self.requests: list[TurnRequest] = []
        self.cancelled: list[tuple[str, int]] = []
        self.active: set[str] = set()
        self.deltas: list[tuple[str, int, str]] = []
        self.stops: list[tuple[str, int | None]] = []
        self.drivers: list[PlayedDriver] = []
        self.router = Router(
            store=store,
            clock=clock,
            make_driver=self._make_driver,
            on_delta=lambda sid, n, text: self.deltas.append((sid, n, text)),
            **options,
        )
        self.queries = Queries(self.router, lambda: {"status": "fine"})
        self.dispatcher = Dispatcher(
            self.router, self.queries, lambda reason, budget: self.stops.append((reason, budget))
        )

    def _make_driver(self, sid: str, spec: Mapping[str, Any], workspace: str | None) -> PlayedDriver:
        if spec["script"] == "impossible":
            raise Refused("invalid", "this script cannot be played")
        driver = PlayedDriver(self, str(spec["script"]))
        self.drivers.append(driver)
        return driver

    # -- doing -----------------------------------------------------------------------------------

    async def call(self, command: cm.Command, caller: Caller = HUMAN, **conditions: Any) -> Answer:
        return await self.dispatcher.dispatch(command, caller, **conditions)

    async def new(self, play: str = "plain", *, run: Play | None = None, **given: Any) -> str:
        """Create a session that plays `play`; returns its sid."""
        if run is not None:
            self.plays[play] = run
        given = {"preset": "published"} | given
        answer = await self.call(cm.SessionCreate(driver=cm.ScriptedSpec(script=play), **given))
        return str(answer.result["sid"])

    async def send(self, sid: str, text: str = "hello", caller: Caller = HUMAN, **given: Any) -> Answer:
        return await self.call(cm.Send(sid=sid, text=text), caller, **given)

    async def pump(self, ms: int = 0) -> None:
        """Let `ms` pass, and carry out what is due, as the timer task would."""
        self.clock.advance(ms)
        for _ in range(1_000):
            due = self.router.timers.pop_due(self.clock.now_ms())
            if not due:
                return
            await self.router.feed(due, Ticked())
        raise AssertionError("deadlines without end: the timers spin")

    async def pump_through(self, ms: int) -> None:
        """Let `ms` pass and carry out each deadline at its moment."""
        end = self.clock.now_ms() + ms
        while (due := self.router.timers.next_ms()) is not None and due <= end:
            self.clock.advance(max(0, due - self.clock.now_ms()))
            await self.pump()
            await self.settle()
        self.clock.advance(end - self.clock.now_ms())

    async def settle(self, rounds: int = 40) -> None:
        """Let everything go on that needs no further time."""
        for _ in range(rounds):
            await anyio.lowlevel.checkpoint()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that must come about by itself."""
        with anyio.fail_after(10):
            while not condition():
                await anyio.lowlevel.checkpoint()

    # -- reading -----------------------------------------------------------------------------------

    async def events(self, sid: str | None = None, *kinds: str) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        while True:
            after = found[-1].seq if found else 0
            page = await self.store.page(sid=sid, after=after, before=None, limit=1_000, kinds=kinds)
            found += page
            if len(page) < 1_000:
                return found

    async def decoded(self, sid: str, *types: type[ev.Event]) -> list[Any]:
        events = [ev.decode(stored.body) for stored in await self.events(sid)]
        return [event for event in events if isinstance(event, types)]

    async def state(self, sid: str) -> Session:
        session = await self.store.load_session(sid)
        assert session is not None
        return session

    async def audit(self) -> None:
        """The journal keeps every promise, whatever the test did."""
        for row in await self.store.directory():
            session = await self.state(row.sid)
            settings = settings_for(session.preset, session.overrides)
            auditor = Auditor(
                preset=session.preset, cap=settings.gate.inbox_cap, gap_ms=settings.continuation.min_gap_ms
            )
            stored = await self.events(row.sid)
            auditor.see_all((event.ss, event.at_ms, ev.decode(event.body)) for event in stored)
            assert [w.id for w in session.inbox] == list(auditor.waiting)
            assert {h.kind: h for h in session.gate.holds} == auditor.holds
        proof = await self.store.verify()
        findings = [f for f in proof["findings"] if f["check"] != "I3"]  # virtual time: overdue is no fault
        assert findings == []


@asynccontextmanager
async def stage(
    *,
    image: bytes | None = None,
    clock: ManualClock | None = None,
    refuse: Refused | None = None,
    **options: Any,
) -> AsyncIterator[Stage]:
    """Open an engine, on the image of another one's store if there is one, and audit it in the end."""
    clock = clock or ManualClock()
    async with HeldStore(now_ms=clock.now_ms(), image=image) as store, anyio.create_task_group() as tasks:
        here = Stage(store, clock, **options)
        store.refuse = refuse
        await here.router.open(tasks, frozen=store.frozen is not None)
        try:
            yield here
            store.release()
            store.refuse = None
            await here.settle()
            await here.audit()
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await here.router.aclose()


class Gate:
    """Lets a driver wait in the middle of its turn until the test says so."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._go = anyio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self._go.wait()

    def open(self) -> None:
        self._go.set()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
