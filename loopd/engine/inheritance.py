"""What a fork begins with: the messages of its parent, turn by turn."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from loopd.core.conversation import Message

VERSION = 1


class Inherited(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored as the blob that `session.forked` names."""

    v: int = VERSION
    summary: Message | None = None
    turns: tuple[tuple[Message, ...], ...] = ()

    def messages(self) -> tuple[Message, ...]:
        """All of them, oldest first."""
        first = () if self.summary is None else (self.summary,)
        return (*first, *(message for turn in self.turns for message in turn))


def placed(data: bytes | None, ss: int) -> Inherited:
    """What a blob holds, as the fork names it: all of it comes from its own event `ss`."""
    if data is None:
        return Inherited()
    stored = msgspec.json.decode(data, type=Inherited)
    return Inherited(
        summary=None if stored.summary is None else replace(stored.summary, ss=ss),
        turns=tuple(tuple(replace(message, ss=ss) for message in turn) for turn in stored.turns),
    )
