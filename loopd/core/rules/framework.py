"""The framework: tables of rules, fed one record at a time.

The published detectors decide for themselves and are rows of `RULES`. The two-level rules share a trail
and leave the decision to the ladder; they are rows of `loopd.core.rules.lanes`. To add one: a file with its
parameters, its state and a pure `observe(state, parameters, look)`, then a line in `STEP_JUDGES`, `Lane`
and `RuleSettings`. `restart_scope`, `begin_turn` and `rearm` ask a published rule only if it says what to
do then.

Nothing here measures time; whoever calls it may, and reports a slow rule like a `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loopd.core import progress
from loopd.core.progress import Progress, ProgressState
from loopd.core.records import CallRecord, StepRecord, TurnRecord
from loopd.core.rules import (
    barren_streak,
    lanes,
    progress_stall,
    repeated_text,
    rungs,
    tool_repetition,
    trail,
    turn_run,
)
from loopd.core.rules.barren_score import BarrenScoreParameters
from loopd.core.rules.barren_streak import BarrenStreakParameters
from loopd.core.rules.chanting import ChantingParameters
from loopd.core.rules.compaction_thrash import CompactionThrashParameters
from loopd.core.rules.cycle import CycleParameters
from loopd.core.rules.edge_loop import EdgeLoopParameters
from loopd.core.rules.error_streak import ErrorStreakParameters
from loopd.core.rules.exact_repeat import ExactRepeatParameters
from loopd.core.rules.findings import Failure, Finding
from loopd.core.rules.interleaved_repeat import InterleavedRepeatParameters
from loopd.core.rules.lanes import Lane
from loopd.core.rules.near_duplicate_text import NearDuplicateTextParameters
from loopd.core.rules.noop_calls import NoopCallsParameters
from loopd.core.rules.poll_unchanged import PollUnchangedParameters
from loopd.core.rules.progress_stall import ProgressStallParameters, ProgressStallState
from loopd.core.rules.repeated_text import RepeatedTextParameters
from loopd.core.rules.rungs import LadderSettings, Rungs
from loopd.core.rules.same_result import SameResultParameters
from loopd.core.rules.signals import Near, told
from loopd.core.rules.sweep import SweepParameters
from loopd.core.rules.tool_repetition import ToolRepetitionParameters, ToolRepetitionState
from loopd.core.rules.toolless_streak import ToollessStreakParameters
from loopd.core.rules.turn_run import TurnRun
from loopd.core.rules.unresolved_tool import UnresolvedToolParameters
from loopd.core.rules.wake_storm import WakeStormParameters
from loopd_protocol.sources import Trigger

Observe = Callable[[Any, Any, Any], tuple[Any, Finding | None]]
Reset = Callable[[Any], Any]


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of all rules, by rule id."""

    repeated_text: RepeatedTextParameters = RepeatedTextParameters()
    barren_streak: BarrenStreakParameters = BarrenStreakParameters()
    tool_repetition: ToolRepetitionParameters = ToolRepetitionParameters()
    progress_stall: ProgressStallParameters = ProgressStallParameters()
    exact_repeat: ExactRepeatParameters = ExactRepeatParameters()
    cycle: CycleParameters = CycleParameters()
    interleaved_repeat: InterleavedRepeatParameters = InterleavedRepeatParameters()
    same_result: SameResultParameters = SameResultParameters()
    error_streak: ErrorStreakParameters = ErrorStreakParameters()
    noop_calls: NoopCallsParameters = NoopCallsParameters()
    near_duplicate_text: NearDuplicateTextParameters = NearDuplicateTextParameters()
    toolless_streak: ToollessStreakParameters = ToollessStreakParameters()
    barren_score: BarrenScoreParameters = BarrenScoreParameters()
    wake_storm: WakeStormParameters = WakeStormParameters()
    poll_unchanged: PollUnchangedParameters = PollUnchangedParameters()
    sweep: SweepParameters = SweepParameters()
    compaction_thrash: CompactionThrashParameters = CompactionThrashParameters()
    edge_loop: EdgeLoopParameters = EdgeLoopParameters()
    chanting: ChantingParameters = ChantingParameters()
    unresolved_tool: UnresolvedToolParameters = UnresolvedToolParameters()


class RulesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of all rules, by rule id; serialises with msgspec.

    Attributes:
        progress: what was seen in the session, whatever rules are on.
        main, cron: memory of the two-level rules; `cron` is that of the cron run in turn `cron_turn`.
        rungs: how far each loop has come on the ladder.
    """

    repeated_text: TurnRun = turn_run.FRESH
    barren_streak: TurnRun = turn_run.FRESH
    tool_repetition: ToolRepetitionState = tool_repetition.FRESH
    progress_stall: ProgressStallState = progress_stall.FRESH
    progress: ProgressState = progress.FRESH
    main: Lane = lanes.FRESH
    cron: Lane = lanes.FRESH
    cron_turn: int = 0
    rungs: Rungs = rungs.FRESH


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one observation.

    Attributes:
        findings: what fired; those of two-level rules have gone up the ladder if there was one.
        progress: what a step brought; None for a turn.
        near: rules that came within three quarters of their soft threshold with this record.
    """

    state: RulesState
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    progress: Progress | None = None
    near: tuple[Near, ...] = ()


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


def wants_mask(state: RulesState, settings: RuleSettings, trigger: Trigger) -> Callable[[CallRecord], bool]:
    """Which results of the next step have to be masked to be judged; none if no rule compares them."""
    if not lanes.any_on(settings):
        return _unwanted
    lane = state.cron if trigger is Trigger.CRON else state.main
    return lambda call: trail.wants_mask(lane.trail, call)


def _unwanted(_: CallRecord) -> bool:
    return False


def observe_step(
    state: RulesState,
    settings: RuleSettings,
    record: StepRecord,
    *,
    ladder: LadderSettings | None = None,
    attended: bool = False,
    skip: tuple[str, ...] = (),
    defied: bool = False,
) -> Verdicts:
    """Feed one step.

    Args:
        state: before it.
        settings: of the rules.
        record: the step.
        ladder: decides what findings of two-level rules lead to; None: each is told as it is.
        attended: a person is there.
        skip: rules that do not see it, because they raised or took too long on it.
        defied: it called tools although it was told not to; the loop that led there climbs.
    """
    judges = [(rule.id, rule.on_step) for rule in RULES if rule.on_step and rule.id not in skip]
    published = _observe(state, settings, record, judges)
    in_cron = record.trigger is Trigger.CRON
    on = lanes.any_on(settings)
    lane = state.main
    if in_cron:
        lane = state.cron if state.cron_turn == record.turn else lanes.FRESH
    remembered, results = trail.results_of(lane.trail if on else trail.FRESH, record)
    known, made = progress.observe(state.progress, record, results)
    changes: dict[str, Any] = {} if known is state.progress else {"progress": known}
    if not on:
        after = msgspec.structs.replace(published.state, **changes) if changes else published.state
        return msgspec.structs.replace(published, state=after, progress=made)
    look = trail.look(remembered, record, results, made, attended=attended)
    seen = lanes.observe_step(lane, settings, look, skip)
    insisted = rungs.defied(state.rungs, record.n) if defied and ladder is not None else None
    if insisted is not None:
        rest = tuple(each for each in seen.findings if each.loop_id != insisted.loop_id)
        seen = msgspec.structs.replace(seen, findings=(insisted, *rest))
    changes |= {"cron": seen.lane, "cron_turn": record.turn} if in_cron else {"main": seen.lane}
    if made.made:
        changes["rungs"] = rungs.climb_down(state.rungs)
    after = msgspec.structs.replace(published.state, **changes)
    return _climb(after, published, seen, n=record.n, ladder=ladder, attended=attended, made=made)


def observe_turn(
    state: RulesState,
    settings: RuleSettings,
    record: TurnRecord,
    *,
    ladder: LadderSettings | None = None,
    attended: bool = False,
    skip: tuple[str, ...] = (),
) -> Verdicts:
    """Feed one ended turn to all rules but those to `skip`. Called after the turn's last step."""
    judges = [(rule.id, rule.on_turn) for rule in RULES if rule.on_turn and rule.id not in skip]
    published = _observe(state, settings, record, judges)
    if not lanes.any_on(settings):
        return published
    lane = state.main
    n = max(lane.trail.number(0), state.cron.trail.number(0))
    look = trail.TurnLook(record=record, n=n, attended=attended, trail=lane.trail)
    seen = lanes.observe_turn(lane, settings, look, skip)
    after = msgspec.structs.replace(published.state, main=seen.lane)
    return _climb(after, published, seen, n=n, ladder=ladder, attended=attended)


def _climb(
    state: RulesState,
    published: Verdicts,
    seen: lanes.Seen,
    *,
    n: int,
    ladder: LadderSettings | None,
    attended: bool,
    made: Progress | None = None,
) -> Verdicts:
    findings, failures = published.findings + seen.findings, published.failures + seen.failures
    if ladder is None:
        findings = tuple(told(finding) if finding.laddered else finding for finding in findings)
    else:
        climbed = rungs.climb(state.rungs, findings, n, ladder, attended=attended)
        findings, failures = climbed.findings, failures + climbed.failures
        if climbed.rungs is not state.rungs:
            state = msgspec.structs.replace(state, rungs=climbed.rungs)
        if climbed.restart:
            state = restart_evidence(state)
    return Verdicts(state=state, findings=findings, failures=failures, progress=made, near=seen.near)


def restart_evidence(state: RulesState) -> RulesState:
    """The gate closes: what comes is judged by evidence that comes after it."""
    return msgspec.structs.replace(state, main=lanes.FRESH, cron=lanes.FRESH, cron_turn=0)


def is_attended(state: RulesState, ladder: LadderSettings, trigger: Trigger, at_ms: int) -> bool:
    """Whether a person is there: the turn is theirs, and they spoke at most `attended_for_s` ago."""
    spoke_ms = state.progress.human_ms
    return trigger is Trigger.HUMAN and spoke_ms > 0 and at_ms - spoke_ms < ladder.attended_for_s * 1_000


def human_spoke(state: RulesState, at_ms: int, n: int) -> RulesState:
    """A human envelope was delivered: nothing before is evidence, and every loop is forgiven.

    Args:
        state: before.
        at_ms: moment of it.
        n: number of the last step before it.
    """
    return msgspec.structs.replace(
        restart_scope(restart_evidence(state)),
        progress=progress.human(state.progress, at_ms, n),
        rungs=rungs.forgive(state.rungs),
    )


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
    """Current runs of alike texts and of turns without a tool call, by whatever rules are on.

    Those of the published detectors stand still while they are silenced.
    """
    main = state.main
    return (
        max(state.repeated_text.run, main.near_duplicate_text.run),
        max(state.barren_streak.run, main.toolless_streak.run),
    )


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
