"""Stop rules: bounded attempts at the same failure and at tools that do not exist.

Two pure judgements so far; phases, edges, ceilings and terminal states build on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from loopd.core.masks import mask_failure_line

SIGNATURE_LINES = 20
"""Lines of the error output that a signature looks at."""

_LINE_CHARS = 2_000


def error_signature(command: str, exit_code: int | None, stderr: str, stdout: str = "") -> str:
    """16 hex digits that are equal iff the same command failed in the same way.

    The first 20 non-blank lines of `stderr` count; when it is blank, the last 20 of `stdout`, because
    many test runners write there. ANSI codes, times, durations, addresses, process numbers and
    temporary paths do not count; values of assertions do.

    Args:
        command: the command line; white space around it does not count.
        exit_code: None for unknown, which equals no number.
        stderr: whole or cut behind its first 20 lines.
        stdout: whole or cut before its last 20 lines.
    """
    lines = [line for line in stderr.splitlines() if line.strip()][:SIGNATURE_LINES]
    stream = "stderr"
    if not lines:
        stream = "stdout"
        lines = [line for line in stdout.splitlines() if line.strip()][-SIGNATURE_LINES:]
    parts = [command.strip(), str(exit_code), stream]
    parts += [mask_failure_line(line[:_LINE_CHARS]) for line in lines]
    whole = "\0".join(parts)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
