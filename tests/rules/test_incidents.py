"""Agents that are stuck: each is told soon and stopped within 60 steps, whatever disguise it wears."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopd.core.judge import Judgement, LoggedStep
from tests.rules.agents import call, judged, log, read, sh

STEPS = 60
NONCES = random.Random(7)


def _hex(n: int = 32) -> str:
    return "".join(NONCES.choice("0123456789abcdef") for _ in range(n))


def _clock(n: int) -> str:
    return f"2026-01-01T10:{n // 60 % 60:02}:{n % 60:02}Z"


def _results(noise: str, text: str) -> Callable[[int], str]:
    return {
        "none": lambda n: text,
        "time": lambda n: f"{_clock(n)} {text}",
        "uuid": lambda n: f"{text} request {_hex(8)}-{_hex(4)}-{_hex(4)}-{_hex(4)}-{_hex(12)}",
        "hex": lambda n: f"{text} trace {_hex(32)}1",
        "duration": lambda n: f"{text} in {1 + n * 0.37:.2f}s",
        "attempt": lambda n: f"attempt {n}: {text}",
        "temporary": lambda n: f"{text} /tmp/run-{_hex(6)}/out.log",
    }[noise]


NOISES = ("none", "time", "uuid", "hex", "duration", "attempt", "temporary")
ONSETS = (0, 12, 70)


def _prefix(onset: int) -> list[Any]:
    return [read(f"pkg/part{n}.py", f"class Part{n}: pass  # {n}") for n in range(onset)]


def _identical(noise: str) -> Iterator[Any]:
    result = _results(noise, "src/app.py is unchanged; nothing to commit")
    return (call("vcs_summary", {"path": "."}, result(n)) for n in itertools.count())


def _long_identical(noise: str) -> Iterator[Any]:
    result = _results(noise, "a line of the same long output that says nothing new\n" * 40)
    return (sh("make lint", result(n)) for n in itertools.count())


def _cycle(period: int, noise: str) -> Iterator[Any]:
    result = _results(noise, "as before")
    return (
        call(f"tool_{n % period}", {"k": n % period}, f"{n % period} {result(n)}") for n in itertools.count()
    )


def _batch() -> Iterator[Any]:
    return ([sh("cat a.py", "x = 1"), sh("cat b.py", "y = 2")] for _ in itertools.count())


def _interleaved() -> Iterator[Any]:
    for n in itertools.count():
        yield sh("npm run build", "error TS2304: cannot find name 'foo'", ok=False)
        yield sh(f"ls dir{n % 9}", "")


def _same_answer() -> Iterator[Any]:
    return (
        call("search_docs", {"query": f"how to frobnicate {n}"}, "No matching documents were found.")
        for n in itertools.count()
    )


def _errors(vary: bool) -> Iterator[Any]:
    return (
        call(
            "edit_file",
            {"path": "a.py", "old": f"foo{n if vary else ''}"},
            "error: old text not found in file",
            ok=False,
        )
        for n in itertools.count()
    )


NOOPS = (
    "true",
    ":",
    "echo ok",
    "pwd",
    "date",
    "sleep 5",
    "exit 0",
    "printf ''",
    "echo waiting for the task",
    "a",
)


def _noops() -> Iterator[Any]:
    return (
        sh(NOOPS[n % len(NOOPS)], f"{n}" if NOOPS[n % len(NOOPS)] == "date" else "")
        for n in itertools.count()
    )


PARAPHRASES = (
    "The task is not complete yet and there is no action that I can take at this moment.",
    "At this moment there is no action that I can take and the task is not complete yet.",
    "There is no action I can take at this moment, and the task is not yet complete.",
    "The task is still not complete yet; at this moment there is no action that I can take.",
)


def _texts(kind: str) -> Iterator[Any]:
    for n in itertools.count():
        match kind:
            case "same":
                yield "16/100. Not complete. No action."
            case "counted":
                yield f"{n}/100. Not complete. No action."
            case "paraphrased":
                yield f"{PARAPHRASES[n % 4]} ({n})"
            case "unspaced":
                yield f"任务尚未完成 目前没有任何可以采取的行动 请等待 {n}"
            case "empty":
                yield ""


def _talk() -> Iterator[Any]:
    words = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "omicron",
        "pi",
        "rho",
    ]
    chance = random.Random(3)
    return (" ".join(chance.sample(words, 7)) + "." for _ in itertools.count())


def _ghost_tools() -> Iterator[Any]:
    return (
        call(f"magic_{n % 3}", {"n": n}, f"there is no tool 'magic_{n % 3}'", ok=False, error_class="schema")
        for n in itertools.count()
    )


def _flip_flop() -> Iterator[Any]:
    for n in itertools.count():
        side = "AB"[n % 2]
        yield {
            "calls": (call("edit_file", {"path": "a.py", "new": side}, "ok"),),
            "state_fingerprint": f"{side}" * 64,
        }


def _two_red_commands() -> Iterator[Any]:
    for n in itertools.count():
        yield sh(("npm test", "npm run lint")[n % 2], f"{n % 2} failed: expected 3, received 4", ok=False)


def _sweep() -> Iterator[Any]:
    return (read("log.txt", f"line {n % 20}", offset=(n % 20) * 100) for n in itertools.count())


def _plan_and_search() -> Iterator[Any]:
    for n in itertools.count():
        yield call("update_plan", {"step": n}, "plan updated")
        yield call("web_search", {"q": f"more about topic {n}"}, "the research is already good")


def _thrash() -> Iterator[Any]:
    for n in itertools.count():
        yield {"calls": (read(f"f{n % 4}.py", f"part {n % 4}"),), "compacted": n % 5 == 0}


INCIDENTS: dict[str, Callable[[], Iterator[Any]]] = {
    **{f"identical, {noise}": lambda noise=noise: _identical(noise) for noise in NOISES},
    **{f"identical and long, {noise}": lambda noise=noise: _long_identical(noise) for noise in NOISES},
    **{
        f"cycle of {period}, {noise}": lambda period=period, noise=noise: _cycle(period, noise)
        for period in range(2, 9)
        for noise in ("none", "time", "uuid")
    },
    "the same batch": _batch,
    "interleaved": _interleaved,
    "the same answer to other questions": _same_answer,
    "the same error": lambda: _errors(vary=False),
    "the same error with other arguments": lambda: _errors(vary=True),
    "no-ops": _noops,
    **{
        f"text, {kind}": lambda kind=kind: _texts(kind)
        for kind in ("same", "counted", "paraphrased", "unspaced", "empty")
    },
    "talk": _talk,
    "tools that do not exist": _ghost_tools,
    "edit and revert": _flip_flop,
    "two red commands": _two_red_commands,
    "planning and searching": _plan_and_search,
    "reading the same file again and again": _sweep,
    "compaction": _thrash,
}

EARLY = ("identical", "no-ops", "text", "tools that", "the same error")


def _judge(name: str, onset: int, triggers: str | None = None) -> Judgement:
    looping = list(itertools.islice(INCIDENTS[name](), STEPS))
    given = dict.fromkeys(range(onset + 1, onset + STEPS + 1), triggers) if triggers else None
    steps: list[LoggedStep] = log(*_prefix(onset), *looping, triggers=given)
    return judged(steps)


def _delay(judgement: Judgement, onset: int) -> int:
    assert judgement.first_soft is not None
    return judgement.first_soft - onset


@pytest.mark.parametrize("name", sorted(INCIDENTS))
@pytest.mark.parametrize("onset", ONSETS)
def test_is_told_and_stopped(name: str, onset: int) -> None:
    judgement = _judge(name, onset)
    assert judgement.first_soft is not None
    assert judgement.first_soft > onset, judgement.findings
    assert _delay(judgement, onset) <= (5 if name.startswith(EARLY) else 28), judgement.findings
    assert judgement.first_hard is not None, judgement.findings
    assert judgement.verdict in {"close", "terminate"}


@pytest.mark.parametrize("source", ["continuation", "rewake", "agent", "channel"])
@pytest.mark.parametrize("name", ["identical, time", "cycle of 3, none", "text, counted", "no-ops", "talk"])
def test_no_automatic_source_of_turns_hides_a_loop(name: str, source: str) -> None:
    judgement = _judge(name, 5, triggers=source)
    assert _delay(judgement, 5) <= 13
    assert judgement.first_hard is not None


def test_half_of_all_incidents_are_told_within_ten_steps_and_of_plain_ones_within_five() -> None:
    delays = {name: _delay(_judge(name, 12), 12) for name in INCIDENTS}
    plain = [delay for name, delay in delays.items() if name.startswith(("identical", "no-ops", "text"))]
    assert statistics.median(plain) <= 5, delays
    assert statistics.median(delays.values()) <= 10, delays


@pytest.mark.parametrize(
    "steps",
    [
        [sh(f"sleep {n}") for n in range(1, STEPS)],
        [{"calls": (call("edit_file", {"n": n}, "ok"),), "state_fingerprint": "a"} for n in range(STEPS)],
        [call("edit_file", {"old": f"x{n}"}, "Error: old text was not found", ok=True) for n in range(STEPS)],
        [
            call("think", {"thought": f"I should think about {n}"}, "Your thought has been logged.")
            for n in range(STEPS)
        ],
        [call("job_status", {}, "exited with code 1") for _ in range(STEPS)],
        [call("fetch", {"url": "/x"}, "connection refused", ok=False) for _ in range(STEPS)],
        [[sh("ls", "a b")] * 3] * STEPS,
    ],
    ids=[
        "growing sleeps",
        "edits that change nothing",
        "errors as successes",
        "thoughts",
        "dead task",
        "hammering",
        "twins",
    ],
)
def test_other_ways_of_getting_nowhere(steps: list[Any]) -> None:
    judgement = judged(log(*steps))
    assert judgement.first_soft is not None
    assert judgement.first_soft <= 10, judgement.findings
    assert judgement.first_hard is not None, judgement.findings
