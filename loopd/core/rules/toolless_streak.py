"""toolless_streak: turn after turn without a tool call or a change outside.

The fifth such continuation already makes the next ones rarer (`continuation.backoff_s`). Turns that a
person began end the run, turns of cron are not judged.
"""

from __future__ import annotations

import msgspec

from loopd.core.rules.findings import excerpt
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import TURNS, TurnLook
from loopd.core.rules.turn_run import judged
from loopd_protocol.sources import Trigger

ID = "toolless_streak"


class ToollessStreakParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of toolless_streak: turns in a row."""

    soft: Threshold = 8
    hard: Threshold = 12


def contradiction(parameters: ToollessStreakParameters) -> str | None:
    """What the ring cannot hold, with the numbers."""
    for level in ("soft", "hard"):
        turns = getattr(parameters, level)
        if turns > TURNS:
            return f"rules.{ID}.{level} is {turns} turns; expected at most {TURNS}, which the ring holds"
    return None


class ToollessStreakState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run, its first turn, and the number of its first step."""

    run: int = 0
    first: int = 0
    onset: int = 0


FRESH = ToollessStreakState()


def observe(
    state: ToollessStreakState, parameters: ToollessStreakParameters, look: TurnLook
) -> tuple[ToollessStreakState, Signal | None]:
    """Feed one ended turn."""
    record = look.record
    if not judged(record) or record.trigger is Trigger.CRON:
        return state, None
    if record.calls or record.progressed or record.trigger is Trigger.HUMAN:
        return (FRESH if state.run else state), None
    after = ToollessStreakState(
        run=state.run + 1,
        first=state.first if state.run else record.n,
        onset=state.onset if state.run else look.n,
    )
    return after, Signal(
        score=after.run,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="turns",
        onset=after.onset,
        loop=("turns",),
        say=lambda: _say(after, look),
    )


def _say(state: ToollessStreakState, look: TurnLook) -> tuple[tuple[str, ...], str]:
    shown = excerpt(look.record.text) or "(nothing)"
    evidence = (
        f"turns {state.first} to {look.record.n}: {state.run} in a row without a tool call or a change outside",
        f"last text: {shown}",
    )
    return evidence, (
        f"You took {state.run} turns in a row without a tool call; the last one said {shown!r}. Talking has not "
        "moved the goal."
    )
