"""What a session has spent, by kind and by window, and how much is left of a limit. Pure.

Only a `Charge` in an event adds to an account, so nothing is lost or counted twice when the journal is
folded again. Model calls that a proxy reported are charged when they ended; the step that they belong to
is charged only with what goes beyond them (`Running.prepaid`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from loopd_protocol.events import Charge, Usage
from loopd_protocol.policy import BudgetLimit

if TYPE_CHECKING:
    from loopd.core.state import Session

MICRO = 1_000_000
UNPRICED_MODELS = 16
OTHER_MODELS = "other models"


class Used(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Amounts by kind: tokens both ways, cost in micro-units, running time in ms, turns begun."""

    input: int = 0
    output: int = 0
    cost: int = 0
    wall: int = 0
    turns: int = 0

    def of(self, kind: str) -> int:
        """The amount that a limit of this kind counts."""
        match kind:
            case "tokens":
                return self.input + self.output
            case "input_tokens":
                return self.input
            case "output_tokens":
                return self.output
            case "cost":
                return self.cost
            case "wall":
                return self.wall
            case _:
                return self.turns

    def plus(self, other: Used) -> Used:
        """Both together."""
        return Used(
            input=self.input + other.input,
            output=self.output + other.output,
            cost=self.cost + other.cost,
            wall=self.wall + other.wall,
            turns=self.turns + other.turns,
        )

    def minus(self, other: Used) -> Used:
        """What goes beyond the other, never below 0."""
        return Used(
            input=max(0, self.input - other.input),
            output=max(0, self.output - other.output),
            cost=max(0, self.cost - other.cost),
            wall=max(0, self.wall - other.wall),
            turns=max(0, self.turns - other.turns),
        )


NOTHING = Used()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent in the window number `index` of windows of this length."""

    per_ms: int
    index: int
    used: Used = NOTHING


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session has spent and may spend.

    Attributes:
        cost, wall: of all runs of the session; tokens and turns the session itself counts.
        limits: its own; those of labels and parents are not here.
        windows: one for each length that its limits name.
        unpriced: tokens by model that no price was known for.
        said: totals of which it was said that nothing is left.
        parent: sid of the session that this one's spending counts into as well.
    """

    cost: int = 0
    wall: int = 0
    limits: tuple[BudgetLimit, ...] = ()
    windows: tuple[Window, ...] = ()
    unpriced: dict[str, int] = {}
    said: tuple[str, ...] = ()
    parent: str | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-units of the currency for a million tokens."""

    input: int = 0
    output: int = 0
    cached: int | None = None


class Purse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A limit and what is spent of it.

    Attributes:
        scope: `session`, a label such as `team=a`, or the sid of a parent.
        until_ms: end of the window, or None for all time.
    """

    scope: str
    kind: str
    limit: int
    used: int
    per_ms: int | None = None
    until_ms: int | None = None

    @property
    def which(self) -> str:
        """Its name, in holds and events: `session tokens/18000s`."""
        return which(self.scope, self.kind, self.per_ms)

    @property
    def spent(self) -> bool:
        """Nothing is left."""
        return self.used >= self.limit


def which(scope: str, kind: str, per_ms: int | None) -> str:
    """Name of a limit."""
    return f"{scope} {kind}" + ("" if per_ms is None else f"/{per_ms // 1_000}s")


COST_MAX = 10**12
"""Micro-units that one call can cost: a million of the currency."""


def cost_of(price: Price, usage: Usage) -> int:
    """Micro-units that a call cost, rounded up: no call is free because it was small."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    fresh = usage.input_tokens - cached
    rate = price.input if price.cached is None else price.cached
    cost = -(-(fresh * price.input + cached * rate + usage.output_tokens * price.output) // MICRO)
    return min(cost, COST_MAX)


def window_of(at_ms: int, per_ms: int) -> int:
    """Number of the window that a moment lies in."""
    return at_ms // per_ms


def window_end(at_ms: int, per_ms: int) -> int:
    """First moment of the next window."""
    return (at_ms // per_ms + 1) * per_ms


def amount(charge: Charge) -> Used:
    """What a charge adds."""
    return Used(input=charge.input, output=charge.output, cost=charge.cost_micro, wall=charge.wall_ms)


def add(account: Account, used: Used, at_ms: int) -> Account:
    """The account after something was spent."""
    return replace(
        account,
        cost=account.cost + used.cost,
        wall=account.wall + used.wall,
        windows=tuple(_into(window, used, at_ms) for window in account.windows),
    )


def total_of(session: Session) -> Used:
    """Everything that a session has spent, in all its runs."""
    spent, account = session.spent, session.account
    return Used(
        input=spent.input, output=spent.output, cost=account.cost, wall=account.wall, turns=session.turns
    )


def _into(window: Window, used: Used, at_ms: int) -> Window:
    index = max(window.index, window_of(at_ms, window.per_ms))  # a clock that goes back opens no old window
    before = window.used if index == window.index else NOTHING
    return replace(window, index=index, used=before.plus(used))


def charged(account: Account, charge: Charge, at_ms: int) -> Account:
    """The account after a charge."""
    account = add(account, amount(charge), at_ms)
    tokens = charge.input + charge.output
    if charge.priced or not tokens:
        return account
    known = account.unpriced
    name = charge.model if charge.model in known or len(known) < UNPRICED_MODELS else OTHER_MODELS
    return replace(account, unpriced={**known, name: known.get(name, 0) + tokens})


def limited(account: Account, kind: str, limit: int | None, per_ms: int | None, at_ms: int) -> Account:
    """The account with one limit set or (None) removed; a new window counts from now on."""
    rest = tuple(each for each in account.limits if (each.kind, each.per_ms) != (kind, per_ms))
    if limit is not None:
        rest = (*rest, BudgetLimit(kind=kind, limit=limit, per_ms=per_ms))  # type: ignore[arg-type]
    return with_limits(account, rest, at_ms)


def with_limits(account: Account, limits: Iterable[BudgetLimit], at_ms: int) -> Account:
    """The account with these limits; windows that are known already go on."""
    limits = tuple(limits)
    known = {window.per_ms: window for window in account.windows}
    lengths = dict.fromkeys(each.per_ms for each in limits if each.per_ms is not None)
    windows = tuple(
        known.get(per_ms) or Window(per_ms=per_ms, index=window_of(at_ms, per_ms)) for per_ms in lengths
    )
    return replace(account, limits=limits, windows=windows)


def own_purses(session: Session, now: int) -> tuple[Purse, ...]:
    """The session's own limits and what is spent of them now."""
    account, total = session.account, total_of(session)
    windows = {window.per_ms: window for window in account.windows}
    made = []
    for limit in account.limits:
        used: Used = total
        until_ms = None
        if limit.per_ms is not None:
            window = windows[limit.per_ms]
            index = max(window.index, window_of(now, limit.per_ms))
            used = window.used if window.index == index else NOTHING
            until_ms = (index + 1) * limit.per_ms
        made.append(
            Purse(
                scope="session",
                kind=limit.kind,
                limit=limit.limit,
                used=used.of(limit.kind),
                per_ms=limit.per_ms,
                until_ms=until_ms,
            )
        )
    return tuple(made)
