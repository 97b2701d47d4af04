"""Goals: what an unattended session works for, and who may change it. Pure.

active ⇄ paused      active ─▶ complete | infeasible | blocked      a human may reopen any of them
"""

from __future__ import annotations

from loopd.core.state import Goal
from loopd_protocol.errors import Refused

OPEN = frozenset({"active", "paused", "blocked"})
MODEL_MAY_SET = ("complete", "infeasible", "blocked", "paused")
"""Statuses that the agent may give its own goal; it can never make one active again."""

USER_CHANGES = {
    "goal.pause": "paused",
    "goal.resume": "active",
    "goal.infeasible": "infeasible",
    "goal.complete": "complete",
    "goal.clear": "cleared",
}
"""Command type → status."""


def check_user_change(goal: Goal | None, status: str) -> None:
    """Check a change asked for by a person.

    Raises:
        Refused: `conflict` when there is no goal to change.
    """
    if goal is None:
        raise Refused("conflict", f"the session has no goal; it cannot become {status!r}, set one first")


def check_model_change(goal: Goal | None, status: object) -> str:
    """Check a change asked for by the agent, and return the status.

    Raises:
        Refused: `conflict` without an open goal, `invalid` for a status it may not set.
    """
    if status not in MODEL_MAY_SET:
        raise Refused(
            "invalid", f"status {status!r}; expected one of {', '.join(MODEL_MAY_SET)}", path="status"
        )
    if goal is None:
        raise Refused("conflict", "there is no goal to update")
    if goal.status not in OPEN:
        raise Refused("conflict", f"the goal is {goal.status!r}; only a person can reopen it")
    return str(status)
