"""The twelve contracts of the gate, under random interleavings of everything that can happen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loopd.core.account import own_purses
from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd.core.inputs import (
    AgentAsked,
    CronChangeRequested,
    CronPutRequested,
    CutRequested,
    DropRequested,
    EffectEnded,
    EffectIntended,
    EffectResolved,
    EndRequested,
    EnvelopeArrived,
    GateExtendRequested,
    GateOpenRequested,
    GoalChangeRequested,
    HoldReleased,
    HoldRequested,
    InterruptRequested,
    Reconsidered,
    Recovered,
    ResumeRequested,
    RetryReported,
    StepReported,
    SuspendRequested,
    Ticked,
    TurnEnded,
    UnsuspendRequested,
)
from loopd.core.policy import Verdict
from loopd.core.policy_inputs import (
    AffordAsked,
    ApprovalGiven,
    BudgetSetRequested,
    ConfigSetRequested,
    PermitAsked,
)
from loopd.core.session import next_deadline
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Source
from tests.core.table import BY_HAND, KINDS, STARTING, a_hold
from tests.core.world import START_MS, World

PROFILES: tuple[dict[str, Any], ...] = (
    {},
    {"continuation.min_gap_ms": 0, "gate.inbox_cap": 2},
    {
        "rules.repeated_text.threshold": 2,
        "rules.barren_streak.threshold": 3,
        "gate.inbox_cap": 3,
        "turn.max_steps": 2,
    },
    {
        "continuation.backoff_s": [60, 300],
        "continuation.backoff_after": 1,
        "rules.repeated_text.threshold": 4,
        "rules.tool_repetition.max_corrections": 1,
        "rules.progress_stall.threshold": 2,
    },
    {
        "rules.repeated_text.mode": "shadow",
        "rules.repeated_text.threshold": 2,
        "gate.provider_backoff_ms": 1_000,
    },
)
JOBS = {
    "minutes": ("*/15 * * * *", 900_000),
    "hourly": ("0 * * * *", 3_600_000),
    "daily": ("0 0 * * *", 86_400_000),
}
JUMPS = st.one_of(
    st.integers(0, 5_000),
    st.sampled_from([1, 1_999, 2_000, 59_999, 60_000, 300_000, 900_000, 3_600_000]),
    st.integers(0, 30 * 3_600_000),
)
TEXTS = st.sampled_from(["", "Not complete. No action.", "Not complete. No action.", "working", "done"])
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.sampled_from(["call_1", "call_2"]),
        name=st.sampled_from(["shell", "edit_file", "read_file"]),
        args=st.sampled_from([{}, {"path": "a"}, {"path": "b"}]),
        ok=st.sampled_from([True, False, None]),
        result=st.sampled_from([None, "", "same", "x" * 100]),
        tool_class=st.sampled_from(["other", "edit"]),
    ),
    max_size=2,
).map(tuple)
OUTCOMES = st.sampled_from(
    ["completed", "completed", "completed", "empty", "idle", "model_error", "failed", "stopped_by_rule"]
)


class SessionMachine(RuleBasedStateMachine):
    """Random inputs in virtual time; `World` and its auditor judge each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World
        self.boot = 1
        self.tools = 0
        self.begun: list[tuple[int, str]] = []
        self.expected_due: dict[str, int] = {}

    @initialize(
        profile=st.sampled_from(PROFILES),
        goal=st.sampled_from([None, "win", "win"]),
        preset=st.sampled_from(["published", "hardened"]),
    )
    def begin(self, profile: dict[str, Any], goal: str | None, preset: str) -> None:
        self.world = World(profile, goal=goal, preset=preset)

    # -- helpers -----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self.world.session.turn is not None

    def feed(self, given: Any, *, refusals: frozenset[str] = frozenset()) -> tuple[ev.Event, ...]:
        """Feed an input; a refusal must be one of those that are to be expected now."""
        world = self.world
        if world.session.status != "live":
            refusals = frozenset({"session_terminal"})
        predicted_before = world.audit.running
        done = world.attempt(given)
        if isinstance(done, Refused):
            assert done.code in refusals, f"{given} was refused: {done}"
            return ()
        started = [e for e in done.events if isinstance(e, ev.TurnStarted)]
        assert len(started) <= 1, "contracts 5 and 6: one input begins at most one turn"
        if predicted_before is not None and not any(
            isinstance(e, ev.TurnCompleted | ev.TurnInterrupted) for e in done.events
        ):
            assert not started
        self._account(done.events)
        return done.events

    def _account(self, events: tuple[ev.Event, ...]) -> None:
        """Each due moment of each job is accounted for once, none is left out."""
        for event in events:
            if isinstance(event, ev.CronChanged):
                if event.change == "removed":
                    self.expected_due.pop(event.job, None)
                elif event.change == "put":
                    period = JOBS[event.job][1]
                    known = self.world.audit.occurrences
                    seen = [due for job, due, manual in known if job == event.job and not manual]
                    after = max([self.world.now, *seen])
                    self.expected_due[event.job] = (after // period + 1) * period
                    assert event.next_ms == self.expected_due[event.job]
            elif isinstance(event, ev.CronOccurrence) and not event.manual and event.envelope is None:
                assert event.result in {"due", "skipped", "missed"}
                assert event.due_ms == self.expected_due[event.job], "a due moment was left out"
                assert event.due_ms <= self.world.now
                assert self.world.now >= self.world.scheduled_from_ms, "a schedule did not wait"
                self.expected_due[event.job] += JOBS[event.job][1]
                if event.next_ms:
                    assert event.next_ms == self.expected_due[event.job]

    # -- envelopes ----------------------------------------------------------------------------------

    @rule(source=st.sampled_from([*STARTING, "human", "system"]))
    def send(self, source: str) -> None:
        audit = self.world.audit
        suspend = audit.holds.get("UserSuspend")
        free = not self.running and self.world.closed_by is None
        others = set(audit.holds) - {"UserSuspend"}
        events = self.feed(EnvelopeArrived(source=Source(source), text="hello", by="uid:1"))
        if not events:
            return
        assert isinstance(events[0], ev.EnvelopeAccepted)
        started = [e for e in events if isinstance(e, ev.TurnStarted)]
        if source == "system":
            assert not started, "a note never begins a turn"
        if suspend is not None and source == "human" and free and not suspend.quarantine:
            # contract 6: accepted, then lifted, then exactly one turn of everything that is queued
            kinds = [type(e) for e in events]
            assert ev.GateChanged in kinds
            changed = next(e for e in events if isinstance(e, ev.GateChanged))
            assert "UserSuspend" in changed.removed
            assert changed.cause == "envelope"
            blocking = {"ProviderBackoff", "AwaitingApproval", "Budget", "CrashLoop", "Maintenance"}
            assert len(started) == (0 if others & blocking else 1)
        elif suspend is not None:
            assert not started
            assert "UserSuspend" in audit.holds

    @precondition(lambda self: self.world.session.inbox)
    @rule(which=st.integers(0, 200))
    def drop(self, which: int) -> None:
        inbox = self.world.session.inbox
        events = self.feed(DropRequested(by="uid:1", id=inbox[which % len(inbox)].id))
        assert any(isinstance(e, ev.EnvelopeDropped) for e in events)

    def drop_what_is_not_there(self) -> None:
        assert not self.feed(DropRequested(by="uid:1", id="env_none"), refusals=frozenset({"not_found"}))

    # -- gate -----------------------------------------------------------------------------------------

    @rule(
        mode=st.sampled_from(["after_turn", "interrupt", "kill"]),
        until=st.one_of(st.none(), st.integers(-5, 7_200_000)),
        quarantine=st.sampled_from([False, False, True]),
    )
    def suspend(self, mode: Any, until: int | None, quarantine: bool) -> None:
        world = self.world
        was_running = self.running
        moment = None if until is None else world.now + until
        past = frozenset({"invalid"}) if until is not None and until <= 0 else frozenset()
        events = self.feed(
            SuspendRequested(by="uid:1", until_ms=moment, mode=mode, quarantine=quarantine), refusals=past
        )
        if not events or world.session.status != "live":
            return
        hold = world.audit.holds["UserSuspend"]
        assert (hold.until_ms, hold.quarantine) == (moment, quarantine)
        assert not any(isinstance(e, ev.TurnStarted) for e in events)
        assert "Interrupted" not in {
            k for e in events if isinstance(e, ev.GateChanged) for k in [e.added and e.added.kind]
        }
        assert self.running == (was_running and mode == "after_turn")

    @rule()
    def unsuspend(self) -> None:
        world, audit = self.world, self.world.audit
        had = "UserSuspend" in audit.holds
        saved = dict(audit.holds)
        audit.holds.pop("UserSuspend", None)
        predicted = audit.predicted(closed=world.closed_by is not None, now=world.now)
        audit.holds = saved
        events = self.feed(UnsuspendRequested(by="uid:1"))
        if world.session.status != "live":
            return
        started = [e for e in events if isinstance(e, ev.TurnStarted)]
        assert [list(e.envelopes) for e in started] == ([predicted] if predicted else [])  # contract 5
        removed = [e.removed for e in events if isinstance(e, ev.GateChanged) and e.cause == "unsuspend"]
        assert removed == ([("UserSuspend",)] if had else [])

    @rule(for_ms=st.one_of(st.none(), st.integers(1_000, 600_000)), suspend=st.booleans())
    def interrupt(self, for_ms: int | None, suspend: bool) -> None:
        world = self.world
        world.partial = "half a sen"
        was = world.audit.running
        old = world.audit.holds.get("Interrupted")
        events = self.feed(InterruptRequested(by="uid:1", for_ms=for_ms, suspend=suspend))
        world.partial = ""
        if not events or world.session.status != "live":
            return
        assert not self.running
        cut = [e for e in events if isinstance(e, ev.TurnInterrupted)]
        assert [(e.n, e.cause, e.partial) for e in cut] == (
            [] if was is None else [(was, "interrupt", "half a sen")]
        )
        assert not any(isinstance(e, ev.TurnStarted) for e in events)
        until = world.now + (300_000 if for_ms is None else for_ms)
        assert world.audit.holds["Interrupted"].until_ms == max(until, 0 if old is None else old.until_ms)
        assert not suspend or "UserSuspend" in world.audit.holds

    def open_gate(self, kind: str | None) -> None:
        audit = self.world.audit
        before = set(audit.holds)
        fine = kind is None or (kind in BY_HAND and kind in before)
        events = self.feed(
            GateOpenRequested(by="uid:1", kind=kind),
            refusals=frozenset() if fine else frozenset({"conflict"}),
        )
        if self.world.session.status != "live":
            return
        gone = {
            k for e in events if isinstance(e, ev.GateChanged) and e.cause == "gate_open" for k in e.removed
        }
        asked = set() if not fine else before & (BY_HAND if kind is None else {kind})
        assert gone == asked

    @rule(
        kinds=st.tuples(
            st.sampled_from(KINDS),
            st.sampled_from(["Maintenance", "Budget", "AwaitingApproval", "ProviderBackoff", "CrashLoop"]),
        ),
        by_ms=st.integers(-1_000, 600_000),
        which=st.sampled_from(["extend", "set", "open", "goal"]),
        status=st.sampled_from(["active", "active", "paused", "complete", "infeasible", "cleared"]),
    )
    def fiddle(self, kinds: tuple[str, str], by_ms: int, which: str, status: str) -> None:
        """What happens now and then: one rule for it, so that most of the time the session lives."""
        match which:
            case "extend":
                self.extend(kinds[0], by_ms)
            case "set":
                self.house_hold(kinds[1], max(1, by_ms))
            case "open":
                self.open_gate(kinds[0])
            case _:
                self.change_goal(status, fresh=by_ms > 0)

    def extend(self, kind: str, by_ms: int) -> None:
        hold = self.world.audit.holds.get(kind)
        until = None if hold is None else hold.until_ms
        target = max(0, (self.world.now if until is None else until) + by_ms)
        fine = until is not None and target > max(until, self.world.now)
        expected = frozenset() if fine else frozenset({"conflict" if hold is None else "invalid"})
        events = self.feed(GateExtendRequested(by="uid:1", kind=kind, until_ms=target), refusals=expected)
        if fine and events:
            assert self.world.audit.holds[kind].until_ms == target

    def house_hold(self, kind: str, for_ms: int) -> None:
        self.feed(HoldRequested(hold=a_hold(kind, self.world.now + for_ms), cause="maintenance"))

    # -- the house --------------------------------------------------------------------------------------

    @rule(by=st.sampled_from(["freeze", "drain", "maintenance"]), cut=st.booleans())
    def close_house(self, by: str, cut: bool) -> None:
        self.world.closed_by = by
        if by == "maintenance":  # a full disk: every gate gets a hold as well
            hold = a_hold("Maintenance", self.world.now + 300_000)
            events = self.feed(HoldRequested(hold=hold, cause="maintenance"))
            assert not any(isinstance(e, ev.TurnStarted) for e in events)
        elif cut:
            events = self.feed(CutRequested(cause=by))  # type: ignore[arg-type]
            assert not any(isinstance(e, ev.TurnStarted) for e in events)

    @precondition(lambda self: self.world.closed_by is not None)
    @rule()
    def open_house(self) -> None:
        world = self.world
        was, world.closed_by = world.closed_by, None
        if was == "maintenance":
            self.feed(HoldReleased(kind="Maintenance", cause="maintenance"))
            assert "Maintenance" not in world.audit.holds
        predicted = world.audit.predicted(closed=False, now=world.now)
        events = self.feed(Reconsidered())
        started = [list(e.envelopes) for e in events if isinstance(e, ev.TurnStarted)]
        assert started == ([predicted] if predicted else [])

    # -- goals ------------------------------------------------------------------------------------------

    def change_goal(self, status: str, fresh: bool) -> None:
        text = "win" if fresh and status == "active" else None
        missing = frozenset({"conflict"}) if self.world.session.goal is None and text is None else frozenset()
        self.feed(GoalChangeRequested(by="uid:1", status=status, text=text), refusals=missing)

    # -- cron -------------------------------------------------------------------------------------------

    @rule(job=st.sampled_from(sorted(JOBS)), missed=st.sampled_from(["skip", "one", "all"]))
    def cron_put(self, job: str, missed: str) -> None:
        self.feed(CronPutRequested(by="uid:1", job=job, expr=JOBS[job][0], text="check", missed=missed))

    @rule(
        job=st.sampled_from(sorted(JOBS)),
        change=st.sampled_from(["paused", "resumed", "removed", "run", "run"]),
    )
    def cron_change(self, job: str, change: Any) -> None:
        known = next((j for j in self.world.session.crons if j.job == job), None)
        refusals: set[str] = set()
        if known is None:
            refusals = {"not_found"}
        elif change in {"paused", "resumed"} and known.paused == (change == "paused"):
            refusals = {"conflict"}
        self.feed(CronChangeRequested(by="uid:1", job=job, change=change), refusals=frozenset(refusals))

    # -- time -------------------------------------------------------------------------------------------

    @rule(ms=JUMPS)
    def time_passes(self, ms: int) -> None:
        self.world.now += ms
        self.tick()

    @rule(late=st.sampled_from([0, 0, 0, 1, 70_000]))
    def next_deadline_comes(self, late: int) -> None:
        due = next_deadline(self.world.session, self.world.house())
        if due is not None:
            self.world.now = max(self.world.now, due + late)
            self.tick(must=True)

    @rule(ms=st.integers(1, 3_600_000))
    def clock_goes_back(self, ms: int) -> None:
        self.world.now = max(START_MS, self.world.now - ms)
        gone = len(self.world.audit.gone)
        self.tick()
        again = self.world.audit.gone[gone:]
        assert all(until is None or until <= self.world.now for _, until, _ in again)

    def tick(self, *, must: bool = False) -> None:
        world = self.world
        events = self.feed(Ticked())
        assert events or not must
        if world.session.status == "live":
            overdue = [
                h for h in world.audit.holds.values() if h.until_ms is not None and h.until_ms <= world.now
            ]
            assert not overdue, "contract 2: a deadline passed and the hold stands"
        assert not self.world.apply(Ticked()).events, "the same moment did something twice"

    # -- the driver ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(
        text=TEXTS,
        calls=CALLS,
        tokens=st.integers(0, 500),
        outside=st.sampled_from([None, "a", "b"]),
        withheld=st.booleans(),
    )
    def step(
        self, text: str, calls: tuple[ToolCall, ...], tokens: int, outside: str | None, withheld: bool
    ) -> None:
        turn = self.world.session.turn
        assert turn is not None
        done = StepDone(
            text=text,
            calls=calls,
            usage=Usage(input_tokens=tokens, output_tokens=1),
            state_fingerprint=outside,
            tools_withheld=withheld,
        )
        for call in calls[:1]:
            self.feed(
                EffectIntended(
                    n=turn.n, call=call.id, tool=call.name, args_sha256="0" * 64, tool_class=call.tool_class
                )
            )
            self.feed(EffectEnded(n=turn.n, call=call.id, outcome="ok"))
        self.feed(StepReported(n=turn.n, done=done))

    @precondition(lambda self: self.running)
    @rule(
        outcome=OUTCOMES,
        retry=st.sampled_from([None, 0, 5_000, 10**9]),
        complete=st.sampled_from([False] * 5 + [True]),
    )
    def turn_ends(self, outcome: Any, retry: int | None, complete: bool) -> None:
        turn = self.world.session.turn
        assert turn is not None
        before = set(self.world.audit.holds)
        waiting = list(self.world.audit.waiting)
        end = TurnEnd(outcome=outcome, retry_after_ms=retry, goal_complete=complete)
        events = self.feed(TurnEnded(n=turn.n, end=end))
        if self.world.session.status != "live":
            return
        if outcome in {"model_error", "failed"} and turn.stopping is None:
            assert "ProviderBackoff" in self.world.audit.holds
        started = [e for e in events if isinstance(e, ev.TurnStarted)]
        if "UserSuspend" in before and not waiting:
            assert not started
        if started:  # contract 7
            assert started[0].trigger != "continuation", "a continuation comes at its own moment"
            assert set(waiting) <= set(started[0].envelopes)

    # -- approvals, budgets, settings -----------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(effect=st.sampled_from(["ask", "ask", "deny", "allow"]), command=st.sampled_from(["make", "rm x"]))
    def a_tool_needs_permission(self, effect: str, command: str) -> None:
        session = self.world.session
        assert session.turn is not None
        verdict = Verdict(effect=effect, rule="r", about="command", subjects=(command,), excerpt=command)
        given = PermitAsked(
            n=session.turn.n, call="c", tool="shell", args_sha256="x", tool_class="exec", verdict=verdict
        )
        before = len(session.permits.pending)
        self.feed(given)
        pending = self.world.session.permits.pending
        assert len(pending) <= before + (effect == "ask")
        if pending:
            assert "AwaitingApproval" in self.world.audit.holds

    @rule(
        place=st.integers(0, 3),
        how=st.sampled_from(["allow", "deny"]),
        scope=st.sampled_from(["once", "session"]),
    )
    def a_person_answers(self, place: int, how: Any, scope: Any) -> None:
        pending = self.world.session.permits.pending
        approval = pending[place % len(pending)].id if pending else "apr_1_steps"
        refusals = frozenset() if pending else frozenset({"conflict", "not_found"})
        given = ApprovalGiven(by="uid:1", id=approval, answer=how, scope=scope)
        self.feed(given, refusals=refusals)
        if pending and self.world.session.status == "live":
            again = self.world.attempt(given)
            assert isinstance(again, Refused)
            assert again.code == "conflict"

    @rule(
        kind=st.sampled_from(["tokens", "turns", "wall"]),
        limit=st.sampled_from([None, 1, 1_000, 10**9]),
        per_ms=st.sampled_from([None, 3_600_000]),
    )
    def a_person_sets_a_budget(self, kind: str, limit: int | None, per_ms: int | None) -> None:
        if self.world.session.status != "live":
            return
        given = BudgetSetRequested(by="uid:1", kind=kind, limit=limit, per_ms=per_ms)
        self.feed(given, refusals=frozenset({"not_found"}))

    @precondition(lambda self: self.running)
    @rule()
    def a_model_is_about_to_be_called(self) -> None:
        turn = self.world.session.turn
        assert turn is not None
        self.feed(AffordAsked(n=turn.n))

    @rule(key=st.sampled_from(["turn.max_steps", "approvals.wait_s"]), value=st.sampled_from([1, 60, 10**9]))
    def a_person_changes_settings(self, key: str, value: int) -> None:
        before = self.world.session.overrides
        running = self.running
        self.feed(ConfigSetRequested(by="uid:1", set={key: value}), refusals=frozenset({"invalid"}))
        if running:
            assert self.world.session.overrides == before, "it holds from the next turn on"

    @precondition(lambda self: self.running)
    @rule(text=TEXTS, times=st.integers(1, 4))
    def answer_the_same_again(self, text: str, times: int) -> None:
        """What a degenerating agent does: the same turn, again and again."""
        for _ in range(times):
            turn = self.world.session.turn
            if turn is None:
                return
            self.feed(StepReported(n=turn.n, done=StepDone(text=text)))
            self.feed(TurnEnded(n=turn.n, end=TurnEnd(outcome="completed")))
            self.world.now += 2_000
            self.tick()

    @precondition(lambda self: self.running)
    @rule(
        request=st.one_of(
            st.builds(
                AgentRequest,
                name=st.just("request_idle"),
                args=st.fixed_dictionaries(
                    {
                        "max_idle_duration_secs": st.sampled_from(
                            [60, 3_600, 86_400, 59, 86_401, True, "60", 60.5]
                        )
                    }
                ),
            ),
            st.builds(
                AgentRequest,
                name=st.just("update_goal"),
                args=st.fixed_dictionaries(
                    {
                        "status": st.sampled_from(
                            ["complete", "infeasible", "blocked", "paused", "active", None]
                        )
                    }
                ),
            ),
            st.builds(
                AgentRequest,
                name=st.just("wake_me"),
                args=st.one_of(
                    st.fixed_dictionaries({"after_secs": st.sampled_from([60, 600, 59, None])}),
                    st.fixed_dictionaries({"cron": st.sampled_from(["*/30 * * * *", "nonsense", "", 5])}),
                    st.just({}),
                ),
            ),
            st.builds(AgentRequest, name=st.just("report_phase"), args=st.just({"name": "plan"})),
            st.builds(
                AgentRequest,
                name=st.just("report_progress"),
                args=st.fixed_dictionaries(
                    {
                        "metric": st.just("score"),
                        "value": st.sampled_from([1, -0.5, float("nan"), float("inf"), "x"]),
                    }
                ),
            ),
            st.just(AgentRequest(name="gate_open", args={"kind": "UserSuspend"})),
        )
    )
    def ask(self, request: AgentRequest) -> None:
        world = self.world
        turn = world.session.turn
        assert turn is not None
        before = dict(world.audit.holds)
        done = world.apply(AgentAsked(n=turn.n, request=request))
        self._account(done.events)
        assert done.reply is not None
        assert done.reply.text
        if not done.reply.ok:
            assert not done.events, "a refused request changed something"
        lost = set(before) - set(world.audit.holds)
        assert not lost, "an agent opened its own gate"
        if request.name == "request_idle" and done.reply.ok:
            assert done.reply.ends_turn
            seconds = request.args["max_idle_duration_secs"]
            assert 60 <= seconds <= 86_400
            assert world.audit.holds["RequestIdle"].until_ms >= world.now + seconds * 1_000

    @precondition(lambda self: self.running)
    @rule()
    def retry(self) -> None:
        turn = self.world.session.turn
        assert turn is not None
        self.feed(RetryReported(n=turn.n, attempt=1, cause="429", delay_ms=100))

    @rule(off=st.sampled_from([-1, 1]))
    def what_is_stale(self, off: int) -> None:
        self.drop_what_is_not_there()
        self.a_late_driver(off)

    def a_late_driver(self, off: int) -> None:
        """Reports of a turn that is over, or never was, change nothing and are told to stop."""
        turn = self.world.session.turn
        n = (turn.n if turn is not None else self.world.session.turns) + off
        for given in (
            TurnEnded(n=n, end=TurnEnd(outcome="completed")),
            StepReported(n=n, done=StepDone(text="late")),
            AgentAsked(n=n, request=AgentRequest(name="request_idle", args={"max_idle_duration_secs": 60})),
        ):
            done = self.world.apply(given)
            assert not done.events
            assert done.stop

    @rule(cause=st.sampled_from(["deadline", "drain"]))
    def cut(self, cause: Any) -> None:
        was = self.world.audit.running
        events = self.feed(CutRequested(cause=cause))
        cut = [e.n for e in events if isinstance(e, ev.TurnInterrupted)]
        assert cut == ([] if was is None else [was])

    @rule()
    def let_go(self) -> None:
        """Whatever keeps the session and may be lifted is lifted, and it gets a goal."""
        if self.world.closed_by is not None:
            self.open_house()
        if self.world.session.status == "live":
            self.unsuspend()
            self.open_gate(None)
            if self.world.session.goal is None:
                self.change_goal("active", fresh=True)

    @rule(text=TEXTS, calls=CALLS, turns=st.integers(1, 8), outside=st.sampled_from([None, "a", "b"]))
    def live(self, text: str, calls: tuple[ToolCall, ...], turns: int, outside: str | None) -> None:
        """The session goes on for a while: what is due within two hours comes, turns run."""
        world = self.world
        for _ in range(turns):
            if world.session.turn is None:
                due = next_deadline(world.session, world.house())
                if due is None or due > world.now + 2 * 3_600_000:
                    return
                world.now = max(world.now, due)
                self.tick(must=True)
            turn = world.session.turn
            if turn is not None:
                self.feed(
                    StepReported(n=turn.n, done=StepDone(text=text, calls=calls, state_fingerprint=outside))
                )
                if outside == "b":
                    self.ask(AgentRequest(name="request_idle", args={"max_idle_duration_secs": 60}))
                self.feed(TurnEnded(n=turn.n, end=TurnEnd(outcome="completed")))

    @rule(
        text=TEXTS,
        knocks=st.lists(
            st.tuples(st.sampled_from(STARTING), st.sampled_from([0, 30_000, 60_000])), max_size=3
        ),
        progress=st.booleans(),
    )
    def degenerate(self, text: str, knocks: list[tuple[str, int]], progress: bool) -> None:
        """The same turn until nothing starts any more; then somebody knocks."""
        self.let_go()
        self.live(text, (), 8, None)
        edit = ToolCall(id="e", name="edit_file", args={"path": "new"}, ok=True, tool_class="edit")
        for source, after in knocks:
            self.world.now += after
            self.send(source)
            turn = self.world.session.turn
            if turn is not None:
                done = StepDone(text=text, calls=(edit,) if progress else ())
                self.feed(StepReported(n=turn.n, done=done))
                self.feed(TurnEnded(n=turn.n, end=TurnEnd(outcome="completed")))

    # -- effects ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(repeatable=st.booleans())
    def begin_a_tool(self, repeatable: bool) -> None:
        turn = self.world.session.turn
        assert turn is not None
        self.tools += 1
        given = EffectIntended(
            n=turn.n,
            call=f"t{self.tools}",
            tool="shell",
            args_sha256="0" * 64,
            tool_class="exec",
            repeatable=repeatable,
        )
        self.feed(given)
        self.begun.append((turn.n, f"t{self.tools}"))

    @precondition(lambda self: self.begun)
    @rule(which=st.integers(0, 99), outcome=st.sampled_from(["ok", "error", "cancelled"]))
    def end_a_tool(self, which: int, outcome: str) -> None:
        """It may end long behind its turn, and may have been settled by a crash."""
        n, call = self.begun.pop(which % len(self.begun))
        known = {(e.n, e.call) for e in self.world.session.effects if not e.uncertain}
        done = self.world.attempt(EffectEnded(n=n, call=call, outcome=outcome))
        assert not isinstance(done, Refused)
        told = [e.outcome for e in done.events if isinstance(e, ev.EffectOutcome)]
        assert told == ([outcome] if (n, call) in known else [])

    @precondition(lambda self: any(e.uncertain for e in self.world.session.effects))
    @rule(which=st.integers(0, 99), outcome=st.sampled_from(["happened", "not_happened"]))
    def settle_an_effect(self, which: int, outcome: Any) -> None:
        uncertain = [e.id for e in self.world.session.effects if e.uncertain]
        effect = uncertain[which % len(uncertain)]
        done = self.world.attempt(EffectResolved(by="uid:1", id=effect, outcome=outcome))
        assert not isinstance(done, Refused)
        assert self.world.audit.effects[effect] == outcome
        assert not any(isinstance(e, ev.TurnStarted) for e in done.events), "a note begins no turn"

    # -- the end of things ------------------------------------------------------------------------------

    @rule(ms=st.integers(0, 3 * 3_600_000), unstable=st.booleans())
    def crash(self, ms: int, unstable: bool) -> None:
        world = self.world
        was = world.audit.running
        holds = dict(world.audit.holds)
        open_ones = {id_ for id_, outcome in world.audit.effects.items() if outcome is None}
        again = {e.id for e in world.of(ev.EffectIntent) if e.repeatable} if open_ones else set()
        world.crash()
        world.now += ms
        world.scheduled_from_ms = world.now + 300_000 if unstable else 0
        self.boot += 1
        events = self.feed(Recovered(boot=self.boot))
        told = {e.id: e.outcome for e in events if isinstance(e, ev.EffectOutcome)}
        assert told == {id_: "interrupted" if id_ in again else "uncertain" for id_ in open_ones}
        events = tuple(e for e in events if not isinstance(e, ev.EffectOutcome))
        cut = [(e.n, e.cause, e.boot) for e in events if isinstance(e, ev.TurnInterrupted)]
        assert cut == ([] if was is None else [(was, "crash", self.boot)])
        if was is None:
            assert not events
        elif world.session.status == "live":
            assert holds.keys() <= world.audit.holds.keys() | {
                k for e in events if isinstance(e, ev.GateChanged) for k in e.removed
            }, "a crash laundered a hold"
            recent = [b for b in world.session.crash_boots if b > self.boot - 10]
            if len(recent) >= 3:
                assert "CrashLoop" in world.audit.holds
                assert not any(isinstance(e, ev.TurnStarted) for e in events), "a crash loop went on"
        self.tick()

    @precondition(lambda self: self.world.session.ss > 150)
    @rule()
    def end(self) -> None:
        was_live = self.world.session.status == "live"
        events = self.feed(EndRequested(by="uid:1", reason="enough"))
        assert bool(events) == was_live
        assert next_deadline(self.world.session, self.world.house()) is None

    @precondition(
        lambda self: self.world.session.status != "live" or "AwaitingApproval" in self.world.audit.holds
    )
    @rule()
    def resume(self) -> None:
        """A person begins a new run of what ended; what is live has nothing to resume but more steps."""
        world = self.world
        was_live = world.session.status == "live"
        done = world.attempt(ResumeRequested(by="uid:1"))
        if isinstance(done, Refused):
            spent = [p for p in own_purses(world.session, world.now) if p.spent and p.until_ms is None]
            assert was_live or spent
            assert done.code == "conflict"
            return
        self._account(done.events)
        if was_live:
            assert "AwaitingApproval" not in world.audit.holds
        else:
            assert world.session.status == "live"
            assert not world.audit.waiting

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "world"):
            return
        if not self.running and self.world.session.status == "live" and self.world.closed_by is None:
            assert not self.world.audit.predicted(closed=False, now=self.world.now), (
                "something that may run does not"
            )

    def teardown(self) -> None:
        if hasattr(self, "world") and len(self.world.events) == self.world.session.ss:
            self.world.refold_everything()


class TestContracts(SessionMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(3_600)
class TestContractsForLong(SessionMachine.TestCase):
    """100,000 steps."""

    settings = settings(max_examples=2_000, stateful_step_count=50, deadline=None)
