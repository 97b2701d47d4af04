"""sweep: going through the same numbered range a second time (lines of a file, pages, ids)."""

from __future__ import annotations

import msgspec

from loopd.core import packed
from loopd.core.packed import DIGEST
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "sweep"

_KEPT = 4


class SweepParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of sweep: calls of the second pass that bring nothing new."""

    soft: Threshold = 24
    hard: Threshold = 60


class Range(msgspec.Struct, frozen=True, array_like=True):
    """A call with varying numbers: the last ones, the greatest, passes begun, calls since the second."""

    target: bytes
    last: tuple[int, ...]
    most: tuple[int, ...]
    passes: int = 1
    count: int = 0
    onset: int = 0


class SweepState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last ranges."""

    ranges: tuple[Range, ...] = ()


FRESH = SweepState()


def observe(state: SweepState, parameters: SweepParameters, look: Look) -> tuple[SweepState, Signal | None]:
    """Feed one step."""
    ranges = state.ranges
    best: Range | None = None
    for call, seen in zip(look.calls, look.looks, strict=True):
        if not call.target or call.polls or call.waits:
            continue
        target = bytes.fromhex(call.target)[:DIGEST]
        old = next((each for each in ranges if each.target == target), None)
        if old is None:
            new = Range(target, call.numbers, call.numbers)
        elif call.numbers == old.last:
            continue
        else:
            again = call.numbers < old.last
            passes = old.passes + again
            repeats = passes > 1 and call.numbers <= old.most and not seen.fresh
            count = 0 if look.progress.made else old.count + repeats
            onset = old.onset if count > 1 else look.n
            new = Range(target, call.numbers, max(old.most, call.numbers), passes, count, onset)
        ranges = (*(each for each in ranges if each is not old), new)[-_KEPT:]
        if new.count and (best is None or new.count > best.count):
            best = new
    after = SweepState(ranges=ranges) if ranges is not state.ranges else state
    if best is None:
        return after, None
    found = best
    return after, Signal(
        score=found.count,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="calls",
        onset=found.onset,
        loop=(packed.digest(found.target.hex()).hex(),),
        say=lambda: _say(found, look),
    )


def _say(found: Range, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (
        f"{found.count} calls since step {found.onset} go through a range a second time without anything new",
        f"last: {look.label}",
    )
    return (
        evidence,
        f"You are going through the same range again: {found.count} calls so far; the last was {look.label}.",
    )
