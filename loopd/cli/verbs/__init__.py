"""The verbs of `loopctl`: one row each with its arguments, examples and the function behind it.

Parsers, help, shell completion and the reference are made from these tables, one module for each kind
of work. Nothing here runs a command, and only the parser of the verb that was typed is ever built.
"""

from loopd.cli.verbs import (
    access,
    agents,
    daemon,
    fleet,
    forensics,
    history,
    policy,
    recovery,
    retention,
    schedule,
    sessions,
)
from loopd.cli.verbs.verb import Verb

__all__ = ["DEFAULT_MEMBERS", "GROUPS", "VERBS", "Verb"]

VERBS: dict[str, Verb] = {
    **fleet.VERBS,
    **sessions.VERBS,
    **history.VERBS,
    **forensics.VERBS,
    **schedule.VERBS,
    **policy.VERBS,
    **agents.VERBS,
    **recovery.VERBS,
    **retention.VERBS,
    **access.VERBS,
    **daemon.VERBS,
}

GROUPS = {
    **forensics.GROUPS,
    **recovery.GROUPS,
    **retention.GROUPS,
    "gate": "look at a gate, extend or remove holds",
    "goal": "set the goal and its status",
    "cron": "jobs that send messages on time",
    "inbox": "envelopes that wait",
    "budget": "what may be spent, and what is left",
    "token": "access for colleagues and programs",
    "consumer": "named cursors for programs that read events",
    "webhook": "send events to other programs",
}
DEFAULT_MEMBERS = {
    **forensics.DEFAULT_MEMBERS,
    **recovery.DEFAULT_MEMBERS,
    **retention.DEFAULT_MEMBERS,
    "gate": "get",
    "cron": "list",
    "inbox": "list",
    "budget": "get",
    "token": "list",
    "consumer": "list",
    "webhook": "list",
}
"""`loopctl inbox SID` is `loopctl inbox list SID`."""
