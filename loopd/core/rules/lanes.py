"""Lanes: the memory of all two-level rules, and the table by which they are fed.

The main lane lasts as long as the session, until a person speaks or the gate is closed; a cron run gets
a clean one for its turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec

from loopd.core.rules import (
    barren_score,
    compaction_thrash,
    cycle,
    edge_loop,
    error_streak,
    exact_repeat,
    interleaved_repeat,
    near_duplicate_text,
    noop_calls,
    poll_unchanged,
    same_result,
    sweep,
    toolless_streak,
    trail,
    unresolved_tool,
    wake_storm,
)
from loopd.core.rules.findings import Failure, Finding, loop_identity
from loopd.core.rules.parameters import Parameters
from loopd.core.rules.signals import Near, Signal, Thresholds, finding, near
from loopd.core.rules.trail import STEPS, Look, Trail, TurnLook

Judges = Callable[[Any, Any, Any], tuple[Any, Signal | None]]


class Lane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The trail, and the state of each rule by its id."""

    trail: Trail = trail.FRESH
    exact_repeat: exact_repeat.ExactRepeatState = exact_repeat.FRESH
    cycle: cycle.CycleState = cycle.FRESH
    interleaved_repeat: interleaved_repeat.InterleavedRepeatState = interleaved_repeat.FRESH
    same_result: same_result.SameResultState = same_result.FRESH
    error_streak: error_streak.ErrorStreakState = error_streak.FRESH
    noop_calls: noop_calls.NoopCallsState = noop_calls.FRESH
    near_duplicate_text: near_duplicate_text.NearDuplicateTextState = near_duplicate_text.FRESH
    toolless_streak: toolless_streak.ToollessStreakState = toolless_streak.FRESH
    barren_score: barren_score.BarrenScoreState = barren_score.FRESH
    wake_storm: wake_storm.WakeStormState = wake_storm.FRESH
    poll_unchanged: poll_unchanged.PollUnchangedState = poll_unchanged.FRESH
    sweep: sweep.SweepState = sweep.FRESH
    compaction_thrash: compaction_thrash.CompactionThrashState = compaction_thrash.FRESH
    edge_loop: edge_loop.EdgeLoopState = edge_loop.FRESH
    unresolved_tool: unresolved_tool.UnresolvedToolState = unresolved_tool.FRESH


FRESH = Lane()

STEP_JUDGES: tuple[tuple[str, Judges], ...] = (
    (unresolved_tool.ID, unresolved_tool.observe),
    (noop_calls.ID, noop_calls.observe),
    (exact_repeat.ID, exact_repeat.observe),
    (error_streak.ID, error_streak.observe),
    (cycle.ID, cycle.observe),
    (interleaved_repeat.ID, interleaved_repeat.observe),
    (same_result.ID, same_result.observe),
    (near_duplicate_text.ID, near_duplicate_text.observe),
    (edge_loop.ID, edge_loop.observe),
    (sweep.ID, sweep.observe),
    (compaction_thrash.ID, compaction_thrash.observe),
    (poll_unchanged.ID, poll_unchanged.observe),
    (barren_score.ID, barren_score.observe),
)
"""Rules that judge steps. Of two that fire at once and equally, the first one says what is wrong."""

TURN_JUDGES: tuple[tuple[str, Judges], ...] = (
    (toolless_streak.ID, toolless_streak.observe),
    (wake_storm.ID, wake_storm.observe),
)
"""Rules that judge ended turns."""

IDS: tuple[str, ...] = tuple(rule for rule, _ in (*STEP_JUDGES, *TURN_JUDGES))

_CONTRADICTIONS: tuple[tuple[str, Callable[[Any], str | None]], ...] = (
    (cycle.ID, cycle.contradiction),
    (interleaved_repeat.ID, interleaved_repeat.contradiction),
    (noop_calls.ID, noop_calls.contradiction),
    (toolless_streak.ID, toolless_streak.contradiction),
    (wake_storm.ID, wake_storm.contradiction),
)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules of a lane found in one record."""

    lane: Lane
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    near: tuple[Near, ...] = ()


@functools.lru_cache(maxsize=256)
def any_on(settings: Any) -> bool:
    """Whether a lane has to be kept at all; asked for each step, so remembered for each settings."""
    return any(getattr(settings, rule).on for rule in IDS)


def observe_step(lane: Lane, settings: Any, look: Look, skip: tuple[str, ...] = ()) -> Seen:
    """Feed one step to the rules that are on, but for those to `skip`."""
    return _observe(lane, settings, look, look.trail, _without(STEP_JUDGES, skip))


def observe_turn(lane: Lane, settings: Any, look: TurnLook, skip: tuple[str, ...] = ()) -> Seen:
    """Feed one ended turn to the rules that are on, but for those to `skip`."""
    return _observe(lane, settings, look, look.trail, _without(TURN_JUDGES, skip))


def _without(judges: tuple[tuple[str, Judges], ...], skip: tuple[str, ...]) -> tuple[tuple[str, Judges], ...]:
    return judges if not skip else tuple(row for row in judges if row[0] not in skip)


def _observe(
    lane: Lane, settings: Any, look: Look | TurnLook, after: Trail, judges: tuple[tuple[str, Judges], ...]
) -> Seen:
    changes: dict[str, Any] = {}
    findings: list[Finding] = []
    failures: list[Failure] = []
    close: list[Near] = []
    for rule, judge in judges:
        try:
            parameters: Parameters = getattr(settings, rule)
            if not parameters.on:
                continue
            before = getattr(lane, rule)
            state, signal = judge(before, parameters, look)
            if state is not before:
                changes[rule] = state
            if signal is None:
                continue
            if near(signal.score, signal.soft):
                close.append(_near(rule, signal))
            tokens = 0
            if signal.score >= (signal.soft or signal.hard):
                tokens = after.tokens_since(signal.onset)
            found = finding(rule, signal, tokens, shadow=parameters.mode == "shadow")
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - the wall: a broken rule must not end a session
            failures.append(Failure(rule=rule, error=f"{type(error).__name__}: {error}"[:500]))
            continue
        if found is not None:
            findings.append(found)
    if after is not lane.trail:
        changes["trail"] = after
    return Seen(
        lane=msgspec.structs.replace(lane, **changes) if changes else lane,
        findings=tuple(findings),
        failures=tuple(failures),
        near=tuple(close),
    )


def _near(rule: str, signal: Signal) -> Near:
    return Near(
        rule=rule,
        score=signal.score,
        soft=signal.soft,
        hard=signal.hard,
        unit=signal.unit,
        loop_id=loop_identity(rule, signal.loop),
    )


def contradiction(settings: Any) -> tuple[str, str] | None:
    """The rule whose parameters are fine one by one but not together, and what is wrong; None if none."""
    for rule in IDS:
        parameters = getattr(settings, rule)
        if not isinstance(parameters, Thresholds):
            continue
        softs = [
            name for name in parameters.__struct_fields__ if name.startswith("soft") and name != "soft_window"
        ]
        for name in softs:
            soft = getattr(parameters, name)
            if parameters.hard and soft > parameters.hard:
                return rule, (
                    f"rules.{rule}.{name} is {soft}; expected at most rules.{rule}.hard, which is "
                    f"{parameters.hard}: it could never fire first"
                )
        for name in (*softs, "hard"):
            value = getattr(parameters, name)
            if value > STEPS:
                return rule, f"rules.{rule}.{name} is {value}; expected at most {STEPS}, which the ring holds"
    for rule, judge in _CONTRADICTIONS:
        wrong = judge(getattr(settings, rule))
        if wrong is not None:
            return rule, wrong
    return None
