"""ProgressStall: step after step of one turn without anything new (published detector).

A step counts against the turn unless something outside changed (the state fingerprint), it gave a
successful result of at least `min_info_gain_chars` that this turn has not seen yet, or an edit or
write succeeded. Three things neither count nor excuse: a step whose tools were withheld by the host,
a sensor that worked before and failed now (unknown is never "no progress"), and other turns.
A session that has no sensor, or whose sensor failed 16 steps in a row, is judged by its results.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.records import CallRecord, StepRecord
from loopd.core.rules.findings import EXITS, MAX_EVIDENCE, Finding, loop_identity
from loopd.core.rules.parameters import Parameters, Threshold

ID = "progress_stall"

_SEEN_RESULTS = 128
"""Results remembered in a turn; an older one is new again, which errs on the patient side."""

_DIGEST_CHARS = 16
_TOOLS = 32

BLIND_STEPS = 16
"""A sensor that fails this often in a row is given up; waiting for it would switch the rule off."""


class ProgressStallParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of ProgressStall.

    Attributes:
        threshold: steps in a row without progress at which it fires; 0 is off.
        min_info_gain_chars: a new successful result of at least this length is progress.
    """

    threshold: Threshold = 8
    min_info_gain_chars: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 60

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled and self.threshold > 0


class ProgressStallState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the turn stands.

    Attributes:
        run: steps in a row without progress.
        outside: last known state fingerprint, kept from turn to turn; None while there is no sensor.
        blind: steps in a row whose fingerprint is unknown although one was known before.
        seen: digests of results of this turn.
        tools: names of the tools that the run called, at most 32.
    """

    run: int = 0
    first: int = 0
    tokens: int = 0
    outside: str | None = None
    blind: int = 0
    seen: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


FRESH = ProgressStallState()


def observe(
    state: ProgressStallState, parameters: ProgressStallParameters, record: StepRecord
) -> tuple[ProgressStallState, Finding | None]:
    """Feed one step of the running turn."""
    known = record.state_fingerprint
    blind = state.blind + 1 if known is None and state.outside is not None else 0
    outside = known
    if 0 < blind < BLIND_STEPS:
        outside = state.outside
    changed = known is not None and state.outside is not None and known != state.outside
    gained, seen = _gain(state.seen, record.calls, parameters.min_info_gain_chars)
    if changed or gained:
        return ProgressStallState(outside=outside, blind=blind, seen=seen), None
    if 0 < blind < BLIND_STEPS or record.tools_withheld:
        tokens = state.tokens + record.tokens if state.run else 0
        return msgspec.structs.replace(state, outside=outside, blind=blind, tokens=tokens), None
    after = ProgressStallState(
        run=state.run + 1,
        first=state.first if state.run else record.n,
        tokens=state.tokens + record.tokens,
        outside=outside,
        seen=seen,
        tools=(*state.tools, *(call.name for call in record.calls))[-_TOOLS:],
    )
    if after.run < parameters.threshold:
        return after, None
    return ProgressStallState(outside=outside, seen=seen), _finding(after, parameters, record)


def begin_turn(state: ProgressStallState) -> ProgressStallState:
    """A turn begins: everything but what is known of the outside restarts."""
    if not (state.run or state.seen or state.tokens):
        return state
    return ProgressStallState(outside=state.outside, blind=state.blind)


def _gain(
    seen: tuple[str, ...], calls: tuple[CallRecord, ...], min_chars: int
) -> tuple[bool, tuple[str, ...]]:
    gained = False
    for call in calls:
        if call.ok is False:
            continue
        gained = gained or call.tool_class == "edit"
        if call.result is None or call.result_chars < min_chars:
            continue
        digest = call.result[:_DIGEST_CHARS]
        if digest not in seen:
            gained = True
            seen = (*seen, digest)[-_SEEN_RESULTS:]
    return gained, seen


def _finding(state: ProgressStallState, parameters: ProgressStallParameters, record: StepRecord) -> Finding:
    counts = {name: state.tools.count(name) for name in dict.fromkeys(state.tools)}
    called = [f"{name} {count} times" for name, count in sorted(counts.items(), key=lambda item: -item[1])]
    shown = ", ".join(called[:5]) or "no calls"
    lines = [
        (
            f"steps {state.first} to {record.n}: no change outside, no successful edit, and no new successful "
            f"result of {parameters.min_info_gain_chars} characters"
        ),
        *called,
    ]
    return Finding(
        rule=ID,
        verdict="text_only",
        level="soft",
        score=state.run,
        threshold=parameters.threshold,
        unit="steps",
        window=state.run,
        evidence=tuple(lines[:MAX_EVIDENCE]),
        loop_id=loop_identity(ID, counts),
        note=(
            f"The last {state.run} steps of this turn changed nothing and brought nothing new ({shown}). "
            f"Your next step has no tools: say in a few words what you know, what is missing and what you "
            f"will do differently. {EXITS}"
        ),
        onset_tokens=state.tokens,
    )
