"""Messages and responses on the wire: events in any pieces, strange ones, and requests that are always valid."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.conversation import Message
from loopd.drivers.proxy.door import APIS
from loopd.drivers.sse import EventParser
from loopd.drivers.tool_schemas import OWN_SCHEMAS
from loopd.drivers.wires import WIRES, endpoint_url
from loopd.drivers.wires.answer import BadChunk, ErrorChunk
from loopd.testing.replies import Call, Reply, pieces, whole
from loopd_protocol.commands import ChatSpec
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage

plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
replies = st.builds(
    Reply,
    text=plain.map(lambda text: text.replace("{n}", "")),
    thought=plain,
    calls=st.lists(
        st.builds(
            Call, name=st.sampled_from(["shell", "add"]), args=st.dictionaries(plain, plain, max_size=3)
        ),
        max_size=3,
    ).map(tuple),
    chunk_chars=st.integers(1, 9),
    cached_tokens=st.integers(0, 3),
)


def taken(api: str, data: bytes) -> Any:
    answer = WIRES[api].answer()
    for event in EventParser().feed(data):
        answer.take(event.data)
    return answer


@given(api=st.sampled_from(APIS), reply=replies)
def test_a_streamed_answer_says_the_same_as_a_whole_one(api: str, reply: Reply) -> None:
    streamed = taken(api, b"".join(pieces(reply, 3, 4_000, api)))
    at_once = WIRES[api].answer()
    at_once.take(json.dumps(whole(reply, 3, 4_000, api)))
    for answer in (streamed, at_once):
        assert answer.text == reply.text
        assert [(c.name, c.args) for c in answer.calls()] == [(c.name, c.args) for c in reply.calls]
        assert answer.finish == ("tool_calls" if reply.calls else "stop")
        usage = answer.usage(0)
        assert (usage.input_tokens, usage.cached_tokens, usage.measured) == (1_000, reply.cached_tokens, True)
    assert streamed.thought == len(reply.thought)


roles = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "call", "result", "system"]), plain), max_size=12
)


def conversation(lines: list[tuple[str, str]]) -> list[Message]:
    messages: list[Message] = []
    for ss, (role, text) in enumerate(lines, 1):
        match role:
            case "call":
                calls = (ToolCall(id=f"call {ss}!", name="shell", args={"command": text}),)
                messages.append(Message(ss=ss, role="assistant", source="model", text=text, calls=calls))
            case "result":
                messages.append(
                    Message(ss=ss, role="tool", source="tool", text=text, call_id=f"call {ss - 1}!")
                )
            case _:
                messages.append(Message(ss=ss, role=role, source="x", text=text))  # type: ignore[arg-type]
    return messages


@given(roles)
def test_every_history_becomes_messages_that_the_api_accepts(lines: list[tuple[str, str]]) -> None:
    spec = ChatSpec(base_url="http://h/v1", model="m", api="messages")
    body = json.loads(WIRES["messages"].request_bytes(spec, conversation(lines), ()))
    said = body["messages"]
    assert [m["role"] for m in said] == ["user", "assistant"] * (len(said) // 2) + ["user"]
    for before, after in zip([None, *said], said, strict=False):
        kinds = [block["type"] for block in after["content"]]
        assert kinds, "no message is empty"
        assert kinds == sorted(kinds, key=["tool_result", "text", "tool_use"].index), "results come first"
        assert all(block["text"].strip() for block in after["content"] if block["type"] == "text")
        answered = [b["tool_use_id"] for b in after["content"] if b["type"] == "tool_result"]
        asked = [b["id"] for b in (before or {"content": []})["content"] if b["type"] == "tool_use"]
        assert answered == asked, "each call is answered in the next message, and nothing else is"
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in asked)


@given(roles)
def test_every_history_becomes_input_that_responses_accept(lines: list[tuple[str, str]]) -> None:
    spec = ChatSpec(base_url="http://h/v1", model="m", api="responses")
    items = json.loads(WIRES["responses"].request_bytes(spec, conversation(lines), ()))["input"]
    open_calls: list[str] = []
    for item in items:
        if item["type"] == "function_call":
            open_calls.append(item["call_id"])
            json.loads(item["arguments"])
        elif item["type"] == "function_call_output":
            assert item["call_id"] in open_calls
            open_calls.remove(item["call_id"])
        elif item["role"] == "user":
            assert open_calls == [], "results stand before what is said next"
    assert open_calls == []
    assert items[-1]["type"] == "function_call_output" or items[-1]["role"] == "user"


@pytest.mark.parametrize("api", APIS)
def test_the_same_values_give_the_same_bytes_and_tools_stand_as_they_were_recorded(api: str) -> None:
    spec = ChatSpec(base_url="http://h/v1", model="m", api=api, max_tokens=5)  # type: ignore[arg-type]
    wire, messages = WIRES[api], conversation([("user", "hi"), ("call", "ls"), ("result", "a")])
    tools = [wire.schema(tool) for tool in OWN_SCHEMAS]
    recorded = msgspec.json.encode(tools)
    raw = msgspec.json.decode(recorded, type=list[msgspec.Raw])
    assert wire.request_bytes(spec, messages, tools) == wire.request_bytes(spec, messages, raw)


@pytest.mark.parametrize(
    ("api", "data"),
    [
        ("messages", '{"hello": 1}'),
        ("messages", "[1]"),
        ("messages", "nope"),
        ("responses", '{"hello": 1}'),
        ("responses", '"text"'),
        ("responses", "{"),
    ],
)
def test_what_is_not_of_the_protocol_is_named(api: str, data: str) -> None:
    with pytest.raises(BadChunk, match="expected an event of a"):
        WIRES[api].answer().take(data)


@pytest.mark.parametrize(
    ("api", "data"),
    [
        ("messages", '{"type":"error","error":{"type":"overloaded_error","message":"x"}}'),
        ("messages", '{"error":{"message":"x"}}'),
        ("responses", '{"type":"error","code":"server_error","message":"x"}'),
        ("responses", '{"type":"response.failed","response":{"error":{"code":"x","message":"y"}}}'),
        ("responses", '{"error":{"message":"x"}}'),
    ],
)
def test_errors_inside_a_stream_are_errors(api: str, data: str) -> None:
    with pytest.raises(ErrorChunk):
        WIRES[api].answer().take(data)


strange = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TYPES = [
    "message_start",
    "message_delta",
    "content_block_start",
    "content_block_delta",
    "message",
    "response.completed",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.incomplete",
    "response.function_call_arguments.delta",
    "ping",
]
FIELDS = (
    "message",
    "delta",
    "content_block",
    "index",
    "usage",
    "item",
    "response",
    "output_index",
    "content",
)


@given(
    api=st.sampled_from(("messages", "responses")),
    kind=st.sampled_from(TYPES),
    event=st.dictionaries(st.sampled_from(FIELDS), strange),
)
def test_events_of_any_shape_are_taken_or_named_and_never_raise_anything_else(
    api: str, kind: str, event: dict[str, Any]
) -> None:
    answer = WIRES[api].answer()
    try:
        answer.take(json.dumps({**event, "type": kind}))
    except (BadChunk, ErrorChunk):
        return
    assert isinstance(answer.text, str)
    assert isinstance(answer.usage(4), Usage)
    answer.calls()


def test_usage_of_messages_is_cumulative_and_counts_what_was_cached() -> None:
    answer = WIRES["messages"].answer()
    begun = {
        "input_tokens": 10,
        "cache_read_input_tokens": 90,
        "cache_creation_input_tokens": 5,
        "output_tokens": 1,
    }
    answer.take(json.dumps({"type": "message_start", "message": {"usage": begun}}))
    answer.take('{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":30}}')
    assert answer.usage(0) == Usage(input_tokens=105, output_tokens=30, cached_tokens=90)
    assert answer.finish == "length"


@pytest.mark.parametrize("base", ["http://", "http://h:0/v1", "ftp://h/v1", "http://user:pw@h/v1", "h/v1"])
def test_addresses_that_are_none_are_refused(base: str) -> None:
    with pytest.raises(Refused) as refused:
        endpoint_url(base, "/messages")
    assert "pw" not in refused.value.message
