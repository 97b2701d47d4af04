"""What all rules have in common among their parameters."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Threshold = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A count of records; 0 switches the rule off."""

HoldSeconds = Annotated[int, msgspec.Meta(ge=1, le=2_592_000)]
"""How long a gate stays closed: one second to 30 days."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters that every rule has.

    Attributes:
        enabled: false switches the rule off.
        mode: `act`, or `shadow`: the rule tells what it finds, and no action follows.
    """

    enabled: bool = True
    mode: Literal["act", "shadow"] = "act"

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled
