"""What a rule says about a session, and the small tools that rules use to say it well."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

Verdict = Literal["warn", "nudge", "text_only", "close", "terminate"]
Level = Literal["soft", "hard"]

MAX_EVIDENCE = 8
"""Most lines of evidence in a finding."""

EXITS = (
    "Choose one of three ways out: (1) do something that can give evidence you do not have yet; "
    "(2) ask the person what you need to know, and stop; (3) conclude: mark the goal as blocked or "
    "infeasible and say why, or call request_idle if there is something to wait for."
)
"""The three exits that every nudge offers."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A rule fired.

    Attributes:
        verdict: what the ladder does about it.
        level: `soft` or `hard`.
        score, threshold: in `unit`s.
        evidence: at most 8 short lines that a person can check.
        loop_id: identity of the loop, rotation-invariant.
        note: feedback for the model, shown on its next step or turn; None for `terminate`.
        close_ms: for `close`: how long the gate stays closed.
        onset_tokens: tokens spent since the loop began.
        shadow: the rule only watches: tell, but take no action.
        laddered: the ladder decides about the verdict; else it is the rule's own.
        onset: of a laddered finding: number of the first step (or turn) that counts.
        relapse: of a laddered one that closes: how often this loop closed the gate before.
        say: of a laddered finding, until it is told: makes evidence and note.
    """

    rule: str
    verdict: Verdict
    level: Level
    score: int
    threshold: int
    unit: str = "turns"
    window: int = 0
    evidence: tuple[str, ...] = ()
    loop_id: str = ""
    note: str | None = None
    close_ms: int = 0
    onset_tokens: int = 0
    shadow: bool = False
    laddered: bool = False
    onset: int = 0
    relapse: int = 0
    say: Callable[[], tuple[tuple[str, ...], str]] | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A rule raised while it judged a record."""

    rule: str
    error: str


def excerpt(text: str, limit: int = 120) -> str:
    """`text` as one printable line of at most `limit` characters, for evidence and notes."""
    head = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else "�" for char in head)
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    return line[: limit - 1] + "…"


def loop_identity(rule: str, parts: Iterable[str]) -> str:
    """16 hex digits that name a loop by what it consists of, in whatever order it is met."""
    digest = hashlib.sha256(rule.encode())
    for part in sorted(set(parts)):
        digest.update(b"\0" + part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
