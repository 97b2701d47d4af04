"""Phases and edges: what kind of work a step is, and how often it goes from one kind to another. Pure.

A phase is what the agent reports, else the class of the step's strongest call; a call to a tool that
does not exist makes the phase `unresolved`. Two different phases in a row are an edge; the same again is
a streak. Each edge is counted over the run and since the last progress.
"""

from __future__ import annotations

import msgspec

from loopd.core.records import StepRecord
from loopd.core.tools import CLASSES

EDGES = 64
"""Edges that are told apart; the rest fall into `REST`."""
REST = "other->other"
MARKS = 16
"""Passages of an edge whose reasons can be looked up."""
PHASE_CHARS = 64


class Edge(msgspec.Struct, frozen=True, array_like=True):
    """How often one edge was taken.

    Attributes:
        since: since the last progress.
        lifetime: in this run.
        clamped: proposals of it that were refused since the last progress.
        marks: `ss` of the steps at its last passages; their texts are the reasons.
    """

    since: int = 0
    lifetime: int = 0
    clamped: int = 0
    marks: tuple[int, ...] = ()


Edges = dict[str, Edge]


def phase_of(record: StepRecord) -> str:
    """The phase of a step; empty when it says nothing about it (no report, no call)."""
    if record.phase:
        return record.phase[:PHASE_CHARS]
    if any(call.unresolved for call in record.calls):
        return "unresolved"
    classes = {call.tool_class for call in record.calls}
    return next((kind for kind in CLASSES if kind in classes), "other" if classes else "")


def edge_of(edges: Edges, before: str, after: str) -> str:
    """The name under which the passage is counted; empty when it is none (a streak, or the first phase)."""
    if not before or not after or before == after:
        return ""
    name = f"{before}->{after}"
    return name if name in edges or len(edges) < EDGES - (REST not in edges) else REST


def passed(edges: Edges, name: str, ss: int) -> Edges:
    """The edges after one more passage of `name`, whose reason is the step at `ss`."""
    old = edges.get(name, Edge())
    new = Edge(old.since + 1, old.lifetime + 1, old.clamped, (*old.marks, ss)[-MARKS:])
    return {**edges, name: new}


def refused(edges: Edges, name: str) -> Edges:
    """The edges after a proposal of `name` was refused."""
    old = edges.get(name, Edge())
    return {**edges, name: Edge(old.since, old.lifetime, old.clamped + 1, old.marks)}


def forgiven(edges: Edges) -> Edges:
    """There was progress: counts since then are zero; lifetime counts and reasons stay."""
    if not any(edge.since or edge.clamped for edge in edges.values()):
        return edges
    return {name: Edge(0, edge.lifetime, 0, edge.marks) for name, edge in edges.items()}
