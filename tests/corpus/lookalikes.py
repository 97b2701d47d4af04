"""Look-alikes: agents that repeat themselves for a reason. Label `healthy`: none may ever be halted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec

from loopd_protocol.sources import Trigger
from tests.corpus import words
from tests.corpus.cases import Case, Move, call, do, driven, fresh, say, sh, taped
from tests.corpus.working import plainly

Telling = Callable[[random.Random], list[Move]]


class LookAlike(msgspec.Struct, frozen=True, kw_only=True):
    """One way of looking stuck.

    Attributes:
        family: named after the list "must never be halted".
        nudge_allowed: a nudge is in order.
        clock: whether the log has moments; None: either.
    """

    family: str
    variant: str
    telling: Telling
    nudge_allowed: bool = False
    clock: bool | None = None


LOOKALIKES: list[LookAlike] = []


def lookalike(family: str, variant: str = "plain", **more: Any) -> Callable[[Telling], Telling]:
    """Register one."""

    def register(telling: Telling) -> Telling:
        LOOKALIKES.append(LookAlike(family=family, variant=variant, telling=telling, **more))
        return telling

    return register


def each(family: str, tellings: dict[str, Telling], **more: Any) -> None:
    """Register several of a family."""
    for variant, telling in tellings.items():
        lookalike(family, variant, **more)(telling)


def _n(count: int, make: Callable[[int], Move]) -> Telling:
    return lambda rng: [make(n) for n in range(1, count + 1)]


def _failing(command: str, result: str) -> Move:
    return do(sh(command, result, ok=False, exit_code=1))


# --- waiting ------------------------------------------------------------------------------------------

each(
    "changing poll",
    {
        "a counter": _n(60, lambda n: do(call("get_job_status", {"id": 7}, f'{{"done": {n}, "of": 60}}'))),
        "an unknown tool": _n(60, lambda n: do(call("crm_sync", {"job": "J-1"}, f"{n * 40} of 2400 rows"))),
        "a shell": _n(60, lambda n: do(sh("wc -l out.csv", f"{n * 913} out.csv"))),
        "a training log": _n(60, lambda n: do(sh("tail -n 1 train.log", f"epoch {n} loss {9 / n:.4f}"))),
        "a remote queue": _n(
            60, lambda n: do(sh("curl -s http://ci.local/queue", f'{{"waiting": {200 - 3 * n}}}'))
        ),
        "changing every fourth time": _n(
            80, lambda n: do(call("get_build_status", {"id": 1}, f"stage {n // 4} of 20"))
        ),
        "a person's answer awaited": _n(
            40, lambda n: do(call("check_inbox", {}, f"{n // 9} new messages"), gap_s=300)
        ),
    },
)


@lookalike("changing poll", "a text that moves with it")
def _percent(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(1, 30):
        moves += [
            do(call("get_build_status", {"id": 1}, f"{3 * n} %"), trigger=Trigger.CONTINUATION),
            say(f"Build {3 * n} % done, waiting for the rest of it to finish."),
        ]
    return moves


each(
    "unchanged poll of a live task",
    {
        "a status tool": _n(
            60, lambda n: do(call("get_job_status", {"id": 7}, '{"state": "running"}'), gap_s=120)
        ),
        "a cluster": _n(
            60, lambda n: do(sh("kubectl get pods -n web", "web-1   0/1   Pending   0"), gap_s=60)
        ),
        "a batch queue": _n(60, lambda n: do(sh("squeue -u me", "JOBID ST\n 4711 PD"), gap_s=300)),
        "a build": _n(
            40, lambda n: do(sh("gh run view 881 --json status", '{"status":"in_progress"}'), gap_s=60)
        ),
        "a process": _n(40, lambda n: do(sh("ps -p 4711", "4711 ttys001 make release"), gap_s=60)),
        "a service": _n(40, lambda n: do(sh("curl -s localhost:8080/health", '{"ready": false}'), gap_s=30)),
        "a background shell": _n(
            40, lambda n: do(call("BashOutput", {"bash_id": "b1"}, "(no new output)"), gap_s=60)
        ),
        "wait for a task": _n(
            30, lambda n: do(call("wait_for_task", {"task": "t-9"}, "still running"), gap_s=600)
        ),
        "elapsed time moves": _n(
            40,
            lambda n: do(
                call(
                    "get_deploy_status",
                    {"id": 2},
                    f"deploying, elapsed {n} min, started 2026-01-01T00:00:00Z",
                ),
                gap_s=60,
            ),
        ),
        "a watched log": _n(
            40, lambda n: do(sh("tail -n 3 /var/log/app.log", "listening on 8080"), gap_s=60)
        ),
    },
)


_OTHER_POLLS: dict[str, Move] = {
    "a pipeline": do(call("get_pipeline", {"id": 1}, '{"status": "running"}')),
    "a workflow run": do(call("mcp__github__get_workflow_run", {"run_id": 81}, '{"status": "queued"}')),
    "camel case": do(call("getJob", {"id": 4}, "RUNNING")),
    "checks": do(call("check_ci", {"branch": "main"}, "still running")),
    "mail": do(call("check_email", {"folder": "in"}, "no new mail")),
    "messages": do(call("get_messages", {"channel": "ops"}, "[]")),
    "a process by action": do(call("process", {"action": "poll", "session": "s1"}, "")),
    "output of a shell": do(call("bash_output", {"id": "b1"}, "")),
    "a status file": do(sh("cat job.status", "RUNNING")),
    "a pod's log": do(sh("kubectl logs job/migrate --tail 3", "copied 0 rows")),
    "a cloud build": do(sh("gcloud builds list --limit 1", "4f2 WORKING")),
    "a resource": do(sh("curl -s http://api.local/v1/deployments/9", '{"status":"PENDING"}')),
    "a flag file": do(sh("test -f done.flag && echo yes || echo no", "no")),
    "a terminal": do(sh("tmux capture-pane -p -t main | tail -3", "running tests...")),
    "a record that says so": do(call("lookup_shipment", {"id": 8}, '{"state": "awaiting pickup"}')),
}
each(
    "unchanged poll of a live task",
    {
        name: _n(30, lambda n, move=move: msgspec.structs.replace(move, gap_s=60.0 if n % 5 else 5.0))
        for name, move in _OTHER_POLLS.items()
    },
)


@lookalike("unchanged poll of a live task", "with a report in each turn")
def _reporting(rng: random.Random) -> list[Move]:
    moves = []
    for _ in range(30):
        moves += [
            do(call("get_build_status", {"id": 1}, "still running"), trigger=Trigger.REWAKE, gap_s=120),
            say("The build is still running, I will look again later."),
        ]
    return moves


def _spaced(poll: Callable[[int], Move], sleep: Callable[[int], str]) -> Telling:
    return lambda rng: [move for n in range(1, 31) for move in (poll(n), do(sh(sleep(n)), gap_s=30))]


each(
    "poll and sleep",
    {
        "a build": _spaced(lambda n: do(sh("gh run view 881", "in progress")), lambda n: "sleep 30"),
        "a job": _spaced(
            lambda n: do(call("get_job_status", {"id": 7}, "running")), lambda n: f"sleep {10 + n}"
        ),
        "a log": _spaced(lambda n: do(sh("tail -n 2 build.log", "compiling unit 14")), lambda n: "sleep 60"),
        "in one command": _n(
            30, lambda n: do(sh("sleep 60 && tail -n 2 train.log", "epoch 3 running"), gap_s=62)
        ),
        "in one command, moving": _n(
            30, lambda n: do(sh("sleep 60; nvidia-smi | head -9", f"GPU 0 {60 + n % 30} %"), gap_s=62)
        ),
        "a tool that waits": _n(30, lambda n: do(call("wait", {"seconds": 60}, "waited"), gap_s=61)),
    },
)


@lookalike("long wait", "background task")
def _background(rng: random.Random) -> list[Move]:
    return [do(sh("nohup make release > out.log 2>&1 &", "[1] 4711"))] + [
        do(sh("sleep 300"), gap_s=301) for _ in range(30)
    ]


@lookalike("long wait", "background tool")
def _background_tool(rng: random.Random) -> list[Move]:
    started = do(call("bash", {"command": "make release", "run_in_background": True}, "started b1"))
    return [started] + [
        move
        for _ in range(20)
        for move in (do(sh("sleep 240"), gap_s=241), do(call("BashOutput", {"bash_id": "b1"}, "")))
    ]


each(
    "long wait",
    {
        "politely idle": lambda rng: driven(
            [
                do(
                    call(
                        "request_idle",
                        {"max_idle_duration_secs": 600, "reason": "waiting for review"},
                        "Idle for at most 600 s",
                    ),
                    gap_s=600,
                )
            ]
            * 30,
            Trigger.CONTINUATION,
        ),
        "its own timer": lambda rng: driven(
            [do(call("wake_me", {"after_s": 900}, "wake-up set"), gap_s=900)] * 24, Trigger.REWAKE
        ),
    },
)

# --- cron -----------------------------------------------------------------------------------------------


def _cron(call_: Move, text: str, count: int = 48) -> Telling:
    def telling(rng: random.Random) -> list[Move]:
        moves: list[Move] = []
        for _ in range(count):
            if call_.calls:
                moves += [msgspec.structs.replace(call_, trigger=Trigger.CRON, gap_s=1_800), say(text)]
            else:
                moves += [say(text, trigger=Trigger.CRON, gap_s=1_800)]
        return moves

    return telling


each(
    "cron without news",
    {
        "mail": _cron(do(call("search_mail", {"since": "yesterday"}, "no new mail")), "No change."),
        "a repository": _cron(
            do(sh("git fetch && git log HEAD..origin/main --oneline", "")), "Nothing new upstream."
        ),
        "a disk": _cron(
            do(sh("df -h / | tail -1", "/dev/sda1 40G 12G 28G 30% /")),
            "Disk usage is at 30 %, no action needed.",
        ),
        "only text": _cron(say(""), "No change since the last look, nothing to do."),
        "two calls": _cron(
            do(sh("systemctl is-active web", "active"), sh("systemctl is-active db", "active")),
            "All services are up.",
        ),
        "a failing check": _cron(
            do(sh("curl -fsS https://status.local", "curl: (22) 404", ok=False, exit_code=22)),
            "The page is still missing; reported.",
        ),
    },
    clock=True,
)

# --- work ---------------------------------------------------------------------------------------------


def _edit(n: int, rng: random.Random, **more: Any) -> Move:
    return do(
        call(
            "edit_file",
            {"path": "a.py", "old": words.name(rng), "new": words.name(rng)},
            "replaced 1 occurrence",
        ),
        **more,
    )


@lookalike("test and fix", "new failures")
def _test_and_fix(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(25):
        moves += [_edit(n, rng), _failing("npm test", f"{40 - n} failing: {words.name(rng)} expected {n}")]
    return moves


@lookalike("test and fix", "same failure, other edits, ten times")
def _stubborn(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(10):
        moves += [
            _edit(n, rng, state=f"try {n}"),
            do(sh("npm test", "1 failing: expected 3, received 4", ok=False, exit_code=1), state=f"try {n}"),
        ]
    return moves


@lookalike("test and fix", "new states fifty times")
def _fifty(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(50):
        moves += [
            _edit(n, rng, state=f"s{n}"),
            do(sh("pytest -q", f"{rng.randint(1, 3)} failed", ok=False, exit_code=1), state=f"s{n}"),
        ]
    return moves


@lookalike("test and fix", "compiler errors going down")
def _compiling(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(20):
        moves += [
            _edit(n, rng),
            _failing(
                "cargo build",
                f"error[E0{300 + n}]: {words.sentence(rng, 5)}\naborting due to {21 - n} errors",
            ),
        ]
    return moves


@lookalike("test and fix", "reading the file again after each edit")
def _rereading(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(20):
        moves += [_edit(n, rng), do(call("read_file", {"path": "a.py"}, words.source(rng)))]
    return moves


@lookalike("test and fix", "commit and status")
def _committing(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(15):
        moves += [
            _edit(n, rng),
            do(sh(f"git commit -qam '{words.sentence(rng, 4)}'", "")),
            do(sh("git status --short", "")),
            do(sh("git status", "On branch main\nnothing to commit, working tree clean")),
        ]
    return moves


@lookalike("test and fix", "green after each edit")
def _green(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(20):
        moves += [_edit(n, rng), do(sh("pytest -q", "12 passed"))]
    return moves


each(
    "pagination and chunks",
    {
        "pages": lambda rng: [do(call("list_items", {"page": n}, words.source(rng, 3))) for n in range(80)],
        "cursors": lambda rng: [
            do(call("list_events", {"cursor": words.hexes(rng, 24)}, words.source(rng, 3))) for n in range(60)
        ],
        "offsets": lambda rng: [
            do(call("read_file", {"path": "big.py", "offset": 100 * n, "limit": 100}, words.source(rng, 3)))
            for n in range(100)
        ],
        "sed": lambda rng: [
            do(sh(f"sed -n '{80 * n + 1},{80 * n + 80}p' big.py", words.source(rng, 3))) for n in range(60)
        ],
        "sql": lambda rng: [
            do(sh(f"psql -c 'select * from t limit 100 offset {100 * n}'", words.source(rng, 2)))
            for n in range(60)
        ],
        "two files at once": lambda rng: [
            do(
                *(
                    call("read_file", {"path": p, "offset": 50 * n}, words.source(rng, 2))
                    for p in ("a.md", "b.md")
                )
            )
            for n in range(40)
        ],
        "going back once": lambda rng: [
            do(call("read_file", {"path": "big.py", "offset": 100 * n}, f"line {100 * n}: {n}"))
            for n in (*range(30), *range(10, 16), *range(30, 40))
        ],
    },
)

each(
    "batch with a constant ack",
    {
        "convert": lambda rng: [
            do(call("convert_file", {"path": f"img_{n}.png"}, "converted 1 file")) for n in range(100)
        ],
        "edits": lambda rng: [
            do(call("edit_file", {"path": f"src/m{n}.py", "old": "x", "new": "y"}, "replaced 1 occurrence"))
            for n in range(100)
        ],
        "shell": lambda rng: [do(sh(f"python convert.py img_{n}.png", "done")) for n in range(60)],
        "silent": lambda rng: [do(sh(f"python -m py_compile {words.path(rng)}", "")) for n in range(60)],
        "linter": lambda rng: [
            do(sh(f"ruff check {words.path(rng)}", "All checks passed!")) for n in range(60)
        ],
        "cards": lambda rng: [
            do(call("create_card", {"title": words.sentence(rng, 5)}, "created")) for n in range(60)
        ],
        "rows": lambda rng: [
            do(call("insert_row", {"table": "t", "row": {"id": n, "v": words.name(rng)}}, '{"ok": true}'))
            for n in range(80)
        ],
        "five at a time": lambda rng: [
            do(*(call("upload", {"path": words.path(rng)}, "uploaded") for _ in range(5))) for n in range(20)
        ],
        "mail": lambda rng: [
            do(call("send_mail", {"to": f"{words.name(rng)}@example.org"}, "queued for delivery"))
            for n in range(50)
        ],
        "renames": lambda rng: [do(sh(f"git mv {words.path(rng)} {words.path(rng)}", "")) for n in range(50)],
    },
)

each(
    "silent command",
    {
        "tmux": lambda rng: [
            do(sh(f"tmux send-keys -t main '{words.sentence(rng, 4)}' Enter", "")) for n in range(40)
        ],
        "kubectl": lambda rng: [do(sh(f"kubectl apply -f {words.path(rng, 'yaml')}", "")) for n in range(40)],
        "mixed": lambda rng: [
            do(
                sh(
                    rng.choice(
                        (
                            f"mkdir -p {words.path(rng)}",
                            f"cp a {words.path(rng)}",
                            f"touch {words.path(rng)}",
                            f"rm {words.path(rng)}",
                        )
                    ),
                    "",
                )
            )
            for n in range(40)
        ],
        "assignments": lambda rng: [
            do(call("python", {"code": f"{words.name(rng)} = {rng.random()}"}, "")) for n in range(30)
        ],
    },
)


@lookalike("benchmark", "three times for noise")
def _bench(rng: random.Random) -> list[Move]:
    moves = [do(sh("cat bench.py", words.source(rng)))]
    for version in range(4):
        moves += [
            do(sh("python bench.py", f"median {12 - version}.{rng.randrange(10)} ms over 100 runs"))
            for _ in range(3)
        ]
        moves += [_edit(version, rng)]
    return [*moves, say("The fourth version is the fastest one; the median is stable.")]


@lookalike("benchmark", "alike once masked")
def _bench_masked(rng: random.Random) -> list[Move]:
    return [
        *(do(sh("hyperfine ./app", f"{rng.uniform(11, 13):.2f} ms")) for _ in range(3)),
        do(sh("hyperfine './app --fast'", f"{rng.uniform(8, 9):.2f} ms")),
        say("The fast path saves a third."),
    ]


@lookalike("benchmark", "a flaky test run for its rate")
def _flaky(rng: random.Random) -> list[Move]:
    return [
        do(
            sh(
                f"pytest -q --count 20 --seed {n}",
                f"{rng.randint(0, 4)} failed, {16 + n % 5} passed, seed {n}",
            )
        )
        for n in range(12)
    ]


@lookalike("benchmark", "a grid of parameters")
def _grid(rng: random.Random) -> list[Move]:
    return [
        do(sh(f"python train.py --lr {10**-e} --depth {d}", f"accuracy 0.{rng.randrange(10**6):06}"))
        for e in range(1, 6)
        for d in range(2, 9)
    ]


each(
    "long exploration",
    {
        "files": lambda rng: [
            do(call("read_file", {"path": words.path(rng)}, words.source(rng))) for _ in range(90)
        ],
        "shell": lambda rng: [
            do(sh(f"sed -n '1,80p' {words.path(rng)}", words.source(rng))) for _ in range(90)
        ],
        "grep": lambda rng: [
            do(call("grep", {"pattern": words.name(rng)}, f"{words.path(rng)}:{rng.randrange(900)}: hit"))
            for _ in range(90)
        ],
        "grep with misses": lambda rng: [
            do(
                call(
                    "grep",
                    {"pattern": words.name(rng)},
                    "" if rng.random() < 0.4 else f"{words.path(rng)}:{rng.randrange(900)}: hit",
                )
            )
            for _ in range(60)
        ],
        "web": lambda rng: [
            do(call("web_search", {"q": words.sentence(rng, 4)}, words.sentence(rng, 20))) for _ in range(60)
        ],
        "one tool only": lambda rng: [
            do(call("ask_database", {"sql": f"select {words.name(rng)} from t"}, f"{rng.random()}"))
            for _ in range(90)
        ],
    },
)


def _retries(what: Move, gaps: list[float]) -> Telling:
    return lambda rng: [msgspec.structs.replace(what, gap_s=gap) for gap in gaps] + plainly(6, rng)


each(
    "retries with growing gaps",
    {
        "429": _retries(
            _failing("curl -s https://api.example/v1/report", "HTTP 429 Too Many Requests"),
            [2.0**n for n in range(11)],
        ),
        "503": _retries(
            do(call("http_request", {"url": "/x"}, "503 Service Unavailable", ok=False)),
            [1.7**n for n in range(12)],
        ),
        "timeout": _retries(
            do(call("fetch", {"url": "/x"}, "request timed out", ok=False)), [5.0 * 2**n for n in range(8)]
        ),
        "overloaded": _retries(
            do(call("model", {"q": 1}, "overloaded_error: try again later", ok=False, error_class="infra")),
            [3.0 * 1.5**n for n in range(10)],
        ),
    },
    clock=True,
)


@lookalike("retries with growing gaps", "sleeps between")
def _sleeping(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(8):
        moves += [
            do(call("http_request", {"url": "/x"}, "503 Service Unavailable", ok=False)),
            do(sh(f"sleep {2**n}"), gap_s=2**n),
        ]
    return [*moves, *plainly(4, rng)]


each(
    "double check",
    {
        "tests": lambda rng: [
            *plainly(5, rng),
            *[do(sh("pytest -q", "12 passed"))] * 2,
            say("All 12 tests pass."),
        ],
        "a file": lambda rng: [
            *plainly(5, rng),
            *[do(call("read_file", {"path": "a.py"}, "x = 1"))] * 2,
            *plainly(5, rng),
        ],
        "now and then": lambda rng: [
            move
            for _ in range(8)
            for move in (*plainly(6, rng), do(sh("git diff --stat", " a.py | 2 +-")), _edit(0, rng))
        ],
        "two checks by turns": lambda rng: [
            *[do(sh("pytest -q", "12 passed")), do(sh("ruff check", "All checks passed!"))] * 2,
            say("Both are clean."),
        ],
    },
)


@lookalike("repeated prefixes", "a list")
def _list(rng: random.Random) -> list[Move]:
    return [
        *plainly(4, rng),
        say("\n".join(f"- [x] Check the {words.name(rng)} module: ok" for _ in range(80))),
    ]


@lookalike("repeated prefixes", "a table")
def _table(rng: random.Random) -> list[Move]:
    rows = "\n".join(f"| {words.name(rng)} | pass | {rng.randrange(900)} ms |" for _ in range(80))
    return [*plainly(4, rng), say(f"| test | result | time |\n|---|---|---|\n{rows}")]


@lookalike("repeated prefixes", "code")
def _code(rng: random.Random) -> list[Move]:
    body = "\n".join(
        f"    self.assertEqual(load('{words.name(rng)}'), {rng.randrange(99)})" for _ in range(80)
    )
    return [*plainly(4, rng), say(f"```python\ndef test_all(self):\n{body}\n```"), *plainly(4, rng)]


@lookalike("repeated prefixes", "progress lines before real work")
def _lines(rng: random.Random) -> list[Move]:
    return [
        msgspec.structs.replace(move, text=f"Step {n} of 60: now I will do the next item of the plan.")
        for n, move in enumerate(plainly(60, rng))
    ]


each(
    "a board that others change",
    {
        "every time": lambda rng: [
            do(call("list_cards", {"board": "b"}, f"{words.name(rng)} moved to done"), gap_s=60)
            for _ in range(50)
        ],
        "now and then": lambda rng: [
            do(call("list_cards", {"board": "b"}, f"{20 + n // 2} cards, last by bot {n // 2}"), gap_s=60)
            for n in range(60)
        ],
        "with an answer": lambda rng: [
            move
            for n in range(25)
            for move in (
                do(
                    call("list_messages", {"channel": "ops"}, f"{words.name(rng)}: {words.sentence(rng)}"),
                    trigger=Trigger.CHANNEL,
                ),
                do(call("post_message", {"channel": "ops", "text": words.sentence(rng)}, "posted")),
            )
        ],
    },
)

each(
    "a person asks again",
    {
        "same answer": lambda rng: driven(
            [say("The capital of France is Paris, as I said.")] * 20, Trigger.HUMAN
        ),
        "same call": lambda rng: driven([do(sh("cat VERSION", "1.4.2"))] * 20, Trigger.HUMAN),
        "call and answer": lambda rng: driven(
            [do(sh("cat VERSION", "1.4.2")), say("It is version 1.4.2.")] * 12, Trigger.HUMAN, 2
        ),
        "small talk": lambda rng: driven([say(words.sentence(rng, 8)) for _ in range(30)], Trigger.HUMAN),
    },
)


@lookalike("error burst of four", "same error, other arguments", nudge_allowed=True)
def _burst(rng: random.Random) -> list[Move]:
    return [
        *plainly(5, rng),
        *(
            do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": words.name(rng)},
                    "error: old text not found",
                    ok=False,
                )
            )
            for _ in range(4)
        ),
        do(call("read_file", {"path": "a.py"}, words.source(rng))),
        *plainly(8, rng),
    ]


@lookalike("error burst of four", "other errors")
def _burst_of_others(rng: random.Random) -> list[Move]:
    return [
        *plainly(5, rng),
        *(_failing(f"make {words.name(rng)}", f"no rule: {words.name(rng)}") for _ in range(4)),
        *plainly(8, rng),
    ]


@lookalike("error burst of four", "several bursts", nudge_allowed=True)
def _bursts(rng: random.Random) -> list[Move]:
    return [move for _ in range(4) for move in _burst(rng)]


@lookalike("work", "plain")
def _work(rng: random.Random) -> list[Move]:
    return plainly(120, rng)


@lookalike("work", "turn by turn")
def _turns(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(30):
        chapter = do(
            call("write_file", {"path": f"ch{n}.md", "content": words.sentence(rng, 30)}, "ok"),
            trigger=Trigger.CONTINUATION,
        )
        moves += [chapter, say(f"Chapter {n} is written, going on with the next one.")]
    return moves


@lookalike("work", "a plan kept up to date")
def _planned(rng: random.Random) -> list[Move]:
    moves = []
    for n in range(20):
        moves += [do(call("update_plan", {"done": n}, "plan updated")), *plainly(3, rng)]
    return moves


@lookalike("work", "research and notes")
def _research(rng: random.Random) -> list[Move]:
    moves = []
    for _ in range(30):
        moves += [
            do(call("web_search", {"q": words.sentence(rng, 4)}, words.sentence(rng, 20))),
            do(call("append_file", {"path": "notes.md", "text": words.sentence(rng, 20)}, "appended")),
        ]
    return moves


@lookalike("work", "compacted now and then")
def _compacted(rng: random.Random) -> list[Move]:
    return [msgspec.structs.replace(move, compacted=n % 20 == 19) for n, move in enumerate(plainly(120, rng))]


@lookalike("work", "undone once")
def _undone(rng: random.Random) -> list[Move]:
    there = _edit(0, rng, state="b")
    back = do(
        call("edit_file", {"path": "a.py", "old": "new", "new": "old"}, "replaced 1 occurrence"), state="a"
    )
    return [
        *plainly(4, rng),
        there,
        _failing("pytest -q", "1 failed"),
        back,
        do(sh("pytest -q", "12 passed"), state="a"),
        *plainly(8, rng),
    ]


def told(telling: LookAlike, seed: int, *, after: int = 0, clock: bool = True) -> Case:
    """One look-alike as a case.

    Args:
        telling: which.
        seed: of everything random.
        after: so many steps of plain work before it.
        clock: whether the log has moments, if it may be without.
    """
    variant = f"{telling.variant}, after {after}"
    identity = f"healthy/{telling.family}/{variant}/{seed}".replace(" ", "-")
    rng = fresh(seed, identity)
    moves = [*plainly(after, rng), *telling.telling(rng)]
    return Case(
        id=identity,
        family=telling.family,
        variant=variant,
        label="healthy",
        onset=None,
        steps=taped(moves, clock=clock if telling.clock is None else telling.clock),
        nudge_allowed=telling.nudge_allowed,
    )


def lookalikes(seed: int = 1, *, rounds: int = 1) -> list[Case]:
    """Each look-alike from the start, and later; with a clock and without."""
    afters = (0, 25, 0, 110)
    return [
        told(telling, seed + at, after=afters[at % 4], clock=at % 2 == 0)
        for telling, at in itertools.product(LOOKALIKES, range(4 * rounds))
    ]
