"""Anthropic's messages API on the wire: messages to request bytes, stream events to an answer. Pure.

A tool result is a block of the user message behind the call; results and what the user says next are
one message, results first. `seed` does not exist in this API and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from loopd.core.conversation import Message
from loopd.drivers.wires.answer import Answer, BadChunk, ErrorChunk, fields, tokens
from loopd.drivers.wires.mending import Line, mended
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import Usage

PATH = "/messages"
VERSION = "2023-06-01"
MAX_TOKENS = 8_192
"""The API demands a bound; this one is sent when the spec names none."""

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}

_encoder = msgspec.json.Encoder()
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")


def headers(key: str | None) -> dict[str, str]:
    """How the key is sent, and which version of the API is meant."""
    return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})


def schema(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as this protocol wants it."""
    function = tool["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def request_bytes(spec: ChatSpec, messages: Sequence[Message], tools: Sequence[Any]) -> bytes:
    """The exact body of a request. Without `tools` the field is left out."""
    lines = mended(messages)
    system = lines.pop(0).text if lines[0].role == "system" else ""
    body: dict[str, Any] = {"model": spec.model, "max_tokens": spec.max_tokens or MAX_TOKENS}
    if system:
        body["system"] = system
    body |= {"messages": _messages(lines), "stream": True}
    if spec.temperature_milli is not None:
        body["temperature"] = spec.temperature_milli / 1_000
    if tools:
        body["tools"] = list(tools)
    return _encoder.encode(body)


def _messages(lines: Sequence[Line]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for line in lines:
        role = "assistant" if line.role == "assistant" else "user"
        if not out or out[-1]["role"] != role:
            out.append({"role": role, "content": []})
        out[-1]["content"].extend(_blocks(line))
    return out


def _blocks(line: Line) -> list[dict[str, Any]]:
    if line.role == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(line.call_id)}
        return [result | {"content": line.text} if line.text else result]
    # The API refuses a text block without a visible character.
    blocks: list[dict[str, Any]] = [{"type": "text", "text": line.text}] if line.text.strip() else []
    blocks += [
        {
            "type": "tool_use",
            "id": _id(call.id),
            "name": call.name,
            "input": call.args if isinstance(call.args, dict) else {},
        }
        for call in line.calls
    ]
    return blocks or [{"type": "text", "text": "(nothing)"}]


def _id(call_id: str) -> str:
    return _NO_ID.sub("_", call_id) or "_"


class MessagesAnswer(Answer):
    """Collects the events of one streamed message, or a whole one."""

    EXPECTED = "an event of a messages stream"

    def take(self, data: str) -> str:
        """See `Answer`."""
        event = self.decoded(data)
        match event.get("type"):
            case "content_block_delta":
                return self._delta(event)
            case "content_block_start":
                return self._block(event.get("index"), fields(event.get("content_block")))
            case "message_start":
                self._count(fields(event.get("message")).get("usage"))
            case "message_delta":
                self._count(event.get("usage"))
                self._stopped(fields(event.get("delta")).get("stop_reason"))
            case "message_stop":
                self.done = True
                self.finish = self.finish or "stop"
            case "error":
                raise ErrorChunk(event.get("error") or event)
            case "message":
                return self._whole(event)
            case str():  # ping, content_block_stop, and what newer versions add
                pass
            case _:
                if event.get("error"):
                    raise ErrorChunk(event["error"])
                raise BadChunk(f"{data[:120]!r} has no type; expected {self.EXPECTED}")
        return ""

    def _whole(self, message: dict[str, Any]) -> str:
        blocks = message.get("content")
        fresh = [
            self._block(place, block)
            for place, block in enumerate(blocks if isinstance(blocks, list) else ())
            if isinstance(block, dict)
        ]
        self._count(message.get("usage"))
        self._stopped(message.get("stop_reason"))
        self.done = True
        self.finish = self.finish or "stop"
        return "".join(fresh)

    def _block(self, index: object, block: dict[str, Any]) -> str:
        match block.get("type"):
            case "tool_use":
                key = index if isinstance(index, int) else f"#{len(self._pending)}"
                pending = self.call(key) or self.open_call(key)
                self.name_call(pending, block.get("id"), block.get("name"))
                if block.get("input"):
                    self.argue(pending, block["input"])
            case "text":
                return self.said(block.get("text"))
            case "thinking":
                self.thought_of(block.get("thinking"))
            case _:
                pass
        return ""

    def _delta(self, event: dict[str, Any]) -> str:
        delta, index = fields(event.get("delta")), event.get("index")
        match delta.get("type"):
            case "text_delta":
                return self.said(delta.get("text"))
            case "thinking_delta":
                self.thought_of(delta.get("thinking"))
            case "input_json_delta" if isinstance(index, int):
                self.argue(self.call(index) or self.open_call(index), delta.get("partial_json"))
            case _:
                pass
        return ""

    def _stopped(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self.finish = FINISHES.get(reason, reason[:200])

    def _count(self, usage: object) -> None:
        """Numbers come in two events and are cumulative; what is cached is not part of the input."""
        if not isinstance(usage, dict):
            return
        before = self._usage or Usage()
        read = before.input_tokens
        cached = before.cached_tokens
        if "input_tokens" in usage:
            cached = tokens(usage.get("cache_read_input_tokens"))
            written = tokens(usage.get("cache_creation_input_tokens"))
            read = tokens(usage.get("input_tokens")) + cached + written
        said = tokens(usage.get("output_tokens")) if "output_tokens" in usage else before.output_tokens
        self._usage = Usage(
            input_tokens=max(read, before.input_tokens),
            output_tokens=said,
            cached_tokens=max(cached, before.cached_tokens),
        )
