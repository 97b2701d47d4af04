"""Rules: one file, one way of going in circles. Pure, incremental, O(1) per record.

`observe_step` and `observe_turn` feed all enabled rules. A rule that raises is skipped for that
record and reported as a `Failure`; `MemoryError` and `RecursionError` propagate.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loopd.core.records import StepRecord, TurnRecord

Verdict = Literal["warn", "nudge", "text_only", "close", "terminate"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule fired.

    Attributes:
        verdict: what the ladder does about it.
        level: `soft` or `hard`.
        score, threshold: in `unit`s.
        evidence: at most 8 short lines that a person can check.
        loop_id: identity of the loop, rotation-invariant.
        note: feedback for the model, shown on its next step or turn; None for `terminate`.
        close_ms: for `close`: how long the gate stays closed.
        onset_tokens: tokens spent since the loop began.
    """

    rule: str
    verdict: Verdict
    level: Literal["soft", "hard"]
    score: int
    threshold: int
    unit: str = "turns"
    window: int = 0
    evidence: tuple[str, ...] = ()
    loop_id: str = ""
    note: str | None = None
    close_ms: int = 0
    onset_tokens: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rule raised while it judged a record."""

    rule: str
    error: str


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of all rules, by rule id."""


class RulesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of all rules; serialises with msgspec."""


class Verdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one observation."""

    state: RulesState
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()


def observe_step(state: RulesState, settings: RuleSettings, record: StepRecord) -> Verdicts:
    """Feed one step."""
    raise NotImplementedError


def observe_turn(state: RulesState, settings: RuleSettings, record: TurnRecord) -> Verdicts:
    """Feed one ended turn. Called after the turn's last step."""
    raise NotImplementedError


def restart_scope(state: RulesState) -> RulesState:
    """A human envelope was delivered or the goal changed: scoped histories and counters restart."""
    raise NotImplementedError


def begin_turn(state: RulesState) -> RulesState:
    """A turn begins: per-turn counters (ProgressStall) restart."""
    raise NotImplementedError


def rearm(state: RulesState, rule: str) -> RulesState:
    """The Degeneration hold of `rule` went, for whatever reason: it is armed again, its run is 0."""
    raise NotImplementedError
