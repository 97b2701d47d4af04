"""The framework: one table of rules, fed one record at a time.

To add a rule: a file with its parameters, its state and a pure `observe(state, parameters, record)`;
then one line in `RULES`, `RuleSettings` and `RulesState`. `restart_scope`, `begin_turn` and `rearm`
ask a rule only if it says what to do then.

Nothing here measures time; whoever calls it may, and reports a slow rule like a `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loopd.core.records import StepRecord, TurnRecord
from loopd.core.rules import barren_streak, progress_stall, repeated_text, tool_repetition, turn_run
from loopd.core.rules.barren_streak import BarrenStreakParameters
from loopd.core.rules.findings import Failure, Finding
from loopd.core.rules.progress_stall import ProgressStallParameters, ProgressStallState
from loopd.core.rules.repeated_text import RepeatedTextParameters
from loopd.core.rules.tool_repetition import ToolRepetitionParameters, ToolRepetitionState
from loopd.core.rules.turn_run import TurnRun

Observe = Callable[[Any, Any, Any], tuple[Any, Finding | None]]
Reset = Callable[[Any], Any]


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of all rules, by rule id."""

    repeated_text: RepeatedTextParameters = RepeatedTextParameters()
    barren_streak: BarrenStreakParameters = BarrenStreakParameters()
    tool_repetition: ToolRepetitionParameters = ToolRepetitionParameters()
    progress_stall: ProgressStallParameters = ProgressStallParameters()


class RulesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of all rules, by rule id; serialises with msgspec."""

    repeated_text: TurnRun = turn_run.FRESH
    barren_streak: TurnRun = turn_run.FRESH
    tool_repetition: ToolRepetitionState = tool_repetition.FRESH
    progress_stall: ProgressStallState = progress_stall.FRESH


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one observation."""

    state: RulesState
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; `id` names its fields in `RuleSettings` and `RulesState`.

    Attributes:
        on_step, on_turn: pure judges of a step or of an ended turn.
        on_scope: a human envelope was delivered or the goal changed.
        on_begin: a turn begins.
        on_rearm: its Degeneration hold went.
    """

    id: str
    on_step: Observe | None = None
    on_turn: Observe | None = None
    on_scope: Reset | None = None
    on_begin: Reset | None = None
    on_rearm: Reset | None = None


RULES: tuple[Rule, ...] = (
    Rule(id=repeated_text.ID, on_turn=repeated_text.observe, on_rearm=turn_run.rearm),
    Rule(id=barren_streak.ID, on_turn=barren_streak.observe, on_rearm=turn_run.rearm),
    Rule(id=tool_repetition.ID, on_step=tool_repetition.observe, on_scope=tool_repetition.restart),
    Rule(id=progress_stall.ID, on_step=progress_stall.observe, on_begin=progress_stall.begin_turn),
)


def observe_step(state: RulesState, settings: RuleSettings, record: StepRecord) -> Verdicts:
    """Feed one step."""
    return _observe(state, settings, record, [(rule.id, rule.on_step) for rule in RULES if rule.on_step])


def observe_turn(state: RulesState, settings: RuleSettings, record: TurnRecord) -> Verdicts:
    """Feed one ended turn. Called after the turn's last step."""
    return _observe(state, settings, record, [(rule.id, rule.on_turn) for rule in RULES if rule.on_turn])


def restart_scope(state: RulesState) -> RulesState:
    """A human envelope was delivered or the goal changed: scoped histories and counters restart."""
    return _reset(state, [(rule.id, rule.on_scope) for rule in RULES if rule.on_scope])


def begin_turn(state: RulesState) -> RulesState:
    """A turn begins: per-turn counters (ProgressStall) restart."""
    return _reset(state, [(rule.id, rule.on_begin) for rule in RULES if rule.on_begin])


def rearm(state: RulesState, rule: str) -> RulesState:
    """The Degeneration hold of `rule` went, for whatever reason: it is armed again, its run is 0.

    A session has at most one Degeneration hold, and it carries the name of one rule even if two fired
    together. So every other rule that is silenced is armed again as well; none could be left to wait
    for a hold that is gone. An unknown `rule` arms just those.
    """
    due = [
        (row.id, row.on_rearm)
        for row in RULES
        if row.on_rearm and (row.id == rule or getattr(getattr(state, row.id), "silenced", False))
    ]
    return _reset(state, due)


def streaks(state: RulesState) -> tuple[int, int]:
    """Current runs of RepeatedText and BarrenStreak, in turns; they stand still while silenced."""
    return state.repeated_text.run, state.barren_streak.run


def _observe(
    state: RulesState, settings: RuleSettings, record: Any, judges: Sequence[tuple[str, Observe]]
) -> Verdicts:
    changes: dict[str, Any] = {}
    findings: list[Finding] = []
    failures: list[Failure] = []
    for rule, judge in judges:
        try:
            parameters = getattr(settings, rule)
            if not parameters.on:
                continue
            before = getattr(state, rule)
            after, finding = judge(before, parameters, record)
            if finding is not None and parameters.mode == "shadow":
                finding = msgspec.structs.replace(finding, shadow=True)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - the wall: a broken rule must not end a session
            failures.append(Failure(rule=rule, error=f"{type(error).__name__}: {error}"[:500]))
            continue
        if after is not before:
            changes[rule] = after
        if finding is not None:
            findings.append(finding)
    return Verdicts(
        state=msgspec.structs.replace(state, **changes) if changes else state,
        findings=tuple(findings),
        failures=tuple(failures),
    )


def _reset(state: RulesState, resets: Sequence[tuple[str, Reset]]) -> RulesState:
    changes: dict[str, Any] = {}
    for rule, reset in resets:
        before = getattr(state, rule)
        after = reset(before)
        if after is not before:
            changes[rule] = after
    return msgspec.structs.replace(state, **changes) if changes else state
