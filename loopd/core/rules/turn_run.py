"""Runs of turns that close the gate: what RepeatedText and BarrenStreak have in common.

    counting ──run reaches the threshold──▶ silenced (its Degeneration hold stands)
        ▲                                        │
        └────────── rearm: run restarts at 0 ────┘

A turn that the provider, the driver or an operator cut off says nothing about the agent: it
neither extends nor ends a run. An envelope does not shorten a run either.
"""

from __future__ import annotations

import msgspec

from loopd.core.records import TurnRecord
from loopd.core.rules.parameters import HoldSeconds, Parameters
from loopd_protocol.sources import Trigger

UNJUDGED_OUTCOMES = frozenset({"model_error", "interrupted", "failed"})
"""Outcomes of turns that are not the agent's doing; `empty` is its doing and counts as text ""."""


class TurnRunParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of a rule that closes the gate.

    Attributes:
        wake_after_s: how long the gate stays closed.
    """

    wake_after_s: HoldSeconds = 3_600


class TurnRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a run has come.

    Attributes:
        run: turns in it.
        first: number of its first turn, 0 for none.
        tokens: spent since its first turn began.
        text: for RepeatedText: digest of the text of the run, None for none.
        silenced: the rule has fired and waits to be armed again.
        shadow_until_ms: in shadow mode no hold stands whose end could arm the rule; it does so itself
            at this moment or at the next turn that an envelope began, as the hold would have gone.
    """

    run: int = 0
    first: int = 0
    tokens: int = 0
    text: str | None = None
    silenced: bool = False
    shadow_until_ms: int = 0


FRESH = TurnRun()


def judged(record: TurnRecord) -> bool:
    """Whether the turn says something about the agent."""
    return record.outcome not in UNJUDGED_OUTCOMES


def awake(state: TurnRun, record: TurnRecord) -> TurnRun | None:
    """The run to be counted on, or None while the rule is silenced."""
    if not state.silenced:
        return state
    if state.shadow_until_ms and (
        record.trigger is not Trigger.CONTINUATION or record.at_ms >= state.shadow_until_ms
    ):
        return FRESH
    return None


def cut_off(state: TurnRun, record: TurnRecord) -> TurnRun:
    """An unjudged turn: the run stands still, but what the turn cost is part of the bill."""
    if not state.run or not record.tokens:
        return state
    return msgspec.structs.replace(state, tokens=state.tokens + record.tokens)


def extend(state: TurnRun, record: TurnRecord, text: str | None = None) -> TurnRun:
    """One more turn of the same kind."""
    return TurnRun(
        run=state.run + 1,
        first=state.first if state.run else record.n,
        tokens=state.tokens + record.tokens,
        text=text,
    )


def silence(state: TurnRun, parameters: TurnRunParameters, record: TurnRecord) -> TurnRun:
    """The rule fires with this turn."""
    shadow = parameters.mode == "shadow"
    return msgspec.structs.replace(
        state,
        silenced=True,
        shadow_until_ms=record.at_ms + parameters.wake_after_s * 1_000 if shadow else 0,
    )


def rearm(state: TurnRun) -> TurnRun:
    """The hold went: the run restarts at 0."""
    return FRESH if state.run or state.silenced else state
