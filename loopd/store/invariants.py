"""What must be true of the events of one session, checked while they stream by in order of `ss`.

Memory is bounded: only what is open is remembered (the running turn, standing holds, waiting envelopes,
intents without outcome, the newest final cron occurrences).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from loopd.core.state import Session
from loopd.store.projection import FINAL_RESULTS
from loopd_protocol import events as ev
from loopd_protocol import forensic_events as fx
from loopd_protocol import policy_events as pe
from loopd_protocol.holds import AnyHold

OVERDUE_MS = 5_000
PASSABLE = frozenset({"Degeneration"})
"""Holds during which a `pass` cell may let one turn run."""

FINALS_KEPT = 10_000

_OF_A_TURN = (ev.TurnStarted, ev.TurnStep, ev.TurnCompleted, ev.TurnInterrupted)
_OF_AN_APPROVAL = (pe.ApprovalRequested, pe.ApprovalAnswered, pe.ApprovalExpired)

Report = Callable[..., None]
Look = Callable[[str], None]


def _uncounted(check: str) -> None:
    del check


class SessionInvariants:
    """I1 to I6 and I10 of the journal, for one session."""

    def __init__(self, sid: str, report: Report, look: Look = _uncounted) -> None:
        self._sid = sid
        self._report = report
        self._look = look
        self._running: int | None = None
        self._running_boot = 0
        self._turns = 0
        self._holds: tuple[AnyHold, ...] = ()
        self._waiting: set[str] = set()
        self._intents: set[str] = set()
        self._uncertain: set[str] = set()
        self._asked: set[str] = set()
        self._finals: OrderedDict[tuple[str, int, bool], str] = OrderedDict()
        self._ended = False
        self._blind = False
        self._holds_known = True
        self._adrift = False
        self._at = 0, 0

    def unseen(self, kind: str, turn: int | None, boot: int) -> None:
        """The next event's content was deleted: what it may have said is not held against what follows."""
        self._blind = True
        if kind == "turn.started" and turn is not None:
            self._running, self._running_boot, self._turns = turn, boot, turn
        elif kind in {"turn.completed", "turn.interrupted"}:
            self._running = None
        elif kind == "gate.changed":
            self._holds, self._holds_known = (), False
        elif kind in {"session.ended", "session.resumed"}:
            self._ended = kind == "session.ended"

    def gap(self) -> None:
        """The next events are gone altogether; of what follows only what it says itself is held against it."""
        self._blind, self._running, self._ended = True, None, False
        self._holds, self._holds_known = (), False
        self._adrift = True

    def see(self, seq: int, ss: int, boot: int, event: ev.Event) -> None:
        """Take in the next event."""
        self._at = seq, ss
        wrong = self._wrong
        if self._adrift and isinstance(event, _OF_A_TURN):
            self._adrift = False
            if not isinstance(event, ev.TurnStarted):
                self._running, self._running_boot, self._turns = event.n, boot, event.n
        if self._asked or isinstance(event, _OF_AN_APPROVAL):
            self._approvals(event, wrong)
        match event:
            case ev.TurnStarted():
                self._started(event, boot, wrong)
            case ev.TurnCompleted() | ev.TurnInterrupted():
                self._look("I1")
                if self._running != event.n:
                    wrong("I1", f"turn {event.n} ends; running is {self._running}")
                self._running = None
            case ev.TurnStep():
                if self._running != event.n:
                    wrong("I1", f"a step of turn {event.n}; running is {self._running}")
            case fx.SessionForked():
                self._turns = event.turns
            case ev.GateChanged():
                self._gate(event, wrong)
            case ev.EnvelopeAccepted():
                self._waiting.add(event.id)
            case ev.EnvelopeCoalesced() | ev.EnvelopeDropped() | ev.EnvelopeDelivered():
                self._consume(event.id, event.kind, wrong)
            case ev.EffectIntent():
                self._look("I5")
                if event.id in self._intents or event.id in self._uncertain:
                    wrong("I5", f"effect {event.id!r} is intended twice")
                self._intents.add(event.id)
            case ev.EffectOutcome():
                self._look("I5")
                known = event.id in self._intents or event.id in self._uncertain
                if not known and not self._blind:
                    wrong("I5", f"effect {event.id!r} has an outcome and no open intent")
                self._intents.discard(event.id)
                self._uncertain.discard(event.id)
                if event.outcome == "uncertain":
                    self._uncertain.add(event.id)
            case ev.CronOccurrence():
                self._occurred(event, wrong)
            case ev.SessionEnded():
                self._ended = True
            case ev.SessionResumed():
                self._ended = False
            case _:
                pass

    def _wrong(self, check: str, what: str) -> None:
        seq, ss = self._at
        self._report(check, what, sid=self._sid, seq=seq, ss=ss)

    def _approvals(self, event: ev.Event, wrong: Callable[[str, str], None]) -> None:
        match event:
            case pe.ApprovalRequested():
                self._asked.add(event.id)
            case pe.ApprovalAnswered() | pe.ApprovalExpired():
                self._look("I10")
                if event.id not in self._asked and not self._blind and not event.id.endswith("_steps"):
                    wrong("I10", f"approval {event.id!r} is settled and was not open")
                self._asked.discard(event.id)
            case ev.TurnCompleted() | ev.TurnInterrupted() if self._asked:
                wrong("I10", f"turn {event.n} ends while {', '.join(sorted(self._asked))} wait")
                self._asked.clear()
            case _:
                pass

    def _started(self, event: ev.TurnStarted, boot: int, wrong: Callable[[str, str], None]) -> None:
        self._look("I1")
        self._look("I2")
        if self._running is not None:
            wrong("I1", f"turn {event.n} begins while turn {self._running} runs")
        if event.n != self._turns + 1 and not (self._blind and event.n > self._turns):
            wrong("I1", f"turn {event.n} follows turn {self._turns}")
        self._running, self._running_boot, self._turns = event.n, boot, event.n
        kinds = {hold.kind for hold in self._holds}
        if self._ended:
            wrong("I2", f"turn {event.n} begins after the session ended")
        if kinds and not (event.passing and kinds <= PASSABLE):
            wrong("I2", f"turn {event.n} ({event.trigger}) begins in spite of {', '.join(sorted(kinds))}")
        for envelope in event.envelopes:
            self._consume(envelope, f"turn {event.n}", wrong)

    def _consume(self, envelope: str, what: str, wrong: Callable[[str, str], None]) -> None:
        self._look("I4")
        if envelope not in self._waiting and not self._blind:
            wrong("I4", f"{what} consumes envelope {envelope!r}, which does not wait")
        self._waiting.discard(envelope)

    def _gate(self, event: ev.GateChanged, wrong: Callable[[str, str], None]) -> None:
        self._look("I3")
        for hold in event.holds:
            if hold.until_ms is None and hold.kind != "UserSuspend":
                wrong("I3", f"{hold.kind} has no deadline")
        kinds = [hold.kind for hold in event.holds]
        if len(kinds) != len(set(kinds)):
            wrong("I3", f"holds {', '.join(kinds)} are not one of each kind")
        if (event.gate == "open") == bool(kinds):
            wrong("I3", f"the gate is called {event.gate} with {len(kinds)} holds")
        self._holds, self._holds_known = event.holds, True

    def _occurred(self, event: ev.CronOccurrence, wrong: Callable[[str, str], None]) -> None:
        self._look("I6")
        key = (event.job, event.due_ms, event.manual)
        before = self._finals.get(key)
        if before is not None:
            wrong("I6", f"job {event.job!r} due {event.due_ms} is {event.result!r} after {before!r}")
        if event.result in FINAL_RESULTS:
            self._finals[key] = event.result
            if len(self._finals) > FINALS_KEPT:
                self._finals.popitem(last=False)

    def finish(self, *, boot: int | None, now: int, state: Session | None, since_ms: int = 0) -> None:
        """All events were seen.

        Args:
            boot: the current one; None when it died before it took the sessions over.
            now: moment of the log's last event.
            state: as stored.
            since_ms: by when this boot was to have carried out what was overdue.
        """
        if self._running is not None and boot is not None and self._running_boot != boot:
            what = f"turn {self._running} of boot {self._running_boot} never ended; this is boot {boot}"
            self._report("I1", what, sid=self._sid)
        for hold in self._holds:
            self._look("I3")
            if (
                not self._ended
                and boot is not None
                and hold.until_ms is not None
                and max(hold.until_ms, since_ms) + OVERDUE_MS < now
            ):
                what = f"{hold.kind} was due at {hold.until_ms} and still stands at {now}"
                self._report("I3", what, sid=self._sid)
        if state is not None and self._holds_known and set(self._holds) != set(state.gate.holds):
            self._report("I3", "the holds of the state are not those of the last change", sid=self._sid)
