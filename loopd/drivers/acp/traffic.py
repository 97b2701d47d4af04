"""What passed between the agent and its model, as the daemon's proxy saw it, over one turn."""

from __future__ import annotations

import anyio
from msgspec.structs import replace

from loopd.core.conversation import TurnEnd
from loopd.drivers.proxy.door import Passage
from loopd.drivers.retry import Fault
from loopd_protocol.events import Usage

LOOK_S = 1.0
FAULT_PATIENCE_S = 10.0
"""An agent that is silent for so long after a failed model call is waiting to try again; the gate does that."""
CALLS_PER_STEP = 30
"""One step is one model call; side calls and retries are a few more. An agent was seen to make 516 in 45 s."""
SETTLE_S = 5.0
"""A side call of the agent that runs on after its answer is waited for so long."""


class Traffic:
    """Gathers what passes; empty for an agent without a passage.

    Attributes:
        fault: of the last model call, None when it succeeded or none was seen.
        paused: why the proxy answered a call itself, in this turn.
        calls: model calls of the running step that ended, in this prompt.
        trouble: the last fault of the running step, also when a later call succeeded.
    """

    def __init__(self) -> None:
        self._passage: Passage | None = None
        self._usage: Usage | None = None
        self._sealed: Usage | None = None
        self.fault: Fault | None = None
        self.paused: str | None = None
        self.calls = 0
        self.trouble: Fault | None = None

    def begin(self, passage: Passage | None) -> None:
        """A prompt begins; what passed between turns belongs to none."""
        self._passage = passage
        if passage is not None:
            passage.take()
        self._usage = self._sealed = self.fault = self.paused = self.trouble = None
        self.calls = 0

    def look(self) -> None:
        """Take what has passed since the last look."""
        if self._passage is None:
            return
        seen = self._passage.take()
        self.calls += seen.calls
        if seen.calls:
            self.fault = seen.fault
            self.trouble = seen.fault or self.trouble
        self.paused = seen.paused or self.paused
        if seen.usage is not None:
            before = self._usage or Usage()
            self._usage = replace(
                seen.usage,
                input_tokens=before.input_tokens + seen.usage.input_tokens,
                output_tokens=before.output_tokens + seen.usage.output_tokens,
                cached_tokens=before.cached_tokens + seen.usage.cached_tokens,
                measured=before.measured and seen.usage.measured,
            )

    def seal(self) -> None:
        """The step's tools have ended: what passes from now on belongs to the next one."""
        self.look()
        if self._sealed is None:
            self._sealed, self._usage = self._usage, None

    def usage(self) -> Usage | None:
        """Tokens of the running step, None when nothing was seen."""
        self.seal()
        usage, self._sealed = self._sealed, None
        self.calls, self.trouble = 0, None
        return usage

    def runaway(self) -> TurnEnd | None:
        """The end of a turn whose agent calls its model again and again without getting anywhere."""
        self.look()
        if self.calls <= CALLS_PER_STEP:
            return None
        said = f"the agent called its model {self.calls} times in one step; expected at most {CALLS_PER_STEP}"
        if self.trouble is None:
            return TurnEnd(outcome="model_error", cause="runaway", error=said)
        return TurnEnd(
            outcome="model_error",
            cause=self.trouble.cause,
            error=f"{said}; the last failure: {self.trouble.message}",
            retry_after_ms=self.trouble.retry_after_ms,
        )

    async def settled(self) -> None:
        """Wait a little for calls that are under way, then look."""
        if self._passage is not None:
            with anyio.move_on_after(SETTLE_S):
                await self._passage.settled()
            self.look()

    async def answered_nothing(self) -> bool:
        """Whether the model answered, every time, and nothing is under way: then what it said was nothing."""
        if self._passage is None:
            return False
        with anyio.move_on_after(0.1) as span:
            await self._passage.settled()
        self.look()
        return not span.cancelled_caught and self.calls > 0 and self.trouble is None

    def cut(self) -> None:
        """Break off what is under way."""
        if self._passage is not None:
            self._passage.cut()

    def ended(self) -> TurnEnd | None:
        """The end of a turn whose last model call failed, None when it did not."""
        if self.fault is None:
            return None
        return TurnEnd(
            outcome="model_error",
            cause=self.fault.cause,
            error=self.fault.message,
            retry_after_ms=self.fault.retry_after_ms,
        )
