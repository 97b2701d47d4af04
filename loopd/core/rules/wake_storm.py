"""wake_storm: one source wakes the agent far more often than it usually does.

That is never the agent's fault, so it only makes an event: envelopes that wait are one batch anyway.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

from loopd.core.rules.parameters import Parameters, Threshold
from loopd.core.rules.signals import Signal
from loopd.core.rules.trail import TurnLook
from loopd_protocol.sources import Trigger

ID = "wake_storm"

_KEPT = 16
_WAKES = frozenset({Trigger.CRON, Trigger.REWAKE, Trigger.AGENT, Trigger.CHANNEL})


class WakeStormParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of wake_storm.

    Attributes:
        soft: wakes of one source within `burst_s`, or more than this and than `factor` times the usual
            number within the source's usual interval. There is no hard level.
    """

    enabled: bool = False
    soft: Threshold = 3
    burst_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)] = 30
    factor: Annotated[int, msgspec.Meta(ge=2, le=16)] = 2

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled and self.soft > 0


def contradiction(parameters: WakeStormParameters) -> str | None:
    """What the ring cannot hold, with the numbers."""
    if parameters.soft > _KEPT:
        return (
            f"rules.{ID}.soft is {parameters.soft}; expected at most {_KEPT}, which is how many wakes of a "
            "source are kept"
        )
    return None


class WakeStormState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Moments of the last wakes of each source, oldest first."""

    wakes: dict[str, tuple[int, ...]] = {}


FRESH = WakeStormState()


def observe(
    state: WakeStormState, parameters: WakeStormParameters, look: TurnLook
) -> tuple[WakeStormState, Signal | None]:
    """Feed one ended turn."""
    record = look.record
    at_ms = record.started_ms
    if record.trigger not in _WAKES or not at_ms:
        return state, None
    source = record.trigger.value
    moments = (*state.wakes.get(source, ()), at_ms)[-_KEPT:]
    after = WakeStormState(wakes={**state.wakes, source: moments})
    burst = [moment for moment in moments if moment > at_ms - parameters.burst_s * 1_000]
    score, window_s = len(burst), parameters.burst_s
    if score < parameters.soft and len(moments) >= 4:
        gaps = sorted(later - earlier for earlier, later in pairwise(moments))
        usual = gaps[-(len(gaps) // 4) - 1]
        within = [moment for moment in moments if moment > at_ms - usual]
        if len(within) > max(parameters.soft, parameters.factor):
            score, window_s = len(within), usual // 1_000
    return after, Signal(
        score=score,
        soft=parameters.soft,
        hard=0,
        unit="wakes",
        onset=look.n,
        loop=(source,),
        advice=True,
        say=lambda: ((f"{score} turns begun by {source} within {window_s} s",), ""),
    )
