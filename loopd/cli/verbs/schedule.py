"""Verbs about cron jobs and waiting envelopes."""

from __future__ import annotations

from loopd.cli import signatures as sign
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "cron put": Verb(
        "create or replace a job",
        "schedule:put",
        sign.cron_put,
        "loopctl cron put mapper nightly '0 3 * * *' 'check the build' --tz Europe/Berlin",
        "loopctl cron put -l team=web nightly '0 3 * * *' 'check the build' --dry-run",
    ),
    "cron pause": Verb(
        "skip due moments until it is resumed",
        "schedule:change",
        sign.cron_job,
        "loopctl cron pause mapper nightly",
        "loopctl cron pause -l team=web nightly",
    ),
    "cron resume": Verb(
        "fire again from the next due moment on",
        "schedule:change",
        sign.cron_job,
        "loopctl cron resume mapper nightly",
    ),
    "cron remove": Verb(
        "forget a job; its history stays",
        "schedule:change",
        sign.cron_job,
        "loopctl cron remove mapper nightly",
    ),
    "cron run": Verb(
        "fire a job now, through the gate",
        "schedule:run_now",
        sign.cron_job,
        "loopctl cron run mapper nightly",
    ),
    "cron next": Verb(
        "the next due moments",
        "schedule:next_moments",
        sign.cron_next,
        "loopctl cron next mapper nightly",
        "loopctl cron next --expr '*/7 * * * *' -n 3",
    ),
    "cron list": Verb("jobs", "schedule:jobs", sign.cron_list, "loopctl cron list"),
    "cron history": Verb(
        "what became of each due moment",
        "schedule:history",
        sign.cron_history,
        "loopctl cron history mapper nightly",
    ),
    "inbox list": Verb(
        "envelopes that wait", "schedule:inbox", sign.one_session, "loopctl inbox list mapper"
    ),
    "inbox drop": Verb(
        "drop a waiting envelope", "schedule:drop", sign.inbox_drop, "loopctl inbox drop mapper env_01JK"
    ),
}
