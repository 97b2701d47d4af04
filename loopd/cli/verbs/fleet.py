"""Verbs about all sessions: the first look."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli.verbs.verb import Verb


def _ps(parser: argparse.ArgumentParser) -> None:
    """`loopctl ps`."""
    parser.add_argument("-a", "--ended", action="store_true", help="ended sessions too")
    parser.add_argument(
        "--sort",
        choices=("created", "name", "stagnation"),
        default="created",
        help="order (default: created)",
    )
    parser.add_argument(
        "-l",
        "--label",
        type=arg.label,
        action="append",
        default=[],
        metavar="K=V",
        help="only those with this label",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="only names, one per line")


def _top(parser: argparse.ArgumentParser) -> None:
    """`loopctl top`."""
    session = parser.add_argument(
        "session", nargs="?", metavar="SES", help="begin with this session; default: the fleet"
    )
    arg.complete(session, **arg.SESSION_COMPLETION)


def _digest(parser: argparse.ArgumentParser) -> None:
    """`loopctl digest`."""
    parser.add_argument(
        "--since",
        type=arg.past,
        default="12h",
        metavar="MOMENT",
        help="from when on: a moment, or how long ago (default: 12h)",
    )


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
        _ps,
        "loopctl ps --sort stagnation",
        "loopctl ps -l team=web -o json",
    ),
    "top": Verb(
        "the fleet and its sessions on a live screen",
        "screen:top",
        _top,
        "loopctl top",
        "loopctl top mapper",
        "NO_COLOR=1 loopctl top",
    ),
    "digest": Verb(
        "what happened since you left, what needs you first",
        "digest:digest",
        _digest,
        "loopctl digest --since 18:00",
        "loopctl digest --since 'yesterday 18:00' -o json | jq .caught",
    ),
}
