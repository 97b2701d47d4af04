"""What all events are made of."""

from __future__ import annotations

from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", omit_defaults=True):
    """Base of all payloads.

    Attributes:
        given: on the first event of a decision: the input that led to it, as far as the event does not say
            it itself. `loopctl replay` decides it again.
    """

    given: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """The dotted kind, for example `gate.changed`."""
        return str(self.__struct_config__.tag)
