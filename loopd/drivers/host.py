"""What a driver needs from its host, by shape; `loopd.engine` fits it without being imported.

Rooms do not import one another, so the port is written down on both sides; the type checker
proves in `loopd.daemon` that they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from loopd.core.compaction import Plan
from loopd.core.conversation import (
    AgentReply,
    AgentRequest,
    Directive,
    Message,
    StepDone,
    TurnEnd,
    TurnRequest,
)
from loopd_protocol.events import ToolCall

OWN_TOOLS: tuple[str, ...] = ("request_idle", "update_goal", "wake_me", "report_phase", "report_progress")
"""loopd's own tools: the host carries them out."""

Monotonic = Callable[[], float]
"""Seconds from an arbitrary start; never goes back."""


class TurnHost(Protocol):
    """What a driver may do while it takes a turn; see `loopd.engine.ports.TurnHost`."""

    def delta(self, text: str) -> bool:
        """Show streamed text; cheap and lossy. False: cancel the stream and ask once more."""

    def frame(self, line: bytes) -> None:
        """Keep a protocol message of a hosted agent: `> ` and what was sent, or `< ` and what came."""

    async def remember(self, key: str, value: str) -> None:
        """Keep a fact over restarts; it comes back as `TurnRequest.memory`. Durable when it returns."""

    async def retrying(self, *, attempt: int, cause: str, delay_ms: int) -> None:
        """A model call failed and is tried again after `delay_ms`."""

    async def afford(self) -> None:
        """Ask before each model call whether a budget is left; `Refused` when the turn has to end."""

    async def permit(self, call: ToolCall) -> None:
        """Ask whether policy lets a tool run, perhaps waiting for a person; `Refused` `forbidden` when not."""

    async def intent(self, call: ToolCall) -> None:
        """Make the intention to run a tool durable; `Refused` when it must not run."""

    async def outcome(self, call: ToolCall, outcome: str) -> None:
        """Record how the tool ended: `ok`, `error` or `cancelled`."""

    async def ask(self, request: AgentRequest) -> AgentReply:
        """Carry out one of loopd's own tools."""

    async def compacted(self, plan: Plan, before: Sequence[Message]) -> tuple[Message, ...]:
        """Carry out a plan on the messages of the running turn; durable, and binding, when this returns.

        Raises:
            Refused: the turn is over.
        """

    async def step(self, done: StepDone) -> Directive:
        """Hand in a finished step."""


class Driver(Protocol):
    """Takes turns for one session; see `loopd.engine.ports.Driver`."""

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Take one turn; faults are in its result."""

    def render(self, request: TurnRequest) -> bytes | None:
        """The exact bytes of the first model request, None if there are none."""

    async def aclose(self) -> None:
        """Release what is held; idempotent."""
