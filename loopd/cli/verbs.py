"""The verbs of `loopctl`: one row each with its arguments, examples and the function behind it.

Parsers, help, shell completion and the reference are made from this table. Nothing here runs a
command, and only the parser of the verb that was typed is ever built.
"""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli import logs, runs
from loopd.cli import signatures as sign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[[argparse.ArgumentParser], None]


class Verb:
    """One verb.

    Attributes:
        summary: one line for lists and help.
        examples: command lines with comments, shown below the options.
        configure: adds the arguments to a parser.
        runs: `module:function` under `loopd.cli`, imported when the verb is carried out.
    """

    __slots__ = ("configure", "examples", "runs", "summary")

    def __init__(self, summary: str, runs: str, configure: Configure, *examples: str) -> None:
        self.summary = summary
        self.runs = runs
        self.configure = configure
        self.examples = examples


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
    "new": Verb(
        "create a session",
        "creation:new",
        sign.new,
        "loopctl new --driver scripted --script run.jsonl --name replay --goal 'finish the report'",
        "loopctl new --driver chat --base-url http://127.0.0.1:8080/v1 --model local --goal 'tidy the notes'",
        "loopctl new -f agent.toml --set rules.repeated_text.threshold=5",
    ),
    "send": Verb(
        "send a message",
        "sessions:send",
        sign.send,
        "loopctl send mapper 'look at chapter 3 first'",
        "git diff | loopctl send mapper -",
    ),
    "suspend": Verb(
        "close the gate, with proof",
        "sessions:suspend",
        sign.suspend,
        "loopctl suspend mapper --reason 'cost review'",
        "loopctl suspend mapper --until 'tomorrow 09:00' --mode interrupt",
        "loopctl suspend -l team=web --dry-run",
    ),
    "unsuspend": Verb(
        "lift a suspension",
        "sessions:unsuspend",
        sign.unsuspend,
        "loopctl unsuspend mapper",
        "loopctl unsuspend --all",
    ),
    "interrupt": Verb(
        "cut the running turn at once",
        "sessions:interrupt",
        sign.interrupt,
        "loopctl interrupt mapper",
        "loopctl interrupt mapper --for 30m",
    ),
    "why": Verb(
        "why is it not running, and until when", "sessions:why", sign.one_session, "loopctl why mapper"
    ),
    "gate get": Verb(
        "the gate with its holds", "sessions:gate_get", sign.one_session, "loopctl gate get mapper"
    ),
    "gate extend": Verb(
        "move a deadline later",
        "sessions:gate_extend",
        sign.gate_extend,
        "loopctl gate extend mapper Degeneration --until 3h",
    ),
    "gate open": Verb(
        "remove holds by hand",
        "sessions:gate_open",
        sign.gate_open,
        "loopctl gate open mapper",
        "loopctl gate open mapper --kind degeneration",
    ),
    "goal set": Verb(
        "set or replace the goal",
        "sessions:goal_set",
        sign.goal_set,
        "loopctl goal set mapper 'map every module'",
    ),
    "goal pause": Verb(
        "no continuation until it is resumed",
        "sessions:goal_switch",
        sign.goal_switch,
        "loopctl goal pause mapper",
        "loopctl goal pause -l team=web",
    ),
    "goal resume": Verb(
        "make the goal active again", "sessions:goal_switch", sign.goal_switch, "loopctl goal resume mapper"
    ),
    "goal infeasible": Verb(
        "declare that it cannot be reached",
        "sessions:goal_change",
        sign.goal_end,
        "loopctl goal infeasible mapper --reason 'no access'",
    ),
    "goal complete": Verb(
        "declare that it is reached", "sessions:goal_change", sign.goal_end, "loopctl goal complete mapper"
    ),
    "goal clear": Verb(
        "forget the goal", "sessions:goal_change", sign.one_session, "loopctl goal clear mapper"
    ),
    "tail": Verb(
        "the last events", "history:tail", sign.tail, "loopctl tail mapper -n 50", "loopctl tail mapper -f"
    ),
    "show": Verb(
        "one turn, and what the model saw",
        "history:show",
        sign.show,
        "loopctl show mapper@512",
        "loopctl show mapper@512 --prompt",
    ),
    "watch": Verb(
        "events as they happen",
        "watching:watch",
        sign.watch,
        "loopctl watch -k 'gate.*' -k 'degeneration.*'",
        "loopctl watch --cursor-file seen.json --reconnect -o ndjson",
    ),
    "wait": Verb(
        "wait for a state",
        "history:wait",
        sign.wait,
        "loopctl wait mapper --until idle --timeout 10m",
        "loopctl wait mapper --until 'turn>12'",
    ),
    "cron put": Verb(
        "create or replace a job",
        "schedule:put",
        sign.cron_put,
        "loopctl cron put mapper nightly '0 3 * * *' 'check the build' --tz Europe/Berlin",
    ),
    "cron pause": Verb(
        "skip due moments until it is resumed",
        "schedule:change",
        sign.cron_job,
        "loopctl cron pause mapper nightly",
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
    "freeze": Verb(
        "no session admits work until unfreeze",
        "fleet:freeze",
        sign.freeze,
        "loopctl freeze --reason 'provider outage'",
    ),
    "unfreeze": Verb("end a freeze", "fleet:unfreeze", arg.nothing, "loopctl unfreeze"),
    "drain": Verb(
        "let turns finish, then stop the daemon",
        "fleet:drain",
        sign.drain,
        "loopctl drain --budget 2m --wait",
    ),
    "stop": Verb("stop the daemon at once and in order", "fleet:stop", sign.stop, "loopctl stop --wait"),
    "end": Verb(
        "end a session for good", "sessions:end", sign.end, "loopctl end mapper --reason 'no longer needed'"
    ),
    "report": Verb(
        "how a run went and why it ended",
        "runs:report",
        runs.report_arguments,
        "loopctl report mapper",
        "loopctl report mapper --format json | jq .counters",
    ),
    "resume": Verb(
        "go on with an ended session, or grant more steps",
        "runs:resume",
        runs.resume_arguments,
        "loopctl resume mapper --reason 'the test is fixed'",
    ),
    "verify": Verb(
        "prove that the journal is whole",
        "history:verify",
        sign.verify,
        "loopctl verify",
        "loopctl verify mapper --suspended-since 918280",
        "loopctl verify --data /backup/loopd",
    ),
    "inspect": Verb(
        "judge any agent's log, without a daemon",
        "inspection:run_inspect",
        logs.inspect,
        "loopctl inspect run.jsonl.gz",
        "loopctl inspect ~/.claude/projects/*/*.jsonl --html report.html",
        "zcat runs.jsonl.gz | loopctl inspect - --format json --fail-on hard",
    ),
    "backtest": Verb(
        "recorded runs under other settings",
        "backtest:run_backtest",
        logs.backtest,
        "loopctl backtest runs.jsonl.gz --set rules.exact_repeat.soft=3",
        "loopctl backtest --session mapper --set rules.near_duplicate_text.soft=2 --format md",
    ),
    "completion": Verb(
        "print shell completion",
        "completion:print_script",
        sign.completion,
        "loopctl completion bash > ~/.local/share/bash-completion/completions/loopctl",
    ),
}

GROUPS = {
    "gate": "look at a gate, extend or remove holds",
    "goal": "set the goal and its status",
    "cron": "jobs that send messages on time",
    "inbox": "envelopes that wait",
}
DEFAULT_MEMBERS = {"gate": "get", "cron": "list", "inbox": "list"}
"""`loopctl inbox SID` is `loopctl inbox list SID`."""
