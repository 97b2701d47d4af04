"""Who is asking, and may they? The one table-driven check that every transport uses."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd_protocol.commands import SCOPES, Batch, Command
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

ALL_SCOPES: frozenset[str] = frozenset(SCOPES.values()) | {"approve", "export", "metrics"}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated connection.

    Attributes:
        principal: for example `uid:1000`, `token:ab12`.
        source: stamped on every envelope that this caller sends; never taken from the message.
    """

    principal: str
    scopes: frozenset[str]
    source: Source = Source.HUMAN


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a command.

    Attributes:
        seq: the log position that makes it durable, or the head for commands that only read.
        rev: revision of the session concerned, or None.
        dup: the command had been carried out before; this is its stored result.
        result: a JSON object.
    """

    seq: int
    result: dict[str, Any]
    rev: int | None = None
    dup: bool = False


def authorize(caller: Caller, command: Command) -> None:
    """Check scopes.

    Raises:
        Refused: `forbidden`, naming the missing scope.
    """
    asked = [command.type]
    if isinstance(command, Batch):
        asked.append(command.cmd.type)
    for name in asked:
        if SCOPES[name] not in caller.scopes:
            if caller.principal.startswith("agent:"):
                raise Refused(
                    "forbidden",
                    f"{name} from inside a session ({caller.principal}); an agent may not command its own daemon",
                )
            raise Refused("forbidden", f"{name} needs scope {SCOPES[name]!r}; {caller.principal} lacks it")
