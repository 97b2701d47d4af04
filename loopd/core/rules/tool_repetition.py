"""ToolRepetition: the same calls again within a small window (published detector).

Over the last `window_size` steps that called tools (text-only steps are dropped first):

    ratio = (calls - distinct calls) / calls            fires when ratio >= repetition_threshold
    cycle = smallest k >= 2 whose last k steps equal the k before them        fires when there is one

The first `max_corrections` firings are corrections, the next one terminates. Window and counter live
from one human envelope or goal change to the next, over restarts of the daemon; the counter does not
decay. All comparisons are of integers: 3 of 5 is 0.6 exactly.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from loopd.core.records import StepRecord
from loopd.core.rules.findings import EXITS, MAX_EVIDENCE, Finding, loop_identity
from loopd.core.rules.parameters import Parameters

ID = "tool_repetition"

RepetitionOutcome = Literal["no_stagnation", "inject_prompt", "terminate"]


class ToolRepetitionParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of ToolRepetition.

    Attributes:
        window_size: steps with tool calls that are looked at.
        repetition_threshold: share of calls that repeat another one, from which on it fires; inclusive.
        cycle_detection: whether a cycle fires as well.
        max_corrections: corrections before it terminates.
        min_tool_turns: fewer steps with tool calls than this are not judged; at most `window_size`.
    """

    window_size: Annotated[int, msgspec.Meta(ge=2, le=50)] = 5
    repetition_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6
    cycle_detection: bool = True
    max_corrections: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    min_tool_turns: Annotated[int, msgspec.Meta(ge=1, le=50)] = 2


def contradiction(parameters: ToolRepetitionParameters) -> str | None:
    """What is wrong with parameters that are fine one by one, with the numbers; None if nothing is."""
    if parameters.min_tool_turns > parameters.window_size:
        return (
            f"rules.{ID}.min_tool_turns is {parameters.min_tool_turns}; expected at most "
            f"rules.{ID}.window_size, which is {parameters.window_size}"
        )
    return None


class RepetitionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check.

    Attributes:
        repetition_ratio: exact, 0 to 1.
        cycle_length: period of the cycle that ends the window, at least 2, or None.
        message: what the model is told; there is one iff the verdict is `inject_prompt`.
        reason: one line for people; None for `no_stagnation`.
        details: deeply copied and frozen, whatever the caller does with what it gave.

    Raises:
        ValueError: the fields contradict each other.
    """

    verdict: RepetitionOutcome = "no_stagnation"
    repetition_ratio: Fraction = Fraction(0)
    cycle_length: int | None = None
    message: str | None = None
    reason: str | None = None
    details: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        if not 0 <= self.repetition_ratio <= 1:
            raise ValueError(f"repetition_ratio is {self.repetition_ratio}; expected 0 to 1")
        if self.cycle_length is not None and self.cycle_length < 2:
            raise ValueError(f"cycle_length is {self.cycle_length}; expected None or at least 2")
        if self.verdict not in {"no_stagnation", "inject_prompt", "terminate"}:
            raise ValueError(f"unknown verdict {self.verdict!r}")
        if self.verdict == "inject_prompt" and not self.message:
            raise ValueError("inject_prompt without a message; expected one")
        if self.verdict != "inject_prompt" and self.message is not None:
            raise ValueError(f"{self.verdict} with a message; expected none")
        if self.verdict == "no_stagnation" and self.reason is not None:
            raise ValueError("no_stagnation with a reason; expected none")
        msgspec.structs.force_setattr(self, "details", _frozen(deepcopy(self.details)))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(inner) for inner in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    return value


QUIET = RepetitionVerdict()


class ToolStep(msgspec.Struct, frozen=True, array_like=True):
    """One step that called tools: its number, tokens of the scope before it, sorted fingerprints."""

    n: int
    tokens_before: int
    calls: tuple[str, ...]


class ToolRepetitionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Window, corrections given and tokens spent in this scope."""

    steps: tuple[ToolStep, ...] = ()
    corrections: int = 0
    tokens: int = 0


FRESH = ToolRepetitionState()


def check(
    turns: Sequence[Sequence[str]], corrections: int, parameters: ToolRepetitionParameters
) -> RepetitionVerdict:
    """Judge the last steps, given as the sorted fingerprints of their calls.

    Args:
        turns: oldest first; empty ones are dropped, then the last `window_size` are judged.
        corrections: how many corrections were given before.
        parameters: the published ones, valid together.
    """
    if not parameters.enabled:
        return QUIET
    window = [tuple(turn) for turn in turns if turn][-parameters.window_size :]
    if len(window) < parameters.min_tool_turns:
        return QUIET
    counts = Counter(call for turn in window for call in turn)
    total = sum(counts.values())
    excess = total - len(counts)
    ratio = Fraction(excess, total)
    cycle = _cycle_length(window) if parameters.cycle_detection else None
    if cycle is None and ratio < _exact(parameters.repetition_threshold):
        return RepetitionVerdict(repetition_ratio=ratio)
    repeated = {call: count for call, count in sorted(counts.items()) if count > 1}
    reason = f"{excess} of {total} calls in the last {len(window)} tool steps repeat another one"
    if cycle is not None:
        reason += f"; the last {cycle} steps equal the {cycle} before them"
    inject = corrections < parameters.max_corrections
    return RepetitionVerdict(
        verdict="inject_prompt" if inject else "terminate",
        repetition_ratio=ratio,
        cycle_length=cycle,
        message=_message(reason, repeated) if inject else None,
        reason=reason,
        details={"repeated": repeated, "calls": total, "window": len(window), "corrections": corrections},
    )


def observe(
    state: ToolRepetitionState, parameters: ToolRepetitionParameters, record: StepRecord
) -> tuple[ToolRepetitionState, Finding | None]:
    """Feed one step. Text-only steps only add to the bill."""
    tokens = state.tokens + record.tokens
    if not record.calls:
        if not record.tokens:
            return state, None
        return msgspec.structs.replace(state, tokens=tokens), None
    fingerprints = tuple(sorted(call.fingerprint for call in record.calls))
    step = ToolStep(record.n, state.tokens, fingerprints)
    steps = (*state.steps, step)[-parameters.window_size :]
    verdict = check([each.calls for each in steps], state.corrections, parameters)
    inject = verdict.verdict == "inject_prompt"
    after = ToolRepetitionState(steps=steps, corrections=state.corrections + inject, tokens=tokens)
    if verdict.verdict == "no_stagnation":
        return after, None
    return after, _finding(verdict, after, parameters, record)


def restart(state: ToolRepetitionState) -> ToolRepetitionState:
    """A new scope begins: a human envelope was delivered or the goal changed."""
    return FRESH if state != FRESH else state


def _cycle_length(window: Sequence[tuple[str, ...]]) -> int | None:
    for length in range(2, len(window) // 2 + 1):
        if window[-length:] == window[-2 * length : -length]:
            return length
    return None


@functools.lru_cache(maxsize=256)
def _exact(threshold: float) -> Fraction:
    # 0.6 is meant as six tenths, not as the nearest binary fraction
    return Fraction(repr(threshold))


def _name(fingerprint: str) -> str:
    return fingerprint.rpartition(":")[0] or fingerprint


def _message(reason: str, repeated: Mapping[str, int], labels: Mapping[str, str] | None = None) -> str:
    shown = [
        f"{(labels or {}).get(call) or _name(call)} {count} times"
        for call, count in sorted(repeated.items(), key=lambda item: -item[1])[:3]
    ]
    what = f" ({'; '.join(shown)})" if shown else ""
    return (
        f"You are repeating tool calls: {reason}{what}. The same call gives the same answer. Do not repeat "
        f"these calls. {EXITS}"
    )


def _finding(
    verdict: RepetitionVerdict,
    state: ToolRepetitionState,
    parameters: ToolRepetitionParameters,
    record: StepRecord,
) -> Finding:
    repeated: Mapping[str, int] = verdict.details["repeated"]
    in_loop = set(repeated)
    if verdict.cycle_length is not None:
        in_loop.update(call for step in state.steps[-verdict.cycle_length :] for call in step.calls)
    onset = next((step for step in state.steps if not in_loop.isdisjoint(step.calls)), state.steps[0])
    labels = {call.fingerprint: call.label for call in record.calls if call.label}
    threshold = _exact(parameters.repetition_threshold)
    by_ratio = verdict.repetition_ratio >= threshold
    lines = [f"{verdict.reason} (steps {state.steps[0].n} to {record.n})"]
    lines += [
        f"{count} times {labels.get(call) or call}"
        for call, count in sorted(repeated.items(), key=lambda item: -item[1])
    ]
    inject = verdict.verdict == "inject_prompt"
    return Finding(
        rule=ID,
        verdict="nudge" if inject else "terminate",
        level="soft" if inject else "hard",
        score=int(verdict.repetition_ratio * 1_000) if by_ratio else 2,
        threshold=int(threshold * 1_000) if by_ratio else 2,
        unit="permille" if by_ratio else "laps",
        window=len(state.steps),
        evidence=tuple(lines[:MAX_EVIDENCE]),
        loop_id=loop_identity(ID, in_loop),
        note=_message(verdict.reason or "", repeated, labels) if inject else None,
        onset_tokens=state.tokens - onset.tokens_before,
    )
