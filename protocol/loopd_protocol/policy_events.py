"""Events about approvals, budgets and settings."""

from __future__ import annotations

from typing import Any

from loopd_protocol.bounds import AtMs, Count, Digest, DurationMs, Key, Label, Reason
from loopd_protocol.event import Event
from loopd_protocol.policy import PolicyRule


class ApprovalRequested(Event, frozen=True, kw_only=True, tag="approval.requested"):
    """A tool call waits for a person; nothing of it has happened.

    Attributes:
        id: `apr_<num>_<ss>`.
        excerpt: the call's arguments, redacted and cut.
        rule: which rule asked, in words.
        until_ms: without an answer by then it is denied.
        about: `command`, `path` or `tool`: what an answer for the whole session will be about;
            subjects: which ones.
    """

    id: Key
    n: Count
    call: Label
    tool: Label
    tool_class: Label
    args_sha256: Digest
    excerpt: Reason = ""
    rule: Label = ""
    reason: Reason = ""
    until_ms: AtMs
    about: Label = "tool"
    subjects: tuple[Reason, ...] = ()


class ApprovalAnswered(Event, frozen=True, kw_only=True, tag="approval.answered"):
    """A person decided. `answer`: `allow` or `deny`; `scope`: `once` or `session`."""

    id: Key
    answer: Label
    scope: Label = "once"
    reason: Reason = ""
    by: Label = ""


class ApprovalExpired(Event, frozen=True, kw_only=True, tag="approval.expired"):
    """Nobody answered: it counts as denied. `cause`: `deadline`, or `turn_over` (it was cut off)."""

    id: Key
    cause: Label
    late_ms: DurationMs = 0


class EffectDenied(Event, frozen=True, kw_only=True, tag="effect.denied"):
    """A rule, or a person's earlier answer, forbade a tool call; it did not run."""

    n: Count
    call: Label
    tool: Label
    tool_class: Label
    args_sha256: Digest
    excerpt: Reason = ""
    rule: Label = ""
    reason: Reason = ""


class BudgetChanged(Event, frozen=True, kw_only=True, tag="budget.set"):
    """A limit was set or (`limit` None) removed: of the session, or of `label` (then `sid` is none).

    `what` is the kind of the budget: `tokens`, `cost`, `wall` and so on.
    """

    what: Label
    limit: Count | None = None
    per_ms: DurationMs | None = None
    label: Label = ""
    by: Label = ""
    reason: Reason = ""


class BudgetSpent(Event, frozen=True, kw_only=True, tag="budget.spent"):
    """50, 80 or 95 per cent of a limit are spent; said once for each window."""

    which: Label
    what: Label
    used: Count
    limit: Count
    percent: Count
    until_ms: AtMs | None = None


class BudgetExhausted(Event, frozen=True, kw_only=True, tag="budget.exhausted"):
    """Nothing is left of a limit: no model is called until `until_ms`, or (None) the session ends."""

    which: Label
    what: Label
    used: Count
    limit: Count
    until_ms: AtMs | None = None


class BudgetUnpriced(Event, frozen=True, kw_only=True, tag="budget.unpriced"):
    """The price table does not know this model: its tokens cost something, but nobody knows what."""

    model: Label


class ConfigChanged(Event, frozen=True, kw_only=True, tag="config.changed"):
    """The settings of the session changed.

    Attributes:
        settings: all overrides from now on.
        changed: keys that differ from before.
        revision: of the settings that result.
        effective: `now`, or `next_turn` when one runs.
        policy: all rules about tool calls from now on; None when they did not change.
    """

    settings: dict[str, Any]
    changed: tuple[Label, ...] = ()
    revision: Digest = ""
    effective: Label = "now"
    policy: tuple[PolicyRule, ...] | None = None
    by: Label = ""
    reason: Reason = ""


AnyPolicyEvent = (
    ApprovalRequested
    | ApprovalAnswered
    | ApprovalExpired
    | EffectDenied
    | BudgetChanged
    | BudgetSpent
    | BudgetExhausted
    | BudgetUnpriced
    | ConfigChanged
)
