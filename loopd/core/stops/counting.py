"""Counting: what the stop rules remember of a run, and which limits it has reached. Pure, incremental.

A step is counted when it was work: one that only polls or waits, or that only met failures of a service,
adds nothing. A cron run has clean counters of its own, so that 48 mornings without news are not one loop;
the ceiling of steps is restarted by a person, a new goal or a verified milestone, by nothing else.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loopd.core.progress import Progress
from loopd.core.records import StepRecord
from loopd.core.stops import attempts, phases
from loopd.core.stops.attempts import Attempt, Check, Edits
from loopd.core.stops.limits import StopSettings
from loopd.core.stops.phases import Edges
from loopd.core.stops.unresolved import unresolved_streak
from loopd_protocol.sources import Trigger

REASON_CHARS = 400
FIRED = 8
MILESTONES = frozenset({"check", "item", "metric"})
"""Kinds of progress that were verified: a check newly passes, an item is closed, a best value."""
NEW_STATES = frozenset({"state", "write"})


class Counters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is counted in one lane: the session's own work, or one cron run.

    Attributes:
        phase, edges: see `loopd.core.stops.phases`. `passed`: the edge that the last step took.
        attempts: commands that failed. `failed`: the worst one that failed in the last step.
        edits: edits that changed nothing. `idle`: the last step made the count rise.
        unresolved: steps in a row whose calls all named tools that do not exist.
        states: new states of the outside so far.
        steps: toward the ceiling. `extensions`: how often that was moved.
        since: steps since the last progress. `corrected`: the agent was told of them.
        worked: the last step counted.
    """

    phase: str = ""
    edges: Edges = {}
    passed: str = ""
    attempts: tuple[Attempt, ...] = ()
    failed: Attempt | None = None
    edits: Edits = Edits()
    idle: bool = False
    unresolved: int = 0
    states: int = 0
    steps: int = 0
    extensions: int = 0
    since: int = 0
    corrected: bool = False
    worked: bool = False


class Fired(msgspec.Struct, frozen=True, array_like=True):
    """A reason to stop that was found in the running turn."""

    rule: str
    verdict: str
    score: int
    threshold: int
    unit: str
    evidence: tuple[str, ...] = ()
    loop_id: str = ""


class StopState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the stop rules remember; part of the session.

    Attributes:
        main, cron: counters; `cron` are those of the cron run in turn `cron_turn`.
        in_cron: the last step was one of a cron run.
        milestones: verified ones in this run; `milestone_step` is the number of the last one's step.
        checks: check commands as they ran last.
        corrections: how often the agent was told something by a rule; `clamps`: refused phases.
        gates: kind of hold → how often it was set, and milliseconds for which it stood.
        reason, command, signature: what the agent said last, the last command, the last failure.
        fired: reasons to stop found in the running turn.
    """

    main: Counters = Counters()
    cron: Counters = Counters()
    cron_turn: int = 0
    in_cron: bool = False
    milestones: int = 0
    milestone_step: int = 0
    checks: tuple[Check, ...] = ()
    corrections: int = 0
    clamps: int = 0
    gates: dict[str, tuple[int, int]] = {}
    reason: str = ""
    command: str = ""
    signature: str = ""
    fired: tuple[Fired, ...] = ()

    @property
    def lane(self) -> Counters:
        """Counters that the last step went into."""
        return self.cron if self.in_cron else self.main


FRESH = StopState()


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that the last step reached.

    Attributes:
        level: `soft` ones are told, `hard` ones end the run.
        loop: what repeats, for the identity of the loop.
        said: one sentence for people; `advice`: what a model is told with it.
    """

    rule: str
    level: Literal["soft", "hard"]
    score: int
    threshold: int
    unit: str
    said: str
    advice: str = ""
    evidence: tuple[str, ...] = ()
    loop: tuple[str, ...] = ()


def observe(state: StopState, record: StepRecord, progress: Progress | None, ss: int) -> StopState:
    """Follow one step.

    Args:
        state: before it.
        record: the step.
        progress: what it brought, None for unknown.
        ss: number of its event in the session.
    """
    in_cron = record.trigger is Trigger.CRON
    before = state.main
    if in_cron:
        before = state.cron if state.cron_turn == record.turn else Counters()
    reasons = frozenset(() if progress is None else progress.reasons)
    after = _counted(before, record, reasons, ss)
    changes: dict[str, object] = {"in_cron": in_cron}
    changes |= {"cron": after, "cron_turn": record.turn} if in_cron else {"main": after}
    if reasons & MILESTONES:
        changes |= {"milestones": state.milestones + 1, "milestone_step": record.n}
    checks = attempts.checks(state.checks, record.calls)
    if checks is not state.checks:
        changes["checks"] = checks
    if record.text.strip():
        changes["reason"] = " ".join(record.text[: 2 * REASON_CHARS].split())[:REASON_CHARS]
    commands = [call for call in record.calls if call.tool_class in attempts.COMMAND_CLASSES]
    if commands:
        changes["command"] = attempts.command_text(commands[-1].label)
    errors = [call.error for call in record.calls if call.error]
    if errors:
        changes["signature"] = errors[-1]
    return msgspec.structs.replace(state, **changes)


def _counted(lane: Counters, record: StepRecord, reasons: frozenset[str], ss: int) -> Counters:
    calls = record.calls
    waiting = bool(calls) and all((call.polls and not call.failed) or call.waits for call in calls)
    retrying = bool(calls) and all(call.infra for call in calls)
    work = not waiting and not retrying
    changes: dict[str, object] = {"passed": "", "failed": None, "idle": False, "worked": work}
    edges, phase = lane.edges, lane.phase
    if reasons:
        edges = phases.forgiven(edges)
        changes |= {"since": 0, "corrected": False}
    elif work:
        changes["since"] = lane.since + 1
    if reasons & MILESTONES:
        changes |= {"steps": 0, "extensions": 0}
    elif work:
        changes["steps"] = lane.steps + 1
    if work and (now := phases.phase_of(record)):
        name = phases.edge_of(edges, phase, now)
        if name:
            edges = phases.passed(edges, name, ss)
            changes["passed"] = name
            if reasons:
                edges = phases.forgiven(edges)
        phase = now
    changes |= {"edges": edges, "phase": phase}
    states = lane.states + bool(reasons & NEW_STATES)
    tried, failed = attempts.failures(lane.attempts, record, states)
    edited, idle = attempts.edits(lane.edits, record)
    if not record.tools_withheld:
        missing = sum(call.unresolved for call in calls)
        changes["unresolved"] = unresolved_streak(
            lane.unresolved, asked=len(calls), resolved=len(calls) - missing
        )
    changes |= {"states": states, "attempts": tried, "failed": failed, "edits": edited, "idle": idle}
    return msgspec.structs.replace(lane, **changes)


def reached(state: StopState, limits: StopSettings) -> tuple[Reached, ...]:
    """The limits that the last step reached, hard ones first, by precedence.

    Args:
        state: after the step.
        limits: with the profile's scale applied.
    """
    lane = state.lane
    made = [
        found
        for found in (
            _unresolved(lane, limits),
            _same_error(lane, limits),
            _noop_edit(lane, limits),
            _edge(lane, limits),
            _no_progress(lane, limits),
            _max_steps(lane, limits),
        )
        if found is not None
    ]
    return tuple(sorted(made, key=lambda found: found.level != "hard"))


def _unresolved(lane: Counters, limits: StopSettings) -> Reached | None:
    if not 0 < limits.unresolved_tools <= lane.unresolved:
        return None
    return Reached(
        rule="unresolved_tools",
        level="hard",
        score=lane.unresolved,
        threshold=limits.unresolved_tools,
        unit="steps",
        said=f"{lane.unresolved} steps in a row only called tools that do not exist",
    )


def _same_error(lane: Counters, limits: StopSettings) -> Reached | None:
    failed = lane.failed
    if failed is None:
        return None
    loop = (failed.command, failed.signature)
    what = f"{failed.label} with error signature {failed.signature}"
    if 0 < limits.same_error <= failed.same:
        return Reached(
            rule="same_error",
            level="hard",
            score=failed.same,
            threshold=limits.same_error,
            unit="failures",
            said=f"{failed.same} times in a row the same failure of {what}, nothing new in between",
            evidence=(failed.label, f"error signature {failed.signature}"),
            loop=loop,
        )
    if 0 < limits.same_error_edited <= failed.total and not failed.told:
        return Reached(
            rule="same_error",
            level="soft",
            score=failed.total,
            threshold=limits.same_error_edited,
            unit="failures",
            said=f"{failed.total} times the same failure of {what}, whatever was edited in between",
            advice="Your edits do not reach the cause.",
            evidence=(failed.label, f"error signature {failed.signature}"),
            loop=loop,
        )
    return None


def _noop_edit(lane: Counters, limits: StopSettings) -> Reached | None:
    if not lane.idle or not 0 < limits.noop_edit <= lane.edits.noop:
        return None
    return Reached(
        rule="noop_edit",
        level="hard",
        score=lane.edits.noop,
        threshold=limits.noop_edit,
        unit="edits",
        said=f"{lane.edits.noop} edits in a row left everything as it was",
    )


def edge_count(edge: phases.Edge, limits: StopSettings) -> int:
    """The count of an edge that is capped."""
    return edge.lifetime if limits.edge_counts == "lifetime" else edge.since


def _edge(lane: Counters, limits: StopSettings) -> Reached | None:
    if not lane.passed or not limits.edge_loop:
        return None
    edge = lane.edges[lane.passed]
    count = edge_count(edge, limits)
    if count < limits.edge_loop:
        return None
    since = "in this run" if limits.edge_counts == "lifetime" else "without progress"
    return Reached(
        rule="edge_loop",
        level="hard",
        score=count,
        threshold=limits.edge_loop,
        unit="edges",
        said=f"it went {lane.passed} {count} times {since}",
        evidence=(lane.passed, f"{edge.lifetime} times in this run"),
        loop=tuple(lane.passed.split("->")),
    )


def _no_progress(lane: Counters, limits: StopSettings) -> Reached | None:
    if not lane.worked or not lane.since:
        return None
    if 0 < limits.no_progress <= lane.since:
        return Reached(
            rule="no_progress",
            level="hard",
            score=lane.since,
            threshold=limits.no_progress,
            unit="steps",
            said=f"{lane.since} steps brought nothing new",
        )
    if 0 < limits.no_progress_correction <= lane.since and not lane.corrected:
        return Reached(
            rule="no_progress",
            level="soft",
            score=lane.since,
            threshold=limits.no_progress_correction,
            unit="steps",
            said=f"{lane.since} steps brought nothing new",
            advice=f"At {limits.no_progress} the run is over." if limits.no_progress else "",
        )
    return None


def ceiling(lane: Counters, limits: StopSettings) -> int:
    """The ceiling of steps as it stands, its extensions included; 0 for none."""
    return limits.max_steps and limits.max_steps + lane.extensions * limits.extension_steps


def _max_steps(lane: Counters, limits: StopSettings) -> Reached | None:
    most = ceiling(lane, limits)
    if not lane.worked or not 0 < most <= lane.steps:
        return None
    going = lane.since < limits.extension_window
    return Reached(
        rule="max_steps",
        level="soft" if going else "hard",
        score=lane.steps,
        threshold=most,
        unit="steps",
        said=f"{lane.steps} steps were taken, the ceiling is {most}",
        evidence=(f"{lane.extensions} extensions", f"last progress {lane.since} steps ago"),
    )
