"""Verbs about one session: make it, talk to it, hold it, end it."""

from __future__ import annotations

from loopd.cli import runs
from loopd.cli import signatures as sign
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "new": Verb(
        "create a session",
        "creation:new",
        sign.new,
        "loopctl new --driver scripted --script run.jsonl --name replay --goal 'finish the report'",
        "loopctl new --driver chat --base-url http://127.0.0.1:8080/v1 --model local --goal 'tidy the notes'",
        "loopctl new --driver acp --agent goose --workspace . --goal 'fix the failing test'",
        "loopctl new -f agent.toml --set rules.repeated_text.threshold=5",
    ),
    "send": Verb(
        "send a message",
        "sessions:send",
        sign.send,
        "loopctl send mapper 'look at chapter 3 first'",
        "git diff | loopctl send mapper -",
        "loopctl send -l team=web 'the freeze is over' --dry-run",
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
        "loopctl gate extend -l team=web --kind Degeneration --until 3h",
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
        "loopctl goal set -l team=web 'all tests pass' --dry-run",
    ),
    "goal pause": Verb(
        "no continuation until it is resumed",
        "sessions:goal_change",
        sign.goal_switch,
        "loopctl goal pause mapper",
        "loopctl goal pause -l team=web",
    ),
    "goal resume": Verb(
        "make the goal active again", "sessions:goal_change", sign.goal_switch, "loopctl goal resume mapper"
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
        "forget the goal", "sessions:goal_change", sign.goal_switch, "loopctl goal clear mapper"
    ),
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
        "loopctl resume -l team=web --dry-run",
    ),
}
