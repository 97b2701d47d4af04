"""exact_repeat: the same call with the same result, step after step.

Text between the calls does not break the run, and neither does a wait. Retries of a service that fails
count half, and not at all while the gaps between them grow; so do benchmarks that are run for noise.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from loopd.core.progress import VISIBLE_CHARS
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "exact_repeat"


class ExactRepeatParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of exact_repeat.

    Attributes:
        soft_identical: soft threshold when the results are equal byte for byte, not only when masked.
    """

    soft: Threshold = 4
    soft_identical: Threshold = 3
    hard: Threshold = 8


class ExactRepeatState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run, in half steps; whether all is identical; gap to the last retry, and seconds slept since."""

    symbol: bytes = b""
    halves: int = 0
    identical: bool = True
    onset: int = 0
    at_ms: int = 0
    gap_ms: int = 0
    slept_s: int = 0


FRESH = ExactRepeatState()


def observe(
    state: ExactRepeatState, parameters: ExactRepeatParameters, look: Look
) -> tuple[ExactRepeatState, Signal | None]:
    """Feed one step."""
    if look.waiting and look.calls:
        slept_s = sum(call.numbers[0] for call in look.calls if call.waits and call.numbers)
        return (replace(state, slept_s=state.slept_s + slept_s) if slept_s else state), None
    if look.toolless or look.record.tools_withheld:
        return state, None
    if look.symbol is None:
        return FRESH, None
    at_ms = look.record.at_ms
    if look.symbol != state.symbol or look.progress.made:
        return ExactRepeatState(symbol=look.symbol, halves=2, onset=look.n, at_ms=at_ms), None
    gap_ms = max(at_ms - state.at_ms if state.at_ms else 0, state.slept_s * 1_000)
    weight = 2
    if all(call.measures for call in look.calls) and not look.identical:
        weight = 1
    if look.retrying:
        growing = state.gap_ms > 0 and 5 * gap_ms >= 6 * state.gap_ms
        weight = 0 if growing else 1
    shown = all(call.result_chars >= VISIBLE_CHARS for call in look.calls)
    after = ExactRepeatState(
        symbol=state.symbol,
        halves=state.halves + weight,
        identical=state.identical and look.identical and shown,
        onset=state.onset,
        at_ms=at_ms,
        gap_ms=gap_ms,
    )
    if not weight:
        return after, None
    score = after.halves // 2
    soft = parameters.soft_identical if after.identical and not look.retrying else parameters.soft
    return after, Signal(
        score=score,
        soft=soft,
        hard=parameters.hard,
        unit="steps",
        onset=after.onset,
        loop=(after.symbol.hex(),),
        say=lambda: _say(after, score, look),
    )


def _say(state: ExactRepeatState, score: int, look: Look) -> tuple[tuple[str, ...], str]:
    how = "byte for byte the same result" if state.identical else "the same result"
    evidence = (
        f"steps {state.onset} to {look.n}: {look.label}",
        f"{score} times in a row with {how}" + (", a service failing" if look.retrying else ""),
    )
    return (
        evidence,
        f"You made this call {score} times in a row with {how}: {look.label}. Repeating it gives nothing.",
    )
