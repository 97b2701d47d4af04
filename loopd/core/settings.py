"""Settings of a session: presets, dotted overrides, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopd.core.rules import RuleSettings


class ContinuationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's own re-prompt while a goal is active.

    Attributes:
        min_gap_ms: never sooner than this after the last turn, the goal's setting or creation.
        backoff_s: gaps of `ContinuationBackoff`, one per tool-less continuation in a row from
            the `backoff_after`th on; the last one repeats. Empty: off (preset `published`).
        text: what the model is told; `{goal}` is replaced by the goal.
    """

    min_gap_ms: int = 2_000
    backoff_after: int = 5
    backoff_s: tuple[int, ...] = ()
    text: str = "Continue with the task until it is complete.\n\nGoal: {goal}"


class GateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the gate. `pass_gap_ms`: at most one `pass` turn in this time."""

    inbox_cap: int = 100
    interrupt_for_ms: int = 300_000
    pass_gap_ms: int = 60_000
    provider_backoff_ms: int = 30_000
    provider_backoff_max_ms: int = 3_600_000


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one turn. `deadline_ms`: a longer turn is cancelled with outcome `deadline`."""

    deadline_ms: int = 3_600_000
    max_steps: int = 200


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set for one session under the keys `rules.*`, `continuation.*`, …"""

    rules: RuleSettings = RuleSettings()
    continuation: ContinuationSettings = ContinuationSettings()
    gate: GateSettings = GateSettings()
    turn: TurnSettings = TurnSettings()


def settings_of(preset: str, overrides: Mapping[str, Any]) -> Settings:
    """Build settings from a preset and dotted overrides; aliases of published keys are accepted.

    Raises:
        Refused: `unknown_field` with the nearest key, or `invalid` with the numbers.
    """
    raise NotImplementedError
