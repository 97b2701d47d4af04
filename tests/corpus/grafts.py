"""Grafts: loops that begin in the middle of real runs, read from a data file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import msgspec

from loopd.core.judge import LoggedStep
from loopd.transcripts.logs import Begin, Fault
from loopd.transcripts.reading import read
from loopd_protocol.events import Usage
from tests.corpus.cases import LOOP_STEPS, START_MS, Case, Move, first, fresh
from tests.corpus.disguises import DISGUISES
from tests.corpus.incidents import TELLINGS


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A real run."""

    id: str
    source: str
    outcome: str | None
    label: str | None
    steps: tuple[LoggedStep, ...]


def runs(path: str | os.PathLike[str]) -> Iterator[Run]:
    """All runs of a data file.

    Raises:
        ValueError: something in it cannot be read.
    """
    head: Begin | None = None
    steps: list[LoggedStep] = []
    for item in read(path):
        if isinstance(item, Fault):
            raise ValueError(f"{item.where}: {item.message}")  # noqa: TRY004 - the file is wrong, not its type
        if isinstance(item, Begin):
            if head is not None:
                yield _run(head, steps)
            head, steps = item, []
        else:
            steps.append(item)
    if head is not None:
        yield _run(head, steps)


def _run(head: Begin, steps: list[LoggedStep]) -> Run:
    return Run(id=head.id, source=head.source, outcome=head.outcome, label=head.label, steps=tuple(steps))


def _own(run: Run, at: int, period: int) -> Iterator[Move] | None:
    """The run's own last steps over and over, None when some of their results are missing."""
    last = run.steps[at - period : at]
    if any(call.result is None and call.result_sha256 is None for step in last for call in step.calls):
        return None
    if not any(step.calls for step in last):
        return None
    return itertools.cycle([Move(text=step.text, calls=step.calls) for step in last])


def grafts(run: Run, seed: int = 1) -> list[Case]:
    """Loops in the middle of one run: its own last step, its own last three, and two told ones."""
    if len(run.steps) < 8:
        return []
    rng = fresh(seed, run.id)
    at = rng.randint(len(run.steps) // 3, 2 * len(run.steps) // 3)
    stories = [("own last step", _own(run, at, 1)), ("own last three steps", _own(run, at, 3))]
    for telling in rng.sample([each for each in TELLINGS if each.opening is None and each.clock is None], 2):
        disguise = rng.choice(telling.disguises)
        stories.append(
            (
                f"{telling.family}: {telling.variant}, {disguise}",
                DISGUISES[disguise](telling.making(rng), rng),
            )
        )
    cases = []
    for name, story in stories:
        if story is None:
            continue
        loop = [
            LoggedStep(
                n=run.steps[at - 1].n + index,
                text=move.text,
                calls=move.calls,
                trigger=move.trigger,
                at_ms=START_MS + 20_000 * (at + index) if run.steps[at - 1].at_ms else 0,
                compacted=move.compacted,
                state_fingerprint=move.state,
                usage=Usage(input_tokens=2_000, output_tokens=30 if move.tokens is None else move.tokens),
            )
            for index, move in enumerate(first(story, LOOP_STEPS), start=1)
        ]
        cases.append(
            Case(
                id=f"graft/{run.id}/{name}/{seed}".replace(" ", "-"),
                family=f"graft: {name.split(':')[0]}" if name.startswith("own") else "graft: told",
                variant=name,
                label="stuck",
                onset=loop[0].n,
                steps=(*run.steps[:at], *loop),
            )
        )
    return cases
