"""Agents that look stuck and are not: none of these is ever halted, and hardly any is nudged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loopd.core.judge import Judgement, LoggedStep
from tests.rules.agents import call, judged, log, read, sh

Agent = Callable[[], list[LoggedStep]]

AGENTS: dict[str, Agent] = {}
NUDGED = frozenset({"an error burst of four that ends by itself"})


def agent(name: str) -> Callable[[Agent], Agent]:
    def known(make: Agent) -> Agent:
        AGENTS[name] = make
        return make

    return known


@agent("changing polls")
def _() -> list[LoggedStep]:
    return log(*(call("get_job_status", {"id": 7}, f'{{"done": {n}, "of": 60}}') for n in range(60)))


@agent("unchanged polls of a live task")
def _() -> list[LoggedStep]:
    return log(
        *(call("get_job_status", {"id": 7}, '{"state": "running"}') for _ in range(60)), gap_ms=120_000
    )


@agent("unchanged polls through a shell")
def _() -> list[LoggedStep]:
    return log(*(sh("kubectl get pods -n web", "web-1 0/1 Pending") for _ in range(60)), gap_ms=120_000)


@agent("poll and sleep as a spacer")
def _() -> list[LoggedStep]:
    both = [sh("sleep 30"), sh("gh run view 881", "in progress")]
    return log(*(both[n % 2] for n in range(60)))


@agent("poll behind a sleep in one command")
def _() -> list[LoggedStep]:
    return log(*(sh("sleep 60 && tail -n 2 train.log", "epoch 3 running") for _ in range(40)))


@agent("a poll, and a text that says so, in each turn")
def _() -> list[LoggedStep]:
    pairs = [call("get_build_status", {"id": 1}, "still running"), "The build is still running."]
    steps = [pairs[n % 2] for n in range(60)]
    return log(*steps, triggers=dict.fromkeys(range(1, 61, 2), "rewake"))


@agent("a build whose percentage moves while the text stays")
def _() -> list[LoggedStep]:
    steps: list[object] = []
    for n in range(30):
        steps += [call("get_build_status", {"id": 1}, f"{3 * n} %"), f"Build {3 * n} % done, waiting."]
    return log(*steps, triggers=dict.fromkeys(range(1, 61, 2), "continuation"))


@agent("cron without news 48 times")
def _() -> list[LoggedStep]:
    steps: list[object] = []
    for _ in range(48):
        steps += [call("search_mail", {"since": "yesterday"}, "no new mail"), "No change."]
    return log(*steps, triggers=dict.fromkeys(range(1, 97, 2), "cron"))


@agent("cron that only speaks 48 times")
def _() -> list[LoggedStep]:
    return log(
        *("No change since the last look, nothing to do." for _ in range(48)),
        triggers=dict.fromkeys(range(1, 49), "cron"),
    )


@agent("test and fix with new failures")
def _() -> list[LoggedStep]:
    return log(
        *(
            sh("npm test", f"{40 - n} failed: test_case_{n} expected {n}", ok=False)
            if n % 2
            else call("edit_file", {"path": "a.py", "new": f"x = {n}"}, "ok")
            for n in range(40)
        )
    )


@agent("test and fix with the same failure, but an edit between")
def _() -> list[LoggedStep]:
    both: list[object] = []
    for n in range(10):
        both += [
            sh("npm test", "1 failed: expected 3, received 4", ok=False),
            call("edit_file", {"path": "a.py", "new": f"v{n}"}, "ok"),
        ]
    return log(*both)


@agent("pagination")
def _() -> list[LoggedStep]:
    return log(*(call("list_items", {"page": n}, f"items {n * 20} to {n * 20 + 19}") for n in range(80)))


@agent("chunked reads of a long file")
def _() -> list[LoggedStep]:
    return log(*(read("big.py", f"line {n * 100}: def f{n}", offset=n * 100, limit=100) for n in range(100)))


@agent("a batch over many files with a constant acknowledgement")
def _() -> list[LoggedStep]:
    return log(*(call("convert_file", {"path": f"img_{n}.png"}, "converted 1 file") for n in range(100)))


@agent("a batch of edits with a constant acknowledgement")
def _() -> list[LoggedStep]:
    return log(
        *(
            call("edit_file", {"path": f"src/m{n}.py", "new": "x"}, "replaced 1 occurrence")
            for n in range(100)
        )
    )


@agent("silent commands with new arguments")
def _() -> list[LoggedStep]:
    silent = [sh(f"tmux send-keys -t main 'line {n}' Enter") for n in range(30)]
    return log(*silent, *(sh(f"kubectl apply -f m{n}.yaml") for n in range(30)))


@agent("a benchmark repeated for noise")
def _() -> list[LoggedStep]:
    return log(
        sh("cat bench.py", "def bench(): ..."),
        *(sh("python bench.py", f"median 12.{n} ms over 100 runs") for n in range(3)),
        sh("python bench.py --fast", "median 9.1 ms over 10 runs"),
        "The median is stable at 12 ms; the fast path takes 9 ms.",
    )


@agent("a long opening exploration")
def _() -> list[LoggedStep]:
    return log(*(sh(f"sed -n '1,80p' pkg/file{n}.py", f"class C{n}: ...") for n in range(80)))


@agent("retries of an overloaded service with growing gaps")
def _() -> list[LoggedStep]:
    at, steps = 1_767_225_600_000, []
    for n in range(12):
        at += 1_000 * 2**n
        steps.append(
            {"calls": (sh("curl -s api.example/v1/report", "429 Too Many Requests", ok=False),), "at_ms": at}
        )
    return log(*steps)


@agent("retries with growing sleeps, no clock")
def _() -> list[LoggedStep]:
    steps: list[object] = []
    for n in range(8):
        steps += [
            call("http_request", {"url": "/x"}, "503 Service Unavailable", ok=False),
            sh(f"sleep {2**n}"),
        ]
    return log(*steps)


@agent("one double check")
def _() -> list[LoggedStep]:
    return log(sh("pytest -q", "12 passed"), sh("pytest -q", "12 passed"), "All 12 tests pass.")


@agent("the same tool name many times")
def _() -> list[LoggedStep]:
    return log(*(call("grep", {"pattern": f"word{n}"}, f"a.py:{n}: word{n}") for n in range(100)))


@agent("long waits while a task in the background lives")
def _() -> list[LoggedStep]:
    return log(
        sh("nohup make release > out.log &", "[1] 4711"),
        *(sh("sleep 300") for _ in range(30)),
        gap_ms=300_000,
    )


@agent("a board polled while others change it")
def _() -> list[LoggedStep]:
    return log(
        *(call("list_cards", {"board": "b"}, f"{20 + n // 2} cards, last by bot {n}") for n in range(60))
    )


@agent("a person who asks the same thing again")
def _() -> list[LoggedStep]:
    return log(
        *("The capital of France is Paris, as I said." for _ in range(20)),
        triggers=dict.fromkeys(range(1, 21), "human"),
    )


@agent("a person who has the same call made again and again")
def _() -> list[LoggedStep]:
    return log(
        *(sh("date -u +%F", "2026-01-01") for _ in range(20)), triggers=dict.fromkeys(range(1, 21), "human")
    )


@agent("an error burst of four that ends by itself")
def _() -> list[LoggedStep]:
    return log(
        *(
            call("edit_file", {"path": "a.py", "old": f"x{n}"}, "error: old text not found", ok=False)
            for n in range(4)
        ),
        read("a.py", "def f(): return 1"),
        call("edit_file", {"path": "a.py", "old": "def f"}, "replaced 1 occurrence"),
        sh("pytest -q", "3 passed"),
    )


@agent("a goal that is worked on turn by turn")
def _() -> list[LoggedStep]:
    steps: list[object] = []
    for n in range(30):
        steps += [
            call("edit_file", {"path": f"ch{n}.md", "content": f"text {n}"}, "ok"),
            f"Chapter {n} is written, going on.",
        ]
    return log(*steps, triggers=dict.fromkeys(range(1, 61, 2), "continuation"))


@agent("fifty edit and test cycles with new states")
def _() -> list[LoggedStep]:
    steps: list[object] = []
    for n in range(50):
        steps += [
            {"calls": (call("edit_file", {"path": "a.py"}, "ok"),), "state_fingerprint": f"{n:064x}"},
            {"calls": (sh("pytest -q", "1 failed", ok=False),), "state_fingerprint": f"{n:064x}"},
        ]
    return log(*steps)


@agent("an agent that politely asks to idle, again and again")
def _() -> list[LoggedStep]:
    return log(
        *(
            call(
                "request_idle",
                {"max_idle_duration_secs": 600, "reason": "waiting for review"},
                "Idle for at most 600 s",
            )
            for _ in range(30)
        ),
        triggers=dict.fromkeys(range(1, 31), "continuation"),
    )


def _shown(judgement: Judgement) -> str:
    return "\n".join(f"{f.step} {f.rule} {f.level} {f.verdict} {f.evidence}" for f in judgement.findings)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_is_never_halted(name: str) -> None:
    judgement = judged(AGENTS[name]())
    assert judgement.first_hard is None, _shown(judgement)
    assert judgement.verdict in ({"ok", "nudge"} if name in NUDGED else {"ok"}), _shown(judgement)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_is_never_halted_with_a_person_there(name: str) -> None:
    assert judged(AGENTS[name](), attended=True).first_hard is None


@pytest.mark.parametrize(
    "steps",
    [
        [{"text": "", "calls": ()}] * 60,
        [sh("hyperfine ./a", f"Time (mean): 12.{n} ms") for n in range(6)],
        [call("get_board", {}, f"3 completed, 2 running, {'.' * (n % 2)}") for n in range(60)],
        [call("build_status", {}, "step 1 completed, step 2 in progress") for _ in range(60)],
        [call("list_jobs", {}, "job 1 running") for _ in range(60)],
        [call("look", {"n": 1}, None) for _ in range(60)],
        [
            part
            for n in range(15)
            for part in (
                sh("pytest", "1 failed", ok=False),
                sh(f"python - <<E\nopen('a', 'w').write('{n}')\nE", "ok"),
            )
        ],
    ],
    ids=["model errors", "benchmark", "board", "half a build", "jobs", "no results", "edits by programs"],
)
def test_what_says_nothing_about_the_agent_is_not_judged(steps: list[object]) -> None:
    bare = [LoggedStep(n=step.n, text=step.text, calls=step.calls) for step in log(*steps)]
    judgement = judged(bare)
    assert judgement.verdict == "ok", _shown(judgement)
