"""What a case of the corpus is, and how stories become logged steps.

A story is an endless stream of `Move`s, made by a function of a random number generator. `taped` numbers
and stamps them. Everything is a function of the seed: two runs write the same bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from loopd.core.judge import LoggedStep
from loopd.core.tools import tool_class
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
LOOP_STEPS = 60
"""How long each incident goes on after its onset."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a story before it has a number.

    Attributes:
        gap_s: time since the step before.
        state: name of the state of the work tree, None where no sensor looks.
        tokens: output tokens; None: as many as the text is long.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    trigger: Trigger | None = None
    gap_s: float = 20.0
    state: str | None = None
    compacted: bool = False
    tokens: int | None = None


Story = Iterator[Move]
Making = Callable[[random.Random], Story]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A labelled log.

    Attributes:
        family: way of going in circles, or kind of look-alike.
        variant: how it is disguised, driven and where it begins.
        label: `stuck` or `healthy`.
        onset: number of the first step of the loop; None for healthy ones.
        nudge_allowed: a healthy one that may be told something, but never halted.
        pair: of a pair: its name; both halves carry it.
    """

    id: str
    family: str
    variant: str
    label: Literal["stuck", "healthy"]
    onset: int | None
    steps: tuple[LoggedStep, ...]
    nudge_allowed: bool = False
    pair: str | None = None


def call(
    name: str, args: Any = None, result: str | None = "", ok: bool | None = True, **more: Any
) -> ToolCall:
    """A call with its result."""
    args = {} if args is None else args
    return ToolCall(
        id="c1", name=name, args=args, ok=ok, result=result, tool_class=tool_class(name, args), **more
    )


def sh(command: str, result: str | None = "", ok: bool | None = True, **more: Any) -> ToolCall:
    """A shell command with its output."""
    return call("bash", {"command": command}, result, ok, **more)


def do(*calls: ToolCall, **more: Any) -> Move:
    """A step that calls something."""
    return Move(calls=calls, **more)


def say(text: str, **more: Any) -> Move:
    """A step that only says something."""
    return Move(text=text, **more)


def taped(moves: Iterable[Move], *, clock: bool = True) -> tuple[LoggedStep, ...]:
    """Number the moves from 1 and give them their moments.

    Args:
        moves: of a story, finite.
        clock: False for a log that says nothing about time.
    """
    at_ms = START_MS
    made: list[LoggedStep] = []
    for n, move in enumerate(moves, start=1):
        at_ms += int(move.gap_s * 1_000)
        output = move.tokens if move.tokens is not None else 20 + len(move.text) // 4 + 25 * len(move.calls)
        made.append(
            LoggedStep(
                n=n,
                text=move.text,
                calls=tuple(
                    msgspec.structs.replace(each, id=f"c{n}.{index}")
                    for index, each in enumerate(move.calls, 1)
                ),
                usage=Usage(input_tokens=1_500 + 40 * min(n, 400), output_tokens=output),
                trigger=move.trigger,
                at_ms=at_ms if clock else 0,
                state_fingerprint=hashlib.sha256(move.state.encode()).hexdigest() if move.state else None,
                compacted=move.compacted,
            )
        )
    return tuple(made)


def first(story: Iterable[Move], count: int) -> list[Move]:
    """The first `count` moves."""
    return list(itertools.islice(story, count))


def driven(moves: Iterable[Move], trigger: Trigger | None, every: int = 1) -> list[Move]:
    """The same moves where each `every`th begins a turn."""
    if trigger is None:
        return list(moves)
    return [
        msgspec.structs.replace(move, trigger=trigger) if index % every == 0 else move
        for index, move in enumerate(moves)
    ]


def fresh(seed: int, *names: object) -> random.Random:
    """A generator that depends on nothing but the seed and the names."""
    return random.Random("\0".join(map(str, (seed, *names))))
