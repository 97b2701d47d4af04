"""A streamed answer as it is collected, whatever protocol it comes in. Pure.

Each protocol's module has a subclass that understands its events; what is collected is the same:
visible text, thoughts (counted, not kept), tool calls, usage, and why it ended.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from loopd_protocol.events import ToolCall, Usage

_encoder = msgspec.json.Encoder()


class BadChunk(Exception):
    """A stream event does not belong to the protocol."""


class ErrorChunk(Exception):
    """The endpoint reported an error inside the stream. `error` is what it sent."""

    def __init__(self, error: object) -> None:
        super().__init__(str(error))
        self.error = error


class Pending(msgspec.Struct):
    """A tool call that is being streamed; `key` names it inside the stream."""

    key: int | str
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Answer:
    """Collects the events of one answer.

    Attributes:
        finish: why it ended, in the words of chat-completions (`stop`, `tool_calls`, `length`, …);
            None while it has not.
        done: the stream said that nothing more comes.
        size: characters of text, thought and arguments so far.
        thought: characters of thought among them.
    """

    EXPECTED: ClassVar[str] = "an event of the model's stream"

    def __init__(self) -> None:
        self._text: list[str] = []
        self._pending: list[Pending] = []
        self._usage: Usage | None = None
        self.finish: str | None = None
        self.done = False
        self.size = 0
        self.thought = 0

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    def take(self, data: str) -> str:
        """Take the data of one stream event, or a whole JSON answer; returns the new visible text.

        Raises:
            BadChunk: not of this protocol.
            ErrorChunk: an error instead.
        """
        raise NotImplementedError

    def decoded(self, data: str) -> dict[str, Any]:
        """The JSON object in `data`.

        Raises:
            BadChunk: it is none.
        """
        try:
            chunk = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadChunk(f"{data[:120]!r} is no JSON ({error}); expected {self.EXPECTED}") from error
        if not isinstance(chunk, dict):
            raise BadChunk(f"{data[:120]!r}; expected {self.EXPECTED}")
        return chunk

    def said(self, text: object) -> str:
        """Visible text came; returns it, or nothing when it is no text."""
        if not isinstance(text, str) or not text:
            return ""
        self._text.append(text)
        self.size += len(text)
        return text

    def thought_of(self, text: object) -> None:
        """Thought came; it is counted only."""
        if isinstance(text, str):
            self.size += len(text)
            self.thought += len(text)

    def call(self, key: int | str) -> Pending | None:
        """The call that is named `key` in this stream, the newest of that name."""
        return next((pending for pending in reversed(self._pending) if pending.key == key), None)

    def open_call(self, key: int | str) -> Pending:
        """A new call."""
        pending = Pending(key, arguments=[])
        self._pending.append(pending)
        return pending

    def name_call(self, pending: Pending, call_id: object, name: object) -> None:
        """Id and name of a call, in whatever order they come; the first of each counts."""
        if isinstance(call_id, str) and call_id and not pending.id:
            pending.id = call_id
        if isinstance(name, str) and name and not pending.name:
            pending.name = name
            self.size += len(name)

    def argue(self, pending: Pending, arguments: object) -> None:
        """A piece of a call's arguments, or all of them as an object."""
        if isinstance(arguments, dict):
            arguments = _encoder.encode(arguments).decode()
        if isinstance(arguments, str):
            pending.arguments.append(arguments)
            self.size += len(arguments)

    @property
    def reported(self) -> Usage | None:
        """Tokens as reported so far, or None."""
        return self._usage

    def usage(self, request_bytes: int) -> Usage:
        """Tokens as reported, or estimated at 4 bytes each when the endpoint reported none."""
        if self._usage is not None:
            return self._usage
        return Usage(input_tokens=-(-request_bytes // 4), output_tokens=-(-self.size // 4), measured=False)

    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that were asked for, with unique ids; arguments that are no JSON object stay raw."""
        calls: list[ToolCall] = []
        taken: set[str] = set()
        for place, pending in enumerate(self._pending, 1):
            call_id = pending.id[:190] or f"call_{place}"
            while call_id in taken:
                call_id = f"{call_id[:190]}_{place}"
            taken.add(call_id)
            raw = "".join(pending.arguments)
            calls.append(ToolCall(id=call_id, name=pending.name[:200] or "(none)", args=arguments_of(raw)))
        return tuple(calls)


def arguments_of(raw: str) -> dict[str, Any]:
    """Arguments as a JSON object; `{"_raw": text}` when they are none. Nothing at all is `{}`."""
    if not raw.strip():
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {"_raw": raw}
    return value if isinstance(value, dict) else {"_raw": raw}


def arguments_text(args: Any) -> str:
    """Arguments as JSON text, the way they go back to the model."""
    return _encoder.encode(args).decode()


def tokens(value: object) -> int:
    """A reported number of tokens; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def fields(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
