"""Verbs about hosted agents."""

from __future__ import annotations

from loopd.cli import arguments as arg
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "agents": Verb(
        "kinds of agents that can be hosted, and which are installed",
        "agents:agents",
        arg.nothing,
        "loopctl agents",
        "loopctl agents -o json | jq -r '.agents[] | select(.found) | .name'",
    ),
}
