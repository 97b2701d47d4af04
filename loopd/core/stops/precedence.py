"""Precedence: of several reasons that end a run in one step, which one gives it its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable

ORDER = (
    "constraint",
    "operator",
    "shutdown",
    "budget",
    "unresolved_tools",
    "same_error",
    "noop_edit",
    "edge_loop",
    "detector",
    "no_progress",
    "max_steps",
    "success",
)
"""Strongest first; a rule that is not named is a `detector`."""

STOP_RULES = frozenset(
    {"unresolved_tools", "same_error", "noop_edit", "edge_loop", "no_progress", "max_steps"}
)
ALIASES = {"unresolved_tool": "unresolved_tools"}


def rank(rule: str) -> int:
    """Position in `ORDER`; smaller is stronger."""
    rule = ALIASES.get(rule, rule)
    return ORDER.index(rule if rule in ORDER else "detector")


def strongest(rules: Iterable[str]) -> str | None:
    """The one that counts; of equals the first. None for none."""
    return min(rules, key=rank, default=None)
