"""Chat-completions on the wire: messages to request bytes, stream chunks to an answer. Pure.

The request is a function of the messages, the spec and the tools: the same values give the same
bytes, so a request can be rebuilt from the journal and compared by digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loopd.core.conversation import Message
from loopd.drivers.wires.answer import Answer, BadChunk, ErrorChunk, arguments_text, fields, tokens
from loopd.drivers.wires.mending import Line, mended
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import Usage

PATH = "/chat/completions"
DONE = "[DONE]"

_encoder = msgspec.json.Encoder()


def headers(key: str | None) -> dict[str, str]:
    """How the key is sent."""
    return {"authorization": f"Bearer {key}"} if key else {}


def schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as this protocol wants it; loopd's own form is this protocol's."""
    return tool


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The `messages` of a request, acceptable to strict chat templates."""
    return [_message(line) for line in mended(messages)]


def _message(line: Line) -> dict[str, Any]:
    if line.role == "tool":
        return {"role": "tool", "tool_call_id": line.call_id, "content": line.text}
    said: dict[str, Any] = {"role": line.role, "content": line.text}
    if line.calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call.args)},
            }
            for call in line.calls
        ]
    return said


def request_bytes(spec: ChatSpec, messages: Sequence[Message], tools: Sequence[Any]) -> bytes:
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


class CompletionsAnswer(Answer):
    """Collects the chunks of one streamed answer, or a whole one."""

    EXPECTED = "a chat-completions chunk"

    def take(self, data: str) -> str:
        """See `Answer`."""
        if data.strip() == DONE:
            self.done = True
            self.finish = self.finish or "stop"
            return ""
        chunk = self.decoded(data)
        if chunk.get("error"):
            raise ErrorChunk(chunk["error"])
        choices = chunk.get("choices")
        if not isinstance(choices, list) and "usage" not in chunk:
            raise BadChunk(f"{data[:120]!r} has no choices; expected {self.EXPECTED}")
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
        fresh = self.said(content if isinstance(content, str) else _joined(content))
        for key in ("reasoning_content", "reasoning"):
            thought = delta.get(key)
            if isinstance(thought, str) and thought:
                self.thought_of(thought)
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
        function = fields(part.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        pending = None
        if isinstance(index, int) and not isinstance(index, bool):
            # Some servers give every parallel call index 0 but an id of its own.
            found = self.call(index)
            if found is not None and not (call_id and found.id and call_id != found.id and name):
                pending = found
            key: int | str = index
        elif call_id:
            pending = next((p for p in self._pending if p.id == call_id), None)
            key = str(call_id)
        elif self._pending and not name:
            pending, key = self._pending[-1], self._pending[-1].key
        else:
            key = f"#{len(self._pending)}"
        if pending is None:
            pending = self.open_call(key)
        self.name_call(pending, call_id, name)
        self.argue(pending, arguments)

    def _count(self, usage: object) -> None:
        if isinstance(usage, dict):
            details = fields(usage.get("prompt_tokens_details"))
            self._usage = Usage(
                input_tokens=tokens(usage.get("prompt_tokens")),
                output_tokens=tokens(usage.get("completion_tokens")),
                cached_tokens=tokens(details.get("cached_tokens")),
            )


def _joined(content: object) -> str:
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))
