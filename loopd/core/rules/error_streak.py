"""error_streak: the same failure of the same program, or nothing but failures.

New failures are not the same failure; a change between two attempts, or new information, begins anew.
Failures of a service (429, timeouts) say nothing about the agent and are left out.
"""

from __future__ import annotations

import msgspec

from loopd.core import packed
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "error_streak"

_KEPT = 8


class ErrorStreakParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of error_streak.

    Attributes:
        soft: failures with the same signature.
        soft_any: steps in a row in which every call failed, whatever the failure.
        hard: of either.
    """

    soft: Threshold = 4
    soft_any: Threshold = 8
    hard: Threshold = 12


class Trouble(msgspec.Struct, frozen=True, array_like=True):
    """A failure by its signature (packed): of which program, how often, from which step on."""

    signature: bytes
    program: bytes
    count: int
    onset: int


class ErrorStreakState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last failures, and the run of steps in which everything failed."""

    troubles: tuple[Trouble, ...] = ()
    run: int = 0
    onset: int = 0


FRESH = ErrorStreakState()


def observe(
    state: ErrorStreakState, parameters: ErrorStreakParameters, look: Look
) -> tuple[ErrorStreakState, Signal | None]:
    """Feed one step."""
    if not look.calls or look.retrying:
        return (FRESH if look.progress.made else state), None
    troubles, worst, label = state.troubles, None, ""
    all_failed = all(call.failed for call in look.calls)
    if look.progress.made and (not all_failed or look.progress.reasons != ("result",)):
        troubles = ()
    counted: set[bytes] = set()
    for call in look.calls:
        program = packed.digest(call.program)
        if not call.failed:
            troubles = tuple(trouble for trouble in troubles if trouble.program != program)
            continue
        signature = bytes.fromhex(call.error[:12])
        if not signature or signature in counted:
            continue
        counted.add(signature)
        old = next((trouble for trouble in troubles if trouble.signature == signature), None)
        new = Trouble(
            signature, program, 1 if old is None else old.count + 1, look.n if old is None else old.onset
        )
        troubles = (*(trouble for trouble in troubles if trouble is not old), new)[-_KEPT:]
        if worst is None or new.count > worst.count:
            worst, label = new, call.label
    run, onset = state.run, state.onset
    if all_failed:
        run, onset = run + 1, onset or look.n
    elif look.progress.made:
        run, onset = 0, 0
    after = ErrorStreakState(troubles=troubles, run=run, onset=onset)
    if worst is not None and (worst.count >= parameters.soft > 0 or run < parameters.soft_any):
        same = worst
        return after, Signal(
            score=same.count,
            soft=parameters.soft,
            hard=parameters.hard,
            unit="calls",
            onset=same.onset,
            loop=(same.signature.hex(),),
            say=lambda: _say_same(same, label, look),
        )
    if not all_failed:
        return after, None
    return after, Signal(
        score=run,
        soft=parameters.soft_any,
        hard=parameters.hard,
        unit="steps",
        onset=onset,
        loop=("any",),
        say=lambda: _say_any(run, onset, look),
    )


def _say_same(same: Trouble, label: str, look: Look) -> tuple[tuple[str, ...], str]:
    signature = same.signature.hex()
    evidence = (
        f"{same.count} failures with signature {signature} between steps {same.onset} and {look.n}",
        f"last call: {label}",
    )
    return evidence, (
        f"This has failed {same.count} times in exactly the same way: {label}. Trying it once more will fail again."
    )


def _say_any(run: int, onset: int, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (f"every call failed in {run} steps, from {onset} to {look.n}", f"last call: {look.label}")
    return evidence, f"Every call of your last {run} steps failed; the last one was {look.label}."
