"""What the proxy says in place of the model: a valid answer in each protocol that stops. Pure.

It has a text, because agents take an answer without one for a fault and ask again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_encode = msgspec.json.encode


def stop_body(api: str, model: str, text: str, *, stream: bool, counted: bool) -> bytes:
    """The body of an answer that says `text` and stops.

    Args:
        api: protocol.
        model: as the request named it.
        text: for the agent, and whoever reads its transcript.
        stream: as server-sent events.
        counted: in a chat-completions stream: with a final event for the usage, as the request asked.
    """
    whole = {"chat-completions": _completion, "messages": _message, "responses": _response}[api](model, text)
    if not stream:
        return _encode(whole)
    events = {"chat-completions": _chunks, "messages": _message_events, "responses": _response_events}[api]
    return b"".join(events(whole, text, counted))


def error_body(api: str, kind: str, message: str) -> bytes:
    """An error object of the protocol."""
    error = {"type": kind, "message": message}
    if api == "messages":
        return _encode({"type": "error", "error": error})
    return _encode({"error": {**error, "code": kind, "param": None}})


def _completion(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-loopd",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _chunks(whole: dict[str, Any], text: str, counted: bool) -> Iterator[bytes]:  # noqa: FBT001
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": 0, "model": whole["model"]}
    said = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    yield _plain({**head, "choices": [said]})
    yield _plain({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if counted:
        yield _plain({**head, "choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _message(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "msg_loopd",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _message_events(whole: dict[str, Any], text: str, counted: bool) -> Iterator[bytes]:  # noqa: FBT001
    del counted
    start = {**whole, "content": [], "stop_reason": None}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    yield _named({"type": "message_start", "message": start})
    yield _named(block)
    yield _named(delta)
    yield _named({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _named({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 0}})
    yield _named({"type": "message_stop"})


def _response(model: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_loopd",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": model,
        "error": None,
        "incomplete_details": None,
        "output": [
            {
                "id": "msg_loopd",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }


def _response_events(whole: dict[str, Any], text: str, counted: bool) -> Iterator[bytes]:  # noqa: FBT001
    del counted
    item, part = whole["output"][0], whole["output"][0]["content"][0]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": text},
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    for number, event in enumerate(events):
        yield _named({**event, "sequence_number": number})


def _plain(event: dict[str, Any]) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"


def _named(event: dict[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + _plain(event)
