"""edge_loop: back and forth between the same two phases of work, without progress.

A phase is what the agent reports, else the class of the step's strongest call. Two different phases in a
row are an edge; each edge is counted since the last progress.
"""

from __future__ import annotations

import msgspec

from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look
from loopd.core.tools import CLASSES

ID = "edge_loop"

MOST_EDGES = 64
REST = "other->other"


class EdgeLoopParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of edge_loop: how often the same edge was taken since the last progress."""

    soft: Threshold = 6
    hard: Threshold = 8


class EdgeLoopState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The phase, edges taken since the last progress, and the step of the first."""

    phase: str = ""
    edges: dict[str, int] = {}
    onset: int = 0


FRESH = EdgeLoopState()


def phase_of(look: Look) -> str:
    """The phase of a step; empty when it says nothing about it."""
    if look.record.phase:
        return look.record.phase[:64]
    if any(call.unresolved for call in look.calls):
        return "unresolved"
    classes = {call.tool_class for call in look.calls}
    return next((kind for kind in CLASSES if kind in classes), "")


def observe(
    state: EdgeLoopState, parameters: EdgeLoopParameters, look: Look
) -> tuple[EdgeLoopState, Signal | None]:
    """Feed one step."""
    phase = phase_of(look)
    if look.waiting or look.retrying or not phase:
        if look.progress.made and state.edges:
            return EdgeLoopState(phase=state.phase), None
        return state, None
    if look.progress.made:
        return EdgeLoopState(phase=phase), None
    if phase == state.phase:
        return state, None
    if not state.phase:
        return EdgeLoopState(phase=phase), None
    edge = f"{state.phase}->{phase}"
    if edge not in state.edges and len(state.edges) >= MOST_EDGES:
        edge = REST
    count = state.edges.get(edge, 0) + 1
    onset = state.onset or look.n
    after = EdgeLoopState(phase=phase, edges={**state.edges, edge: count}, onset=onset)
    return after, Signal(
        score=count,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="edges",
        onset=onset,
        loop=tuple(edge.split("->")),
        say=lambda: (
            (f"{count} times {edge} since step {onset}, without progress", f"last: {look.label}"),
            f"You have gone from {edge.replace('->', ' to ')} {count} times since step {onset} without any progress.",
        ),
    )
