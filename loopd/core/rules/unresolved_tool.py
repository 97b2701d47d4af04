"""unresolved_tool: calls to tools that do not exist, whatever the arguments."""

from __future__ import annotations

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look
from loopd.core.stops.unresolved import unresolved_streak

ID = "unresolved_tool"


class UnresolvedToolParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of unresolved_tool: steps in a row whose calls all named tools that do not exist."""

    soft: Threshold = 3
    hard: Threshold = 5


class UnresolvedToolState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run and its first step."""

    run: int = 0
    onset: int = 0


FRESH = UnresolvedToolState()


def observe(
    state: UnresolvedToolState, parameters: UnresolvedToolParameters, look: Look
) -> tuple[UnresolvedToolState, Signal | None]:
    """Feed one step; text between the calls does not matter."""
    if not look.calls:
        return state, None
    resolved = sum(not call.unresolved for call in look.calls)
    run = unresolved_streak(state.run, asked=len(look.calls), resolved=resolved)
    if not run:
        return (FRESH if state.run else state), None
    after = UnresolvedToolState(run=run, onset=state.onset if state.run else look.n)
    names = ", ".join(sorted({call.name for call in look.calls}))[:200]
    return after, Signal(
        score=run,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="steps",
        onset=after.onset,
        loop=(),
        say=lambda: _say(after, names, look),
    )


def _say(state: UnresolvedToolState, names: str, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (f"steps {state.onset} to {look.n} called tools that do not exist; last: {names}",)
    return evidence, (
        f"There is no tool {names}. You have called tools that do not exist in {state.run} steps in a row; use only "
        "the tools that you are offered."
    )
