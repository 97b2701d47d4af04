"""Where an input comes from, and what follows from that: one table instead of `if`s.

A source is stamped by the daemon from the authenticated connection; a sender's claim about
itself is never read.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

import msgspec


class Source(StrEnum):
    """Origin of an envelope."""

    HUMAN = "human"
    CRON = "cron"
    REWAKE = "rewake"
    AGENT = "agent"
    CHANNEL = "channel"
    SYSTEM = "system"


class Trigger(StrEnum):
    """What began a turn: the strongest source in its batch, or the daemon's own re-prompt."""

    HUMAN = "human"
    CRON = "cron"
    REWAKE = "rewake"
    AGENT = "agent"
    CHANNEL = "channel"
    CONTINUATION = "continuation"


class SourcePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon does with an input of one source.

    Attributes:
        ephemeral_in_history: the message is left out of later prompts. Copied onto the message
            when it is stored, so a later change of this table does not change the past.
        starts_turn: an envelope of this source may begin a turn; the others ride on the next one.
        coalesces: while several wait, only the newest of the same job is kept, with a count.
        resets_progress: counts as new information for rules whose evidence ends at human input.
        rank: the highest rank in a batch names the turn's trigger.
    """

    ephemeral_in_history: bool
    starts_turn: bool
    coalesces: bool
    resets_progress: bool
    rank: int


def _policy(rank: int, *, ephemeral: bool, starts: bool = True) -> SourcePolicy:
    return SourcePolicy(
        ephemeral_in_history=ephemeral,
        starts_turn=starts,
        coalesces=rank == _CRON_RANK,
        resets_progress=rank == _HUMAN_RANK,
        rank=rank,
    )


_HUMAN_RANK, _CRON_RANK = 6, 3

SOURCE_POLICIES: MappingProxyType[Source, SourcePolicy] = MappingProxyType(
    {
        Source.HUMAN: _policy(_HUMAN_RANK, ephemeral=False),
        Source.AGENT: _policy(5, ephemeral=False),
        Source.CHANNEL: _policy(4, ephemeral=False),
        Source.CRON: _policy(_CRON_RANK, ephemeral=True),
        Source.REWAKE: _policy(2, ephemeral=True),
        Source.SYSTEM: _policy(1, ephemeral=True, starts=False),
    }
)

CONTINUATION_EPHEMERAL_IN_HISTORY = True
"""Continuations are no envelopes, but their prompts are stored, and are ephemeral as well."""
