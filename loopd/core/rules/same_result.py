"""same_result: one tool that only reads, or finds nothing, asked in other words with the same answer."""

from __future__ import annotations

import msgspec

from loopd.core import packed
from loopd.core.progress import VISIBLE_CHARS
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look

ID = "same_result"

_KEPT = 8


class SameResultParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of same_result: calls with other arguments and the same answer since the last progress."""

    soft: Threshold = 6
    hard: Threshold = 12


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer of a tool (packed): how often, from which step on, to which call last."""

    key: bytes
    count: int
    onset: int
    last: bytes


class SameResultState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last answers."""

    answers: tuple[Answer, ...] = ()


FRESH = SameResultState()


def observe(
    state: SameResultState, parameters: SameResultParameters, look: Look
) -> tuple[SameResultState, Signal | None]:
    """Feed one step."""
    answers = () if look.progress.made else state.answers
    best: Answer | None = None
    label = ""
    for call, seen in zip(look.calls, look.looks, strict=True):
        if seen.outcome is None or (call.result_chars < VISIBLE_CHARS and not call.negative):
            continue
        # a tool that nobody knows may work through a batch; that it finds nothing again and again is no batch
        asks = call.reads or (call.negative and not call.writes and not call.noop)
        if not asks or call.polls or call.failed or call.infra:
            continue
        key = packed.digest(call.program, call.masked or call.result or "")
        old = next((answer for answer in answers if answer.key == key), None)
        if old is not None and old.last == seen.identity:
            continue
        new = Answer(
            key, 1 if old is None else old.count + 1, look.n if old is None else old.onset, seen.identity
        )
        answers = (*(answer for answer in answers if answer is not old), new)[-_KEPT:]
        if best is None or new.count > best.count:
            best, label = new, call.label
    after = SameResultState(answers=answers) if answers != state.answers else state
    if best is None or best.count < 2:
        return after, None
    found = best
    return after, Signal(
        score=found.count,
        soft=parameters.soft,
        hard=parameters.hard,
        unit="calls",
        onset=found.onset,
        loop=(found.key.hex(),),
        say=lambda: _say(found, label, look),
    )


def _say(found: Answer, label: str, look: Look) -> tuple[tuple[str, ...], str]:
    evidence = (
        f"{found.count} calls with other arguments between steps {found.onset} and {look.n} had the same answer",
        f"last call: {label}",
    )
    return evidence, (
        f"You asked {found.count} times in other words and got exactly the same answer each time; the last call "
        f"was {label}. Asking in yet other words will not change it."
    )
