"""Commands about approvals, budgets and settings of a session that runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from loopd_protocol.bounds import MAX_INT, Key, Label, Reason, SessionRef
from loopd_protocol.command import Command
from loopd_protocol.policy import BudgetKind, LabelPair, PolicyRules, WindowMs


class ApprovalList(Command, frozen=True, kw_only=True, tag="approval.list"):
    """→ `{"approvals": […]}`: what waits for an answer, of one session or of all, the most urgent first."""

    sid: SessionRef | None = None


class ApprovalAnswer(Command, frozen=True, kw_only=True, tag="approval.answer"):
    """→ `{"sid", "id", "answer", "scope"}`. A second answer to the same question is a `conflict`.

    With scope `session` the same call of the same tool is answered like this for as long as the
    session exists. An agent can never answer.
    """

    sid: SessionRef
    id: Key
    answer: Literal["allow", "deny"]
    scope: Literal["once", "session"] = "once"
    reason: Reason = ""


class BudgetSet(Command, frozen=True, kw_only=True, tag="budget.set"):
    """Sets, raises, lowers or (`limit` absent) removes one limit, of a session or of a label.

    → `{"budgets": […]}` as `budget.get`. A limit is named by its kind and its window.
    """

    kind: BudgetKind
    limit: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    per_ms: WindowMs | None = None
    sid: SessionRef | None = None
    label: LabelPair | None = None
    reason: Reason = ""


class BudgetGet(Command, frozen=True, kw_only=True, tag="budget.get"):
    """→ `{"budgets": […], "spent": {…}}`: limits, what is spent of them, until when.

    Of one session (with the labels and parents that bind it), of one label, or of everything that
    has a limit.
    """

    sid: SessionRef | None = None
    label: LabelPair | None = None


class SessionSet(Command, frozen=True, kw_only=True, tag="session.set"):
    """Changes settings of a session for its next turn: → `{"settings", "revision", "effective"}`.

    Attributes:
        set: dotted settings, as for `session.create`.
        unset: keys that go back to what the preset says.
        policy: replaces all rules about tool calls; absent leaves them.
    """

    sid: SessionRef
    set: Annotated[dict[Label, Any], Meta(max_length=200)] = {}
    unset: Annotated[tuple[Label, ...], Meta(max_length=200)] = ()
    policy: PolicyRules | None = None
    reason: Reason = ""


AnyPolicyCommand = ApprovalList | ApprovalAnswer | BudgetSet | BudgetGet | SessionSet

POLICY_SCOPES: dict[str, str] = {
    "approval.list": "read.content",
    "approval.answer": "approve",
    "budget.set": "control",
    "budget.get": "read",
    "session.set": "control",
}
PEOPLE_ONLY: frozenset[str] = frozenset({"approval.answer", "budget.set", "session.set"})
"""Never for a caller who speaks as an agent, whatever its scopes."""
