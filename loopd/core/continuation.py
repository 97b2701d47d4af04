"""The daemon's own re-prompts: when the next one is due, and when they become rarer. Pure."""

from __future__ import annotations

from typing import Protocol

from loopd.core.inputs import House
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd_protocol.holds import AnyHold, ContinuationBackoff
from loopd_protocol.sources import SOURCE_POLICIES


class Decides(Protocol):
    """The part of `loopd.core.decision.Decision` that is needed here."""

    session: Session
    now: int
    settings: Settings

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold."""


def due(session: Session, house: House) -> int | None:
    """When the next continuation may start, or None while there is none to come."""
    if session.status != "live" or session.turn is not None or not session.gate.is_open:
        return None
    if house.closed_by is not None or session.goal is None or session.goal.status != "active":
        return None
    if any(SOURCE_POLICIES[w.source].starts_turn for w in session.inbox):
        return None
    last = max(session.last_turn_ms, session.goal.set_ms, session.created_ms)
    return last + house.settings.continuation.min_gap_ms


def back_off(decision: Decides) -> None:
    """Set `ContinuationBackoff` when too many continuations in a row made no tool call."""
    waits = decision.settings.continuation.backoff_s
    over = decision.session.toolless_continuations - decision.settings.continuation.backoff_after
    active = decision.session.goal is not None and decision.session.goal.status == "active"
    if waits and over >= 0 and active:
        until = decision.now + waits[min(over, len(waits) - 1)] * 1_000
        reason = f"{decision.session.toolless_continuations} continuations in a row without a tool call"
        decision.close(ContinuationBackoff(by="daemon", reason=reason, until_ms=until), cause="backoff")
