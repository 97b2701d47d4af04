"""Incidents: every way of going in circles, as endless stories. Label `stuck`."""
# ruff: noqa: RUF001 - Chinese is written with its own commas

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loopd_protocol.sources import Trigger
from tests.corpus import words
from tests.corpus.cases import (
    LOOP_STEPS,
    Case,
    Making,
    Move,
    Story,
    call,
    do,
    driven,
    first,
    fresh,
    say,
    sh,
    taped,
)
from tests.corpus.disguises import DISGUISES, LIGHT, OF_CALLS, OF_RESULTS, OF_TEXT
from tests.corpus.working import plainly

ONSETS = (3, 14, 47, 200)
"""Number of the first step of the loop."""
DRIVES: tuple[tuple[str, Trigger | None, int], ...] = (
    ("one turn", None, 1),
    ("continued", Trigger.CONTINUATION, 1),
    ("rewoken", Trigger.REWAKE, 1),
    ("by agents", Trigger.AGENT, 1),
    ("by a channel", Trigger.CHANNEL, 1),
    ("continued every 4 steps", Trigger.CONTINUATION, 4),
)


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """One way of telling an incident.

    Attributes:
        disguises: names of those that leave it the same incident.
        drives: what may begin its turns; None: anything.
        opening: moves that belong to the incident but come before its onset.
        clock: whether the log has moments; None: either.
    """

    family: str
    variant: str
    making: Making
    disguises: tuple[str, ...] = ("plain",)
    drives: tuple[str, ...] | None = None
    opening: Callable[[random.Random], list[Move]] | None = None
    clock: bool | None = None


TELLINGS: list[Telling] = []


def incident(family: str, variant: str = "", **more: Any) -> Callable[[Making], Making]:
    """Register a story."""

    def register(making: Making) -> Making:
        TELLINGS.append(Telling(family=family, variant=variant or "plain", making=making, **more))
        return making

    return register


def each(family: str, stories: dict[str, Making], **more: Any) -> None:
    """Register several stories of a family."""
    for variant, making in stories.items():
        incident(family, variant, **more)(making)


def _repeated(move: Move) -> Making:
    return lambda rng: itertools.repeat(move)


def _counted(make: Callable[[int], Move]) -> Making:
    return lambda rng: (make(n) for n in itertools.count(1))


def _around(moves: Sequence[Move]) -> Making:
    return lambda rng: itertools.cycle(moves)


# --- texts -------------------------------------------------------------------------------------------

SHORT = "16/100. Not complete. No action."
LONG = (
    "I have reviewed the current state of the task once more. The migration is not complete yet and several of the "
    "remaining items depend on input that has not arrived. There is nothing further that I can do at this point, so I "
    "will wait for the next instruction and continue to monitor the situation."
)
CHINESE = "任务尚未完成，目前没有任何可以采取的行动，我会继续等待下一步的指示。"
JAPANESE = "タスクはまだ完了していません。現時点で実行できる操作はないため、引き続き待機します。"

each(
    "identical text",
    {
        "short": _repeated(say(SHORT)),
        "long": _repeated(say(LONG)),
        "one word": _repeated(say("Waiting.")),
        "an emoji": _repeated(say("👍")),
        "Chinese": _repeated(say(CHINESE)),
        "Japanese": _repeated(say(JAPANESE)),
        "a table": _repeated(
            say("| item | state |\n|---|---|\n" + "\n".join(f"| {w} | open |" for w in words.NOUNS[:12]))
        ),
        "two in turn": _around(
            [say("The task is still open."), say("No action is possible right now, I keep waiting here.")]
        ),
        "three in turn": _around(
            [say("Still open."), say("Nothing to do at the moment."), say("I will wait for news.")]
        ),
    },
    disguises=OF_TEXT,
)
each(
    "counter text",
    {
        "n/100": _counted(lambda n: say(f"{16 + n}/100. Not complete. No action.")),
        "attempt n": _counted(
            lambda n: say(f"Attempt {n}: the service still does not answer, I will try again later.")
        ),
        "percent": _counted(lambda n: say(f"Progress: {n % 100} %. Still running, nothing to report.")),
        "clock": _counted(lambda n: say(f"[{words.moment(n)}] Heartbeat. No change. Standing by.")),
        "iteration in words": _counted(
            lambda n: say(f"Iteration {n} of the check loop done; no change since iteration {n - 1}.")
        ),
        "a thousand": _counted(lambda n: say(f"{n * 1_337:,} seconds have passed. No action.")),
        "Chinese": _counted(lambda n: say(f"第{n}次检查：任务尚未完成，没有可以采取的行动。")),
        "report number": _counted(lambda n: say(f"{LONG} (report #{n})")),
    },
    disguises=OF_TEXT,
)

_SAID = (
    ("The deployment", "Our deployment", "This deployment"),
    ("is still blocked", "remains blocked", "is blocked still"),
    ("by the missing approval", "by the approval that is missing", "by a missing approval"),
    ("so there is no action", "and there is no action", "so no action is there"),
    ("that I can take right now", "which I can take right now", "that I could take now"),
    (
        "I will keep waiting for the approval",
        "I keep waiting for the approval",
        "I will be waiting for the approval",
    ),
)
_LOOSE = (
    ("I have checked the queue again", "The queue was checked once more", "Having looked at the queue again"),
    ("and nothing has changed there", "nothing changed in it", "it shows no change"),
    ("the job is pending on review", "the job still pends on review", "review of the job is pending"),
    ("therefore I wait", "so I am waiting", "I will therefore wait"),
)


def _paraphrases(parts: Sequence[Sequence[str]], *, shuffled: bool = False) -> Making:
    def story(rng: random.Random) -> Story:
        while True:
            said = [rng.choice(choices) for choices in parts]
            if shuffled:
                rng.shuffle(said)
            yield say(", ".join(said) + rng.choice((".", "!", ", as before.")))

    return story


each(
    "paraphrased text",
    {
        "other endings": _paraphrases(_SAID),
        "other order": _paraphrases(_SAID, shuffled=True),
        "looser": _paraphrases(_LOOSE),
        "looser, other order": _paraphrases(_LOOSE, shuffled=True),
        "a growing tail": _counted(lambda n: say(f"{LONG} " + " ".join(words.NOUNS[: n % 9]))),
        "case and marks": lambda rng: (
            say("".join(rng.choice((c.lower(), c.upper())) for c in LONG[:120]) + "!" * rng.randrange(5))
            for _ in itertools.count()
        ),
    },
    disguises=OF_TEXT,
)
each(
    "empty text",
    {
        "nothing": _repeated(say("", tokens=24)),
        "white space": lambda rng: (
            say(" " * rng.randrange(5) + "\n" * rng.randrange(4), tokens=9) for _ in itertools.count()
        ),
        "reasoned but said nothing": lambda rng: (
            say("", tokens=rng.randrange(200, 4_000)) for _ in itertools.count()
        ),
        "nothing or a dot": lambda rng: (say(rng.choice(("", ".", "")), tokens=5) for _ in itertools.count()),
    },
    disguises=OF_TEXT,
)


@incident(
    "chatter",
    "new words every time",
    disguises=OF_TEXT,
    drives=("continued", "rewoken", "by agents", "by a channel"),
)
def _chatter(rng: random.Random) -> Story:
    while True:
        yield say(words.sentence(rng, 14))


@incident("chatter", "new words in one turn", disguises=OF_TEXT, drives=("one turn",))
def _chatter_at_once(rng: random.Random) -> Story:
    while True:
        yield say(words.sentence(rng, 14))


@incident("chatter", "courtesies of two agents", disguises=OF_TEXT, drives=("by agents", "by a channel"))
def _courtesies(rng: random.Random) -> Story:
    thanks = (
        "Thank you!",
        "You are welcome!",
        "Great work, thanks a lot.",
        "Happy to help, anytime.",
        "Likewise, have a nice day!",
    )
    while True:
        yield say(rng.choice(thanks))


# --- calls that do nothing ----------------------------------------------------------------------------

NOOPS = (
    "true",
    ":",
    "echo ok",
    "exit 0",
    "printf ''",
    "echo waiting",
    "pwd",
    "sleep 5",
    "a",
    "echo 'still working'",
)


def _noops(rng: random.Random) -> Story:
    while True:
        command = rng.choice(NOOPS)
        yield do(sh(command, {"echo ok": "ok", "pwd": "/repo", "echo waiting": "waiting"}.get(command, "")))


each(
    "no-op calls",
    {
        "true": _repeated(do(sh("true"))),
        "colon": _repeated(do(sh(":"))),
        "a mix": _noops,
        "read nothing": _repeated(do(call("Read", {"file_path": "/dev/null"}, ""))),
        "read an empty path": _repeated(do(call("read_file", {"path": ""}, "error: no path", ok=False))),
        "empty command": _repeated(do(call("bash", {"command": ""}, ""))),
        "no arguments": _repeated(do(call("bash", {}, "missing argument: command", ok=False))),
        "echo counts": _counted(lambda n: do(sh(f"echo {n}", f"{n}"))),
        "echo a report": _counted(lambda n: do(sh(f"echo 'check {n} done'", f"check {n} done"))),
        "sleep": _repeated(do(sh("sleep 5"))),
        "longer sleeps": _counted(lambda n: do(sh(f"sleep {n}"))),
        "date": _counted(lambda n: do(sh("date", f"Thu Jan  1 {n // 60 % 24:02}:{n % 60:02}:00 UTC 2026"))),
    },
    disguises=("plain", "chatty", "thinking between"),
)

# --- the same call with the same result ----------------------------------------------------------------

_LINES = "\n".join(f"src/module_{n}.py: nothing to do here, skipped" for n in range(60))
each(
    "identical call",
    {
        "read": _repeated(do(call("read_file", {"path": "src/app.py"}, "def main():\n    return 1\n"))),
        "search": _repeated(
            do(call("grep", {"pattern": "TODO", "path": "src"}, "src/app.py:12: # TODO: finish"))
        ),
        "shell": _repeated(do(sh("git log --oneline -1", "4f2a91c fix the lexer"))),
        "program": _repeated(do(sh("python run.py --check", "nothing to do"))),
        "failing build": _repeated(
            do(sh("npm run build", "error TS2304: cannot find name 'foo'", ok=False, exit_code=2))
        ),
        "failing test": _repeated(
            do(
                sh(
                    "pytest -q tests/test_a.py",
                    "FAILED test_a - assert 3 == 4\n1 failed",
                    ok=False,
                    exit_code=1,
                )
            )
        ),
        "edit that fails": _repeated(
            do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": "x = 1", "new": "x = 2"},
                    "error: old text not found",
                    ok=False,
                )
            )
        ),
        "write again": _repeated(
            do(call("write_file", {"path": "a.py", "content": "x = 1\n"}, "wrote 1 line"))
        ),
        "unknown tool": _repeated(
            do(call("crm_lookup", {"customer": "C-17"}, '{"name": "Ada", "plan": "pro"}'))
        ),
        "long result": _repeated(do(sh("make lint", _LINES))),
        "silent": _repeated(do(sh("python sync.py", ""))),
        "denied": _repeated(
            do(call("delete_branch", {"name": "main"}, "denied by policy", ok=False, error_class="denied"))
        ),
        "result without ok": _repeated(
            do(call("lookup", {"id": 4}, "no entry for id 4 in the ledger", ok=None))
        ),
    },
    disguises=(*LIGHT, "in a batch"),
)
each(
    "identical batch",
    {
        "two reads": _repeated(
            do(call("read_file", {"path": "a.py"}, "x = 1"), call("read_file", {"path": "b.py"}, "y = 2"))
        ),
        "three in any order": lambda rng: (
            do(
                *rng.sample(
                    [sh("cat a.py", "x = 1"), sh("cat b.py", "y = 2"), sh("git status -s", "?? c.py")], 3
                )
            )
            for _ in itertools.count()
        ),
    },
    disguises=LIGHT,
)

# --- cycles -------------------------------------------------------------------------------------------


def _cycle(period: int, kind: str) -> Making:
    def story(rng: random.Random) -> Story:
        moves: list[Move] = []
        for n in range(period):
            place = words.path(rng)
            match kind if kind != "mixed" else ("read", "shell", "text", "own")[n % 4]:
                case "read":
                    moves.append(do(call("read_file", {"path": place}, words.source(rng, 4))))
                case "shell":
                    moves.append(do(sh(f"python {place} --dry-run", f"would touch {words.name(rng)}")))
                case "own":
                    moves.append(do(call(words.name(rng), {"k": n}, words.sentence(rng, 6))))
                case "failing":
                    moves.append(
                        do(
                            sh(
                                f"make {words.name(rng)}",
                                f"error: no rule for {words.name(rng)}",
                                ok=False,
                                exit_code=2,
                            )
                        )
                    )
                case "text":
                    moves.append(say(words.sentence(rng, 12)))
        return itertools.cycle(moves)

    return story


for _period in range(2, 9):
    for _kind in ("read", "shell", "own", "failing", "mixed"):
        incident(
            f"cycle of {_period}", _kind, disguises=(*LIGHT, "in a batch") if _kind != "mixed" else LIGHT
        )(_cycle(_period, _kind))


def _laps(*, shuffled: bool, lossy: bool) -> Making:
    def story(rng: random.Random) -> Story:
        lap = [
            do(call("read_file", {"path": words.path(rng)}, words.source(rng, 3))),
            do(sh("git status -s", f" M {words.path(rng)}")),
            do(call("grep", {"pattern": words.name(rng)}, f"{words.path(rng)}:3: hit")),
            do(sh("pytest -q", f"FAILED test_{words.name(rng)}\n1 failed", ok=False, exit_code=1)),
        ]
        while True:
            for move in rng.sample(lap, len(lap)) if shuffled else lap:
                if not lossy or rng.random() > 0.15:
                    yield move

    return story


each(
    "uneven laps",
    {
        "other order": _laps(shuffled=True, lossy=False),
        "steps left out": _laps(shuffled=False, lossy=True),
        "both": _laps(shuffled=True, lossy=True),
    },
    disguises=("plain", "clock", "uuid", "volatile arguments", "chatty"),
)

# --- repeats with other things between -----------------------------------------------------------------


def _between(repeated: Move, others: int, kind: str) -> Making:
    def story(rng: random.Random) -> Story:
        while True:
            yield repeated
            for _ in range(rng.randint(1, others)):
                match kind:
                    case "silent":
                        yield do(sh(f"ls {words.path(rng)}", ""))
                    case "known":
                        yield do(sh(f"cat {rng.choice(('a', 'b', 'c', 'd', 'e'))}.cfg", "key = 1"))
                    case "telling":
                        yield do(call("read_file", {"path": words.path(rng)}, words.source(rng, 3)))
                    case "talk":
                        yield say(words.sentence(rng, 12))

    return story


_BUILD = do(
    sh("npm run build", "error TS2304: cannot find name 'foo' (src/index.ts:14)", ok=False, exit_code=2)
)
_STATUS = do(call("read_file", {"path": "plan.md"}, "1. do the thing\n2. check the thing\n"))
for _kind in ("silent", "known", "telling", "talk"):
    for _most in (1, 3):
        incident("interleaved repeat", f"build, up to {_most} {_kind}", disguises=OF_RESULTS)(
            _between(_BUILD, _most, _kind)
        )
        incident("interleaved repeat", f"read, up to {_most} {_kind}", disguises=OF_RESULTS)(
            _between(_STATUS, _most, _kind)
        )

each(
    "same result",
    {
        "search docs": lambda rng: (
            do(call("search_docs", {"query": words.sentence(rng, 4)}, "No matching documents were found."))
            for _ in itertools.count()
        ),
        "web search": lambda rng: (
            do(call("web_search", {"q": words.sentence(rng, 5)}, "0 results; try other words"))
            for _ in itertools.count()
        ),
        "grep": lambda rng: (
            do(sh(f"grep -rn {words.name(rng)} src || echo 'no match anywhere'", "no match anywhere"))
            for _ in itertools.count()
        ),
        "a verb at the end": lambda rng: (
            do(call("kb_search", {"text": words.sentence(rng, 3)}, "nothing in the knowledge base"))
            for _ in itertools.count()
        ),
        "empty lists": lambda rng: (
            do(call("search_mail", {"query": words.name(rng)}, "[]")) for _ in itertools.count()
        ),
        "a sub-agent": lambda rng: (
            do(call("Task", {"prompt": words.sentence(rng, 8)}, "The sub-agent found nothing."))
            for _ in itertools.count()
        ),
        "list": lambda rng: (
            do(call("list_records", {"filter": words.name(rng)}, '{"items": [], "total": 0}'))
            for _ in itertools.count()
        ),
    },
    disguises=OF_RESULTS,
)

# --- errors -------------------------------------------------------------------------------------------

each(
    "error streak",
    {
        "same error, other arguments": lambda rng: (
            do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": words.name(rng), "new": "y"},
                    "error: old text not found in file",
                    ok=False,
                )
            )
            for _ in itertools.count()
        ),
        "same error, other commands": lambda rng: (
            do(
                sh(
                    f"python tool.py --mode {words.name(rng)}",
                    "PermissionError: [Errno 13] Permission denied: 'db.lock'",
                    ok=False,
                    exit_code=1,
                )
            )
            for _ in itertools.count()
        ),
        "each error another": lambda rng: (
            do(
                call(
                    "open_page",
                    {"id": rng.randrange(10**6)},
                    f"error: page {words.name(rng)} is gone",
                    ok=False,
                )
            )
            for _ in itertools.count()
        ),
        "any tool": lambda rng: (
            do(
                call(
                    rng.choice(("edit_file", "read_file", "http_request", "lookup")),
                    {"path": words.path(rng)},
                    f"error: {words.name(rng)} is invalid",
                    ok=False,
                )
            )
            for _ in itertools.count()
        ),
        "denied": lambda rng: (
            do(
                call(
                    "send_mail",
                    {"to": words.name(rng)},
                    "denied by policy: no outgoing mail",
                    ok=False,
                    error_class="denied",
                )
            )
            for _ in itertools.count()
        ),
        "wrong arguments": lambda rng: (
            do(
                call(
                    "create_card",
                    {"titel": words.name(rng)},
                    "schema error: 'title' is required",
                    ok=False,
                    error_class="schema",
                )
            )
            for _ in itertools.count()
        ),
        "traceback": lambda rng: (
            do(
                sh(
                    f"python main.py --seed {rng.randrange(10**6)}",
                    "Traceback (most recent call last):\n  File \"main.py\", line 9, in <module>\n    run()\nKeyError: 'model'",
                    ok=False,
                    exit_code=1,
                )
            )
            for _ in itertools.count()
        ),
    },
    disguises=LIGHT,
)


@incident("error streak", "two failing commands in turn", disguises=LIGHT)
def _two_commands(rng: random.Random) -> Story:
    both = (
        do(sh("npm test", "1 failing: expected 3, received 4", ok=False, exit_code=1)),
        do(sh("npm run lint", "2 problems: no-undef", ok=False, exit_code=1)),
    )
    return itertools.cycle(both)


each(
    "unresolved tool",
    {
        "other arguments": lambda rng: (
            do(
                call(
                    "magic_fix",
                    {"target": words.name(rng)},
                    "there is no tool 'magic_fix'",
                    ok=False,
                    error_class="schema",
                )
            )
            for _ in itertools.count()
        ),
        "other names": lambda rng: (
            do(call(name := words.name(rng), {"n": rng.random()}, f"Error: unknown tool '{name}'", ok=False))
            for _ in itertools.count()
        ),
        "function not found": lambda rng: (
            do(
                call(
                    "browser_act",
                    {"step": words.name(rng)},
                    "Tool browser_act not found. Available tools: read_file, bash",
                    ok=False,
                )
            )
            for _ in itertools.count()
        ),
    },
    disguises=("plain", "chatty", "counting", "thinking between"),
)

# --- sweeps ---------------------------------------------------------------------------------------------


def _chunks(length: int) -> Callable[[int], Move]:
    return lambda n: do(
        call(
            "read_file",
            {"path": "big.log", "offset": n % length * 100, "limit": 100},
            f"line {n % length * 100}: {words.NOUNS[n % length % 38]} {n % length}",
        )
    )


def _pages(length: int) -> Callable[[int], Move]:
    return lambda n: do(
        call(
            "list_items",
            {"page": n % length},
            f"items {n % length * 20} to {n % length * 20 + 19} of {length * 20}",
        )
    )


def _sed(length: int) -> Callable[[int], Move]:
    return lambda n: do(
        sh(f"sed -n '{n % length * 50 + 1},{n % length * 50 + 50}p' app.py", f"def f{n % length}(): ...")
    )


for _name, _make in (("chunks", _chunks), ("pages", _pages), ("sed", _sed)):
    for _length in (15, 40, 90):
        incident(
            "sweep",
            f"{_name} of {_length}",
            opening=lambda rng, make=_make, length=_length: [make(length)(n) for n in range(length)],
            disguises=OF_RESULTS,
        )(lambda rng, make=_make, length=_length: (make(length)(n) for n in itertools.count()))

# --- phases, states, contexts ---------------------------------------------------------------------------


def _plan_and_search(rng: random.Random) -> Story:
    for n in itertools.count():
        yield do(call("update_plan", {"step": n, "note": words.sentence(rng, 5)}, "plan updated"))
        yield do(
            call("web_search", {"q": words.sentence(rng, 5)}, "the research is already good enough; go on")
        )


def _plan_and_read(rng: random.Random) -> Story:
    while True:
        yield do(call("think", {"thought": words.sentence(rng, 12)}, "noted"))
        yield do(call("read_file", {"path": f"notes/{rng.randrange(5)}.md"}, "the notes as they were"))


def _three_phases(rng: random.Random) -> Story:
    while True:
        yield do(call("update_plan", {"note": words.sentence(rng, 5)}, "plan updated"))
        yield do(
            call("web_search", {"q": words.sentence(rng, 5)}, "the research is already good enough; go on")
        )
        yield do(call("read_file", {"path": "research.md"}, "the research as it was"))


each(
    "edge ping-pong",
    {
        "planner and researcher": _plan_and_search,
        "thinker and reader": _plan_and_read,
        "three phases": _three_phases,
    },
    disguises=OF_RESULTS,
)


def _flip_flop(*, sensed: bool, tested: bool, ways: int) -> Making:
    def story(rng: random.Random) -> Story:
        bodies = [words.source(rng, 3) for _ in range(ways)]
        for n in itertools.count():
            side = n % ways
            state = f"side {side}" if sensed else None
            yield do(
                call(
                    "edit_file",
                    {"path": "a.py", "old": bodies[side - 1], "new": bodies[side]},
                    "replaced 1 occurrence",
                ),
                state=state,
            )
            if tested:
                yield do(
                    sh(
                        "pytest -q",
                        f"FAILED test_{'abcd'[side]} - assert {side} == {side + 1}\n1 failed, 7 passed",
                        ok=False,
                        exit_code=1,
                    ),
                    state=state,
                )

    return story


for _sensed, _tested, _ways in itertools.product((True, False), (True, False), (2, 3)):
    incident(
        "edit and revert",
        f"{_ways} sides{', tested' * _tested}{', state seen' * _sensed}",
        disguises=("plain", "clock", "duration", "chatty", "counting"),
    )(_flip_flop(sensed=_sensed, tested=_tested, ways=_ways))


@incident("edit without effect", "state seen", disguises=("plain", "chatty"))
def _noop_edits(rng: random.Random) -> Story:
    while True:
        yield do(
            call("edit_file", {"path": "a.py", "old": words.name(rng), "new": words.name(rng)}, "ok"),
            state="as it was",
        )


@incident("edit without effect", "the same patch", disguises=("plain", "chatty", "counting"))
def _same_patch(rng: random.Random) -> Story:
    patch = words.source(rng, 4)
    while True:
        yield do(call("apply_patch", {"patch": patch}, "applied cleanly"))


def _thrash(every: int, *, new: bool) -> Making:
    def story(rng: random.Random) -> Story:
        places = [words.path(rng) for _ in range(4)]
        bodies = [words.source(rng, 5) for _ in range(4)]
        for n in itertools.count():
            if new:
                yield do(
                    call("read_file", {"path": words.path(rng)}, words.source(rng, 5)),
                    compacted=n % every == 0,
                )
            else:
                yield do(call("read_file", {"path": places[n % 4]}, bodies[n % 4]), compacted=n % every == 0)

    return story


each(
    "compaction thrash",
    {
        "reading the same again": _thrash(5, new=False),
        "hardly reading": _thrash(2, new=True),
        "every step": _thrash(1, new=True),
    },
    disguises=("plain", "chatty"),
)


def _dead_poll(result: str, command: str | None, gap_s: float, *, spaced: bool = False) -> Making:
    def story(rng: random.Random) -> Story:
        looked = sh(command, result) if command else call("get_job_status", {"id": 7}, result)
        while True:
            yield do(looked, gap_s=gap_s)
            if spaced:
                yield do(sh(f"sleep {int(gap_s)}"), gap_s=gap_s)

    return story


each(
    "dead poll",
    {
        "a job that is over": _dead_poll('{"state": "exited", "code": 1}', None, 120),
        "a process that is gone": _dead_poll("no such process", "ps -p 4711", 120),
        "a container that died": _dead_poll(
            "worker-1  Exited (137) 3 hours ago: exited", "docker ps -a --filter name=worker", 150
        ),
        "with sleeps between": _dead_poll(
            "run 881: completed with failure", "gh run view 881", 90, spaced=True
        ),
    },
    disguises=("plain", "clock", "chatty"),
    clock=True,
)


def _same_mail(rng: random.Random) -> Story:
    while True:
        yield do(
            call("read_inbox", {"folder": "in"}, "1 message: please send the report"), trigger=Trigger.CHANNEL
        )
        yield say("I have read the message about the report and will deal with it.")


def _hand_over(rng: random.Random) -> Story:
    while True:
        yield do(
            call("send_message", {"to": "planner", "text": "ready when you are"}, "delivered"),
            trigger=Trigger.AGENT,
        )
        yield say("I told the planner that I am ready.")


each("wake-driven repeat", {"the same mail": _same_mail, "handing over": _hand_over}, drives=("one turn",))


# --- telling them ---------------------------------------------------------------------------------------

PLAIN_FAMILIES = frozenset(
    [
        "identical text",
        "counter text",
        "paraphrased text",
        "empty text",
        "no-op calls",
        "identical call",
        "identical batch",
    ]
)
"""Those that have to be noticed within five steps in the median."""


def told(telling: Telling, disguise: str, drive: str, onset: int, seed: int) -> Case:
    """One incident as a case."""
    variant = f"{telling.variant}, {disguise}, {drive}, from {onset}"
    identity = f"stuck/{telling.family}/{variant}/{seed}".replace(" ", "-")
    rng = fresh(seed, identity)
    opening = telling.opening(rng) if telling.opening else []
    before = plainly(max(onset - 1 - len(opening), 0), rng)
    _, trigger, every = next(each for each in DRIVES if each[0] == drive)
    story = DISGUISES[disguise](itertools.chain(opening, telling.making(rng)), rng)
    told_moves = first(story, len(opening) + LOOP_STEPS)
    loop = driven(told_moves[len(opening) :], trigger, every)
    clock = telling.clock if telling.clock is not None else rng.random() < 0.7
    return Case(
        id=identity,
        family=telling.family,
        variant=variant,
        label="stuck",
        onset=len(before) + len(opening) + 1,
        steps=taped([*before, *told_moves[: len(opening)], *loop], clock=clock),
    )


def incidents(seed: int = 1, *, rounds: int = 1) -> list[Case]:
    """Each telling in each of its disguises, from each onset and by each drive at least once.

    Args:
        seed: of everything random.
        rounds: how often each disguise is told; 4 visit each onset in each disguise.
    """
    cases: dict[str, Case] = {}
    for number, telling in enumerate(TELLINGS):
        drives = telling.drives or tuple(drive for drive, _, _ in DRIVES)
        ways = len(telling.disguises)
        count = max(ways * rounds, min(4, 4 * rounds) if ways < 4 else 0)
        for at in range(count):
            disguise = telling.disguises[at % ways]
            # steps that share no factor with the number of disguises would visit every combination
            onset = ONSETS[(at + at // ways + number) % len(ONSETS)]
            drive = drives[(at + at // ways + 2 * number) % len(drives)]
            case = told(telling, disguise, drive, onset, seed + at // ways)
            cases[case.id] = case
    return list(cases.values())


__all__ = ["DRIVES", "OF_CALLS", "ONSETS", "PLAIN_FAMILIES", "TELLINGS", "incidents", "told"]
