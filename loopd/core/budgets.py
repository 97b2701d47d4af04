"""What a session does about its budgets: charges, refuses, holds, ends. Pure.

    a step, a model call, the end of a turn ─▶ charged, in the event itself
    before a model call (`afford`), before a turn ─▶ is something left?
        a window is spent ─▶ budget.exhausted, hold `Budget` until the window ends (at most a day)
        all of a total is ─▶ budget.exhausted, the turn stops, the session ends `aborted_constraint`

Limits of labels and of parents are counted over many sessions by the engine, which hands them in with
the house (`House.purses`); deciding is done here, the same way for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from loopd.core import gate
from loopd.core.account import NOTHING, Purse, Used, own_purses, total_of, which, window_end
from loopd.core.inputs import ContextShrunk, House, ModelReported
from loopd.core.policy_inputs import BudgetSetRequested
from loopd.core.state import Running, Session
from loopd_protocol.bounds import MAX_INT
from loopd_protocol.errors import Refused
from loopd_protocol.events import Charge, ContextCompacted, ModelCalled, Usage
from loopd_protocol.holds import Budget
from loopd_protocol.policy_events import BudgetChanged, BudgetExhausted, BudgetSpent, BudgetUnpriced

if TYPE_CHECKING:
    from loopd.core.decision import Decision

HOLD_MAX_MS = 86_400_000
MARKS = (50, 80, 95)
"""Per cent of a limit that are said when they are reached."""


# -- what is left -------------------------------------------------------------------------------


def purses(decision: Decision) -> tuple[Purse, ...]:
    """All limits that bind the session, and what is spent of them at this moment of the decision."""
    return purses_of(decision.session, decision.house, decision.now, begun=decision.begun)


def purses_of(session: Session, house: House, now: int, *, begun: Session | None = None) -> tuple[Purse, ...]:
    """The same for a session as it stands; `begun`: as it was when the house was made."""
    if not session.account.limits and not house.purses:
        return ()
    own = {purse.which: purse for purse in own_purses(session, now)}
    since = NOTHING if begun is None else total_of(session).minus(total_of(begun))
    shared = {
        purse.which: replace(purse, used=purse.used + since.of(purse.kind))
        for purse in house.purses
        if purse.scope != "session" or purse.which in own
    }
    running = uncharged_ms(session.turn, now)
    return tuple(
        replace(purse, used=purse.used + running) if purse.kind == "wall" else purse
        for purse in (own | shared).values()
    )


def uncharged_ms(turn: Running | None, now: int) -> int:
    """Running time of the turn that no charge has counted yet; waiting for an answer is none."""
    if turn is None:
        return 0
    until = now if turn.asked_ms is None else turn.asked_ms
    return max(0, until - charged_ms(turn))


def charged_ms(turn: Running) -> int:
    """Up to when the running time of a turn is charged."""
    return max(turn.started_ms, turn.charged_ms)


def exhausted(found: tuple[Purse, ...], *, starting: bool) -> Purse | None:
    """The limit of which nothing is left, a total before a window, and of windows the longest.

    Of turns that are counted the running one was admitted already, so it may go on.
    """
    spent = [purse for purse in found if purse.spent and (starting or purse.kind != "turns")]
    return max(
        spent, key=lambda purse: (purse.until_ms is None, purse.until_ms or 0, purse.which), default=None
    )


# -- before a call, before a turn, behind a step ------------------------------------------------


def afford(decision: Decision) -> None:
    """May the running turn call a model? Sets `decision.denied` and stops the turn when it may not."""
    turn = decision.session.turn
    assert turn is not None
    purse = exhausted(purses(decision), starting=False)
    if purse is not None:
        exhaust(decision, purse)
        decision.denied = said(purse)
    turn = decision.session.turn
    decision.stop = turn is None or turn.stopping is not None
    if decision.stop and decision.denied is None:
        decision.denied = "the turn was told to stop"


def refuses(decision: Decision) -> bool:
    """Whether no turn may begin: then the gate is closed, or the session has ended, by now."""
    purse = exhausted(purses(decision), starting=True)
    if purse is None:
        return False
    exhaust(decision, purse)
    conclude(decision)
    return True


def conclude(decision: Decision) -> bool:
    """Behind a turn: close the gate for a spent window; end the session for a spent total."""
    if decision.session.status != "live":
        return False
    purse = exhausted(purses(decision), starting=True)
    if purse is None:
        return False
    if purse.until_ms is not None:
        exhaust(decision, purse)
        return False
    exhaust(decision, purse)
    decision.end(
        "aborted_constraint",
        "budget",
        by="budget",
        explanation=f"{said(purse)[:1].upper()}{said(purse)[1:]}.",
    )
    return True


def exhaust(decision: Decision, purse: Purse) -> None:
    """Say that nothing is left, and close the gate until the window ends; once."""
    hold = gate.hold_of(decision.session.gate, "Budget")
    if isinstance(hold, Budget) and hold.which == purse.which and purse.until_ms is not None:
        return
    if purse.until_ms is None and purse.which in decision.session.account.said:
        return
    decision.emit(
        BudgetExhausted(
            which=purse.which,
            what=purse.kind,
            used=min(purse.used, MAX_INT),
            limit=purse.limit,
            until_ms=purse.until_ms,
        )
    )
    if purse.until_ms is not None:
        decision.close(
            Budget(
                by="budget",
                reason=said(purse),
                until_ms=min(purse.until_ms, decision.now + HOLD_MAX_MS),
                which=purse.which,
            ),
            cause="budget",
        )
        decision.mark_held()


def stop_spent(decision: Decision) -> None:
    """Stop a turn that would call its model again for a limit of which nothing is left."""
    purse = exhausted(purses(decision), starting=False)
    if purse is not None:
        exhaust(decision, purse)


def said(purse: Purse) -> str:
    """In words: what is spent of what."""
    unit = {"cost": "micro-units of ", "wall": "ms of "}.get(purse.kind, "")
    window = "" if purse.per_ms is None else f" in {purse.per_ms // 1_000} s"
    return f"the budget of {unit}{purse.kind}{window} ({purse.scope}) is spent: {purse.used} of {purse.limit}"


def ease(decision: Decision, *, raised: bool = False) -> None:
    """Remove a `Budget` hold whose limit was raised or removed; `raised`: just now, and on purpose.

    A hold that outlives its window was extended by a person: it stands until the moment that they named, and
    not until somebody looks.
    """
    hold = gate.hold_of(decision.session.gate, "Budget")
    if not isinstance(hold, Budget) or hold.by != "budget":
        return
    standing = {purse.which: purse for purse in purses(decision)}.get(hold.which)
    if standing is not None and not raised and hold.until_ms > decision.now and _later(standing, hold):
        return
    if standing is None or not standing.spent:
        decision.change_gate(gate.Open(("Budget",)), cause="budget", by="budget")


def _later(purse: Purse, hold: Budget) -> bool:
    """Whether the purse's window is a later one than that in which the hold was set."""
    if purse.per_ms is None or purse.until_ms is None:
        return False
    return purse.until_ms > window_end(hold.since_ms, purse.per_ms)


def change(decision: Decision, given: BudgetSetRequested) -> None:
    """Set or remove a limit of the session itself.

    Raises:
        Refused: `not_found` when a limit is removed that was never set.
    """
    session = decision.session
    known = {(limit.kind, limit.per_ms) for limit in session.account.limits}
    if given.limit is None and (given.kind, given.per_ms) not in known:
        name = which("session", given.kind, given.per_ms)
        raise Refused("not_found", f"session {session.name!r} has no limit {name!r}; see `loopctl budget`")
    decision.emit(
        BudgetChanged(
            what=given.kind, limit=given.limit, per_ms=given.per_ms, by=given.by, reason=given.reason
        )
    )
    if session.status == "live":
        ease(decision, raised=True)
        if decision.session.turn is None and not conclude(decision):
            decision.judge()


def check_resumable(decision: Decision) -> None:
    """Refuse to go on with a session that would end at once.

    Raises:
        Refused: `conflict`, naming the limit.
    """
    purse = exhausted(purses(decision), starting=True)
    if purse is not None and purse.until_ms is None:
        raise Refused("conflict", f"{said(purse)}; raise it first with `loopctl budget set`")


# -- charges ------------------------------------------------------------------------------------


def charge(
    decision: Decision,
    usage: Usage | None,
    *,
    cost_micro: int = 0,
    model: str = "",
    priced: bool | None = None,
    prepaid: Used = NOTHING,
    wall: bool = True,
) -> Charge | None:
    """What an event of the running turn is to charge; None for nothing.

    Of the tokens that it reports `prepaid` were charged before. `priced` says whether the price table
    knows the model, None where there is no table; with `wall` the running time up to now counts as well.
    """
    now, turn = decision.now, decision.session.turn
    wall_ms = uncharged_ms(turn, now) if wall else 0
    reported = (
        Used()
        if usage is None
        else Used(input=usage.input_tokens, output=usage.output_tokens, cost=cost_micro)
    )
    due = reported.minus(prepaid)
    unknown = bool(due.input + due.output) and _unknown_price(decision, priced=priced)
    if usage is None and not wall_ms:
        return None
    return Charge(
        input=due.input,
        output=due.output,
        cost_micro=due.cost,
        wall_ms=wall_ms,
        model=model[:200] if unknown else "",
        priced=not unknown,
    )


def compacted(decision: Decision, given: ContextShrunk) -> None:
    """Record that the context was made smaller, and what that cost."""
    made = charge(
        decision,
        given.usage,
        cost_micro=given.cost_micro,
        model=given.model,
        priced=given.priced,
        wall=False,
    )
    facts = {
        name: getattr(given, name) for name in ContextCompacted.__struct_fields__ if hasattr(given, name)
    }
    before = purses(decision)
    decision.emit(ContextCompacted(**facts, charge=made))
    warn(decision, made)
    tell(decision, before)


def called(decision: Decision, given: ModelReported) -> None:
    """Record a model call that went through the proxy, and what it cost."""
    made = charge(
        decision,
        given.usage,
        cost_micro=given.cost_micro,
        model=given.model,
        priced=given.priced,
        wall=False,
    )
    facts = {name: getattr(given, name) for name in ModelCalled.__struct_fields__ if hasattr(given, name)}
    before = purses(decision)
    decision.emit(ModelCalled(**facts, charge=made))
    warn(decision, made)
    tell(decision, before)


def warn(decision: Decision, made: Charge | None) -> None:
    """Name a model that no price is known for; once for each session and model."""
    if made is not None and not made.priced and made.model not in decision.begun.account.unpriced:
        decision.emit(BudgetUnpriced(model=made.model))


def _unknown_price(decision: Decision, *, priced: bool | None) -> bool:
    if priced is not None:
        return not priced
    return any(purse.kind == "cost" for purse in purses(decision))


def tell(decision: Decision, before: tuple[Purse, ...]) -> None:
    """Say which marks were reached between `before` and now."""
    if not before:
        return
    old = {purse.which: purse for purse in before}
    for purse in purses(decision):
        was = old.get(purse.which)
        known = was.used if was is not None and was.until_ms == purse.until_ms else 0
        reached = [mark for mark in MARKS if known * 100 < purse.limit * mark <= purse.used * 100]
        if reached and not purse.spent:
            decision.emit(
                BudgetSpent(
                    which=purse.which,
                    what=purse.kind,
                    used=min(purse.used, MAX_INT),
                    limit=purse.limit,
                    percent=reached[-1],
                    until_ms=purse.until_ms,
                )
            )


def wall_due(session: Session) -> int | None:
    """When the running turn will have used up the session's own budget of running time."""
    turn = session.turn
    if turn is None or turn.asked_ms is not None:
        return None
    moments = []
    for purse in own_purses(session, charged_ms(turn)):
        if purse.kind == "wall":
            moment = charged_ms(turn) + max(0, purse.limit - purse.used)
            if purse.until_ms is None or moment < purse.until_ms:
                moments.append(moment)
    return min(moments, default=None)


def overrun(decision: Decision) -> bool:
    """Whether the running turn has used up a budget of running time and must be cut."""
    due = wall_due(decision.session)
    return due is not None and due <= decision.now
