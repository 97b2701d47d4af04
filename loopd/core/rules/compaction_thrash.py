"""compaction_thrash: the context is compacted again before the agent has got anywhere."""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "compaction_thrash"


class CompactionThrashParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of compaction_thrash: compactions in a row.

    Attributes:
        progress_steps: so many steps with progress between two compactions are enough.
    """

    soft: Threshold = 2
    hard: Threshold = 3
    progress_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 3


class CompactionThrashState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Compactions in a row, the first one's step, and progress since the last."""

    run: int = 0
    onset: int = 0
    progressed: int = 0


FRESH = CompactionThrashState()


def observe(
    state: CompactionThrashState, parameters: CompactionThrashParameters, look: Look
) -> tuple[CompactionThrashState, Signal | None]:
    """Feed one step."""
    if not look.record.compacted:
        if not state.run or not look.progress.made:
            return state, None
        return msgspec.structs.replace(state, progressed=state.progressed + 1), None
    going_on = state.run > 0 and state.progressed < parameters.progress_steps
    after = CompactionThrashState(
        run=state.run + 1 if going_on else 1,
        onset=state.onset if going_on else look.n,
        progressed=int(look.progress.made),
    )
    return after, Signal(
        score=after.run,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="compactions",
        onset=after.onset,
        loop=(),
        say=lambda: _say(after, parameters, look),
    )


def _say(
    state: CompactionThrashState, parameters: CompactionThrashParameters, look: Look
) -> tuple[tuple[str, ...], str]:
    evidence = (
        (
            f"{state.run} compactions from step {state.onset} to {look.n}, each with fewer than "
            f"{parameters.progress_steps} steps of progress before the next"
        ),
    )
    return evidence, (
        f"Your context was compacted {state.run} times with hardly any progress in between: what you read does "
        "not fit. Write down what you know, then work on a smaller part."
    )
