"""What all commands are made of."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import SessionRef

DAY_MS = 86_400_000

LabelKey = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*\Z")]
LabelValue = Annotated[str, Meta(max_length=128)]
Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=32)]
Page = Annotated[int, Meta(ge=1, le=1_000)]


class Command(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="t", forbid_unknown_fields=True, omit_defaults=True
):
    """Base of all commands."""

    @property
    def type(self) -> str:
        """The dotted type, for example `goal.set`."""
        return str(self.__struct_config__.tag)


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which sessions: all conditions must hold; no condition selects every live session."""

    labels: Labels = {}
    sids: Annotated[tuple[SessionRef, ...], Meta(max_length=1_000)] = ()
    ended: bool = False
