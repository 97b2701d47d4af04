"""Following: what moves the counters of the stop rules besides steps. Pure."""

from __future__ import annotations

import msgspec

from loopd.core.stops import phases
from loopd.core.stops.attempts import Edits
from loopd.core.stops.counting import FIRED, Counters, Fired, StopState
from loopd_protocol import events as ev
from loopd_protocol.holds import AnyHold


def restarted(state: StopState) -> StopState:
    """A person spoke or set the goal: the counters begin anew; lifetime counts of edges stay."""
    main = Counters(
        edges=phases.forgiven(state.main.edges), edits=Edits(fingerprint=state.main.edits.fingerprint)
    )
    return msgspec.structs.replace(state, main=main, cron=Counters(), fired=())


def granted(state: StopState) -> StopState:
    """More steps were granted: the ceiling is counted from here."""
    lane = msgspec.structs.replace(state.lane, steps=0, extensions=0)
    return _with_lane(state, lane)


def improved(state: StopState, n: int) -> StopState:
    """A reported metric beat its best between two steps; `n` is the number of the last one."""
    lane = state.lane
    lane = msgspec.structs.replace(
        lane, since=0, corrected=False, steps=0, extensions=0, edges=phases.forgiven(lane.edges)
    )
    return msgspec.structs.replace(_with_lane(state, lane), milestones=state.milestones + 1, milestone_step=n)


def begun(state: StopState) -> StopState:
    """A turn begins."""
    return msgspec.structs.replace(state, fired=()) if state.fired else state


def clamped(state: StopState, edge: str) -> StopState:
    """The agent's proposal to take an edge was refused."""
    lane = state.lane
    after = _with_lane(state, msgspec.structs.replace(lane, edges=phases.refused(lane.edges, edge)))
    return msgspec.structs.replace(after, clamps=state.clamps + 1)


def found(state: StopState, event: ev.DegenerationDetected) -> StopState:
    """A rule was acted upon, a stop rule or any other: remember what was said and what was done."""
    lane, changes = state.lane, dict[str, object]()
    rule, verdict, soft = event.rule, event.verdict, event.level == "soft"
    if verdict in {"nudge", "text_only"}:
        changes["corrections"] = state.corrections + 1
    if verdict in {"close", "terminate"}:
        fired = Fired(
            rule, verdict, event.score, event.threshold, event.unit, event.evidence[:3], event.loop_id
        )
        changes["fired"] = (*state.fired, fired)[-FIRED:]
    if rule == "max_steps" and verdict == "warn":
        changes |= _lane(state, msgspec.structs.replace(lane, extensions=lane.extensions + 1))
    elif rule == "no_progress" and soft:
        changes |= _lane(state, msgspec.structs.replace(lane, corrected=True))
    elif rule == "same_error" and soft and lane.failed is not None:
        told = msgspec.structs.replace(lane.failed, told=True)
        rest = tuple(told if each == lane.failed else each for each in lane.attempts)
        changes |= _lane(state, msgspec.structs.replace(lane, attempts=rest, failed=told))
    return msgspec.structs.replace(state, **changes) if changes else state


def gate_changed(
    state: StopState, before: tuple[AnyHold, ...], event: ev.GateChanged, at_ms: int
) -> StopState:
    """Holds were set or went; `before` are those that stood. An answer grants more steps."""
    gates = dict(state.gates)
    for hold in before:
        if hold.kind in event.removed:
            sets, stood_ms = gates.get(hold.kind, (0, 0))
            gates[hold.kind] = (sets, stood_ms + max(0, at_ms - hold.since_ms))
    if event.added is not None and all(hold.kind != event.added.kind for hold in before):
        sets, stood_ms = gates.get(event.added.kind, (0, 0))
        gates[event.added.kind] = (sets + 1, stood_ms)
    if gates != state.gates:
        state = msgspec.structs.replace(state, gates=gates)
    if event.cause == "answer" and "AwaitingApproval" in event.removed:
        state = granted(state)
    return state


def _lane(state: StopState, lane: Counters) -> dict[str, object]:
    return {"cron": lane} if state.in_cron else {"main": lane}


def _with_lane(state: StopState, lane: Counters) -> StopState:
    return msgspec.structs.replace(state, **_lane(state, lane))
