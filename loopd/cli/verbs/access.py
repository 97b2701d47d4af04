"""Verbs about who may do what, and who did what."""

from __future__ import annotations

from loopd.cli import access
from loopd.cli import arguments as arg
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "token new": Verb(
        "give a colleague or a program access",
        "access:new",
        access.token_new,
        "loopctl token new --scope read --scope control --note 'on call, Ada' --expires 30d --to ada.token",
        "loopctl token new --scope read --scope send -l team=web --channel --note 'chat bridge'",
        "loopctl token new --scope metrics --note prometheus",
    ),
    "token list": Verb(
        "tokens, their rights and their last use", "access:tokens", arg.nothing, "loopctl token list"
    ),
    "token revoke": Verb(
        "end a token and its connections at once",
        "access:revoke",
        access.token_revoke,
        "loopctl token revoke 2050250f0d --reason 'laptop lost'",
    ),
    "token rotate": Verb(
        "replace a token by a new one with the same rights",
        "access:rotate",
        access.token_rotate,
        "loopctl token rotate 2050250f0d --grace 1h --to ada.token",
    ),
    "audit": Verb(
        "who did what, refused commands too",
        "access:audit",
        access.audit_arguments,
        "loopctl audit --denied",
        "loopctl audit mapper --principal 'token:*'",
    ),
}
