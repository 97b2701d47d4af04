"""Chat-completions on the wire: messages to request bytes, stream chunks to an answer. Pure.

The request is a function of the messages, the spec and the tools: the same values give the same
bytes, so a request can be rebuilt from the journal and compared by digest.

Chat templates of many models are strict: a user message first, then strict alternation, tool
results right behind their call. Where history does not offer that (ephemeral prompts were left
out, a turn was cut between a call and its result), `chat_messages` mends it in a fixed way:
"(continued)" between two assistant messages, neighbouring user messages joined, a result
"interrupted; outcome unknown" for a call that has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loopd.core.conversation import Message
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import ToolCall, Usage

CONTINUED = "(continued)"
UNKNOWN_RESULT = "interrupted; outcome unknown"

_encoder = msgspec.json.Encoder()


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The `messages` of a request, acceptable to strict chat templates."""
    out: list[dict[str, Any]] = []
    open_calls: list[str] = []

    def settle() -> None:
        out.extend(
            {"role": "tool", "tool_call_id": call_id, "content": UNKNOWN_RESULT} for call_id in open_calls
        )
        open_calls.clear()

    def say(text: str) -> None:
        settle()
        if out and out[-1]["role"] == "user":
            out[-1]["content"] += "\n\n" + text
        else:
            out.append({"role": "user", "content": text})

    for message in messages:
        if message.role == "tool":
            if message.call_id in open_calls:
                open_calls.remove(message.call_id)
                out.append({"role": "tool", "tool_call_id": message.call_id, "content": message.text})
            else:
                say(f"[result of an earlier tool call]\n{message.text}")
        elif message.role == "assistant":
            if not message.text and not message.calls:
                continue
            settle()
            if not out or out[-1]["role"] in {"assistant", "system"}:
                say(CONTINUED)
            out.append(_assistant(message))
            open_calls.extend(call.id for call in message.calls)
        elif message.role == "system" and not out:
            if message.text:
                out.append({"role": "system", "content": message.text})
        else:
            say(message.text)
    settle()
    if not out or out[-1]["role"] in {"assistant", "system"}:
        say(CONTINUED)
    return out


def _assistant(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _encoder.encode(call.args).decode()},
            }
            for call in message.calls
        ]
    return said


def request_bytes(spec: ChatSpec, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> bytes:
    """The exact body of a request. Without `tools` the field is left out."""
    body: dict[str, Any] = {
        "model": spec.model,
        "messages": chat_messages(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.temperature_milli is not None:
        body["temperature"] = spec.temperature_milli / 1_000
    if spec.max_tokens is not None:
        body["max_tokens"] = spec.max_tokens
    if spec.seed is not None:
        body["seed"] = spec.seed
    if tools:
        body["tools"] = list(tools)
    return _encoder.encode(body)


class BadChunk(Exception):
    """A stream event is no chat-completions chunk."""


class ErrorChunk(Exception):
    """The endpoint reported an error inside the stream. `error` is what it sent."""

    def __init__(self, error: object) -> None:
        super().__init__(str(error))
        self.error = error


class _Pending(msgspec.Struct):
    key: int | str
    id: str = ""
    name: str = ""
    arguments: list[str] = []


class Answer:
    """Collects the chunks of one streamed answer.

    Attributes:
        finish: the finish reason, or None while none came.
        size: characters of text, thought and arguments so far.
        usage: as reported, or None.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._pending: list[_Pending] = []
        self._usage: Usage | None = None
        self.finish: str | None = None
        self.size = 0
        self.thought = 0

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    def take(self, data: str) -> str:
        """Take the data of one stream event (or a whole JSON answer); returns the new visible text.

        Raises:
            BadChunk: not a chunk.
            ErrorChunk: an error object instead of a chunk.
        """
        try:
            chunk = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadChunk(
                f"{data[:120]!r} is no JSON ({error}); expected a chat-completions chunk"
            ) from error
        if not isinstance(chunk, dict):
            raise BadChunk(f"{data[:120]!r}; expected a chat-completions chunk")
        if chunk.get("error"):
            raise ErrorChunk(chunk["error"])
        choices = chunk.get("choices")
        if not isinstance(choices, list) and "usage" not in chunk:
            raise BadChunk(f"{data[:120]!r} has no choices; expected a chat-completions chunk")
        self._count(chunk.get("usage"))
        fresh = ""
        for choice in choices or ():
            # Only one choice is asked for; others would be another answer.
            if isinstance(choice, dict) and choice.get("index", 0) in {0, None}:
                fresh += self._choice(choice)
        return fresh

    def _choice(self, choice: dict[str, Any]) -> str:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise BadChunk(f"delta is {type(delta).__name__}; expected an object")
        content = delta.get("content")
        fresh = content if isinstance(content, str) else _joined(content)
        if fresh:
            self._text.append(fresh)
            self.size += len(fresh)
        for key in ("reasoning_content", "reasoning"):
            thought = delta.get(key)
            if isinstance(thought, str) and thought:
                self.size += len(thought)
                self.thought += len(thought)
                break
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._call(call)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finish = finish[:200]
        return fresh

    def _call(self, part: dict[str, Any]) -> None:
        index, call_id = part.get("index"), part.get("id")
        function = part.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = function.get("name"), function.get("arguments")
        pending = None
        if isinstance(index, int) and not isinstance(index, bool):
            # Some servers give every parallel call index 0 but an id of its own.
            found = [p for p in self._pending if p.key == index]
            if found and not (call_id and found[-1].id and call_id != found[-1].id and name):
                pending = found[-1]
            key: int | str = index
        elif call_id:
            pending = next((p for p in self._pending if p.id == call_id), None)
            key = str(call_id)
        elif self._pending and not name:
            pending, key = self._pending[-1], self._pending[-1].key
        else:
            key = f"#{len(self._pending)}"
        if pending is None:
            pending = _Pending(key, arguments=[])
            self._pending.append(pending)
        if isinstance(call_id, str) and call_id and not pending.id:
            pending.id = call_id
        if isinstance(name, str) and name and not pending.name:
            pending.name = name
            self.size += len(name)
        if isinstance(arguments, str):
            pending.arguments.append(arguments)
            self.size += len(arguments)
        elif isinstance(arguments, dict):
            whole = _encoder.encode(arguments).decode()
            pending.arguments.append(whole)
            self.size += len(whole)

    def _count(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        self._usage = Usage(
            input_tokens=_tokens(usage.get("prompt_tokens")),
            output_tokens=_tokens(usage.get("completion_tokens")),
            cached_tokens=_tokens(details.get("cached_tokens") if isinstance(details, dict) else 0),
        )

    def usage(self, request_bytes_: int) -> Usage:
        """Tokens as reported, or estimated at 4 bytes each when the endpoint reported none."""
        if self._usage is not None:
            return self._usage
        return Usage(input_tokens=-(-request_bytes_ // 4), output_tokens=-(-self.size // 4), measured=False)

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


def _joined(content: object) -> str:
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
