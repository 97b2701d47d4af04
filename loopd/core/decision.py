"""One decision about a session: events and effects gathered while the state follows them. Pure.

`loopd.core.session` says which input leads here; `loopd.core.evolution` how an event changes the
state. The parts about agents' own tools and about cron are modules of their own.
"""

from __future__ import annotations

from msgspec.structs import replace

from loopd.core import approvals, budgets, continuation, ending, gate, goal, occurrences, rules
from loopd.core.conversation import AgentReply
from loopd.core.evolution import fold
from loopd.core.inputs import (
    Advanced,
    CancelTurn,
    DropRequested,
    Effect,
    EnvelopeArrived,
    GoalChangeRequested,
    House,
    StartTurn,
)
from loopd.core.rules.signals import Near
from loopd.core.state import Session, Waiting
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import Event
from loopd_protocol.holds import (
    AnyHold,
)
from loopd_protocol.sources import SOURCE_POLICIES, Source, Trigger


class Decision:
    """Events and effects of one input, gathered while the state follows them."""

    def __init__(self, session: Session, now: int, house: House) -> None:
        self.begun = session
        self.session = session
        self.now = now
        self.house = house
        self.settings = house.settings
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.stop = False
        self.reply: AgentReply | None = None
        self.envelope: str | None = None
        self.asked: str | None = None
        self.denied: str | None = None
        self.near: tuple[Near, ...] = ()

    def done(self) -> Advanced:
        """Everything gathered so far."""
        return Advanced(
            session=self.session,
            events=tuple(self.events),
            effects=tuple(self.effects),
            stop=self.stop,
            reply=self.reply,
            envelope=self.envelope,
            asked=self.asked,
            denied=self.denied,
            near=self.near,
        )

    def stale(self) -> Advanced:
        """The answer to a driver whose turn is over already: stop, nothing happened."""
        return Advanced(
            session=self.session,
            stop=True,
            reply=AgentReply(ok=False, text="the turn is over", ends_turn=True),
        )

    def emit(self, event: Event) -> rules.Verdicts:
        """Add an event and follow it; returns what the rules found in it."""
        self.session, found = fold(self.session, event, ss=self.session.ss + 1, at_ms=self.now)
        self.events.append(event)
        return found

    def judged(self, event: ev.TurnStep | ev.TurnCompleted) -> rules.Verdicts:
        """Like `emit` for what rules judge. A rule that fails on it is left out and named in the event.

        So the event says which rules saw it, and whoever folds it again comes to the same state, also
        with a daemon in which the rule does not fail.
        """
        failures = self.house.failed
        if failures:
            event = replace(event, skipped_rules=tuple(dict.fromkeys(f.rule for f in failures)))
        while True:
            session, found = fold(self.session, event, ss=self.session.ss + 1, at_ms=self.now)
            new = tuple(f for f in found.failures if f.rule not in event.skipped_rules)
            if not new:
                break
            failures += new
            event = replace(event, skipped_rules=(*event.skipped_rules, *dict.fromkeys(f.rule for f in new)))
        self.session = session
        self.events.append(event)
        self.near += found.near
        return replace(found, failures=failures) if failures else found

    # -- gate -----------------------------------------------------------------------------

    def change_gate(
        self, given: gate.GateInput, *, cause: str, by: str, envelope: str | None = None
    ) -> tuple[gate.GateEffect, ...]:
        """Let the gate change and record it."""
        _, effects = gate.transition(self.session.gate, given, self.now, may_pass=self._may_pass())
        for effect in effects:
            if isinstance(effect, gate.Changed):
                self.emit(
                    ev.GateChanged(
                        gate="open" if effect.gate.is_open else "closed",
                        cause=cause,
                        by=by,
                        gen=effect.gate.gen,
                        holds=effect.gate.holds,
                        added=effect.added,
                        removed=effect.removed,
                        kept_later=effect.kept_later,
                        late_ms=effect.late_ms,
                        envelope=envelope,
                    )
                )
        return effects

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold; moment and sequence number are filled in here."""
        hold = replace(hold, since_ms=self.now, since_ss=self.session.ss + 1)
        self.change_gate(gate.Close(hold), cause=cause, by=hold.by)

    def _may_pass(self) -> bool:
        return self.now - self.session.last_pass_ms >= self.settings.gate.pass_gap_ms

    # -- envelopes ------------------------------------------------------------------------

    def accept(
        self,
        source: Source,
        text: str,
        *,
        by: str,
        job: str | None = None,
        due_ms: int | None = None,
        dedupe: str | None = None,
        alone: bool = True,
    ) -> str:
        """Make an envelope durable, coalesce what it replaces, keep the inbox in bounds.

        Not `alone`: others of its job may wait beside it until `occurrences.coalesce`.
        """
        envelope = f"env_{self.session.num}_{self.session.ss + 1}"
        self.emit(
            ev.EnvelopeAccepted(
                id=envelope,
                source=source,
                text=text,
                ephemeral_in_history=SOURCE_POLICIES[source].ephemeral_in_history,
                job=job,
                due_ms=due_ms,
                dedupe=dedupe,
                by=by,
            )
        )
        if SOURCE_POLICIES[source].coalesces and job is not None and alone:
            occurrences.replaced(self, envelope, job)
        starts = SOURCE_POLICIES[source].starts_turn  # notes crowd out older notes, never what was sent
        counted = [
            w
            for w in self.session.inbox
            if SOURCE_POLICIES[w.source].starts_turn == starts
            and not (SOURCE_POLICIES[w.source].coalesces and w.job is not None)
        ]
        if len(counted) > self.settings.gate.inbox_cap:
            self.forget(counted[0], reason="inbox_full", by="daemon")
        return envelope

    def forget(self, waiting: Waiting, *, reason: str, by: str) -> None:
        """Drop a waiting envelope, with an event."""
        self.emit(ev.EnvelopeDropped(id=waiting.id, reason=reason, by=by))
        occurrences.settle(self, waiting, "skipped")

    def arrived(self, given: EnvelopeArrived) -> None:
        """Accept an envelope and judge what waits."""
        self.envelope = self.accept(given.source, given.text, by=given.by, dedupe=given.dedupe)
        self.judge()

    def drop(self, given: DropRequested) -> None:
        """Drop one waiting envelope by hand."""
        waiting = next((w for w in self.session.inbox if w.id == given.id), None)
        if waiting is None:
            raise Refused("not_found", f"no envelope {given.id!r} waits in session {self.session.name!r}")
        self.forget(waiting, reason="operator", by=given.by)

    # -- admission ------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge all that waits as if it arrived now; start one turn if something is admitted."""
        if self.session.status != "live":
            return
        budgets.ease(self)
        if self.session.turn is None and self.house.closed_by is None:
            self._lift()
            batch, passing = self._admitted()
            if batch:
                self._start_turn(batch, passing=passing)
                return
        self.mark_held()

    def _lift(self) -> None:
        for waiting in self.session.inbox:
            if SOURCE_POLICIES[waiting.source].starts_turn:
                arrived = gate.Arrived(waiting.source, waiting.ss, self.session.preset)
                if gate.lifted_by(self.session.gate, arrived):
                    self.change_gate(arrived, cause="envelope", by=waiting.source, envelope=waiting.id)

    def _admitted(self) -> tuple[tuple[Waiting, ...], bool]:
        may_pass = self._may_pass()
        admitted = tuple(
            w
            for w in self.session.inbox
            if SOURCE_POLICIES[w.source].starts_turn
            and not gate.blocked_by(self.session.gate, w.source, self.session.preset, may_pass=may_pass)
        )
        return admitted, bool(admitted) and not self.session.gate.is_open

    def mark_held(self) -> None:
        """Say once for each waiting envelope that something keeps it, if something does.

        What it will lift itself when the running turn ends does not keep it: then it is only queued.
        """
        may_pass = self._may_pass()
        for waiting in self.session.inbox:
            if waiting.held or not SOURCE_POLICIES[waiting.source].starts_turn:
                continue
            arrived = gate.Arrived(waiting.source, waiting.ss, self.session.preset)
            by = gate.kept_by(self.session.gate, arrived, may_pass=may_pass)
            if self.house.closed_by is not None:
                by = (*by, self.house.closed_by)
            if by:
                self.emit(ev.EnvelopeHeld(id=waiting.id, by=by))
                occurrences.hold(self, waiting)

    def _start_turn(self, batch: tuple[Waiting, ...], *, passing: bool = False) -> None:
        if budgets.refuses(self):
            return
        notes = tuple(w for w in self.session.inbox if not SOURCE_POLICIES[w.source].starts_turn)
        taken = tuple(w for w in self.session.inbox if w in batch or w in notes)
        for waiting in batch:
            occurrences.settle(self, waiting, None)
        if batch:
            strongest = max(batch, key=lambda w: SOURCE_POLICIES[w.source].rank)
            trigger, prompt = Trigger(strongest.source.value), None
        else:
            assert self.session.goal is not None
            trigger = Trigger.CONTINUATION
            prompt = self.settings.continuation.text.replace("{goal}", self.session.goal.text)
        n = self.session.turns + 1
        self.emit(
            ev.TurnStarted(
                n=n,
                trigger=trigger,
                envelopes=tuple(w.id for w in taken),
                prompt=prompt,
                ephemeral_in_history=prompt is not None,
                passing=passing,
                gate_gen=self.session.gate.gen,
            )
        )
        self.effects.append(StartTurn(n, trigger))

    # -- turns ----------------------------------------------------------------------------

    def cut(self, cause: str, *, by: str, boot: int = 0) -> None:
        """End the running turn now, if there is one; what was streamed so far is kept."""
        turn = self.session.turn
        if turn is not None:
            self.interrupt(cause, by=by, boot=boot)
            self.after_turn(turn.stopping)

    def interrupt(self, cause: str, *, by: str, boot: int = 0) -> None:
        """Record that the running turn is cut off, and have its driver cancelled."""
        approvals.drop(self)
        turn = self.session.turn
        assert turn is not None
        self.emit(
            ev.TurnInterrupted(
                n=turn.n,
                cause=cause,
                phase=self.house.phase,
                partial=self.house.partial,
                partial_blob=self.house.partial_blob,
                steps=turn.steps,
                duration_ms=max(0, self.now - turn.started_ms),
                boot=boot,
                by=by,
                # nobody knows how long it ran before the daemon died
                charge=budgets.charge(self, None, wall=cause != "crash"),
            )
        )
        self.effects.append(CancelTurn(turn.n, cause))

    def after_turn(self, stopped_by: str | None) -> None:
        """Go on behind a turn: end, or wait, or take what waits."""
        if ending.conclude(self, stopped_by):
            return
        continuation.back_off(self)
        self.judge()

    # -- goal, end, time ------------------------------------------------------------------

    def change_goal(self, given: GoalChangeRequested) -> None:
        """Change the goal as a person asked."""
        if given.text is None:
            goal.check_user_change(self.session.goal, given.status)
        self.emit(
            ev.GoalChanged(status=given.status, origin="user", text=given.text, note=given.note, by=given.by)
        )

    def end(
        self,
        status: str,
        stop_reason: str,
        *,
        by: str,
        explanation: str = "",
        rule: str | None = None,
        remaining: tuple[str, ...] = (),
    ) -> None:
        """Reach a terminal state; see `loopd.core.ending.reach`."""
        ending.reach(
            self, status, stop_reason, by=by, explanation=explanation, rule=rule, remaining=remaining
        )

    def ticked(self) -> None:
        """Carry out everything that is due."""
        if self.session.status != "live":
            return
        unanswered = ending.awaits_more(self.session, self.now)
        self.change_gate(gate.Tick(), cause="deadline", by="daemon")
        if unanswered:
            ending.denied(self)
            return
        approvals.expire(self)
        if budgets.overrun(self):
            self.cut("budget", by="budget")
        if self.now >= self.house.scheduled_from_ms:
            occurrences.fire_due(self)
        self.judge()
        occurrences.coalesce(self)
        due = continuation.due(self.session, self.house)
        if due is not None and due <= self.now:
            self._start_turn(())
