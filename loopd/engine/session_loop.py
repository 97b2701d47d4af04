"""One loaded session: the only interpreter of what the core decides.

    apply(input) ─▶ advance (pure) ─▶ store.submit ──commit──▶ effects: start, cancel, arm, tell

`apply` is synchronous up to the submission, so inputs of a session are decided one after another in
the order in which they came, and the journal has them in that order. Effects follow the commit, also
when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import anyio
import msgspec

from loopd import failpoints
from loopd.core.conversation import Message, TurnEnd, TurnRequest
from loopd.core.evolution import evolve
from loopd.core.inputs import (
    Advanced,
    CancelTurn,
    CutRequested,
    House,
    Input,
    StartTurn,
    StepReported,
    TurnEnded,
)
from loopd.core.policy_inputs import Settle
from loopd.core.prices import Prices
from loopd.core.recorded import NOTED, fact, founding, marked
from loopd.core.session import advance
from loopd.core.settings import Settings, config_revision, settings_for
from loopd.core.state import Session
from loopd.core.writes import Append, Appended, Fact, HouseRow, Idempotency
from loopd.engine import intake, issues
from loopd.engine.history import History, beside
from loopd.engine.live_turn import LiveTurn
from loopd.engine.manifest import Manifests, sha256
from loopd.engine.office import Office, Pending
from loopd.engine.ports import Driver
from loopd.engine.questions import Place
from loopd.engine.requests import turn_request
from loopd.engine.watch import RuleWatch
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd.engine")

WATCH = RuleWatch()
JUDGED = (StepReported, TurnEnded)
"""Inputs that rules judge; a rule that takes too long on one is interrupted and skipped."""

STOP_WITHIN_S = 15.0
"""How long an answer waits for a cancelled driver to be really gone."""


class SessionLoop:
    """A session in memory, its history, its driver and the turn that runs."""

    def __init__(self, office: Office, session: Session, history: History) -> None:
        self._office = office
        self.session = session
        self.durable = session
        self.history = history
        self.turn: LiveTurn | None = None
        self.writing = 0
        self.forgotten = False
        self._seat = office.seats.of(session.sid)
        self._manifests = Manifests()
        self._driver_sha256 = sha256(msgspec.json.encode(session.driver, order="sorted"))
        self._starting: dict[int, TurnRequest] = {}
        self._newest: asyncio.Future[Appended] | None = None
        self.previous: anyio.Event | None = None

    @property
    def prices(self) -> Prices:
        """What models cost."""
        return self._office.prices

    @property
    def settings(self) -> Settings:
        """What holds for the session now."""
        return settings_for(self.session.preset, self.session.overrides)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing is on its way to the journal: it may be unloaded."""
        return self.turn is None and self.writing == 0 and self.session.turn is None

    def house(self) -> House:
        """What the next input is decided within."""
        turn = self.turn if self.turn is not None and not self.turn.cut else None
        return House(
            settings=self.settings,
            purses=self._office.purses(self.session),
            closed_by=self._office.closed_by,
            scheduled_from_ms=self._office.scheduled_from_ms,
            partial="" if turn is None else turn.partial,
            phase="unknown" if turn is None else turn.phase,
        )

    # -- decide and write -----------------------------------------------------------------

    def apply(
        self,
        given: Input,
        *,
        principal: str = "",
        blobs: Mapping[str, bytes] | None = None,
        keeps_messages: bool = False,
        answer: Callable[[Advanced], Idempotency | None] | None = None,
    ) -> Pending:
        """Decide an input and hand the result to the journal. Effects follow the commit.

        Args:
            given: what happened.
            principal: who caused it, for the journal.
            blobs: content that the events name by digest.
            keeps_messages: collect the messages that the events add for the running turn.
            answer: makes the stored result of an idempotent command.

        Raises:
            Refused: the core refused the input, or the journal's queue is full.
        """
        if self.forgotten:
            raise Refused(
                "storage_readonly", "the last write of this session failed; try again", retry_after_ms=1_000
            )
        now = self._office.clock.now_ms()
        before = self.session
        with WATCH if isinstance(given, JUDGED) else nullcontext():
            house = self.house()
            advanced = advance(before, given, now, house)
        if not advanced.events:
            return Pending(advanced, ())
        advanced = msgspec.structs.replace(advanced, events=marked(given, house, advanced.events))
        pending = self._write(
            before,
            advanced,
            now,
            principal,
            dict(blobs or {}),
            answer(advanced) if answer else None,
            keeps_messages=keeps_messages,
        )
        if isinstance(given, JUDGED) and self.session.status == "live":
            for near in advanced.near:
                self.note(ev.DetectorNear(n=given.n, step=self.session.steps, **msgspec.structs.asdict(near)))
        return pending

    def note(self, event: ev.Event) -> None:
        """Journal a fact that nobody waits for and nothing follows from, in its place in the order.

        Left out, and counted, while the journal has enough to do.
        """
        if self.forgotten or not self._office.store.takes_lazy():
            return
        before, now = self.session, self._office.clock.now_ms()
        noted = fact(event, NOTED)
        after = evolve(before, noted, ss=before.ss + 1, at_ms=now)
        self._write(before, Advanced(session=after, events=(noted,)), now, "", {}, lazy=True)

    def created(
        self,
        event: ev.SessionCreated,
        extra: Advanced,
        *,
        now: int,
        principal: str,
        idempotency: Idempotency | None,
        house: tuple[HouseRow, ...] = (),
        blobs: Mapping[str, bytes] | None = None,
    ) -> Pending:
        """Write the creation of this session together with what follows from it at once."""
        advanced = msgspec.structs.replace(extra, events=(founding(event), *extra.events))
        return self._write(
            None, advanced, now, principal, dict(blobs or {}), idempotency, keeps_messages=False, house=house
        )

    def _write(  # noqa: PLR0917
        self,
        before: Session | None,
        advanced: Advanced,
        now: int,
        principal: str,
        blobs: dict[str, bytes],
        idempotency: Idempotency | None = None,
        *,
        keeps_messages: bool = False,
        house: tuple[HouseRow, ...] = (),
        lazy: bool = False,
    ) -> Pending:
        facts: list[Fact] = []
        messages: list[Message] = []
        turn_n = before.turn.n if before is not None and before.turn is not None else None
        ss = 0 if before is None else before.ss
        after = advanced.session
        for event in advanced.events:
            ss += 1
            event = beside(event, blobs)  # noqa: PLW2901
            added = self.history.feed(event, ss, blobs)
            blob: str | None = None
            if self.turn is not None and self.turn.n == turn_n:
                event = self.turn.framed(event, blobs)  # noqa: PLW2901
            if isinstance(event, ev.TurnStarted):
                turn_n = event.n
                event, blob = self._with_manifest(event, after, blobs)  # noqa: PLW2901
            if isinstance(event, ev.TurnStep | ev.EnvelopeDelivered) and keeps_messages:
                messages.extend(added)
            facts.append(Fact(event=event, ss=ss, turn=turn_n, blob=blob))
            if isinstance(event, ev.TurnCompleted | ev.TurnInterrupted):
                turn_n = None
        batch = Append(
            sid=after.sid,
            at_ms=now,
            facts=tuple(facts),
            before=before,
            after=after,
            principal=principal,
            blobs=blobs,
            idempotency=idempotency,
            house=house,
            lazy=lazy,
        )
        pending = Pending(advanced, tuple(messages))
        try:
            future = self._office.store.submit(batch)
        except Refused as refusal:
            self._office.lost(self, refusal)
            raise
        failed = future.exception() if future.done() and not future.cancelled() else None
        if failed is not None:  # refused at once: the next input must not build on what never was
            self._office.lost(self, failed)
            raise failed
        self.session = after
        self._newest = future
        self.writing += 1
        for effect in advanced.effects:
            if isinstance(effect, CancelTurn) and self.turn is not None and self.turn.n == effect.n:
                self.turn.cut = True  # what is streamed from here on is not part of the record
        future.add_done_callback(lambda done: self._committed(done, advanced, now))
        pending.follow(future)
        return pending

    def _with_manifest(
        self, event: ev.TurnStarted, after: Session, blobs: dict[str, bytes]
    ) -> tuple[ev.TurnStarted, str]:
        request = turn_request(event, after, self.history, self.settings)
        self._starting[event.n] = request
        digest, more = self._manifests.of_turn(
            event.n,
            request.messages,
            tools_withheld=after.withhold_tools,
            driver_sha256=self._driver_sha256,
            config_revision=config_revision(self.settings),
            gate_gen=event.gate_gen,
            shortened=self.history.shortened,
        )
        blobs.update(more)
        return msgspec.structs.replace(event, manifest=digest), digest

    # -- act --------------------------------------------------------------------------------

    def _committed(self, future: asyncio.Future[Appended], advanced: Advanced, at_ms: int) -> None:
        self.writing -= 1
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._office.lost(self, error or asyncio.CancelledError())
            return
        before, self.durable = self.durable, advanced.session
        # Also when a later write failed: this one stands, and what it spent of shared limits is spent.
        self._office.spent(before, advanced.session, at_ms, future.result().last)
        if self.forgotten:
            return
        issues.file_all(advanced.session, advanced.events)
        for effect in advanced.effects:
            match effect:
                case StartTurn(n, _):
                    self._start(n)
                case Settle() if self.turn is not None:
                    self.turn.questions.settle(effect)
                case CancelTurn(n, _):
                    self._starting.pop(n, None)
                    if self.turn is not None and self.turn.n == n:
                        self.turn.scope.cancel()
                        self.turn.cut_calls()
        self._office.changed(self, future.result().row)
        if self.turn is None and self._needs_no_driver:
            self._office.release(self)

    def _start(self, n: int) -> None:
        request = self._starting.pop(n, None)
        if request is None or self.session.turn is None or self.session.turn.n != n:
            return  # cut again before its start was durable
        previous = self.turn
        turn = LiveTurn(self, request)
        self.turn = turn
        turn.after = self.previous if previous is None else previous.finished
        self._office.spawn(self, turn)

    async def run_turn(self, turn: LiveTurn, place: Place) -> None:
        """Take one turn with the driver, when `place` lets it in; returns when nothing of it runs any more.

        Never raises. A turn that is cut while it waits for its place never reaches the driver.
        """
        try:
            with turn.scope:
                if turn.after is not None:
                    await turn.after.wait()
                turn.questions.place = place
                async with place:
                    end = await self._take(turn)
                    if not turn.cut:
                        await self.apply(TurnEnded(n=turn.n, end=intake.end(end))).committed()
        except Refused as refusal:
            logger.error(
                "turn not recorded", extra={"sid": self.session.sid, "turn": turn.n, "code": refusal.code}
            )
        finally:
            if turn.after is not None:
                with anyio.CancelScope(shield=True):  # the next turn waits for this one only
                    await turn.after.wait()
            turn.cut_calls()
            if self._needs_no_driver:
                with anyio.CancelScope(shield=True):
                    await self.aclose()
            turn.finished.set()
            if self.turn is turn:
                self.turn = None
                self._office.rested(self)

    async def _take(self, turn: LiveTurn) -> TurnEnd:
        with anyio.move_on_after(self.settings.turn.deadline_ms / 1_000) as deadline:
            turn.questions.deadline = deadline
            try:
                driver = await self._seat.driver(self._make_driver)
                if failpoints.armed:
                    failpoints.hit("turn.driver")
                return await driver.take_turn(turn.request, turn)
            except Refused as refusal:
                if turn.told_to_stop:
                    return TurnEnd(outcome="completed")  # the core knows why it was to stop
                if refusal.code in {"storage_full", "storage_readonly", "conflict", "overloaded"}:
                    raise
                return TurnEnd(outcome="failed", cause=refusal.code, error=refusal.message)
            except Exception as error:
                logger.exception("driver failed", extra={"sid": self.session.sid, "turn": turn.n})
                return TurnEnd(outcome="failed", cause=type(error).__name__, error=str(error))
        if deadline.cancelled_caught:
            await self.apply(CutRequested(cause="deadline", n=turn.n)).committed()
        return TurnEnd(outcome="deadline")

    def told(self, n: int, text: str) -> None:
        """Pass live text on."""
        self._office.told(self.session.sid, n, text)

    async def written(self) -> None:
        """Wait until the journal has answered to all that was handed to it, and that was acted upon."""
        while self._newest is not None and not self._newest.done():
            await asyncio.wait([self._newest])

    def ends(self) -> anyio.Event | None:
        """Set when nothing of its turns runs any more; None when that is so."""
        return self.previous if self.turn is None else self.turn.finished

    async def stopped(self, within_s: float | None = None) -> bool:
        """Wait until a cancelled turn is really gone, `STOP_WITHIN_S` by default; false if it is not in time."""
        turn = self.turn
        if turn is None or not turn.cut:
            return True
        with anyio.move_on_after(STOP_WITHIN_S if within_s is None else within_s):
            await turn.finished.wait()
        return turn.finished.is_set()

    @property
    def _needs_no_driver(self) -> bool:
        """It is over, suspended by somebody, or forgotten: nothing of an agent is to live on."""
        session = self.session
        suspended = any(hold.kind == "UserSuspend" for hold in session.gate.holds)
        return self.forgotten or session.status != "live" or suspended

    @property
    def drives(self) -> bool:
        """It holds a driver."""
        return self._seat.taken

    def _make_driver(self) -> Driver:
        return self._office.make_driver(self.session.sid, self.session.driver, self.session.workspace)

    async def aclose(self) -> None:
        """Release the driver."""
        await self._seat.aclose()
