"""noop_calls: calls that do nothing, made to look busy: `true`, `echo ok`, `Read(/dev/null)`.

A `sleep` counts unless there is something to wait for: a task in the background, a poll or an overloaded service nearby.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import POLLED, RETRY, STEPS, Look

ID = "noop_calls"

_POLL_NEAR = 3


class NoopCallsParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of noop_calls.

    Attributes:
        soft, hard: steps in a row.
        soft_window: steps among the last `window`.
    """

    soft: Threshold = 3
    hard: Threshold = 8
    soft_window: Threshold = 6
    window: Annotated[int, msgspec.Meta(ge=1, le=STEPS)] = 20


def contradiction(parameters: NoopCallsParameters) -> str | None:
    """What could never fire, with the numbers."""
    if parameters.soft_window > parameters.window:
        return (
            f"rules.{ID}.soft_window is {parameters.soft_window}; expected at most rules.{ID}.window, "
            f"which is {parameters.window}"
        )
    return None


class NoopCallsState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run, and the numbers of the last steps that did nothing."""

    run: int = 0
    onset: int = 0
    recent: tuple[int, ...] = ()


FRESH = NoopCallsState()


def _does_nothing(look: Look) -> bool:
    if not look.calls:
        return False
    if any(not call.noop and not call.waits for call in look.calls):
        return False
    if all(call.waits for call in look.calls):
        if any(call.tool_class != "exec" for call in look.calls) or look.trail.task:
            return False
        polled = any(look.trail.flags(back) & (POLLED | RETRY) for back in range(1, _POLL_NEAR + 1))
        return not polled
    return True


def observe(
    state: NoopCallsState, parameters: NoopCallsParameters, look: Look
) -> tuple[NoopCallsState, Signal | None]:
    """Feed one step. Text between the calls does not break the run."""
    if look.toolless or look.record.tools_withheld:
        return state, None
    if not _does_nothing(look):
        return (NoopCallsState(recent=state.recent) if state.run else state), None
    run, onset = state.run + 1, state.onset if state.run else look.n
    recent = (*(n for n in state.recent if n > look.n - parameters.window), look.n)[-STEPS:]
    after = NoopCallsState(run=run, onset=onset, recent=recent)
    if 0 < parameters.soft_window <= len(recent) and run < parameters.soft:
        return after, Signal(
            score=len(recent),
            soft=parameters.soft_window,
            hard=0,
            unit="steps",
            onset=recent[0],
            window=parameters.window,
            loop=(),
            say=lambda: _say(len(recent), recent[0], look, f"among the last {parameters.window} steps"),
        )
    return after, Signal(
        score=run,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="steps",
        onset=onset,
        loop=(),
        say=lambda: _say(run, onset, look, "in a row"),
    )


def _say(count: int, onset: int, look: Look, where: str) -> tuple[tuple[str, ...], str]:
    evidence = (f"{count} steps {where} did nothing, from step {onset} to {look.n}", f"last: {look.label}")
    return evidence, (
        f"{count} of your steps {where} did nothing at all; the last one was {look.label}. If there is nothing "
        "to do, say so and stop; if you wait for something, call request_idle."
    )
