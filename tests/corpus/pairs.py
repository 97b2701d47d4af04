"""Pairs: two logs that differ by one thing, and that thing flips the verdict."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from loopd_protocol.sources import Trigger
from tests.corpus import words
from tests.corpus.cases import Case, Move, call, do, driven, fresh, say, sh, taped
from tests.corpus.working import plainly

Half = Callable[[random.Random], list[Move]]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A loop and its healthy twin; `thing` is what differs."""

    name: str
    thing: str
    stuck: Half
    healthy: Half
    clock: bool = True


COUNT = 24
PAIRS: list[Pair] = []


def pair(name: str, thing: str, stuck: Half, healthy: Half, *, clock: bool = True) -> None:
    """Register a pair."""
    PAIRS.append(Pair(name=name, thing=thing, stuck=stuck, healthy=healthy, clock=clock))


def _n(make: Callable[[int, random.Random], Move], count: int = COUNT) -> Half:
    return lambda rng: [make(n, rng) for n in range(1, count + 1)]


def _two(make: Callable[[int, random.Random], tuple[Move, ...]], count: int = COUNT // 2) -> Half:
    return lambda rng: [move for n in range(1, count + 1) for move in make(n, rng)]


def _look(result: str, **more: object) -> Move:
    return do(call("crm_count", {"table": "leads"}, result), **more)


pair(
    "the same call",
    "its result moves",
    _n(lambda n, _: _look("412 rows")),
    _n(lambda n, _: _look(f"{412 + n} rows")),
)
pair(
    "a number in the result",
    "a counter, not a process number",
    _n(lambda n, _: _look(f"worker (pid {4_000 + 7 * n}) knows 412 rows")),
    _n(lambda n, _: _look(f"worker (pid 4000) knows {412 + 7 * n} rows")),
)
pair(
    "a moment in the result",
    "the value beside it moves as well",
    _n(lambda n, _: _look(f"{words.moment(n)} level 3")),
    _n(lambda n, _: _look(f"{words.moment(n)} level {3 + n}")),
)
pair(
    "a command that does nothing",
    "it does something",
    _n(lambda n, _: do(sh("true", ""))),
    _n(lambda n, _: do(sh(f"touch marks/{n}", ""))),
)
pair(
    "the same words",
    "something was done before saying them",
    _n(lambda n, _: say("I am working on the next item of the list now.", trigger=Trigger.CONTINUATION)),
    _two(
        lambda n, rng: (
            do(
                call("write_file", {"path": f"item{n}.md", "content": words.sentence(rng)}, "ok"),
                trigger=Trigger.CONTINUATION,
            ),
            say("I am working on the next item of the list now."),
        )
    ),
)
pair(
    "the same question",
    "a person asks it",
    lambda rng: driven([say("The report is ready in the shared folder.")] * COUNT, Trigger.REWAKE),
    lambda rng: driven([say("The report is ready in the shared folder.")] * COUNT, Trigger.HUMAN),
)
pair(
    "no news",
    "cron asks, not the agent's own loop",
    lambda rng: driven([say("No change since the last look.", gap_s=1_800)] * COUNT, Trigger.CONTINUATION),
    lambda rng: driven([say("No change since the last look.", gap_s=1_800)] * COUNT, Trigger.CRON),
)
pair(
    "two calls by turns",
    "they are answered differently each time",
    _two(lambda n, _: (do(call("list_users", {}, "ada, bob")), do(call("count_open", {}, "7 open")))),
    _two(
        lambda n, _: (
            do(call("list_users", {}, f"ada, bob, guest{n}")),
            do(call("count_open", {}, f"{70 - n} open")),
        )
    ),
)
pair(
    "edit and test",
    "each edit is a new one",
    _two(
        lambda n, _: (
            do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": "x = " + "12"[n % 2], "new": "x = " + "21"[n % 2]},
                    "replaced 1 occurrence",
                )
            ),
            do(sh("pytest -q", "1 failed: test_x", ok=False, exit_code=1)),
        )
    ),
    _two(
        lambda n, rng: (
            do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": words.name(rng), "new": words.name(rng)},
                    "replaced 1 occurrence",
                )
            ),
            do(sh("pytest -q", f"1 failed: test_{n}", ok=False, exit_code=1)),
        )
    ),
)
pair(
    "edits",
    "the state is new after each",
    _n(lambda n, rng: do(call("edit_file", {"path": "a.py", "new": "ab"[n % 2]}, "ok"), state="ab"[n % 2])),
    _n(lambda n, rng: do(call("edit_file", {"path": "a.py", "new": f"a{n}"}, "ok"), state=f"a{n}")),
)
pair(
    "a failing test",
    "a change before each run, and fewer failures",
    _n(lambda n, _: do(sh("npm test", "9 failing: expected 3, received 4", ok=False, exit_code=1))),
    _two(
        lambda n, rng: (
            do(call("edit_file", {"path": "a.js", "old": words.name(rng), "new": words.name(rng)}, "ok")),
            do(sh("npm test", f"{30 - n} failing: expected 3, received 4", ok=False, exit_code=1)),
        )
    ),
)
pair(
    "a poll",
    "what is polled still runs",
    _n(lambda n, _: do(call("get_job_status", {"id": 7}, "exited with code 1"), gap_s=120)),
    _n(lambda n, _: do(call("get_job_status", {"id": 7}, "running"), gap_s=120)),
)
pair(
    "a failing request",
    "the service is overloaded and the gaps grow",
    lambda rng: (
        [do(call("http_request", {"url": "/x"}, "400 Bad Request: missing field 'name'", ok=False), gap_s=3)]
        * 12
    ),
    lambda rng: [
        do(call("http_request", {"url": "/x"}, "429 Too Many Requests", ok=False), gap_s=3 * 1.6**n)
        for n in range(12)
    ],
)
pair(
    "pages",
    "they are not the ones that were read before",
    _n(lambda n, _: do(call("list_items", {"page": n % 8}, f"items of page {n % 8}")), 32),
    _n(lambda n, _: do(call("list_items", {"page": n}, f"items of page {n}")), 32),
)
pair(
    "sleeping",
    "a task runs in the background",
    lambda rng: [do(sh("make release", "done")), *[do(sh("sleep 60", ""), gap_s=61)] * 12],
    lambda rng: [
        do(sh("nohup make release > out.log &", "[1] 4711")),
        *[do(sh("sleep 60", ""), gap_s=61)] * 12,
    ],
)
pair(
    "unknown tools",
    "the tools exist",
    _n(
        lambda n, rng: do(
            call("magic_fix", {"n": n}, f"there is no tool 'magic_fix' ({n})", ok=False, error_class="schema")
        )
    ),
    _n(lambda n, rng: do(call("magic_fix", {"n": n}, f"fixed {words.name(rng)}"))),
)
pair(
    "the same answer to other arguments",
    "the calls change something",
    _n(lambda n, rng: do(call("search_docs", {"query": words.sentence(rng, 4)}, "nothing was found for it"))),
    _n(
        lambda n, rng: do(
            call("edit_file", {"path": words.path(rng), "old": "a", "new": "b"}, "replaced 1 occurrence")
        )
    ),
)
pair(
    "a call between others",
    "something was written in between",
    _two(
        lambda n, rng: (
            do(sh("npm run build", "error TS2304: cannot find 'foo'", ok=False, exit_code=2)),
            do(sh(f"ls {words.path(rng)}", "")),
        )
    ),
    _two(
        lambda n, rng: (
            do(sh("npm run build", f"error TS2304: cannot find '{words.name(rng)}'", ok=False, exit_code=2)),
            do(call("write_file", {"path": words.path(rng), "content": words.source(rng, 2)}, "ok")),
        )
    ),
)
pair(
    "compactions",
    "there is work between them",
    lambda rng: [
        msgspec.structs.replace(move, compacted=n % 2 == 0) for n, move in enumerate(plainly(24, rng))
    ],
    lambda rng: [
        msgspec.structs.replace(move, compacted=n % 8 == 0) for n, move in enumerate(plainly(48, rng))
    ],
)
pair(
    "saying nothing",
    "the model's endpoint gave nothing",
    _n(lambda n, _: say("", tokens=30)),
    _n(lambda n, _: say("", tokens=0)),
)
pair(
    "planning and searching",
    "the search finds something new",
    _two(
        lambda n, rng: (
            do(call("update_plan", {"n": n}, "plan updated")),
            do(call("web_search", {"q": words.sentence(rng, 4)}, "the research is good already")),
        )
    ),
    _two(
        lambda n, rng: (
            do(call("update_plan", {"n": n}, "plan updated")),
            do(call("web_search", {"q": words.sentence(rng, 4)}, words.sentence(rng, 15))),
        )
    ),
)
pair(
    "a check",
    "it is made twice, not for ever",
    lambda rng: [*plainly(6, rng), *[do(sh("pytest -q", "12 passed"))] * 12],
    lambda rng: [*plainly(6, rng), *[do(sh("pytest -q", "12 passed"))] * 2, *plainly(10, rng)],
)
pair(
    "a comment behind the command",
    "it is another command, not another comment",
    _n(lambda n, _: do(sh(f"cat app.cfg  # look {n}", "key = 1"))),
    _n(lambda n, _: do(sh(f"cat app{n}.cfg", f"key = {n}"))),
)
pair(
    "a volatile argument",
    "the page counts, the request's number does not",
    _n(lambda n, rng: do(call("list_items", {"page": 1, "request_id": words.uuid(rng)}, "items 1 to 20"))),
    _n(
        lambda n, rng: do(
            call("list_items", {"page": n, "request_id": "r"}, f"items {20 * n} to {20 * n + 19}")
        )
    ),
)
pair(
    "missing results",
    "nothing is known about them",
    _n(lambda n, _: do(call("ledger", {"day": 1}, "balance 0"))),
    _n(lambda n, _: do(call("ledger", {"day": n}, None, ok=None))),
)


def pairs(seed: int = 1) -> list[Case]:
    """Both halves of each pair, after a little work; the stuck half first."""
    cases: list[Case] = []
    for each in PAIRS:
        for label, half in (("stuck", each.stuck), ("healthy", each.healthy)):
            # both halves begin with the same work
            before = plainly(9, fresh(seed, each.name))
            moves = [*before, *half(fresh(seed, each.name, "half"))]
            cases.append(
                Case(
                    id=f"pair/{each.name}/{label}/{seed}".replace(" ", "-"),
                    family="pair",
                    variant=each.name if label == "stuck" else f"{each.name}, but {each.thing}",
                    label=label,  # type: ignore[arg-type]
                    onset=len(before) + 1 if label == "stuck" else None,
                    steps=taped(moves, clock=each.clock),
                    pair=each.name,
                )
            )
    return cases
