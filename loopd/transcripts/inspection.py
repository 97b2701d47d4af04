"""Logs judged: what the rules and the ladder would have done about each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from loopd.core.inputs import tokens_of
from loopd.core.judge import Judge, Judgement, LoggedStep
from loopd.core.settings import Settings
from loopd.transcripts.logs import Begin, Fault, Items
from loopd.transcripts.reading import Progress, read

TIMELINE_STEPS = 5_000
"""Steps whose shape is kept for a picture; longer logs are drawn up to here."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One step as a picture needs it."""

    n: int
    trigger: str
    calls: int
    failed: int
    tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One log and what would have been done about it."""

    begin: Begin
    judgement: Judgement
    tokens: int
    shapes: tuple[Shape, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """The line of `--format json`."""
        verdict = self.judgement
        return {
            "id": self.begin.id,
            "source": self.begin.source,
            "label": self.begin.label,
            "steps": verdict.steps,
            "findings": [msgspec.to_builtins(finding) for finding in verdict.findings],
            "first_soft": verdict.first_soft,
            "first_hard": verdict.first_hard,
            "verdict": verdict.verdict,
            "tokens": self.tokens,
            "tokens_after_first_soft": verdict.tokens_after_first_soft,
        }


def inspect(
    path: str | os.PathLike[str],
    settings: Settings,
    *,
    attended: bool = False,
    shapes: bool = False,
    progress: Progress | None = None,
) -> Iterator[Report | Fault]:
    """Judge every log of a file, one after the other."""
    yield from judged(read(path, progress=progress), settings, attended=attended, shapes=shapes)


def judged(
    items: Items, settings: Settings, *, attended: bool = False, shapes: bool = False
) -> Iterator[Report | Fault]:
    """Judge logs that are already steps. A log with a fault in it is not reported, its fault is."""
    begin: Begin | None = None
    judge = Judge(settings, attended=attended)
    drawn: list[Shape] = []
    tokens = 0
    for item in items:
        match item:
            case Begin():
                if begin is not None:
                    yield Report(begin=begin, judgement=judge.judgement(), tokens=tokens, shapes=tuple(drawn))
                begin, judge, tokens = item, Judge(settings, attended=attended), 0
                drawn = []
            case LoggedStep():
                if begin is None:
                    begin = Begin(id="unnamed", source="unknown")
                judge.step(item)
                tokens += tokens_of(item.usage)
                if shapes and len(drawn) < TIMELINE_STEPS:
                    drawn.append(_shape(item))
            case Fault():
                yield item
                if item.broke_log:
                    begin = None
    if begin is not None:
        yield Report(begin=begin, judgement=judge.judgement(), tokens=tokens, shapes=tuple(drawn))


def _shape(step: LoggedStep) -> Shape:
    return Shape(
        n=step.n,
        trigger="" if step.trigger is None else step.trigger.value,
        calls=len(step.calls),
        failed=sum(call.ok is False for call in step.calls),
        tokens=tokens_of(step.usage),
    )
