"""What all events are made of."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", omit_defaults=True):
    """Base of all payloads."""

    @property
    def kind(self) -> str:
        """The dotted kind, for example `gate.changed`."""
        return str(self.__struct_config__.tag)
