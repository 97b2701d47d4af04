"""poll_unchanged: looking again and again at something that does not change.

As long as what is looked at may live, that is waiting, and the advice is to wait properly. It is a loop
only when the task is known to be over.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "poll_unchanged"


class PollUnchangedParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of poll_unchanged: polls with the same result.

    Attributes:
        soft: the agent is advised to wait.
        hard: counts only if the task is over and the polling has lasted `hard_after_s`, as far as there
            is a clock.
    """

    soft: Threshold = 5
    hard: Threshold = 20
    hard_after_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 1_800


class PollUnchangedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is polled, how often with this result, since when."""

    symbol: bytes = b""
    count: int = 0
    onset: int = 0
    since_ms: int = 0


FRESH = PollUnchangedState()


def observe(
    state: PollUnchangedState, parameters: PollUnchangedParameters, look: Look
) -> tuple[PollUnchangedState, Signal | None]:
    """Feed one step. What is done between two polls does not matter."""
    if not look.waiting or not any(call.polls for call in look.calls) or look.symbol is None:
        return state, None
    at_ms = look.record.at_ms
    if look.symbol != state.symbol or look.progress.made:
        return PollUnchangedState(symbol=look.symbol, count=1, onset=look.n, since_ms=at_ms), None
    after = msgspec.structs.replace(state, count=state.count + 1)
    over = all(call.ended for call in look.calls if call.polls)
    lasted_ms = at_ms - state.since_ms if state.since_ms else 0
    clock = bool(state.since_ms or at_ms)
    dead = over and (not clock or lasted_ms >= parameters.hard_after_s * 1_000)
    return after, Signal(
        score=after.count,
        soft=parameters.soft,
        hard=parameters.hard if dead else 0,
        unit="calls",
        onset=after.onset,
        loop=(after.symbol.hex(),),
        advice=not over,
        say=lambda: _say(after, lasted_ms, look, over=over),
    )


def _say(state: PollUnchangedState, lasted_ms: int, look: Look, *, over: bool) -> tuple[tuple[str, ...], str]:
    lasting = f" in {lasted_ms // 1_000} s" if lasted_ms else ""
    evidence = (
        f"polled {state.count} times{lasting} since step {state.onset} with the same result: {look.label}",
        "the task is over" if over else "the task may still be at work",
    )
    if over:
        return evidence, f"You looked {state.count} times; what you look at is over: {look.label}."
    return evidence, (
        f"You looked {state.count} times{lasting} and nothing has changed: {look.label}. Look less often: call "
        "request_idle or wake_me and come back later."
    )
