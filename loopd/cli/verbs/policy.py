"""Verbs about what an agent may do, and what it may spend."""

from __future__ import annotations

from loopd.cli import budgets, permissions
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "approvals": Verb(
        "what waits for a person's answer, until when",
        "permissions:approvals",
        permissions.listed,
        "loopctl approvals",
        "loopctl approvals mapper -o json | jq -r '.approvals[].id'",
    ),
    "approve": Verb(
        "let a tool call run that waits, or grant more steps",
        "permissions:answer",
        permissions.answered,
        "loopctl approve apr_7_412",
        "loopctl approve mapper --scope session --reason 'the tests are safe'",
    ),
    "deny": Verb(
        "refuse a tool call that waits",
        "permissions:answer",
        permissions.answered,
        "loopctl deny apr_7_412 --reason 'not on a Friday'",
        "loopctl deny mapper --scope session",
    ),
    "budget get": Verb(
        "limits, what is spent of them, until when",
        "budgets:show",
        budgets.whose,
        "loopctl budget",
        "loopctl budget mapper",
        "loopctl budget -l team=web -o json",
    ),
    "budget set": Verb(
        "set or raise limits",
        "budgets:set_limits",
        budgets.set_arguments,
        "loopctl budget set mapper tokens=2M/5h cost=20",
        "loopctl budget set -l team=web cost=50/1d --reason 'sprint'",
        "loopctl budget set mapper wall=8h turns=200/1d",
        "loopctl budget set --each -l team=web tokens=500k/1d --dry-run",
    ),
    "budget remove": Verb(
        "remove limits",
        "budgets:remove_limits",
        budgets.remove_arguments,
        "loopctl budget remove mapper tokens/5h",
        "loopctl budget remove -l team=web cost/1d",
    ),
    "set": Verb(
        "change settings of a session for its next turn",
        "budgets:change_settings",
        budgets.config_arguments,
        "loopctl set mapper stop.profile=yolo rules.exact_repeat.soft=3",
        "loopctl set mapper --unset stop.profile",
        "loopctl set -l team=web stop.profile=yolo --dry-run",
        "loopctl set mapper --deny 'command:git push *' --ask class:net --allow all",
    ),
}
