"""Verbs about what crashes left behind."""

from __future__ import annotations

from loopd.cli import recovery
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "recover": Verb(
        "what the last starts found and did",
        "recovered:recover",
        recovery.recover_arguments,
        "loopctl recover",
        "loopctl recover -n 5",
        "loopctl recover -o json | jq '.boots[0].uncertain'",
    ),
    "effect list": Verb(
        "tool effects of which nobody knows whether they happened",
        "recovered:effects",
        recovery.list_arguments,
        "loopctl effect list",
        "loopctl effect list mapper --state any -n 20",
    ),
    "effect resolve": Verb(
        "settle an uncertain effect; the agent is told",
        "recovered:resolve",
        recovery.resolve_arguments,
        "loopctl effect resolve mapper 3.12.2.call_1 --happened --note 'the mail is in the outbox'",
        "loopctl effect resolve mapper 3.12.2.call_1 --not-happened",
    ),
}

GROUPS = {"effect": "what tools did, or may have done"}
DEFAULT_MEMBERS = {"effect": "list"}
