"""interleaved_repeat: the same call with the same result again and again, with other calls between.

It counts in the last 30 steps, from the last change on, and only while the call was never answered
differently: what is polled, and what was asked again after a change, is not repetition.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core import packed
from loopd.core.packed import DIGEST
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import CALL_BYTES, CALLS, STEPS, CallLook, Look

ID = "interleaved_repeat"


class InterleavedRepeatParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of interleaved_repeat.

    Attributes:
        window: steps that are looked at.
    """

    soft: Threshold = 4
    hard: Threshold = 8
    window: Annotated[int, msgspec.Meta(ge=2, le=STEPS)] = 30


def contradiction(parameters: InterleavedRepeatParameters) -> str | None:
    """What could never fire, with the numbers."""
    for level in ("soft", "hard"):
        count = getattr(parameters, level)
        if count > min(parameters.window, CALLS):
            return (
                f"rules.{ID}.{level} is {count}; expected at most {min(parameters.window, CALLS)}, because "
                f"rules.{ID}.window is {parameters.window} steps and {CALLS} calls are kept"
            )
    return None


class InterleavedRepeatState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of the last step with a strong sign of progress: what was before does not count."""

    floor: int = 0


FRESH = InterleavedRepeatState()
_STRONG = frozenset({"state", "write", "check", "failing", "metric", "item"})


def observe(
    state: InterleavedRepeatState, parameters: InterleavedRepeatParameters, look: Look
) -> tuple[InterleavedRepeatState, Signal | None]:
    """Feed one step."""
    if not _STRONG.isdisjoint(look.progress.reasons):
        return InterleavedRepeatState(floor=look.n), None
    if look.trail.wrote - 1 > state.floor:  # what may have changed something is itself the first of its kind
        state = InterleavedRepeatState(floor=look.trail.wrote - 1)
    best: tuple[int, int, str] | None = None
    loop = b""
    for call, seen in zip(look.calls, look.looks, strict=True):
        if seen.fresh or seen.outcome is None or call.polls or call.waits or call.infra or call.noop:
            continue
        if call.measures and not look.identical:
            continue  # measured again for noise
        count, onset = _count(look, seen, max(state.floor, look.n - parameters.window))
        if count > 1 and (best is None or count > best[0]):
            best, loop = (count, onset, call.label), seen.outcome
    if best is None:
        return state, None
    count, onset, label = best
    return state, Signal(
        score=count,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="calls",
        onset=onset,
        window=parameters.window,
        loop=(loop.hex(),),
        say=lambda: _say(count, onset, label, look),
    )


def _count(look: Look, seen: CallLook, floor: int) -> tuple[int, int]:
    """Occurrences behind `floor` and the first of them; none if one was answered differently."""
    ring = look.trail.calls
    count, onset = 0, look.n + 1
    at = packed.find_last(ring, seen.identity, CALL_BYTES)
    while at >= 0:
        number = int.from_bytes(ring[at + 2 * DIGEST : at + CALL_BYTES], "big")
        if number <= floor:
            break
        if ring[at + DIGEST : at + 2 * DIGEST] != seen.outcome:
            return 0, look.n
        if number != onset:
            count, onset = count + 1, number
        at = packed.find_last(ring[:at], seen.identity, CALL_BYTES)
    return count, onset


def _say(count: int, onset: int, label: str, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (
        f"{count} times between steps {onset} and {look.n}: {label}",
        "the result was the same each time, and nothing was changed in between",
    )
    return evidence, (
        f"You made this call {count} times since step {onset}: {label}. Nothing was changed in between and the "
        "result was the same each time."
    )
