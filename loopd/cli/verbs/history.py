"""Verbs about what happened."""

from __future__ import annotations

from loopd.cli import logs
from loopd.cli import signatures as sign
from loopd.cli.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "tail": Verb(
        "the last events", "history:tail", sign.tail, "loopctl tail mapper -n 50", "loopctl tail mapper -f"
    ),
    "show": Verb(
        "one turn, and what the model saw",
        "history:show",
        sign.show,
        "loopctl show mapper@512",
        "loopctl show mapper@512 --prompt",
        "loopctl show mapper@512 --calls -o json",
        "loopctl show mapper --at 'yesterday 18:00'",
    ),
    "watch": Verb(
        "events as they happen",
        "watching:watch",
        sign.watch,
        "loopctl watch -k 'gate.*' -k 'degeneration.*'",
        "loopctl watch --cursor-file seen.json --reconnect -o ndjson",
        "loopctl watch --consumer warehouse --reconnect -o ndjson",
    ),
    "wait": Verb(
        "wait for a state",
        "history:wait",
        sign.wait,
        "loopctl wait mapper --until idle --timeout 10m",
        "loopctl wait mapper --until 'turn>12'",
    ),
    "verify": Verb(
        "prove that the journal is whole",
        "proving:verify",
        sign.verify,
        "loopctl verify",
        "loopctl verify mapper --suspended-since 918280",
        "loopctl verify --invariants",
        "loopctl verify --data /backup/loopd --anchors anchors.ndjson",
        "loopctl verify loopd-mapper.zip",
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
}
