"""Inputs about approvals, budgets and settings, and the effect that tells a turn what a person answered."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loopd.core.policy import Verdict
from loopd_protocol.policy import PolicyRule


class _Input(msgspec.Struct, frozen=True, kw_only=True):
    pass


class PermitAsked(_Input, frozen=True, kw_only=True):
    """May a tool run? Nothing is intended yet."""

    n: int
    call: str
    tool: str
    args_sha256: str
    tool_class: str
    verdict: Verdict


class AffordAsked(_Input, frozen=True, kw_only=True):
    """Turn `n` is about to call a model."""

    n: int


class ApprovalGiven(_Input, frozen=True, kw_only=True):
    """A person answered a question."""

    by: str
    id: str
    answer: Literal["allow", "deny"]
    scope: Literal["once", "session"] = "once"
    reason: str = ""


class BudgetSetRequested(_Input, frozen=True, kw_only=True):
    """A person sets, or with `limit` None removes, a limit of the session itself."""

    by: str
    kind: str
    limit: int | None = None
    per_ms: int | None = None
    reason: str = ""


class ConfigSetRequested(_Input, frozen=True, kw_only=True):
    """A person changes settings; `policy` None leaves the rules about tool calls."""

    by: str
    set: dict[str, Any] = {}
    unset: tuple[str, ...] = ()
    policy: tuple[PolicyRule, ...] | None = None
    reason: str = ""


class Settle(msgspec.Struct, frozen=True):
    """Tell whoever waits for this approval what came of it."""

    id: str
    allowed: bool
    said: str
