"""What the test endpoint can answer: replies as values, and their bytes on the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec


class Call(msgspec.Struct, frozen=True):
    """A tool call of an answer; `args` as a string are sent as they are, for bad JSON."""

    name: str
    args: Any = {}
    id: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the endpoint.

    Attributes:
        text, calls: what the model says and asks for. `{n}` in `text` becomes the request's number.
        chunk_chars: size of the streamed pieces.
        gap_ms: wait before each piece; `first_ms`: wait before the first byte.
        status, headers, body: anything but 200 is sent like this, without a stream.
        break_after: close the connection behind so many pieces.
        hang_after: stop answering behind so many pieces, without closing.
        raw: these stream bytes instead of an answer, for malformed streams.
        usage: report usage; `estimate` None leaves it out.
        error: an error object inside the stream, behind the text.
        endless: repeat the text until the client goes away.
        whole: answer as one JSON object instead of a stream.
        done: end the stream with `[DONE]`.
    """

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    chunk_chars: int = 8
    gap_ms: int = 0
    first_ms: int = 0
    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""
    break_after: int | None = None
    hang_after: int | None = None
    raw: bytes | None = None
    usage: bool = True
    output_tokens: int | None = None
    error: Any = None
    endless: bool = False
    whole: bool = False
    done: bool = True
    finish: str | None = None


def say(text: str, **more: Any) -> Reply:
    """The same text each time; with `{n}` in it a different one."""
    return Reply(text=text, **more)


def ask(*calls: Call, text: str = "", **more: Any) -> Reply:
    """Tool calls, in parallel when there are several."""
    return Reply(text=text, calls=calls, **more)


def fail(status: int, *, retry_after: str | None = None, message: str = "told to fail") -> Reply:
    """An HTTP error, with or without `Retry-After`."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(status=status, headers=headers, body=json.dumps({"error": {"message": message}}))


def pieces(reply: Reply, number: int, asked_bytes: int) -> Iterator[bytes]:
    """The answer as stream events, the way real servers cut it; `number` is that of the request."""
    if reply.raw is not None:
        yield reply.raw
        return
    yield _chunk({"role": "assistant", "content": ""})
    if reply.thought:
        yield _chunk({"reasoning_content": reply.thought})
    text = reply.text.replace("{n}", str(number))
    while True:
        for at in range(0, len(text), reply.chunk_chars):
            yield _chunk({"content": text[at : at + reply.chunk_chars]})
        if not reply.endless:
            break
    for index, call in enumerate(reply.calls):
        arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
        head = {"name": call.name, "arguments": ""}
        call_id = call.id or f"call_{number}_{index}"
        yield _chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": head}]})
        for at in range(0, len(arguments), 16):
            part = {"arguments": arguments[at : at + 16]}
            yield _chunk({"tool_calls": [{"index": index, "function": part}]})
    if reply.error is not None:
        yield b"data: " + json.dumps({"error": reply.error}).encode() + b"\n\n"
        return
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    yield _chunk({}, finish=finish)
    if reply.usage:
        yield _event({"choices": [], "usage": _usage(reply, asked_bytes)})
    if reply.done:
        yield b"data: [DONE]\n\n"


def _usage(reply: Reply, asked_bytes: int) -> dict[str, int]:
    spoken = len(reply.text) + len(reply.thought) + sum(len(str(call.args)) for call in reply.calls)
    tokens = -(-spoken // 4) if reply.output_tokens is None else reply.output_tokens
    read = -(-asked_bytes // 4)
    return {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _event(fields: dict[str, Any]) -> bytes:
    whole = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "model": "test", **fields}
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


def whole(reply: Reply, number: int, asked_bytes: int) -> dict[str, Any]:
    """The answer as one JSON object."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text.replace("{n}", str(number)),
    }
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{number}_{index}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.args if isinstance(call.args, str) else json.dumps(call.args),
                },
            }
            for index, call in enumerate(reply.calls)
        ]
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    answer: dict[str, Any] = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    return answer | ({"usage": _usage(reply, asked_bytes)} if reply.usage else {})
