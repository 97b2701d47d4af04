"""Verbs about all sessions: the first look."""

from __future__ import annotations

from loopd.cli import arguments as arg
from loopd.cli import signatures as sign
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "status": Verb(
        "how the daemon is",
        "fleet:status",
        arg.nothing,
        "loopctl status",
        "loopctl status -o json | jq .holds",
    ),
    "ps": Verb(
        "sessions: why and until when",
        "fleet:ps",
        sign.ps,
        "loopctl ps --sort stagnation",
        "loopctl ps -l team=web -o json",
    ),
    "top": Verb(
        "the fleet and its sessions on a live screen",
        "screen:top",
        sign.top,
        "loopctl top",
        "loopctl top mapper",
        "NO_COLOR=1 loopctl top",
    ),
    "digest": Verb(
        "what happened since you left, what needs you first",
        "digest:digest",
        sign.digest,
        "loopctl digest --since 18:00",
        "loopctl digest --since 'yesterday 18:00' -o json | jq .caught",
    ),
}
