"""Cuts what a hosted agent does into steps: one model call each, with its tool calls.

A new step begins when text, a thought or a tool appears after all tools that are known have ended.
"""

from __future__ import annotations

from typing import Any

from loopd.drivers.acp.calls import Call

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


def text_of(body: dict[str, Any]) -> str:
    """The text of a chunk."""
    content = body.get("content")
    if isinstance(content, list):
        return "".join(text_of({"content": part}) for part in content)
    text = content.get("text") if isinstance(content, dict) else content
    return text if isinstance(text, str) else ""
