"""One session of the pure core in virtual time, with its journal, its auditor and checks after each input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from loopd.core.account import Purse
from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd.core.evolution import decode, encode, evolve
from loopd.core.inputs import (
    Advanced,
    AgentAsked,
    CancelTurn,
    EnvelopeArrived,
    GoalChangeRequested,
    House,
    Input,
    StartTurn,
    StepReported,
    Ticked,
    TurnEnded,
)
from loopd.core.recorded import founding, marked
from loopd.core.replay import Row, replay
from loopd.core.session import advance, next_deadline
from loopd.core.settings import settings_for
from loopd.core.state import Session
from loopd.engine.views import why_view
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source
from tests.core.audit import Auditor

START_MS = 1_767_225_600_000
"""2026-01-01 00:00 UTC, a Thursday."""

FAR_MS = 400 * 86_400_000


class World:
    """Feeds inputs to `advance` and checks everything that must be true after each of them."""

    def __init__(
        self,
        overrides: dict[str, Any] | None = None,
        *,
        now: int = START_MS,
        goal: str | None = None,
        preset: str = "published",
        **created_with: Any,
    ) -> None:
        self.now = now
        self.closed_by: str | None = None
        self.scheduled_from_ms = 0
        self.partial = ""
        self.purses: Callable[[Session, int], tuple[Purse, ...]] = lambda _session, _now: ()
        created = ev.SessionCreated(
            sid="ses_1",
            num=1,
            name="one",
            driver={"kind": "scripted", "script": "x"},
            preset=preset,
            settings=overrides or {},
            **created_with,
        )
        self.session: Session = evolve(None, created, ss=1, at_ms=now)
        self.settings = settings_for(preset, overrides or {})
        self.audit = Auditor(
            preset=preset, cap=self.settings.gate.inbox_cap, gap_ms=self.settings.continuation.min_gap_ms
        )
        self.events: list[tuple[int, int, bytes]] = []
        self.refolded: Session | None = None
        self.driving: int | None = None
        """The turn that a driver works on, as the effects say."""
        self._record([founding(created)])
        if goal is not None:
            self.apply(GoalChangeRequested(by="uid:1", status="active", text=goal))

    def house(self) -> House:
        settings = settings_for(self.session.preset, self.session.overrides)
        return House(
            settings=settings,
            closed_by=self.closed_by,
            partial=self.partial,
            phase="model",
            scheduled_from_ms=self.scheduled_from_ms,
            purses=self.purses(self.session, self.now),
        )

    # -- inputs ------------------------------------------------------------------------------------

    def apply(self, given: Input) -> Advanced:
        """Feed one input; raises `Refused` when the core does, after checking that nothing changed."""
        before, bytes_before = self.session, encode(self.session)
        try:
            house = self.house()
            done = advance(before, given, self.now, house)
        except Refused:
            assert encode(before) == bytes_before
            raise
        assert encode(before) == bytes_before, "the state before was changed"
        goal_before = before.goal
        self.session = done.session
        self._record(marked(given, house, done.events))
        self._effects(done)
        self._check_goal(given, goal_before, done)
        self.check()
        return done

    def attempt(self, given: Input) -> Advanced | Refused:
        """Like `apply`; a refusal is returned."""
        try:
            return self.apply(given)
        except Refused as refused:
            return refused

    def send(self, source: str = "human", text: str = "hello") -> Advanced:
        return self.apply(EnvelopeArrived(source=Source(source), text=text, by="uid:1"))

    def tick(self, to: int | None = None) -> Advanced:
        """Let time pass up to `to` and carry out what is due."""
        if to is not None:
            self.now = to
        return self.apply(Ticked())

    def tick_through(self, to: int) -> list[ev.Event]:
        """Carry out each deadline up to `to` at its very moment, as the heap would."""
        seen: list[ev.Event] = []
        while (due := next_deadline(self.session, self.house())) is not None and due <= to:
            self.now = max(self.now, due)
            done = self.apply(Ticked())
            assert done.events
            seen += done.events
        self.now = max(self.now, to)
        return seen

    def step(self, **given: Any) -> Advanced:
        assert self.session.turn is not None
        return self.apply(StepReported(n=self.session.turn.n, done=StepDone(**given)))

    def ask(self, name: str, /, **args: Any) -> Advanced:
        assert self.session.turn is not None
        return self.apply(AgentAsked(n=self.session.turn.n, request=AgentRequest(name=name, args=args)))

    def finish(self, outcome: str = "completed", **given: Any) -> Advanced:
        assert self.session.turn is not None
        end = TurnEnd(outcome=outcome, **given)  # type: ignore[arg-type]
        return self.apply(TurnEnded(n=self.session.turn.n, end=end))

    def whole_turn(self, text: str = "done", outcome: str = "completed") -> Advanced:
        self.step(text=text)
        return self.finish(outcome)

    # -- reading -------------------------------------------------------------------------------------

    @property
    def kinds(self) -> list[str]:
        """Kinds of the standing holds."""
        return [hold.kind for hold in self.session.gate.holds]

    def of(self, *kinds: type[ev.Event]) -> list[Any]:
        """All recorded events of these types."""
        return [e for e in (ev.decode(body) for _, _, body in self.events) if isinstance(e, kinds)]

    # -- checks ----------------------------------------------------------------------------------------

    def _record(self, events: Any) -> None:
        for event in events:
            body = msgspec.json.encode(event)
            ss = len(self.events) + 1
            self.events.append((ss, self.now, body))
            again = ev.decode(body)
            assert again == event, "an event does not survive its own encoding"
            self.refolded = evolve(self.refolded, again, ss=ss, at_ms=self.now)
            self.audit.see(ss, self.now, again)

    def _effects(self, done: Advanced) -> None:
        started = [e.n for e in done.events if isinstance(e, ev.TurnStarted)]
        cut = [e.n for e in done.events if isinstance(e, ev.TurnInterrupted)]
        assert [e.n for e in done.effects if isinstance(e, StartTurn)] == started
        assert [e.n for e in done.effects if isinstance(e, CancelTurn)] == cut
        if any(isinstance(e, ev.TurnCompleted) for e in done.events):
            self.driving = None
        for effect in done.effects:
            if isinstance(effect, CancelTurn):
                assert self.driving == effect.n, "cancelled a turn that nobody drives"
                self.driving = None
            elif isinstance(effect, StartTurn):
                assert self.driving is None, "a driver was asked for two turns at once"
                self.driving = effect.n

    def _check_goal(self, given: Input, before: Any, done: Advanced) -> None:
        changed = [e for e in done.events if isinstance(e, ev.GoalChanged)]
        if self.session.goal != before:
            assert changed
        for event in changed:
            if isinstance(given, GoalChangeRequested):
                assert event.origin == "user"
            else:
                asked = isinstance(given, AgentAsked) and given.request.name == "update_goal"
                played = isinstance(given, TurnEnded) and given.end.goal_complete
                assert asked or played, "contract 11: something else changed the goal"
                assert event.origin == "model"
                assert event.status != "active"

    def check(self) -> None:
        session, audit = self.session, self.audit
        # contract 10: the journal alone makes the state, and its encoding loses nothing
        assert self.refolded == session
        assert decode(encode(session)) == session
        # the auditor's ledger and the state agree
        assert session.ss == audit.ss
        assert {h.kind: h for h in session.gate.holds} == audit.holds
        assert session.gate.is_open == (not audit.holds)
        assert [w.id for w in session.inbox] == list(audit.waiting)
        assert [w.count for w in session.inbox] == [c for *_, c in audit.waiting.values()]
        assert (None if session.turn is None else session.turn.n) == audit.running
        assert (None if session.goal is None else session.goal.status) == audit.goal
        assert (session.status != "live") == audit.ended
        assert (self.driving is None) == (session.turn is None)
        assert len(session.wakes) <= 8
        audit.check(closed=self.closed_by is not None)
        self._check_deadline()
        self._check_why()

    def _check_deadline(self) -> None:
        """The deadline is exact: a tick before it does nothing, a tick at it does something."""
        due = next_deadline(self.session, self.house())
        before = self.now + FAR_MS if due is None else due - 1
        idle = advance(self.session, Ticked(), before, self.house())
        # a house that closes does not tell its sessions: the next look says that it keeps what waits
        events = [e for e in idle.events if not (self.closed_by and _says_held(e))]
        assert not events, f"ticked at {before}, before {due}: {idle.events[:3]}"
        if due is not None:
            assert advance(self.session, Ticked(), due, self.house()).events, f"nothing happens at {due}"

    def _check_why(self) -> None:
        """Contract 12: what keeps the session is named, and everything but a suspension has an end."""
        session = self.session
        view = why_view(session, self.closed_by)
        msgspec.json.encode(view)
        assert view["gate"] == ("open" if session.gate.is_open else "closed")
        assert [h["kind"] for h in view["holds"]] == self.kinds
        for hold in view["holds"]:
            assert hold["by"]
            assert hold["until_ms"] is not None or hold["kind"] == "UserSuspend"
        waiting = [e for e, (s, *_) in self.audit.waiting.items() if s != "system"]
        assert [w["id"] for w in view["held_back"]] == waiting
        if session.turn is None and session.status == "live" and (waiting or view["holds"]):
            indefinite = [h for h in view["holds"] if h["until_ms"] is None]
            assert view["next"] is not None or indefinite or self.closed_by, "nothing will ever end this"
        for entry in view["held_back"]:
            if session.turn is None:
                assert entry["held"]
                assert entry["by"], "held back by nothing"

    def refold_everything(self) -> None:
        """From nothing: the journal's bytes make the state."""
        session: Session | None = None
        for ss, at_ms, body in self.events:
            session = evolve(session, ev.decode(body), ss=ss, at_ms=at_ms)
        assert session == self.session
        self.replay()

    def replay(self) -> None:
        """The recorded inputs, decided again, make the same bytes."""
        rows = [Row(ss, ss, at_ms, ev.decode(body).kind, body) for ss, at_ms, body in self.events]
        outcome = replay(rows)
        assert outcome.status == "same", outcome
        assert outcome.events == len(rows)

    def crash(self) -> None:
        """Forget everything but the encoded state."""
        self.session = decode(encode(self.session))
        self.partial = ""


def _says_held(event: ev.Event) -> bool:
    if isinstance(event, ev.CronOccurrence):
        return event.result == "held"
    return isinstance(event, ev.EnvelopeHeld)
