"""barren_score: steps that bring nothing, whatever they look like.

A barren step (nothing in it is new) is a point, a neutral one (a new call without information) a third
of a point; progress takes all points away. Neutral steps never count for more than the barren ones:
fifty silent `kubectl apply` in a row are a batch, not a loop.
"""

from __future__ import annotations

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "barren_score"


class BarrenScoreParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of barren_score: points."""

    soft: Threshold = 8
    hard: Threshold = 12


class BarrenScoreState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Barren and neutral steps since the last progress."""

    barren: int = 0
    neutral: int = 0
    onset: int = 0


FRESH = BarrenScoreState()


def observe(
    state: BarrenScoreState, parameters: BarrenScoreParameters, look: Look
) -> tuple[BarrenScoreState, Signal | None]:
    """Feed one step."""
    if look.progress.made:
        return (FRESH if state.onset else state), None
    if not look.barren and not look.neutral:
        return state, None
    after = BarrenScoreState(
        barren=state.barren + look.barren,
        neutral=state.neutral + look.neutral,
        onset=state.onset or look.n,
    )
    score = after.barren + min(after.neutral // 3, after.barren)
    return after, Signal(
        score=score,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="points",
        onset=after.onset,
        window=after.barren + after.neutral,
        loop=("barren",),
        say=lambda: _say(after, look),
    )


def _say(state: BarrenScoreState, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (
        f"steps {state.onset} to {look.n}: {state.barren} brought nothing new, {state.neutral} more no information",
        f"last: {look.label}",
    )
    return evidence, (
        f"Since step {state.onset} nothing has come of your work: no new result, no change, no passing check. The "
        f"last step was {look.label}."
    )
