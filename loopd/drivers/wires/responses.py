"""OpenAI's responses API on the wire: messages to request bytes, stream events to an answer. Pure.

The conversation is sent whole each time (`store: false`): what the model saw is in the request and
nowhere else. `seed` does not exist in this API and is left out.
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

PATH = "/responses"

_encoder = msgspec.json.Encoder()


def headers(key: str | None) -> dict[str, str]:
    """How the key is sent."""
    return {"authorization": f"Bearer {key}"} if key else {}


def schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as this protocol wants it."""
    return {"type": "function", **tool["function"], "strict": False}


def request_bytes(spec: ChatSpec, messages: Sequence[Message], tools: Sequence[Any]) -> bytes:
    """The exact body of a request. Without `tools` the field is left out."""
    lines = mended(messages)
    system = lines.pop(0).text if lines[0].role == "system" else ""
    body: dict[str, Any] = {"model": spec.model}
    if system:
        body["instructions"] = system
    body |= {"input": [item for line in lines for item in _items(line)], "stream": True, "store": False}
    if spec.temperature_milli is not None:
        body["temperature"] = spec.temperature_milli / 1_000
    if spec.max_tokens is not None:
        body["max_output_tokens"] = spec.max_tokens
    if tools:
        body["tools"] = list(tools)
    return _encoder.encode(body)


def _items(line: Line) -> list[dict[str, Any]]:
    if line.role == "tool":
        return [{"type": "function_call_output", "call_id": line.call_id, "output": line.text}]
    if line.role == "user":
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": line.text}]}]
    items: list[dict[str, Any]] = []
    if line.text:
        said = {"type": "output_text", "text": line.text, "annotations": []}
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [said]})
    items += [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments_text(call.args),
            "status": "completed",
        }
        for call in line.calls
    ]
    return items


class ResponsesAnswer(Answer):
    """Collects the events of one streamed response, or a whole one."""

    EXPECTED = "an event of a responses stream"

    def take(self, data: str) -> str:
        """See `Answer`."""
        event = self.decoded(data)
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                return self.said(event.get("delta"))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                self.thought_of(event.get("delta"))
            case "response.output_item.added":
                self._item(event, fields(event.get("item")), final=False)
            case "response.output_item.done":
                self._item(event, fields(event.get("item")), final=True)
            case "response.function_call_arguments.delta":
                key = _key(event)
                self.argue(self.call(key) or self.open_call(key), event.get("delta"))
            case "response.completed" | "response.incomplete":
                return self._ended(fields(event.get("response")))
            case "response.failed":
                raise ErrorChunk(fields(event.get("response")).get("error") or event)
            case "error":
                raise ErrorChunk(event.get("error") or event)
            case str():
                pass
            case _:
                return self._untyped(data, event)
        return ""

    def _untyped(self, data: str, event: dict[str, Any]) -> str:
        if event.get("error"):
            raise ErrorChunk(event["error"])
        if data.strip() and event.get("object") == "response":
            return self._ended(event)
        raise BadChunk(f"{data[:120]!r} has no type; expected {self.EXPECTED}")

    def _item(self, event: dict[str, Any], item: dict[str, Any], *, final: bool) -> None:
        if item.get("type") != "function_call":
            return
        key = _key(event)
        pending = self.call(key) or self.open_call(key)
        self.name_call(pending, item.get("call_id") or item.get("id"), item.get("name"))
        if final and not pending.arguments:
            self.argue(pending, item.get("arguments"))

    def _ended(self, response: dict[str, Any]) -> str:
        """The final event repeats the whole answer; a server that streamed nothing says it only here."""
        fresh: list[str] = []
        output = response.get("output")
        if not self._text and not self._pending and isinstance(output, list):
            for place, item in enumerate(output):
                if isinstance(item, dict):
                    self._item({"output_index": place}, item, final=True)
                    fresh += [self.said(part) for part in _texts(item)]
        self._count(response.get("usage"))
        if response.get("error"):
            raise ErrorChunk(response["error"])
        reason = fields(response.get("incomplete_details")).get("reason")
        if response.get("status") == "incomplete" and isinstance(reason, str):
            self.finish = "length" if reason == "max_output_tokens" else reason[:200]
        else:
            self.finish = "tool_calls" if self._pending else "stop"
        self.done = True
        return "".join(fresh)

    def _count(self, usage: object) -> None:
        if isinstance(usage, dict):
            details = fields(usage.get("input_tokens_details"))
            self._usage = Usage(
                input_tokens=tokens(usage.get("input_tokens")),
                output_tokens=tokens(usage.get("output_tokens")),
                cached_tokens=tokens(details.get("cached_tokens")),
            )


def _key(event: dict[str, Any]) -> int | str:
    """What names an item inside the stream: its id where every event carries it, else its place."""
    index = event.get("output_index")
    return index if isinstance(index, int) and not isinstance(index, bool) else str(event.get("item_id"))


def _texts(item: dict[str, Any]) -> list[object]:
    content = item.get("content")
    if item.get("type") != "message" or not isinstance(content, list):
        return []
    return [part.get("text") or part.get("refusal") for part in content if isinstance(part, dict)]
