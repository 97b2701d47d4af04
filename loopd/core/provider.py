"""Failures of the model endpoint: waiting longer each time. Pure."""

from __future__ import annotations

from typing import Protocol

from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd_protocol.holds import AnyHold, ProviderBackoff
from loopd_protocol.sources import Source, Trigger

RETRY_AFTER_MAX_MS = 86_400_000
"""An endpoint that asks for more is asked again after this: a header must not stop a session for ever."""

PROVIDER_IS_BACK = "The previous turn failed because the model endpoint was not available. Please go on."


class Decides(Protocol):
    """The part of `loopd.core.decision.Decision` that is needed here."""

    session: Session
    now: int
    settings: Settings

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold."""

    def accept(self, source: Source, text: str, *, by: str, due_ms: int | None = None) -> str:
        """Make an envelope durable."""


def back_off(decision: Decides, trigger: Trigger, cause: str, retry_after_ms: int | None) -> None:
    """Set `ProviderBackoff`, twice as long each time, and see to it that the work is taken up again."""
    bounds = decision.settings.gate
    wait = bounds.provider_backoff_ms * 2 ** min(decision.session.provider_failures, 20)
    asked = min(retry_after_ms or 0, RETRY_AFTER_MAX_MS)
    wait = max(min(wait, bounds.provider_backoff_max_ms), asked)
    decision.close(
        ProviderBackoff(by="daemon", reason=cause[:4_000], cause=cause[:200], until_ms=decision.now + wait),
        cause="provider",
    )
    continues = decision.session.goal is not None and decision.session.goal.status == "active"
    if trigger is not Trigger.CONTINUATION and not continues:
        decision.accept(Source.REWAKE, PROVIDER_IS_BACK, by="daemon", due_ms=decision.now + wait)
