"""cycle: two to eight steps, the same again and again, calls with their results or texts.

For each period the length of the match with what was that many steps before is kept, so a step costs
eight comparisons however long the history is.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import POLL, RETRY, STEPS, Look

ID = "cycle"

LONGEST = 16


class CycleParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of cycle.

    Attributes:
        soft, hard: laps.
        max_period: longest cycle that is looked for, in steps.
    """

    soft: Threshold = 3
    hard: Threshold = 5
    max_period: Annotated[int, msgspec.Meta(ge=2, le=LONGEST)] = 8


def contradiction(parameters: CycleParameters) -> str | None:
    """What the ring cannot hold, with the numbers."""
    for level in ("soft", "hard"):
        laps = getattr(parameters, level)
        if laps == 1:
            return f"rules.{ID}.{level} is 1; expected 0 or at least 2 laps, because one lap repeats nothing"
        if laps * parameters.max_period > STEPS:
            return (
                f"rules.{ID}.{level} is {laps} laps of up to {parameters.max_period} steps, "
                f"{laps * parameters.max_period} steps; expected at most {STEPS}, which the ring holds"
            )
    return None


class CycleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For each period from 1: how many steps in a row equal the one that long before."""

    matches: tuple[int, ...] = ()
    since: int = 0


FRESH = CycleState()
_OUTSIDE = frozenset({"state", "check", "failing", "metric", "item"})


def observe(state: CycleState, parameters: CycleParameters, look: Look) -> tuple[CycleState, Signal | None]:
    """Feed one step."""
    trail = look.trail
    symbol = look.symbol
    since = state.since + 1
    # a new result or a new change is a new symbol anyway, and the first lap is part of the cycle
    if symbol is None or not _OUTSIDE.isdisjoint(look.progress.reasons):
        return (FRESH if symbol is None else CycleState(since=1)), None
    old = state.matches or (0,) * parameters.max_period
    matches = tuple(
        length + 1 if period < since and trail.symbol(period) == symbol else 0
        for period, length in zip(range(1, parameters.max_period + 1), old, strict=False)
    )
    after = CycleState(matches=matches, since=min(since, STEPS))
    if not any(matches):
        return after, None
    period, laps = _smallest(matches)
    if laps < 2 or period < 2:
        return after, None
    flags = [trail.flags(back) for back in range(period)]
    if all(flag & (POLL | RETRY) for flag in flags):
        return after, None
    symbols = {trail.symbol(back) for back in range(period)}
    onset = trail.number(min(period * laps, trail.length) - 1)
    return after, Signal(
        score=laps,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="laps",
        onset=onset,
        window=period * laps,
        loop=tuple(each.hex() for each in symbols),
        say=lambda: _say(period, laps, onset, look),
    )


def _smallest(matches: tuple[int, ...]) -> tuple[int, int]:
    """The shortest period that fills at least two laps, and its whole laps; (0, 0) for none."""
    for period, length in enumerate(matches, start=1):
        if length >= period:
            return period, length // period + 1
    return 0, 0


def _say(period: int, laps: int, onset: int, look: Look) -> tuple[tuple[str, ...], str]:
    lap = look.trail.labels[-period:]
    evidence = (
        f"steps {onset} to {look.n}: {laps} laps of the same {period} steps with the same results",
        *lap,
    )
    shown = " → ".join(lap[:4]) + (" → …" if len(lap) > 4 else "")
    return evidence, (
        f"You have gone through the same {period} steps {laps} times, with the same results each time: {shown}."
    )
