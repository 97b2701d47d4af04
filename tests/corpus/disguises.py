"""Disguises: what makes each lap of a loop look a little different without meaning anything."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import MappingProxyType

from msgspec.structs import replace

from loopd_protocol.events import ToolCall
from tests.corpus import words
from tests.corpus.cases import Move, Story

Disguise = Callable[[Story, random.Random], Story]


def _results(change: Callable[[str, int, random.Random], str]) -> Disguise:
    def disguise(story: Story, rng: random.Random) -> Story:
        for n, move in enumerate(story, start=1):
            yield replace(
                move,
                calls=tuple(
                    each
                    if not (each.result or "").strip()
                    else replace(each, result=change(each.result or "", n, rng))
                    for each in move.calls
                ),
            )

    return disguise


def _calls(change: Callable[[ToolCall, int, random.Random], ToolCall]) -> Disguise:
    def disguise(story: Story, rng: random.Random) -> Story:
        for n, move in enumerate(story, start=1):
            yield replace(move, calls=tuple(change(each, n, rng) for each in move.calls))

    return disguise


def _plain(story: Story, rng: random.Random) -> Story:
    yield from story


def _volatile_args(each: ToolCall, n: int, rng: random.Random) -> ToolCall:
    args = each.args
    if not isinstance(args, dict):
        return each
    command = args.get("command")
    if isinstance(command, str) and "\n" not in command and command.strip():
        spelled = (
            command,
            f"{command}  # try {n}",
            f" {command} ",
            f"{command} 2>&1",
            command.replace(" ", "  "),
        )
        return replace(each, args={**args, "command": spelled[n % 5]})
    extra = {"request_id": words.uuid(rng), "timestamp": words.moment(n)}
    mixed = list({**args, **extra}.items())
    rng.shuffle(mixed)
    return replace(each, args=dict(mixed))


def _chatty(story: Story, rng: random.Random) -> Story:
    for move in story:
        yield replace(move, text=words.sentence(rng, 10)) if move.calls else move


def _counting(story: Story, rng: random.Random) -> Story:
    for n, move in enumerate(story, start=1):
        yield replace(move, text=f"Step {n} of {n + 7}: on it. {move.text}".strip())


def _thinking(story: Story, rng: random.Random) -> Story:
    for n, move in enumerate(story, start=1):
        yield move
        if n % 3 == 0:
            yield Move(text=words.sentence(rng, 14))


def _glancing(story: Story, rng: random.Random) -> Story:
    """Every other step looks at something harmless that is silent."""
    for n, move in enumerate(story, start=1):
        yield move
        command = ("ls build", "git diff --stat", "ls dist", "cat NOTES", "ls tmp")[n % 5]
        yield Move(
            calls=(
                ToolCall(
                    id="c", name="bash", args={"command": command}, ok=True, result="", tool_class="exec"
                ),
            )
        )


def _doubled(story: Story, rng: random.Random) -> Story:
    """Each step makes its calls side by side with another one, in any order."""
    other = ToolCall(
        id="c", name="bash", args={"command": "ls src"}, ok=True, result="app.py\nmain.py", tool_class="exec"
    )
    for move in story:
        batch = [*move.calls, other] if move.calls else []
        rng.shuffle(batch)
        yield replace(move, calls=tuple(batch))


DISGUISES: MappingProxyType[str, Disguise] = MappingProxyType(
    {
        "plain": _plain,
        "clock": _results(lambda text, n, _: f"[{words.moment(n)}] {text}"),
        "date": _results(lambda text, n, _: f"Thu Jan  1 {n // 60 % 24:02}:{n % 60:02}:09 UTC 2026 {text}"),
        "named nonce": _results(
            lambda text, _, rng: f"{text}\nrequest_id: {words.hexes(rng, 9)}, ts={rng.randrange(10**9)}"
        ),
        "uuid": _results(lambda text, _, rng: f"{text}\nrequest {words.uuid(rng)}"),
        "hex": _results(lambda text, _, rng: f"{text} (trace {words.hexes(rng)}0)"),
        "address": _results(lambda text, _, rng: f"{text} <object at 0x7f{words.hexes(rng, 10)}>"),
        "duration": _results(lambda text, n, _: f"{text} in {1 + n * 0.37 % 7:.2f}s"),
        "attempt": _results(lambda text, n, _: f"attempt {n}: {text}"),
        "pid": _results(lambda text, _, rng: f"{text} (pid {rng.randrange(1_000, 60_000)})"),
        "temporary path": _results(lambda text, _, rng: f"{text} /tmp/run-{words.hexes(rng, 6)}/out.log"),
        "colour": _results(lambda text, n, _: f"\x1b[{31 + n % 6}m{text}\x1b[0m"),
        "volatile arguments": _calls(_volatile_args),
        "chatty": _chatty,
        "counting": _counting,
        "thinking between": _thinking,
        "glancing aside": _glancing,
        "in a batch": _doubled,
    }
)
"""Those of results and arguments change single calls; the last five change the stream."""

OF_TEXT = ("plain",)
OF_CALLS = tuple(DISGUISES)
OF_RESULTS = (
    "plain",
    "clock",
    "date",
    "named nonce",
    "uuid",
    "hex",
    "address",
    "duration",
    "attempt",
    "pid",
    "temporary path",
    "colour",
)
LIGHT = (*OF_RESULTS, "volatile arguments", "chatty", "counting")
