"""How the events of a turn change what its session has spent. Pure.

Called by `loopd.core.evolution` and `loopd.core.turn_fold` alone.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from loopd.core.account import NOTHING, Used, add, amount, charged, limited, with_limits
from loopd.core.state import Running, Session, Spent
from loopd_protocol import events as ev
from loopd_protocol.policy_events import BudgetChanged, BudgetExhausted


def founded(session: Session, event: ev.SessionCreated, at_ms: int) -> Session:
    """The limits that a session is created with."""
    if not event.budgets and event.parent is None:
        return session
    account = replace(with_limits(session.account, event.budgets, at_ms), parent=event.parent)
    return replace(session, account=account)


def begun(session: Session, at_ms: int) -> Session:
    """A turn began: it counts in each window."""
    if not session.account.windows:
        return session
    return replace(session, account=add(session.account, Used(turns=1), at_ms))


def tokens_spent(spent: Spent, charge: ev.Charge | None, usage: ev.Usage | None) -> Spent:
    """Tokens behind an event; events of before there were charges say it with their usage."""
    if charge is not None:
        return replace(spent, input=spent.input + charge.input, output=spent.output + charge.output)
    if usage is not None:
        return replace(
            spent, input=spent.input + usage.input_tokens, output=spent.output + usage.output_tokens
        )
    return spent


def charge(session: Session, charge: ev.Charge | None, at_ms: int) -> Session:
    """All that a charge changes but the tokens: account, and up to when the running time is paid."""
    if charge is None:
        return session
    changes: dict[str, Any] = {"account": charged(session.account, charge, at_ms)}
    if session.turn is not None and charge.wall_ms:
        changes["turn"] = replace(session.turn, charged_ms=at_ms)
    return replace(session, **changes)


def called(session: Session, event: ev.ModelCalled, at_ms: int) -> Session:
    """A model call that a proxy reported; the step that it belongs to pays only for the rest."""
    if event.charge is None:
        return session
    spent = tokens_spent(session.spent, event.charge, None)
    tokens = event.charge.input + event.charge.output
    session = replace(
        charge(session, event.charge, at_ms), spent=replace(spent, barren=spent.barren + tokens)
    )
    turn = session.turn
    if turn is None or turn.n != event.n:
        return session
    return replace(session, turn=replace(turn, prepaid=turn.prepaid.plus(amount(event.charge))))


def barren(usage: ev.Usage | None, turn: Running) -> int:
    """Tokens of a step that were not counted as barren by its model calls already."""
    if usage is None:
        return 0
    reported = Used(input=usage.input_tokens, output=usage.output_tokens)
    return reported.minus(turn.prepaid).of("tokens")


def stepped(session: Session, event: ev.TurnStep, at_ms: int) -> Session:
    """A step ended: what its calls had paid is settled."""
    session = charge(session, event.charge, at_ms)
    turn = session.turn
    if turn is not None and event.usage is not None and turn.prepaid != NOTHING:
        session = replace(session, turn=replace(turn, prepaid=NOTHING))
    return session


def asked(session: Session, at_ms: int) -> Session:
    """The running turn waits for an answer, which is no running time."""
    turn = session.turn
    if turn is None or turn.asked_ms is not None:
        return session
    return replace(session, turn=replace(turn, asked_ms=at_ms))


def settled(session: Session, at_ms: int) -> Session:
    """No question is open any more: the running time goes on from here."""
    turn = session.turn
    if turn is None or turn.asked_ms is None or session.permits.pending:
        return session
    paid_ms = max(turn.started_ms, turn.charged_ms) + max(0, at_ms - turn.asked_ms)
    return replace(session, turn=replace(turn, charged_ms=paid_ms, asked_ms=None))


def changed(session: Session, event: BudgetChanged, at_ms: int) -> Session:
    """A limit of the session itself was set or removed."""
    account = limited(session.account, event.what, event.limit, event.per_ms, at_ms)
    return replace(session, account=replace(account, said=()))


def exhausted(session: Session, event: BudgetExhausted) -> Session:
    """Nothing is left: the running turn is to stop."""
    account, turn = session.account, session.turn
    if event.until_ms is None and event.which not in account.said:
        account = replace(account, said=(*account.said, event.which)[-32:])
    if turn is not None and turn.stopping is None:
        turn = replace(turn, stopping=f"budget:{event.which}")
    return replace(session, account=account, turn=turn)
