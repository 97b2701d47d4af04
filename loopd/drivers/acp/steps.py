"""Cuts what a hosted agent does into steps: one model call each, with its tool calls.

A new step begins when text, a thought or a tool appears after all tools that are known have ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopd.core.conversation import Directive, StepDone, TurnEnd
from loopd.drivers.acp.calls import Call
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.acp.usage import estimated
from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.host import TurnHost
from loopd_protocol.events import Usage

TEXT_CHARS = 1_000_000
"""Longer text of one step is not kept."""


class StepDraft:
    """The step that runs now.

    Attributes:
        text: visible text so far.
        calls: in the order in which they appeared.
        thought: characters of thoughts.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._chars = 0
        self.calls: dict[str, Call] = {}
        self.thought = 0

    @property
    def text(self) -> str:
        """Visible text so far."""
        return "".join(self._text)

    @property
    def begun(self) -> bool:
        """Something of it was seen."""
        return bool(self._text or self.calls or self.thought)

    @property
    def settled(self) -> bool:
        """It called tools, and all of them have ended: whatever comes next is another step."""
        return bool(self.calls) and all(call.ended for call in self.calls.values())

    @property
    def waits(self) -> bool:
        """A tool runs."""
        return any(not call.ended for call in self.calls.values())

    def say(self, text: str) -> None:
        """Take visible text."""
        if self._chars < TEXT_CHARS:
            self._text.append(text[: TEXT_CHARS - self._chars])
        self._chars += len(text)

    @property
    def size(self) -> int:
        """Characters that the model made, about."""
        made = self._chars + self.thought
        return made + sum(len(str(call.arguments())) + len(call.name) for call in self.calls.values())


class StepWriter:
    """Hands the steps of one turn to the host.

    Attributes:
        count: steps so far.
        past: ids of the calls in them, which cannot be changed any more.
        told_chars: what the model was told in this turn, about; its own answers and results too.
    """

    def __init__(self, host: TurnHost, kind: AgentKind, sensor: WorkspaceSensor | None) -> None:
        self._host = host
        self._kind = kind
        self._sensor = sensor
        self.count = 0
        self.past: set[str] = set()
        self.told_chars = 0

    async def write(self, draft: StepDraft, usage: Usage | None, *, finish: str, withheld: bool) -> Directive:
        """Hand in a step; without known usage its tokens are estimated."""
        self.past.update(draft.calls)
        calls = tuple(call.record(self._kind) for call in draft.calls.values())
        if usage is None:
            usage = estimated(self.told_chars, draft.size)
        self.told_chars += draft.size + sum(call.result_bytes or 0 for call in calls)
        self.count += 1
        return await self._host.step(
            StepDone(
                text=draft.text,
                calls=calls,
                usage=usage,
                finish=finish,
                tools_withheld=withheld,
                state_fingerprint=await self._fingerprint(draft),
            )
        )

    async def _fingerprint(self, draft: StepDraft) -> str | None:
        if self._sensor is None:
            return None
        for call in draft.calls.values():
            if call.tool_class in {"edit", "exec", "test", "other"}:
                self._sensor.ran_shell()
            if call.tool_class == "edit":
                for path in call.paths:
                    self._sensor.wrote(Path(path))
        return await self._sensor.read()


class TurnOver(Exception):
    """The turn has its end."""

    def __init__(self, end: TurnEnd) -> None:
        super().__init__(end.outcome)
        self.end = end


class PromptAgain(Exception):
    """The prompt was cut; another one follows in the same turn."""

    def __init__(self, text: str, *, withheld: bool) -> None:
        super().__init__(text)
        self.text = text
        self.withheld = withheld


def text_of(body: dict[str, Any]) -> str:
    """The text of a chunk."""
    content = body.get("content")
    if isinstance(content, list):
        return "".join(text_of({"content": part}) for part in content)
    text = content.get("text") if isinstance(content, dict) else content
    return text if isinstance(text, str) else ""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a group of one holds: the task group adds nothing that the caller should see."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
