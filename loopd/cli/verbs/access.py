"""Verbs about who may do what, and who did what."""

from __future__ import annotations

from loopd.cli import access, sinks
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

VERBS |= {
    "consumer create": Verb(
        "a named cursor that the daemon keeps",
        "sinks:create_consumer",
        sinks.consumer_create,
        "loopctl consumer create warehouse --after 0",
        "loopctl consumer create pager -k 'degeneration.*' -k session.ended",
    ),
    "consumer ack": Verb(
        "everything up to an event is done with",
        "sinks:ack",
        sinks.consumer_ack,
        "loopctl consumer ack warehouse 918280",
    ),
    "consumer list": Verb(
        "named cursors and how far behind they are", "sinks:consumers", arg.nothing, "loopctl consumer list"
    ),
    "consumer delete": Verb(
        "forget a named cursor", "sinks:forget", sinks.consumer_name, "loopctl consumer delete warehouse"
    ),
    "webhook create": Verb(
        "send events to an address, signed, in order",
        "sinks:create_webhook",
        sinks.webhook_create,
        "loopctl webhook create pager https://ntfy.example/loopd --format ntfy",
        "loopctl webhook create chat https://hooks.example/T0/B0/x --format slack -l team=web",
        "loopctl webhook create lake https://lake.example/in -k '*' --after 0 --content",
    ),
    "webhook list": Verb("webhooks and how they fare", "sinks:webhooks", arg.nothing, "loopctl webhook list"),
    "webhook delete": Verb(
        "forget a webhook", "sinks:forget", sinks.webhook_name, "loopctl webhook delete pager"
    ),
    "webhook retry": Verb(
        "try a failing webhook now",
        "sinks:retry",
        sinks.webhook_retry,
        "loopctl webhook retry pager",
        "loopctl webhook retry lake --dead",
    ),
}
