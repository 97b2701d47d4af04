"""Requests out of messages, answers out of chunks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.conversation import Message
from loopd.drivers.tool_schemas import OWN_SCHEMAS
from loopd.drivers.wires.answer import BadChunk, ErrorChunk
from loopd.drivers.wires.completions import CompletionsAnswer as Answer
from loopd.drivers.wires.completions import chat_messages, request_bytes
from loopd.drivers.wires.mending import CONTINUED, UNKNOWN_RESULT
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import ToolCall, Usage

SPEC = ChatSpec(base_url="http://h/v1", model="m")


def user(text: str, **more: Any) -> Message:
    return Message(ss=1, role="user", source="human", text=text, **more)


def assistant(text: str, *calls: str) -> Message:
    asked = tuple(ToolCall(id=call, name="shell", args={"command": call}) for call in calls)
    return Message(ss=2, role="assistant", source="model", text=text, calls=asked)


def result(call: str, text: str = "out") -> Message:
    return Message(ss=2, role="tool", source="tool", text=text, call_id=call)


def system(text: str) -> Message:
    return Message(ss=0, role="system", source="session", text=text)


def shape(*messages: Message) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in chat_messages(messages)]


def test_answers_whose_prompts_were_ephemeral_are_kept_apart() -> None:
    assert shape(system("s"), assistant("a"), assistant("b"), user("go")) == [
        ("system", "s"),
        ("user", CONTINUED),
        ("assistant", "a"),
        ("user", CONTINUED),
        ("assistant", "b"),
        ("user", "go"),
    ]


def test_neighbouring_user_messages_become_one() -> None:
    assert shape(user("a"), user("b"), assistant("x"), user("c")) == [
        ("user", "a\n\nb"),
        ("assistant", "x"),
        ("user", "c"),
    ]


def test_a_note_in_the_middle_is_a_user_message_since_templates_allow_one_system_prompt() -> None:
    assert shape(system("s"), user("a"), assistant("x"), system("note")) == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "x"),
        ("user", "note"),
    ]


def test_a_call_without_result_gets_one_that_says_unknown() -> None:
    said = chat_messages([user("a"), assistant("", "c1", "c2"), result("c1"), user("b")])
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "tool", "user"]
    assert (said[2]["tool_call_id"], said[2]["content"]) == ("c1", "out")
    assert (said[3]["tool_call_id"], said[3]["content"]) == ("c2", UNKNOWN_RESULT)


def test_a_result_whose_call_is_gone_is_told_by_the_user() -> None:
    assert shape(result("c1", "old")) == [("user", "[result of an earlier tool call]\nold")]


def test_an_empty_answer_is_left_out() -> None:
    assert shape(user("a"), assistant(""), user("b")) == [("user", "a\n\nb")]


messages = st.lists(
    st.one_of(
        st.builds(user, st.text(max_size=4)),
        st.builds(system, st.text(max_size=4)),
        st.builds(assistant, st.text(max_size=4), st.sampled_from(["c1", "c2"])),
        st.builds(assistant, st.text(max_size=4)),
        st.builds(result, st.sampled_from(["c1", "c2", "c3"])),
    ),
    max_size=12,
)


@given(messages)
def test_any_history_makes_a_request_that_strict_templates_accept(history: list[Message]) -> None:
    said = chat_messages(history)
    roles = [m["role"] for m in said if m["role"] != "system"]
    assert roles[0] == "user"
    assert roles[-1] in {"user", "tool"}
    assert "system" not in [m["role"] for m in said[1:]]
    waiting: list[str] = []
    for before, now in zip([None, *said], said, strict=False):
        if now["role"] == "tool":
            assert now["tool_call_id"] in waiting
            waiting.remove(now["tool_call_id"])
            continue
        assert waiting == [], "a call was left without its result"
        assert before is None or before["role"] != now["role"]
        assert not (now["role"] == "assistant" and before["role"] == "system")
        waiting = [call["id"] for call in now.get("tool_calls", ())]
    assert waiting == []


@given(messages)
def test_no_word_of_a_history_is_lost(history: list[Message]) -> None:
    told = "\n".join(m["content"] for m in chat_messages(history))
    for message in history:
        assert message.text in told


@given(messages)
def test_the_same_messages_give_the_same_bytes(history: list[Message]) -> None:
    copy = msgspec.json.decode(msgspec.json.encode(history), type=list[Message])
    assert request_bytes(SPEC, history, OWN_SCHEMAS) == request_bytes(SPEC, copy, OWN_SCHEMAS)


def test_parameters_are_sent_only_when_they_are_set() -> None:
    plain = json.loads(request_bytes(SPEC, [user("a")], ()))
    assert set(plain) == {"model", "messages", "stream", "stream_options"}
    spec = ChatSpec(base_url="http://h", model="m", temperature_milli=200, max_tokens=64, seed=7)
    whole = json.loads(request_bytes(spec, [user("a")], OWN_SCHEMAS))
    assert (whole["temperature"], whole["max_tokens"], whole["seed"]) == (0.2, 64, 7)
    assert [tool["function"]["name"] for tool in whole["tools"]] == [
        "request_idle",
        "update_goal",
        "wake_me",
        "report_phase",
        "report_progress",
    ]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more})


def call_part(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        part["index"] = index
    if call_id is not None:
        part["id"] = call_id
    return {"tool_calls": [part]}


@pytest.mark.parametrize(
    "parts",
    [
        [(0, "a", "x", ""), (0, None, None, '{"k"'), (0, None, None, ":1}"), (1, "b", "y", "{}")],
        [(None, "a", "x", '{"k":1}'), (None, "b", "y", "{}")],
        [(0, "a", "x", '{"k":1}'), (0, "b", "y", "{}")],
        [(None, "a", "x", {"k": 1}), (None, "b", "y", {})],
        [(None, "a", "x", ""), (None, None, None, '{"k":1}'), (None, "b", "y", "")],
    ],
    ids=["by index", "by id", "all index 0", "as objects", "in pieces without index"],
)
def test_parallel_calls_are_put_together_however_servers_send_them(parts: list[tuple[Any, ...]]) -> None:
    answer = Answer()
    for part in parts:
        answer.take(chunk(call_part(*part)))
    assert [(call.id, call.name, call.args) for call in answer.calls()] == [
        ("a", "x", {"k": 1}),
        ("b", "y", {}),
    ]


def test_ids_are_made_unique_and_missing_ones_are_made_up() -> None:
    answer = Answer()
    for index, call_id in enumerate(["same", "same", None]):
        answer.take(chunk(call_part(index, call_id, "t", "{}")))
    ids = [call.id for call in answer.calls()]
    assert ids[0] == "same"
    assert len(set(ids)) == 3
    assert all(ids)


@pytest.mark.parametrize("raw", ["{bad", "[1]", '"text"', "5"])
def test_arguments_that_are_no_object_stay_raw(raw: str) -> None:
    answer = Answer()
    answer.take(chunk(call_part(0, "a", "t", raw)))
    assert answer.calls()[0].args == {"_raw": raw}


def test_usage_is_what_the_server_reports_or_marked_as_estimated() -> None:
    answer = Answer()
    answer.take(chunk({"content": "x" * 40}))
    assert answer.usage(400) == Usage(input_tokens=100, output_tokens=10, measured=False)
    answer.take(
        json.dumps(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 7,
                    "completion_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 2},
                },
            }
        )
    )
    assert answer.usage(400) == Usage(input_tokens=7, output_tokens=3, cached_tokens=2, measured=True)


def test_thoughts_are_no_text_but_are_counted() -> None:
    answer = Answer()
    assert answer.take(chunk({"reasoning_content": "hm" * 20})) == ""
    assert answer.take(chunk({"content": [{"type": "text", "text": "said"}]}, "stop")) == "said"
    assert (answer.text, answer.finish, answer.thought, answer.size) == ("said", "stop", 40, 44)


@pytest.mark.parametrize(
    "data", ["", "nope", "[]", "5", "{}", '{"choices":5}', '{"choices":[{"delta":5}]}', "[" * 10_000]
)
def test_what_is_no_chunk_is_said_to_be_none(data: str) -> None:
    with pytest.raises(BadChunk):
        Answer().take(data)


def test_an_error_in_the_stream_is_told_apart() -> None:
    with pytest.raises(ErrorChunk) as caught:
        Answer().take('{"error":{"message":"no"}}')
    assert caught.value.error == {"message": "no"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage",
             "finish_reason", "message", "prompt_tokens", "reasoning"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip


@given(st.lists(json_values, max_size=4))
def test_no_chunk_whatever_breaks_the_collector(chunks: list[Any]) -> None:
    answer = Answer()
    for value in chunks:
        try:
            answer.take(json.dumps(value))
        except (BadChunk, ErrorChunk):
            continue
    for call in answer.calls():
        msgspec.convert(msgspec.to_builtins(call), ToolCall)
    assert answer.usage(10).input_tokens >= 0
