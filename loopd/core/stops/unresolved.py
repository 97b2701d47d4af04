"""Calls to tools that do not exist, counted in a row. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec


class UnresolvedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Turns in a row whose calls all named tools that do not exist, and what follows."""

    streak: int = 0
    verdict: Literal["continue", "stop"] = "continue"


def unresolved_streak(streak: int, *, asked: int, resolved: int) -> int:
    """Turns in a row with calls of which none named a tool that exists, after one more turn.

    One call that resolves ends the streak, and so does a turn without calls.

    Args:
        streak: before this turn.
        asked: calls of the turn, at least 0.
        resolved: how many of them named a tool that exists, 0 to `asked`.

    Raises:
        ValueError: the counts contradict each other.
    """
    if not 0 <= resolved <= asked:
        raise ValueError(f"{resolved} of {asked} calls resolved; expected 0 to {asked}")
    return streak + 1 if asked and not resolved else 0


def unresolved_tools(turns: Iterable[tuple[int, int]], limit: int) -> UnresolvedTools:
    """Judge turns given as (asked, resolved), oldest first; a `limit` of 0 never stops.

    Raises:
        ValueError: the limit is negative or counts contradict each other.
    """
    if limit < 0:
        raise ValueError(f"limit is {limit}; expected at least 0")
    streak = 0
    for asked, resolved in turns:
        streak = unresolved_streak(streak, asked=asked, resolved=resolved)
    return UnresolvedTools(streak=streak, verdict="stop" if limit and streak >= limit else "continue")
