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
        usage: report usage; `output_tokens` instead of a count by size; `cached_tokens` of the input.
        error: an error object inside the stream, behind the text.
        endless: repeat the text until the client goes away.
        whole: answer as one JSON object instead of a stream.
        done: end the stream with its last event (`[DONE]`, `message_stop`, `response.completed`).
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
    cached_tokens: int = 0
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


def pieces(reply: Reply, number: int, asked_bytes: int, api: str = "chat-completions") -> Iterator[bytes]:
    """The answer as stream events, the way real servers cut it; `number` is that of the request."""
    if reply.raw is not None:
        yield reply.raw
        return
    spoken = Spoken(reply, number, asked_bytes)
    yield from {"chat-completions": _chunks, "messages": _message_events, "responses": _response_events}[api](
        spoken
    )


def whole(reply: Reply, number: int, asked_bytes: int, api: str = "chat-completions") -> dict[str, Any]:
    """The answer as one JSON object."""
    spoken = Spoken(reply, number, asked_bytes)
    return {"chat-completions": _completion, "messages": _message, "responses": _response}[api](spoken)


class Spoken:
    """A reply as it is given to one request."""

    def __init__(self, reply: Reply, number: int, asked_bytes: int) -> None:
        self.reply = reply
        self.number = number
        self.text = reply.text.replace("{n}", str(number))
        self.read = -(-asked_bytes // 4)
        size = len(reply.text) + len(reply.thought) + sum(len(str(call.args)) for call in reply.calls)
        self.tokens = -(-size // 4) if reply.output_tokens is None else reply.output_tokens

    def parts(self) -> Iterator[str]:
        """The text in streamed pieces; for ever when it is endless."""
        while True:
            for at in range(0, len(self.text), self.reply.chunk_chars):
                yield self.text[at : at + self.reply.chunk_chars]
            if not self.reply.endless:
                return

    def calls(self) -> Iterator[tuple[int, str, str, str]]:
        """Place, id, name and arguments of each call."""
        for index, call in enumerate(self.reply.calls):
            arguments = call.args if isinstance(call.args, str) else json.dumps(call.args)
            yield index, call.id or f"call_{self.number}_{index}", call.name, arguments


def _cut(text: str) -> Iterator[str]:
    for at in range(0, len(text), 16):
        yield text[at : at + 16]


# -- chat-completions -------------------------------------------------------------------------


def _chunks(spoken: Spoken) -> Iterator[bytes]:
    reply = spoken.reply
    yield _chunk({"role": "assistant", "content": ""})
    if reply.thought:
        yield _chunk({"reasoning_content": reply.thought})
    for part in spoken.parts():
        yield _chunk({"content": part})
    for index, call_id, name, arguments in spoken.calls():
        head = {"name": name, "arguments": ""}
        yield _chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": head}]})
        for piece in _cut(arguments):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if reply.error is not None:
        yield b"data: " + json.dumps({"error": reply.error}).encode() + b"\n\n"
        return
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    yield _chunk({}, finish=finish)
    if reply.usage:
        yield _event({"choices": [], "usage": _usage(spoken)})
    if reply.done:
        yield b"data: [DONE]\n\n"


def _usage(spoken: Spoken) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": spoken.read,
        "completion_tokens": spoken.tokens,
        "total_tokens": spoken.read + spoken.tokens,
    }
    if spoken.reply.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": spoken.reply.cached_tokens}
    return usage


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _event(fields: dict[str, Any]) -> bytes:
    whole = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "model": "test", **fields}
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


def _completion(spoken: Spoken) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": spoken.text}
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for _, call_id, name, arguments in spoken.calls()
    ]
    if calls:
        message["tool_calls"] = calls
    finish = spoken.reply.finish or ("tool_calls" if calls else "stop")
    answer: dict[str, Any] = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    return answer | ({"usage": _usage(spoken)} if spoken.reply.usage else {})


# -- messages ---------------------------------------------------------------------------------


def _message_events(spoken: Spoken) -> Iterator[bytes]:
    reply, place = spoken.reply, 0
    begun = {**_message(spoken), "content": [], "stop_reason": None}
    if reply.usage:
        begun["usage"] = {**_message_usage(spoken), "output_tokens": 1}
    yield _typed({"type": "message_start", "message": begun})
    yield _typed({"type": "ping"})
    if reply.thought:
        yield from _block(place, {"type": "thinking", "thinking": ""})
        delta = {"type": "thinking_delta", "thinking": reply.thought}
        yield _typed({"type": "content_block_delta", "index": place, "delta": delta})
        yield _typed({"type": "content_block_stop", "index": place})
        place += 1
    if spoken.text:
        yield from _block(place, {"type": "text", "text": ""})
        for part in spoken.parts():
            delta = {"type": "text_delta", "text": part}
            yield _typed({"type": "content_block_delta", "index": place, "delta": delta})
        yield _typed({"type": "content_block_stop", "index": place})
        place += 1
    for _, call_id, name, arguments in spoken.calls():
        yield from _block(place, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
        for piece in _cut(arguments):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield _typed({"type": "content_block_delta", "index": place, "delta": delta})
        yield _typed({"type": "content_block_stop", "index": place})
        place += 1
    if reply.error is not None:
        yield _typed({"type": "error", "error": reply.error})
        return
    ended: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": _stop_reason(reply)}}
    yield _typed(ended | ({"usage": {"output_tokens": spoken.tokens}} if reply.usage else {}))
    if reply.done:
        yield _typed({"type": "message_stop"})


def _block(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    yield _typed({"type": "content_block_start", "index": index, "content_block": block})


def _stop_reason(reply: Reply) -> str:
    words = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    return words.get(finish, finish)


def _message_usage(spoken: Spoken) -> dict[str, int]:
    cached = spoken.reply.cached_tokens
    return {
        "input_tokens": spoken.read - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": spoken.tokens,
    }


def _message(spoken: Spoken) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": spoken.text}] if spoken.text else []
    for call, (_, call_id, name, _) in zip(spoken.reply.calls, spoken.calls(), strict=True):
        given = json.loads(call.args) if isinstance(call.args, str) else call.args
        content.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
    answer: dict[str, Any] = {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": "test",
        "content": content,
        "stop_reason": _stop_reason(spoken.reply),
        "stop_sequence": None,
    }
    return answer | ({"usage": _message_usage(spoken)} if spoken.reply.usage else {})


def _typed(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


# -- responses --------------------------------------------------------------------------------


def _response_events(spoken: Spoken) -> Iterator[bytes]:
    reply, place = spoken.reply, 0
    begun = {**_response(spoken), "status": "in_progress", "output": [], "usage": None}
    yield _typed({"type": "response.created", "response": begun})
    if reply.thought:
        yield _typed({"type": "response.reasoning_text.delta", "output_index": 0, "delta": reply.thought})
        place += 1
    if spoken.text:
        # Codex shows what the finished item holds, not what was streamed.
        item = {"id": "msg_test", "type": "message", "role": "assistant", "content": []}
        yield _typed({"type": "response.output_item.added", "output_index": place, "item": item})
        where = {"item_id": "msg_test", "output_index": place, "content_index": 0}
        for part in spoken.parts():
            yield _typed({"type": "response.output_text.delta", **where, "delta": part})
        whole_part = {"type": "output_text", "text": spoken.text, "annotations": []}
        done = {**item, "content": [whole_part]}
        yield _typed({"type": "response.output_item.done", "output_index": place, "item": done})
        place += 1
    for index, call_id, name, arguments in spoken.calls():
        item = {"id": f"fc_{index}", "type": "function_call", "call_id": call_id, "name": name}
        added = {**item, "arguments": ""}
        yield _typed({"type": "response.output_item.added", "output_index": place, "item": added})
        for piece in _cut(arguments):
            where = {"item_id": item["id"], "output_index": place}
            yield _typed({"type": "response.function_call_arguments.delta", **where, "delta": piece})
        done = {**item, "arguments": arguments}
        yield _typed({"type": "response.output_item.done", "output_index": place, "item": done})
        place += 1
    if reply.error is not None:
        failed = {**begun, "status": "failed", "error": reply.error}
        yield _typed({"type": "response.failed", "response": failed})
        return
    if reply.done:
        ended = "response.incomplete" if reply.finish == "length" else "response.completed"
        yield _typed({"type": ended, "response": _response(spoken)})


def _response(spoken: Spoken) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if spoken.text:
        part = {"type": "output_text", "text": spoken.text, "annotations": []}
        output.append({"id": "msg_test", "type": "message", "role": "assistant", "content": [part]})
    output += [
        {"id": f"fc_{i}", "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        for i, call_id, name, arguments in spoken.calls()
    ]
    cut = spoken.reply.finish == "length"
    answer: dict[str, Any] = {
        "id": "resp_test",
        "object": "response",
        "model": "test",
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
    }
    if spoken.reply.usage:
        answer["usage"] = {
            "input_tokens": spoken.read,
            "input_tokens_details": {"cached_tokens": spoken.reply.cached_tokens},
            "output_tokens": spoken.tokens,
            "total_tokens": spoken.read + spoken.tokens,
        }
    return answer
