"""What retention works on: plain data that the engine and the store hand to each other."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from loopd.core.progress import ProgressState
from loopd.core.rules import RulesState
from loopd.core.state import Session
from loopd_protocol.retention_events import RetentionSwept


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a live session goes on with, whatever its age: its newest events of these kinds, up to a size."""

    kinds: tuple[str, ...]
    events: int
    bytes: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of deletion that is under way: it goes on from here after a restart.

    Attributes:
        event: what will be journaled at its end, with what was counted so far.
        next: where to go on: a `seq`, or the `id` of a blob.
        done: all of it is deleted; only the event is missing.
    """

    event: RetentionSwept
    next: int
    done: bool = False


class Protection(NamedTuple):
    """What must stay of a session: events from `floor` on (None: none of them), and those in `waiting`."""

    floor: int | None
    waiting: frozenset[int]

    def covers(self, ss: int) -> bool:
        """Whether the content of this event must stay."""
        return (self.floor is not None and ss >= self.floor) or ss in self.waiting


class Kept(NamedTuple):
    """Content that a session kept beyond its age: between its events `first` and `last`, by `ss`."""

    num: int
    sid: str
    first: int
    last: int


class Segment(NamedTuple):
    """One sealed month of the log: its events, and the chain before the first and at the last of them."""

    n: int
    month: str
    first_seq: int
    last_seq: int
    first_ms: int
    last_ms: int
    prev_h: bytes
    head_h: bytes
    sealed_ms: int
    deleted_ms: int | None


def faded(session: Session) -> Session:
    """What stays of the state of an ended session when the content of its events is deleted.

    Settings and permissions stay, and what was counted: it could be resumed. What was said, and what rules
    remember of what was said, goes.
    """
    goal, seen = session.goal, session.rules.progress
    return replace(
        session,
        last_text="",
        phase="",
        goal=None if goal is None else replace(goal, text="", note=""),
        relapses={},
        rules=RulesState(
            progress=ProgressState(last=seen.last, last_ms=seen.last_ms, human_ms=seen.human_ms)
        ),
        fingerprint="",
        stops=replace(session.stops, checks=(), reason="", command="", signature="", fired=()),
    )
