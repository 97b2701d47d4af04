"""What is spent is counted once; what is not left is not spent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loopd.core.account import Price, Purse, cost_of, own_purses, total_of
from loopd.core.conversation import StepDone
from loopd.core.inputs import (
    Advanced,
    CutRequested,
    GateExtendRequested,
    ModelReported,
    Reconsidered,
    Recovered,
    ResumeRequested,
    StepReported,
)
from loopd.core.policy_inputs import AffordAsked, BudgetSetRequested
from loopd.core.prices import Prices
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.holds import Budget
from loopd_protocol.policy import BudgetLimit
from tests.core.world import START_MS, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PATIENT = {
    "rules.repeated_text.enabled": False,
    "rules.barren_streak.enabled": False,
    "rules.tool_repetition.enabled": False,
    "rules.progress_stall.enabled": False,
}


def limit(kind: str, amount: int, per_ms: int | None = None) -> BudgetLimit:
    return BudgetLimit(kind=kind, limit=amount, per_ms=per_ms)  # type: ignore[arg-type]


def world(*limits: BudgetLimit, goal: str | None = None, **overrides: Any) -> World:
    return World({**PATIENT, **overrides}, budgets=limits, goal=goal)


def spend(made: World, tokens: int = 100, *, more: bool = False, **given: Any) -> Advanced:
    """A step of so many tokens; `more`: it asks for a tool, so that another model call will follow."""
    turn = made.session.turn
    assert turn is not None
    calls = (
        ToolCall(id="c", name="shell", args={"n": made.session.ss}, ok=True, result=str(made.session.ss)),
    )
    usage = Usage(input_tokens=tokens - tokens // 4, output_tokens=tokens // 4)
    done = StepDone(text=f"step {made.session.ss}", usage=usage, calls=calls if more else ())
    return made.apply(StepReported(n=turn.n, done=done, **given))


def afford(made: World) -> bool:
    turn = made.session.turn
    assert turn is not None
    done = made.apply(AffordAsked(n=turn.n))
    assert done.stop == (done.denied is not None)
    return not done.stop


# -- stories ------------------------------------------------------------------------------------


def test_an_exhausted_total_ends_the_session_behind_its_turn() -> None:
    made = world(limit("tokens", 250))
    made.send()
    assert afford(made)
    assert not spend(made, 200, more=True).stop
    assert afford(made)
    assert spend(made, 100, more=True).stop
    assert not afford(made)
    made.finish()
    (completed,) = made.of(ev.TurnCompleted)
    assert completed.outcome == "budget"
    (ended,) = made.of(ev.SessionEnded)
    assert (ended.status, ended.stop_reason, ended.by) == ("aborted_constraint", "budget", "budget")
    assert "300 of 250" in ended.explanation
    assert len(made.of(pe.BudgetExhausted)) == 1
    assert len(made.of(ev.IssueWritten)) == 1


def test_a_turn_that_ends_by_itself_is_completed_and_then_the_session_ends() -> None:
    made = world(limit("tokens", 100))
    made.send()
    spend(made, 100)
    made.finish()
    assert made.of(ev.TurnCompleted)[0].outcome == "completed"
    assert made.session.status == "aborted_constraint"


def test_a_spent_window_closes_the_gate_until_it_ends_and_the_next_one_is_whole() -> None:
    made = world(limit("tokens", 100, HOUR_MS), goal="win")
    made.now = START_MS + 20 * 60_000
    made.tick()
    spend(made, 150, more=True)
    made.finish()
    (hold,) = made.session.gate.holds
    assert isinstance(hold, Budget)
    assert (hold.kind, hold.until_ms, hold.which) == ("Budget", START_MS + HOUR_MS, "session tokens/3600s")
    made.send()
    assert made.session.turn is None
    made.tick_through(START_MS + HOUR_MS)
    assert made.session.turn is not None
    assert afford(made)
    assert own_purses(made.session, made.now)[0].used == 0


def test_a_long_window_is_looked_at_again_each_day() -> None:
    made = world(limit("turns", 1, 7 * DAY_MS), goal="win")
    made.now = START_MS + DAY_MS
    made.tick()
    made.whole_turn()
    (hold,) = made.session.gate.holds
    assert hold.until_ms == made.now + DAY_MS
    made.tick_through(made.now + DAY_MS)
    assert made.kinds == ["Budget"]
    assert made.session.turns == 1


def test_a_budget_hold_that_was_extended_stands_until_then_although_its_window_is_over() -> None:
    made = world(limit("tokens", 100, HOUR_MS))
    made.send()
    spend(made, 100)
    made.finish()
    made.send()
    until = START_MS + HOUR_MS + 40_000
    made.apply(
        GateExtendRequested(by="uid:1", kind="Budget", until_ms=until)
    )  # the model checks its deadline
    made.tick_through(until - 1)
    made.send(text="and this")
    assert made.kinds == ["Budget"]
    made.tick_through(until)
    assert made.kinds == []
    assert made.session.turn is not None


def test_raising_the_limit_ends_an_extended_hold_in_a_later_window_too() -> None:
    made = world(limit("tokens", 100, HOUR_MS))
    made.send()
    spend(made, 100)
    made.finish()
    made.send()
    made.apply(GateExtendRequested(by="uid:1", kind="Budget", until_ms=START_MS + 3 * HOUR_MS))
    made.tick_through(START_MS + 2 * HOUR_MS)
    assert made.kinds == ["Budget"]
    made.apply(BudgetSetRequested(by="uid:1", kind="tokens", limit=1_000, per_ms=HOUR_MS))
    assert made.kinds == []
    assert made.session.turn is not None


def test_raising_a_spent_window_opens_the_gate_and_what_waits_goes_in() -> None:
    made = world(limit("tokens", 100, DAY_MS))
    made.send()
    spend(made, 100)
    made.finish()
    made.send()
    assert made.kinds == ["Budget"]
    made.apply(BudgetSetRequested(by="uid:1", kind="tokens", limit=1_000, per_ms=DAY_MS))
    assert made.kinds == []
    assert made.session.turn is not None


def test_an_ended_session_goes_on_once_its_budget_is_raised_and_not_before() -> None:
    made = world(limit("turns", 1))
    made.send()
    made.whole_turn()
    assert made.session.status == "aborted_constraint"
    with pytest.raises(Refused, match="raise it first"):
        made.apply(ResumeRequested(by="uid:1"))
    made.apply(BudgetSetRequested(by="uid:1", kind="turns", limit=2))
    made.apply(ResumeRequested(by="uid:1"))
    made.send()
    made.whole_turn()
    assert made.session.turns == 2
    assert made.session.status == "aborted_constraint"


def test_lowering_a_limit_below_what_is_spent_ends_an_idle_session_at_once() -> None:
    made = world()
    made.send()
    spend(made, 100)
    made.finish()
    made.apply(BudgetSetRequested(by="uid:1", kind="tokens", limit=50))
    assert made.session.status == "aborted_constraint"


def test_a_limit_that_was_never_set_cannot_be_removed() -> None:
    made = world(limit("tokens", 1))
    with pytest.raises(Refused) as refused:
        made.apply(BudgetSetRequested(by="uid:1", kind="tokens", per_ms=HOUR_MS))
    assert refused.value.code == "not_found"
    made.apply(BudgetSetRequested(by="uid:1", kind="tokens"))
    assert made.session.account.limits == ()


def test_running_time_cuts_a_turn_that_calls_nothing() -> None:
    made = world(limit("wall", 60_000))
    made.send()
    seen = made.tick_through(made.now + 60_000)
    (cut,) = [e for e in seen if isinstance(e, ev.TurnInterrupted)]
    assert cut.cause == "budget"
    assert made.session.status == "aborted_constraint"
    assert total_of(made.session).wall == 60_000


def test_the_time_that_the_daemon_was_down_is_nobodys_running_time() -> None:
    made = world(limit("wall", DAY_MS))
    made.send()
    made.now += 4_000
    spend(made, 10, more=True)
    made.now += 12 * HOUR_MS
    made.crash()
    made.apply(Recovered(boot=2))
    assert total_of(made.session).wall == 4_000


def test_marks_are_said_once_each() -> None:
    made = world(limit("tokens", 1_000))
    made.send()
    for _ in range(9):
        spend(made, 100, more=True)
    assert [e.percent for e in made.of(pe.BudgetSpent)] == [50, 80]
    spend(made, 60, more=True)
    assert [e.percent for e in made.of(pe.BudgetSpent)] == [50, 80, 95]


def test_calls_that_a_proxy_saw_are_not_paid_again_by_their_step() -> None:
    made = world(limit("tokens", 10_000))
    made.send()
    call = ModelReported(
        n=1,
        api="messages",
        model="m",
        usage=Usage(input_tokens=70, output_tokens=30),
        cost_micro=5,
        priced=True,
    )
    made.apply(call)
    made.apply(call)
    assert total_of(made.session).of("tokens") == 200
    usage = Usage(input_tokens=140, output_tokens=60)
    made.apply(StepReported(n=1, done=StepDone(text="x", usage=usage), cost_micro=10, priced=True))
    assert total_of(made.session).of("tokens") == 200
    assert total_of(made.session).cost == 10
    usage = Usage(input_tokens=40, output_tokens=10)
    made.apply(StepReported(n=1, done=StepDone(text="y", usage=usage), cost_micro=3, priced=True))
    assert total_of(made.session).of("tokens") == 250
    assert total_of(made.session).cost == 13
    assert made.session.spent.barren <= 250


def test_a_model_without_a_price_is_named_once_and_counted_by_its_tokens() -> None:
    made = world(limit("cost", 1_000_000))
    made.send()
    spend(made, 100, model="mystery", priced=False)
    spend(made, 100, model="mystery", priced=False)
    assert [e.model for e in made.of(pe.BudgetUnpriced)] == ["mystery"]
    assert made.session.account.unpriced == {"mystery": 200}
    without = world()
    without.send()
    spend(without, 100, model="mystery")
    assert without.of(pe.BudgetUnpriced) == []


def test_a_limit_that_others_have_spent_binds_as_well_and_lets_go_with_them() -> None:
    made = world()
    used = [90]
    made.purses = lambda session, now: (
        Purse(
            scope="team=a",
            kind="tokens",
            limit=100,
            used=used[0],
            per_ms=DAY_MS,
            until_ms=(now // DAY_MS + 1) * DAY_MS,
        ),
    )
    made.send()
    assert afford(made)
    used[0] = 100
    assert not afford(made)
    made.finish()
    assert made.kinds == ["Budget"]
    used[0] = 20
    made.apply(Reconsidered())
    assert made.kinds == []


def test_cost_is_rounded_up_and_cached_tokens_have_their_own_price() -> None:
    price = Price(input=3_000_000, output=15_000_000, cached=300_000)
    assert cost_of(price, Usage(input_tokens=1_000_000, output_tokens=1_000_000)) == 18_000_000
    assert cost_of(price, Usage(input_tokens=1_000_000, cached_tokens=1_000_000)) == 300_000
    assert cost_of(Price(input=1, output=0), Usage(input_tokens=1)) == 1
    table = Prices({"gpt-5*": Price(input=1_000_000), "gpt-5-mini": Price(input=2_000_000)})
    assert table.cost("gpt-5-mini", Usage(input_tokens=10)).micro == 20
    assert table.cost("gpt-5-max", Usage(input_tokens=10)).micro == 10
    assert table.cost("other", Usage(input_tokens=10)).priced is False
    assert Prices().cost("other", Usage(input_tokens=10)).priced is None


# -- any order of things ------------------------------------------------------------------------

LIMITS = st.lists(
    st.builds(
        limit,
        st.sampled_from(["tokens", "input_tokens", "output_tokens", "cost", "wall", "turns"]),
        st.sampled_from([1, 3, 100, 1_000, 5_000, 60_000]),
        st.sampled_from([None, HOUR_MS, 5 * HOUR_MS, DAY_MS, 3 * DAY_MS]),
    ),
    max_size=4,
    unique_by=lambda each: (each.kind, each.per_ms),
).map(tuple)


class SpendingMachine(RuleBasedStateMachine):
    """A ledger beside the session: it knows by itself what was spent when."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[tuple[int, int, str, int]] = []
        self.boot = 1

    @initialize(limits=LIMITS, goal=st.sampled_from([None, "win"]))
    def begin(self, limits: tuple[BudgetLimit, ...], goal: str | None) -> None:
        self.made = world(*limits, goal=goal, **{"turn.max_steps": 1_000})
        self.since: dict[tuple[str, int | None], int] = {(each.kind, each.per_ms): 0 for each in limits}

    def running(self) -> bool:
        return self.made.session.turn is not None

    def live(self) -> bool:
        return self.made.session.status == "live"

    def note(self, **amounts: int) -> None:
        self.spent += [
            (self.made.session.ss, self.made.now, kind, amount) for kind, amount in amounts.items()
        ]

    def used(self, kind: str, per_ms: int | None) -> int:
        kinds = {"tokens": {"input_tokens", "output_tokens"}}.get(kind, {kind})
        begin = first = 0
        if per_ms is not None:
            begin, first = self.made.now // per_ms * per_ms, self.since[kind, per_ms]
        spent = [*self.spent, *((ss, at, "turns", 1) for ss, at in self.begun())]
        return sum(n for ss, at, what, n in spent if what in kinds and at >= begin and ss > first)

    def begun(self) -> list[tuple[int, int]]:
        """Where and when each turn began."""
        return [(ss, at) for ss, at, body in self.made.events if b'"k":"turn.started"' in body]

    def left(self, *, starting: bool) -> bool:
        for each in self.made.session.account.limits:
            if each.kind in {"wall", "turns"} and (each.kind == "wall" or not starting):
                continue
            if self.used(each.kind, each.per_ms) >= each.limit:
                return False
        return True

    @precondition(live)
    @rule(ms=st.sampled_from([0, 1, 1_000, 30 * 60_000, HOUR_MS, 9 * HOUR_MS, DAY_MS]))
    def time_passes(self, ms: int) -> None:
        if self.running():
            self.made.now += min(ms, 1_000)
            self.made.tick()
        else:
            self.made.tick_through(self.made.now + ms)

    @precondition(live)
    @rule()
    def somebody_writes(self) -> None:
        before = self.made.session.turns
        may = self.left(starting=True)
        was = self.running()
        self.made.send()
        began = self.made.session.turns > before
        assert not (began and not may), "a turn began although nothing was left"
        if not was and may and not self.made.kinds and self.live():
            assert began

    @precondition(running)
    @rule()
    def asks_first(self) -> None:
        may = self.left(starting=False)
        stopping = self.made.session.turn is not None and self.made.session.turn.stopping is not None
        admitted = afford(self.made)
        if admitted:
            assert may, "a model call was admitted although nothing was left"
        elif not stopping and not any(each.kind == "wall" for each in self.made.session.account.limits):
            assert not may

    @precondition(running)
    @rule(
        tokens=st.sampled_from([0, 1, 40, 900]), cost=st.sampled_from([0, 1, 70, 2_000]), more=st.booleans()
    )
    def a_step_ends(self, tokens: int, cost: int, more: bool) -> None:
        turn = self.made.session.turn
        assert turn is not None
        paid = turn.prepaid
        spend(self.made, tokens, more=more, cost_micro=cost, priced=True)
        self.note(
            input_tokens=max(0, tokens - tokens // 4 - paid.input),
            output_tokens=max(0, tokens // 4 - paid.output),
            cost=max(0, cost - paid.cost),
        )

    @precondition(running)
    @rule(tokens=st.sampled_from([1, 40, 900]), cost=st.sampled_from([0, 30]))
    def a_call_is_seen(self, tokens: int, cost: int) -> None:
        turn = self.made.session.turn
        assert turn is not None
        usage = Usage(input_tokens=tokens, output_tokens=1)
        self.made.apply(ModelReported(n=turn.n, api="messages", usage=usage, cost_micro=cost, priced=True))
        self.note(input_tokens=tokens, output_tokens=1, cost=cost)

    @precondition(running)
    @rule(cut=st.booleans())
    def the_turn_ends(self, cut: bool) -> None:
        if cut:
            self.made.apply(CutRequested(cause="deadline"))
        else:
            self.made.finish()

    @rule()
    def the_daemon_dies(self) -> None:
        self.made.crash()
        if self.running():
            self.boot += 1
            self.made.apply(Recovered(boot=self.boot * 100, crash_loop_boots=0))

    @precondition(live)
    @rule(
        kind=st.sampled_from(["tokens", "cost", "turns"]),
        amount=st.sampled_from([None, 10, 2_000, 100_000]),
        per_ms=st.sampled_from([None, HOUR_MS, DAY_MS]),
    )
    def somebody_sets_a_limit(self, kind: str, amount: int | None, per_ms: int | None) -> None:
        known = {each.per_ms for each in self.made.session.account.limits}
        done = self.made.attempt(BudgetSetRequested(by="uid:1", kind=kind, limit=amount, per_ms=per_ms))
        if isinstance(done, Refused):
            assert done.code == "not_found"
            return
        after = {each.per_ms for each in self.made.session.account.limits}
        for each in self.made.session.account.limits:
            if each.per_ms not in known:
                self.since[each.kind, each.per_ms] = self.made.session.ss
            else:
                shared = [since for (_, length), since in self.since.items() if length == each.per_ms]
                self.since.setdefault((each.kind, each.per_ms), min(shared, default=self.made.session.ss))
        for key in [key for key in self.since if key[1] not in after]:
            del self.since[key]

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        if not hasattr(self, "made"):
            return
        total = total_of(self.made.session)
        for kind in ("input_tokens", "output_tokens", "cost", "turns"):
            assert total.of(kind) == self.used(kind, None), kind
        for purse in own_purses(self.made.session, self.made.now):
            if purse.kind != "wall" and (purse.kind, purse.per_ms) in self.since:
                assert purse.used == self.used(purse.kind, purse.per_ms), purse
        running = [e.duration_ms for e in self.made.of(ev.TurnCompleted)]
        assert total.wall >= sum(running)

    @invariant()
    def a_spent_total_leaves_no_live_session_without_a_turn(self) -> None:
        if hasattr(self, "made") and self.live() and not self.running():
            for purse in own_purses(self.made.session, self.made.now):
                assert purse.until_ms is not None or not purse.spent

    def teardown(self) -> None:
        if hasattr(self, "made"):
            self.made.refold_everything()


TestSpending = SpendingMachine.TestCase
TestSpending.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
