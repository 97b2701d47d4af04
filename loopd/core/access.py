"""Who is asking, and may they? The one table-driven check that every transport uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loopd_protocol.commands import SCOPES, Batch, Command
from loopd_protocol.errors import Refused
from loopd_protocol.policy_commands import PEOPLE_ONLY
from loopd_protocol.sources import Source

AGENT_SCOPE = "agent"
ALL_SCOPES: frozenset[str] = (frozenset(SCOPES.values()) | {"approve", "export", "metrics"}) - {AGENT_SCOPE}
"""What a person can be given. Only a hosted agent has `agent`, and nothing else."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated connection.

    Attributes:
        principal: for example `uid:1000`, `token:ab12`.
        source: stamped on every envelope that this caller sends; never taken from the message.
        labels: only sessions that have all of these exist for this caller.
        kid: id of the token that it came with, or None.
        session: for a hosted agent, the session that it may speak for.
    """

    principal: str
    scopes: frozenset[str]
    source: Source = Source.HUMAN
    labels: Mapping[str, str] = {}
    kid: str | None = None
    session: str | None = None


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
        if name in PEOPLE_ONLY and caller.source is Source.AGENT:
            raise Refused("forbidden", f"{name} by {caller.principal}; only a person may, never an agent")
        if SCOPES[name] not in caller.scopes:
            if caller.principal.startswith("agent:"):
                raise Refused(
                    "forbidden",
                    f"{name} from inside a session ({caller.principal}); an agent may not command its own daemon",
                )
            raise Refused("forbidden", f"{name} needs scope {SCOPES[name]!r}; {caller.principal} lacks it")
