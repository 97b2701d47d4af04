"""What a session may do without asking, and what it may spend: rules and limits as they are written down."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import MAX_INT, Reason

WEEK_MS = 7 * 86_400_000

ToolClass = Literal["edit", "test", "exec", "net", "search", "read", "plan", "other"]
PolicyEffect = Literal["allow", "ask", "deny"]
Pattern = Annotated[str, Meta(min_length=1, max_length=500)]
"""`*` and `?` as in a shell; see `PolicyRule`."""
BudgetKind = Literal["tokens", "input_tokens", "output_tokens", "cost", "wall", "turns"]
WindowMs = Annotated[int, Meta(ge=60_000, le=WEEK_MS)]
LabelPair = Annotated[
    str, Meta(min_length=2, max_length=160, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*=[^\x00-\x1f]*\Z")
]
"""A label with its value, for example `team=a`."""


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule about tool calls. All conditions that are there must hold; the first rule that fits decides.

    Attributes:
        effect: `allow`, `ask` (a person decides, until a deadline) or `deny`.
        tool_class: what kind of thing the tool does.
        tool: glob over the tool's name, in any case of letters.
        command: glob over one simple command of a shell line. A line with several (`a && b`, `$(a)`) is
            allowed only if each of them is, and denied if one of them is.
        path: glob over the path that a file tool is given: relative ones are of the workspace, `**`
            crosses folders, a pattern without `/` is compared with the last name only.
        reason: told to the agent and to whoever is asked.
    """

    effect: PolicyEffect
    tool_class: ToolClass | None = None
    tool: Pattern | None = None
    command: Pattern | None = None
    path: Pattern | None = None
    reason: Reason = ""


class PolicyRuleSpec(PolicyRule, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule as a command carries it: a mistyped condition would let too much through."""


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be spent.

    Attributes:
        kind: `cost` in millionths of the currency of the price table, `wall` in ms of running turns.
        limit: the most, in units of the kind.
        per_ms: length of the window, aligned to 1970-01-01 00:00 UTC; None for all time.
    """

    kind: BudgetKind
    limit: Annotated[int, Meta(ge=1, le=MAX_INT)]
    per_ms: WindowMs | None = None


class BudgetLimitSpec(BudgetLimit, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A limit as a command carries it."""


PolicyRules = Annotated[tuple[PolicyRuleSpec, ...], Meta(max_length=200)]
BudgetLimits = Annotated[tuple[BudgetLimitSpec, ...], Meta(max_length=32)]
