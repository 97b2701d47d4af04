"""An independent reading of a session's events: the contracts of the gate, checked as they stream by.

It shares no code with the core: it keeps a little ledger of its own and complains by `assert`. Used on
the events of the pure core in virtual time, and on the journal of the engine's tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loopd_protocol import events as ev
from tests.core.table import EXPECTED, NEEDS_LATER, STARTING, STRENGTH

FINAL = frozenset({"fired", "late", "coalesced", "skipped", "missed"})
GOAL_STATES = frozenset({"active", "paused", "complete", "infeasible", "blocked", "cleared"})


class Auditor:
    """Follows the events of one session.

    Attributes:
        holds: standing holds by kind.
        waiting: accepted and not consumed, in order: id → (source, job, ss, count).
        running: number of the running turn, or None.
    """

    def __init__(
        self, *, preset: str = "published", cap: int = 100, gap_ms: int = 2_000, pass_gap_ms: int = 60_000
    ) -> None:
        self.preset, self.cap, self.gap_ms, self.pass_gap_ms = preset, cap, gap_ms, pass_gap_ms
        self.holds: dict[str, Any] = {}
        self.gen = 0
        self.waiting: dict[str, tuple[str, str | None, int, int]] = {}
        self.fate: dict[str, str] = {}
        self.held: set[str] = set()
        self.running: int | None = None
        self.turns = 0
        self.steps = 0
        self.goal: str | None = None
        self.last_turn = self.goal_set = self.created = 0
        self.ended = False
        self.ss = 0
        self.at_ms = 0
        self.occurrences: dict[tuple[str, int, bool], str] = {}
        self.occurrence_of: dict[str, tuple[str, int, bool]] = {}
        self.effects: dict[str, str | None] = {}
        self.last_pass_ms = -(10**15)
        self.gone: list[tuple[str, int | None, int]] = []
        self.turn_batches: list[tuple[str, ...]] = []
        self._due: tuple[str, int, bool] | None = None

    def see_all(self, rows: Iterable[tuple[int, int, ev.Event]]) -> None:
        """Take in (ss, at_ms, event) rows."""
        for ss, at_ms, event in rows:
            self.see(ss, at_ms, event)

    def see(self, ss: int, at_ms: int, event: ev.Event) -> None:
        """Take in the next event."""
        assert ss == self.ss + 1, f"a gap: {event.kind} has ss {ss} after {self.ss}"
        late = {"session.resumed", "effect.outcome", "budget.set"}
        assert not self.ended or event.kind in late, f"{event.kind} after the end"
        self.ss, self.at_ms = ss, at_ms
        handler = getattr(self, "_" + event.kind.replace(".", "_"), None)
        if handler is not None:
            handler(event)

    # -- envelopes: contracts 4, 6, 7, 9 -------------------------------------------------------

    def _envelope_accepted(self, event: ev.EnvelopeAccepted) -> None:
        assert event.id not in self.fate, f"{event.id} is accepted twice"
        assert event.id not in self.waiting, f"{event.id} is accepted twice"
        source = event.source.value
        assert event.ephemeral_in_history == (source in {"cron", "rewake", "system"})
        self.waiting[event.id] = (source, event.job, self.ss, 1)
        if source == "cron" and event.job is not None:
            assert self._due is not None, f"cron envelope {event.id} without an occurrence that is due"
            assert (event.job, event.due_ms) == self._due[:2]
            self.occurrence_of[event.id] = self._due
            self._due = None

    def _consume(self, envelope: str, how: str) -> tuple[str, str | None, int, int]:
        assert envelope in self.waiting, f"{how} takes {envelope}, which is {self.fate.get(envelope)!r}"
        self.fate[envelope] = how
        return self.waiting.pop(envelope)

    def _envelope_held(self, event: ev.EnvelopeHeld) -> None:
        assert event.id in self.waiting
        assert event.id not in self.held, f"{event.id} is said to be held twice"
        assert event.by, "held back by nothing"
        assert set(event.by) <= set(self.holds) | {"freeze", "drain", "maintenance"}
        self.held.add(event.id)

    def _envelope_coalesced(self, event: ev.EnvelopeCoalesced) -> None:
        source, job, ss, count = self._consume(event.id, "coalesced")
        assert source == "cron"
        assert job == event.job
        into_source, into_job, into_ss, _ = self.waiting[event.into]
        assert (into_source, into_job) == ("cron", job)
        assert into_ss > ss, "coalesced into an older one"
        assert event.count == count + self.waiting[event.into][3], "the count of coalesced is wrong"
        self.waiting[event.into] = ("cron", job, into_ss, event.count)

    def _envelope_delivered(self, event: ev.EnvelopeDelivered) -> None:
        source, *_ = self._consume(event.id, f"turn {event.n}")
        assert source == "system", "only notes are shown inside a running turn"
        assert self.running == event.n

    def _envelope_dropped(self, event: ev.EnvelopeDropped) -> None:
        ranked = list(self.waiting)
        source, *_ = self._consume(event.id, "dropped")
        if event.reason == "inbox_full":
            peers = [
                e for e in ranked if e == event.id or (self.waiting[e][0] == "system") == (source == "system")
            ]
            peers = [e for e in peers if e not in self.occurrence_of]
            assert source != "cron" or event.id not in self.occurrence_of, (
                "a job is coalesced, never crowded out"
            )
            assert peers[0] == event.id, "not the oldest was dropped"
            assert len(peers) > self.cap, f"dropped with only {len(peers)} of {self.cap} waiting"
        else:
            assert event.reason in {"operator", "session_ended"}

    # -- gate: contracts 1, 2, 3 ---------------------------------------------------------------

    def _gate_changed(self, event: ev.GateChanged) -> None:
        kinds = [hold.kind for hold in event.holds]
        assert len(kinds) == len(set(kinds)), "two holds of one kind"
        assert (event.gate == "open") == (not kinds), "open iff no holds"
        assert event.gen == self.gen + 1
        assert event.added is not None or event.removed, "a change that changes nothing"
        for hold in event.holds:
            assert hold.kind == "UserSuspend" or hold.until_ms is not None, f"{hold.kind} has no deadline"
        expected = dict(self.holds)
        for kind in event.removed:
            assert kind in expected, f"{kind} is removed and did not stand"
            gone = expected.pop(kind)
            self.gone.append((kind, gone.until_ms, self.at_ms))
            self._may_go(event, kind, gone)
        if event.added is not None:
            old = expected.get(event.added.kind)
            if old is not None and event.added.kind != "UserSuspend":
                assert event.added.until_ms >= old.until_ms, "a deadline moved earlier"
            expected[event.added.kind] = event.added
        assert expected == {hold.kind: hold for hold in event.holds}, "holds changed that were not named"
        self.holds, self.gen = expected, event.gen

    def _may_go(self, event: ev.GateChanged, kind: str, hold: Any) -> None:
        match event.cause:
            case "deadline":
                assert event.removed == (kind,)
                assert hold.until_ms is not None
                assert hold.until_ms <= self.at_ms, f"{kind} went before its deadline"
                assert event.late_ms == self.at_ms - hold.until_ms
            case "envelope":
                assert event.envelope is not None
                source, _, ss, _ = self.waiting[event.envelope]
                assert EXPECTED[kind, source, self.preset] == "removes", f"{source} lifted {kind}"
                if kind in NEEDS_LATER:
                    assert ss > hold.since_ss, f"{kind} was lifted by an older envelope"
                assert not getattr(hold, "quarantine", False), "a quarantine was lifted by an envelope"
                suspend = self.holds.get("UserSuspend")
                assert suspend is None or "UserSuspend" in event.removed, "lifted under a suspension"
            case "unsuspend":
                assert kind == "UserSuspend"
            case "gate_open":
                assert kind in {
                    "Degeneration",
                    "RequestIdle",
                    "ContinuationBackoff",
                    "Interrupted",
                    "ProviderBackoff",
                    "CrashLoop",
                }
            case "progress":
                assert kind == "Degeneration"
            case "maintenance":
                assert kind == "Maintenance"
            case "answer":
                assert kind == "AwaitingApproval"
            case "budget":
                assert kind == "Budget"
            case "ended":
                pass
            case other:
                raise AssertionError(f"{kind} was removed by {other!r}")

    # -- turns ---------------------------------------------------------------------------------

    def _turn_started(self, event: ev.TurnStarted) -> None:
        assert self.running is None, f"turn {event.n} begins while turn {self.running} runs"
        assert event.n == self.turns + 1
        assert "UserSuspend" not in self.holds, "contract 3: a turn began while suspended"
        starters = [e for e, (source, *_) in self.waiting.items() if source in STARTING]
        sources = [self.waiting[e][0] for e in event.envelopes]
        if self.holds:
            assert event.passing, f"turn {event.n} began in spite of {', '.join(self.holds)}"
            assert set(self.holds) == {"Degeneration"}
            assert self.preset == "hardened"
            assert event.trigger != "continuation"
            assert self.at_ms - self.last_pass_ms >= self.pass_gap_ms, "passed too often"
            self.last_pass_ms = self.at_ms
        assert event.gate_gen == self.gen
        if event.trigger == "continuation":
            assert not starters, "a continuation went before what waits"
            assert self.goal == "active"
            assert event.prompt is not None
            assert event.ephemeral_in_history
            last = max(self.last_turn, self.goal_set, self.created)
            assert self.at_ms >= last + self.gap_ms, "a continuation too soon"
        else:
            assert event.prompt is None
            assert event.trigger == max((s for s in sources if s != "system"), key=STRENGTH.index), (
                "the strongest source names the trigger"
            )
        assert list(event.envelopes) == list(self.waiting), "one batch of everything that waits, in order"
        for envelope in event.envelopes:
            self._consume(envelope, f"turn {event.n}")
        self.running, self.turns = event.n, event.n
        self.turn_batches.append(event.envelopes)

    def _turn_step(self, event: ev.TurnStep) -> None:
        assert self.running == event.n
        assert event.total == self.steps + 1
        self.steps = event.total

    def _over(self, event: ev.TurnCompleted | ev.TurnInterrupted) -> None:
        assert self.running == event.n, f"turn {event.n} ends; {self.running} runs"
        self.running = None
        self.last_turn = self.at_ms

    _turn_completed = _over
    _turn_interrupted = _over

    # -- the rest ------------------------------------------------------------------------------

    def _goal_changed(self, event: ev.GoalChanged) -> None:
        assert event.status in GOAL_STATES
        assert event.origin in {"model", "user"}
        self.goal = None if event.status == "cleared" else event.status
        self.goal_set = self.at_ms

    def _cron_occurrence(self, event: ev.CronOccurrence) -> None:
        key = (event.job, event.due_ms, event.manual)
        before = self.occurrences.get(key)
        assert before not in FINAL, f"{key} is {event.result!r} after {before!r}"
        if event.result not in FINAL:
            assert event.result in {"due", "held"}
            assert before == (None if event.result == "due" else "due"), f"{key}: {before} → {event.result}"
        if event.result in {"held", "fired", "late", "coalesced"}:
            assert before is not None, f"{key} is {event.result!r} and was never due"
            assert event.envelope is not None
            assert self.occurrence_of[event.envelope] == key
        if event.result == "coalesced":
            assert self.fate[str(event.envelope)] == "coalesced"
        self.occurrences[key] = event.result
        if event.result == "due":
            self._due = key

    def _effect_intent(self, event: ev.EffectIntent) -> None:
        assert event.id not in self.effects, f"effect {event.id} is intended twice"
        self.effects[event.id] = None

    def _effect_outcome(self, event: ev.EffectOutcome) -> None:
        assert event.id in self.effects, f"effect {event.id} has an outcome and no intent"
        assert self.effects[event.id] in {None, "uncertain"}, "an effect has two outcomes"
        assert (self.effects[event.id] is None) == (event.outcome not in {"happened", "not_happened"})
        self.effects[event.id] = event.outcome

    def _session_created(self, event: ev.SessionCreated) -> None:
        self.created = self.at_ms

    def _session_ended(self, event: ev.SessionEnded) -> None:
        assert self.running is None
        assert not self.waiting, "envelopes were left behind"
        assert not self.holds
        assert event.status in {"done_success", "done_partial", "aborted_stuck", "aborted_constraint"}
        self.ended = True

    def _session_resumed(self, event: ev.SessionResumed) -> None:
        assert self.ended, "a run begins while another one lives"
        assert event.run > 1
        self.ended = False

    # -- what must be true between two inputs ----------------------------------------------------

    def check(self, *, closed: bool) -> None:
        """Nothing that the table admits waits, nothing is unaccounted, every bound is kept."""
        assert self._due is None
        open_ones = {key for key, result in self.occurrences.items() if result not in FINAL}
        waiting_ones = {self.occurrence_of[e] for e in self.waiting if e in self.occurrence_of}
        assert open_ones == waiting_ones, f"occurrences without an end: {open_ones - waiting_ones}"
        crons = [self.waiting[e][1] for e in self.waiting if e in self.occurrence_of]
        assert len(crons) == len(set(crons)), "two of one job wait"
        others = [s for e, (s, *_) in self.waiting.items() if e not in self.occurrence_of]
        assert others.count("system") <= self.cap
        assert len(others) - others.count("system") <= self.cap
        if self.running is not None or self.ended:
            return
        starters = [e for e, (source, *_) in self.waiting.items() if source in STARTING]
        for envelope in starters:
            assert envelope in self.held, f"{envelope} waits and nobody said so"
            if not closed:
                assert not self.liftable(envelope), f"{envelope} should have lifted {self.liftable(envelope)}"
                assert self.holds, f"{envelope} waits at an open gate"

    def liftable(self, envelope: str) -> list[str]:
        """Kinds that a waiting envelope would remove by the table."""
        source, _, ss, _ = self.waiting[envelope]
        suspend = self.holds.get("UserSuspend")
        if suspend is not None and (source != "human" or suspend.quarantine or ss <= suspend.since_ss):
            return []
        return [
            kind
            for kind, hold in self.holds.items()
            if EXPECTED[kind, source, self.preset] == "removes"
            and not (kind in NEEDS_LATER and ss <= hold.since_ss)
        ]

    def passable(self, holds: dict[str, Any], now: int) -> bool:
        """Whether automatic sources may pass these holds now."""
        if self.preset != "hardened" or set(holds) != {"Degeneration"}:
            return False
        return now - self.last_pass_ms >= self.pass_gap_ms

    def predicted(self, *, closed: bool, now: int) -> list[str]:
        """Which waiting envelopes would begin a turn if all were judged now, by the table alone."""
        if self.running is not None or self.ended or closed:
            return []
        holds = dict(self.holds)
        starters = [e for e, (source, *_) in self.waiting.items() if source in STARTING]
        for envelope in starters:
            for kind in self.liftable(envelope):
                self.holds.pop(kind)
        left, self.holds = self.holds, holds
        if not starters or (left and not self.passable(left, now)):
            return []
        return list(self.waiting)
