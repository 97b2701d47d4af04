"""`loopd.trajectory` as items: a bad line ends the trajectory that it is in, not the file."""

from __future__ import annotations

import re

from loopd.core.judge import LoggedStep
from loopd.trajectory import Head, Lines, Step
from loopd.transcripts.logs import LABEL_CHARS, TASK_CHARS, TEXT_CHARS, Begin, End, Fault, Items, moment_ms
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

_HEAD = re.compile(rb'\s*\{\s*"t"\s*:\s*"trajectory"')
_STEP = re.compile(rb'\s*\{\s*"t"\s*:\s*"step"')


class Trajectories:
    """Importer of lines of bytes. A fault ends the trajectory; its other steps are skipped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = Lines(name)
        self._last = 0
        self._steps = 0
        self._claimed: int | None = None
        self._skipping = False
        self._seen = False

    def line(self, number: int, data: bytes) -> Items:
        """Read one line."""
        if self._skipping and _STEP.match(data):
            return
        try:
            item = self._lines.decode(data, number)
        except Refused as refusal:
            message = refusal.message.removeprefix(f"{self._name!r}, line {number}: ")
            fault = Fault(where=f"{self._name}, line {number}", message=message)
            yield from self.broken(fault, head=_HEAD.match(data) is not None)
            return
        if isinstance(item, Head):
            self._seen, self._skipping, self._last, self._steps = True, False, 0, 0
            self._claimed = item.steps
            yield Begin(
                id=item.id[:LABEL_CHARS] or f"{self._name}:{number}",
                source=item.source[:LABEL_CHARS],
                task=item.task and item.task[:TASK_CHARS],
                outcome=item.outcome and item.outcome[:LABEL_CHARS],
                label=item.label and item.label[:LABEL_CHARS],
                whole=True,
            )
        elif isinstance(item, Step):
            if item.n <= self._last:
                message = f"step {item.n} after step {self._last}; expected rising numbers"
                yield from self.broken(Fault(where=f"{self._name}, line {number}", message=message))
                return
            self._last = item.n
            self._steps += 1
            yield _logged(item)

    def broken(self, fault: Fault, *, head: bool = False) -> Items:
        """A line that is none, or (`head`) one that was to begin a trajectory."""
        if head or (self._steps and self._steps == self._claimed):
            yield End()
        self._lines.headed, self._skipping, self._seen = False, True, True
        self._steps = 0
        yield fault

    def end(self) -> Items:
        """No more lines."""
        if not self._seen:
            yield Fault(where=self._name, message="holds no trajectory", fatal=True)


def _logged(step: Step) -> LoggedStep:
    return LoggedStep(
        n=step.n,
        text=step.text[:TEXT_CHARS],
        calls=tuple(_cut(call) for call in step.calls),
        usage=step.usage,
        trigger=step.trigger,
        at_ms=moment_ms(step.at),
        state_fingerprint=step.state_fingerprint,
        compacted=step.compacted,
    )


def _cut(call: ToolCall) -> ToolCall:
    if call.result is None or len(call.result) <= TEXT_CHARS:
        return call
    return ToolCall(
        **{name: getattr(call, name) for name in call.__struct_fields__ if name != "result"},
        result=call.result[:TEXT_CHARS],
    )
