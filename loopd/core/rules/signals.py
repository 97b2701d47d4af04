"""Soft and hard thresholds, and the signal by which a rule says how far a loop has come.

A rule reports a signal with each step that goes on with a loop; whether something follows from it is
for the ladder to decide, because it knows what was said before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from loopd.core.rules.findings import EXITS, MAX_EVIDENCE, Finding, loop_identity
from loopd.core.rules.parameters import Parameters, Threshold

Unit = Literal["steps", "turns", "laps", "calls", "points", "wakes", "edges", "compactions"]


class Thresholds(Parameters, frozen=True, kw_only=True):
    """Parameters of a rule with two levels; such a rule is off unless a preset switches it on.

    Attributes:
        soft: count from which on the agent is told.
        hard: count from which on it is stopped. 0 switches a level off, both the rule.
    """

    enabled: bool = False
    soft: Threshold = 0
    hard: Threshold = 0

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled and (self.soft > 0 or self.hard > 0)


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """How far a loop has come.

    Attributes:
        score: what is compared with `soft` and `hard` (0: no such level).
        onset: number of the first step that counts.
        loop: what the loop consists of, in whatever order.
        say: makes evidence and the note for the model; called only when something follows.
        advice: only an event and a note follow, however far it goes, unless `hard` is reached.
    """

    score: int
    soft: int
    hard: int
    unit: Unit
    onset: int
    loop: tuple[str, ...]
    say: Callable[[], tuple[tuple[str, ...], str]]
    window: int = 0
    advice: bool = False


class Near(msgspec.Struct, frozen=True, kw_only=True):
    """A rule is about to fire: its score against its thresholds."""

    rule: str
    score: int
    soft: int
    hard: int
    unit: Unit
    loop_id: str


def near(score: int, soft: int) -> bool:
    """Whether `score` is the first one that is three quarters of a threshold, and not yet it."""
    return 0 < score < soft and 4 * score >= 3 * soft > 4 * (score - 1)


def finding(rule: str, signal: Signal, tokens: int, *, shadow: bool) -> Finding | None:
    """What the ladder gets, or None below both thresholds. The verdict is provisional."""
    hard = 0 < signal.hard <= signal.score
    if not hard and not 0 < signal.soft <= signal.score:
        return None
    return Finding(
        rule=rule,
        verdict="warn" if signal.advice and not hard else "nudge",
        level="hard" if hard else "soft",
        score=signal.score,
        threshold=signal.hard if hard else signal.soft,
        unit=signal.unit,
        window=signal.window or signal.score,
        loop_id=loop_identity(rule, signal.loop),
        onset=signal.onset,
        laddered=True,
        say=signal.say,
        onset_tokens=tokens,
        shadow=shadow,
    )


def told(made: Finding) -> Finding:
    """The finding with its evidence and note."""
    if made.say is None:
        return made
    evidence, note = made.say()
    return msgspec.structs.replace(
        made, evidence=tuple(evidence[:MAX_EVIDENCE]), note=f"{note} {EXITS}" if note else None, say=None
    )
