"""Logs judged: what the rules and the ladder would have done about each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from loopd.core.inputs import tokens_of
from loopd.core.judge import Judge, Judged, Judgement, LoggedStep
from loopd.core.settings import Settings
from loopd.transcripts.files import Progress
from loopd.transcripts.logs import Amend, Begin, End, Fault, Items, Resume, TurnEnd
from loopd.transcripts.reading import read

TIMELINE_STEPS = 5_000
"""Steps whose shape is kept for a picture; longer logs are drawn up to here."""


FAULTS_MAX = 100
"""Faults of one file that are told one by one; after that, only how many more there were."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One step as a picture needs it; `line` says what was done, in one line."""

    n: int
    trigger: str
    calls: int
    failed: int
    tokens: int
    line: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one set of settings would have done about a log.

    Attributes:
        steps_saved, tokens_saved: after the first step at which a hard threshold was reached or the
            ladder would have closed the gate or ended the session; 0 without one.
    """

    judgement: Judgement
    steps_saved: int = 0
    tokens_saved: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One log and what would have been done about it, once for each of the settings.

    Attributes:
        tokens: spent in the whole log; 0 for unknown.
        incomplete: something of the log could not be read.
        shapes: the first `TIMELINE_STEPS` steps, if asked for.
    """

    begin: Begin
    file: str
    outcomes: tuple[Outcome, ...]
    tokens: int
    incomplete: bool = False
    shapes: tuple[Shape, ...] = ()

    @property
    def judgement(self) -> Judgement:
        """That of the first settings."""
        return self.outcomes[0].judgement

    def as_object(self) -> dict[str, Any]:
        """The line of `inspect --format json`."""
        verdict = self.judgement
        return {
            "id": self.begin.id,
            "file": self.file,
            "source": self.begin.source,
            "task": self.begin.task,
            "label": self.begin.label,
            "outcome": self.begin.outcome,
            "steps": verdict.steps,
            "findings": [msgspec.to_builtins(finding) for finding in verdict.findings],
            "first_soft": verdict.first_soft,
            "first_hard": verdict.first_hard,
            "verdict": verdict.verdict,
            "tokens": self.tokens,
            "tokens_after_first_soft": verdict.tokens_after_first_soft,
            "rungs": [list(each) for each in verdict.rungs],
            "near_misses": verdict.near_misses,
            "failures": list(verdict.failures),
            "incomplete": self.incomplete,
        }


class _Lane:
    """One judge and where it would have stopped the log."""

    def __init__(self, settings: Settings, *, attended: bool) -> None:
        self.judge = Judge(settings, attended=attended)
        self._stopped: tuple[int, int] | None = None

    def step(self, step: LoggedStep, steps: int, tokens: int) -> None:
        """Judge a step, which is number `steps` of the log and ends at `tokens` tokens."""
        found = self.judge.step(step)
        if found and self._stopped is None:
            before = (steps - 1, tokens - tokens_of(step.usage))
            self._mark(found, {step.n: (steps, tokens)}, before)

    def turn_end(self, outcome: str, steps: int, tokens: int) -> None:
        found = self.judge.turn_end(outcome)
        if found and self._stopped is None:
            self._mark(found, {}, (steps, tokens))

    def outcome(self, steps: int, tokens: int) -> Outcome:
        judgement = self.judge.judgement()
        stopped = self._stopped or (steps, tokens)
        return Outcome(judgement=judgement, steps_saved=steps - stopped[0], tokens_saved=tokens - stopped[1])

    def _mark(
        self, found: Sequence[Judged], now: dict[int, tuple[int, int]], before: tuple[int, int]
    ) -> None:
        for each in found:
            if not each.shadow and (each.level == "hard" or each.verdict in {"close", "terminate"}):
                self._stopped = now.get(each.step, before)
                return


class _Log:
    """A log that is being judged."""

    def __init__(self, begin: Begin, lanes: list[_Lane]) -> None:
        self.begin = begin
        self.lanes = lanes
        self.steps = 0
        self.tokens = 0
        self.shapes: list[Shape] = []
        self.incomplete = False

    def step(self, step: LoggedStep, *, shapes: bool) -> None:
        self.steps += 1
        self.tokens += tokens_of(step.usage)
        for lane in self.lanes:
            lane.step(step, self.steps, self.tokens)
        if shapes and self.steps <= TIMELINE_STEPS:
            self.shapes.append(_shape(step))

    def turn_end(self, outcome: str) -> None:
        for lane in self.lanes:
            lane.turn_end(outcome, self.steps, self.tokens)

    def report(self, name: str) -> Report:
        return Report(
            begin=self.begin,
            file=name,
            outcomes=tuple(lane.outcome(self.steps, self.tokens) for lane in self.lanes),
            tokens=self.tokens,
            incomplete=self.incomplete,
            shapes=tuple(self.shapes),
        )


def inspect(
    path: str | os.PathLike[str],
    settings: Settings | Sequence[Settings],
    *,
    attended: bool = False,
    shapes: bool = False,
    progress: Progress | None = None,
) -> Iterator[Report | Fault]:
    """Judge every log of a file (`-`: standard input), one after the other."""
    yield from judged(
        read(path, progress=progress), settings, attended=attended, shapes=shapes, name=os.fspath(path)
    )


def judged(
    items: Items,
    settings: Settings | Sequence[Settings],
    *,
    attended: bool = False,
    shapes: bool = False,
    name: str = "",
) -> Iterator[Report | Fault]:
    """Judge logs that are already steps.

    A log that is good only as a whole and has a fault in it is not reported; its fault is.

    Args:
        items: as an importer makes them.
        settings: one, or several to compare; each step is judged with each of them.
        attended: a person is watching.
        shapes: keep what a picture needs.
        name: where the items come from, for reports and faults.
    """
    every = (settings,) if isinstance(settings, Settings) else tuple(settings)
    logs: dict[str, _Log] = {}
    log: _Log | None = None
    faults = 0
    for item in items:
        match item:
            case Begin():
                if not item.interleaved:
                    yield from _ended(logs, name)
                log = _Log(item, [_Lane(each, attended=attended) for each in every])
                logs[item.id] = log
            case Resume():
                log = logs.get(item.id)
            case End():
                yield from _ended(logs, name)
                log = None
            case Fault():
                faults += 1
                if faults <= FAULTS_MAX or item.fatal:
                    yield item
                if log is not None and log.begin.whole:
                    logs = {key: each for key, each in logs.items() if each is not log}
                    log = None
                for each in logs.values():
                    each.incomplete = each.incomplete or item.fatal or each is log
            case Amend() if log is not None:
                log.begin = _amended(log.begin, item)
            case LoggedStep() | TurnEnd() if log is not None:
                try:
                    if isinstance(item, TurnEnd):
                        log.turn_end(item.outcome)
                    else:
                        log.step(item, shapes=shapes)
                except Exception as error:  # noqa: BLE001  (a wall: one log must not hide the others)
                    n = f"step {item.n} " if isinstance(item, LoggedStep) else ""
                    where = f"{name}, {n}of {log.begin.id!r}"
                    yield Fault(where=where, message=f"cannot be judged: {type(error).__name__}: {error}")
                    logs = {key: each for key, each in logs.items() if each is not log}
                    log = None
            case _:
                pass
    yield from _ended(logs, name)
    if faults > FAULTS_MAX:
        yield Fault(where=name, message=f"{faults - FAULTS_MAX} more faults like these")


def _ended(logs: dict[str, _Log], name: str) -> Iterator[Report | Fault]:
    for log in logs.values():
        yield log.report(name)
    logs.clear()


def _amended(begin: Begin, more: Amend) -> Begin:
    return msgspec.structs.replace(
        begin,
        id=more.id or begin.id,
        task=more.task if more.task is not None else begin.task,
        outcome=more.outcome if more.outcome is not None else begin.outcome,
    )


def _shape(step: LoggedStep) -> Shape:
    return Shape(
        n=step.n,
        trigger="" if step.trigger is None else step.trigger.value,
        calls=len(step.calls),
        failed=sum(call.ok is False for call in step.calls),
        tokens=tokens_of(step.usage),
        line=_line(step),
    )


def _line(step: LoggedStep) -> str:
    if not step.calls:
        return " ".join(step.text[:400].split())[:100]
    call = step.calls[0]
    args = call.args
    shown: object = args
    if isinstance(args, dict):
        shown = next((args[key] for key in ("command", "cmd", "file_path", "path") if key in args), args)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown, enc_hook=repr).decode()
    more = f" (+{len(step.calls) - 1})" if len(step.calls) > 1 else ""
    return f"{call.name}: {' '.join(text[:400].split())[:100]}{more}"
