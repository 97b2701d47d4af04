"""The chat driver on each of the three APIs: what goes out, what comes back, and what every failure is called."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.core.conversation import Message, TurnEnd
from loopd.drivers.chat import ChatDriver
from loopd.drivers.model import Limits
from loopd.drivers.retry import RetryPolicy
from loopd.testing.driver_suite import CHECKS, RecordingHost, turn
from loopd.testing.endpoint import Call, Endpoint, Reply, Script, ask, fail, say
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import ToolCall
from tests.drivers.stages import ChatStage

pytestmark = pytest.mark.anyio
APIS = ("chat-completions", "messages", "responses")
QUICK = RetryPolicy(retries=2, base_ms=2, cap_ms=4)


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def drive(
    api: str,
    script: Script,
    *,
    host: RecordingHost | None = None,
    workspace: Path | None = None,
    retry: RetryPolicy = QUICK,
    limits: Limits | None = None,
    before: tuple[Message, ...] = (),
    **spec: Any,
) -> tuple[TurnEnd, RecordingHost, Endpoint]:
    host = host or RecordingHost()
    async with Endpoint(script) as endpoint:
        driver = ChatDriver(
            "ses_chat",
            ChatSpec(base_url=endpoint.base_url, model="test", api=api, **spec),
            None if workspace is None else str(workspace),
            retry=retry,
            limits=limits,
        )
        with anyio.fail_after(20):
            end = await driver.take_turn(turn(before=before), host)
            await endpoint.wait_for_quiet()
    return end, host, endpoint


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_every_promise_of_the_port_holds_on_every_api(api: str, check: Any, tmp_path: Path) -> None:
    async with Endpoint() as endpoint:
        await check(ChatStage(endpoint, tmp_path, api=api))


async def test_text_calls_usage_and_finish_come_out_the_same(api: str, tmp_path: Path) -> None:
    script = [
        ask(
            Call("shell", {"command": "echo one"}, id="c-1"),
            Call("shell", {"command": "echo two"}, id="c-2"),
            text="both at once",
            thought="hm",
            cached_tokens=7,
            output_tokens=42,
        ),
        say("done"),
    ]
    end, host, endpoint = await drive(api, script, workspace=tmp_path)
    assert end == TurnEnd(outcome="completed")
    first, last = host.steps
    assert [(c.id, c.name, c.args, c.result) for c in first.calls] == [
        ("c-1", "shell", {"command": "echo one"}, "one\n\n[exit code 0]"),
        ("c-2", "shell", {"command": "echo two"}, "two\n\n[exit code 0]"),
    ]
    assert (first.text, first.finish, last.text, last.finish) == (
        "both at once",
        "tool_calls",
        "done",
        "stop",
    )
    assert first.usage is not None
    assert (first.usage.cached_tokens, first.usage.output_tokens, first.usage.measured) == (7, 42, True)
    assert first.usage.input_tokens == -(-endpoint.requests[0].size // 4)
    assert [step.request_sha256 for step in host.steps] == [r.sha256 for r in endpoint.requests]
    assert {r.api for r in endpoint.requests} == {api}


async def test_the_second_request_shows_calls_with_their_results(api: str, tmp_path: Path) -> None:
    script = [ask(Call("shell", {"command": "echo hi"}, id="c-1"), text="look"), say("done")]
    system = Message(ss=0, role="system", source="session", text="Be brief.")
    _, _, endpoint = await drive(api, script, workspace=tmp_path, before=(system,), max_tokens=77)
    body = endpoint.requests[1].json
    match api:
        case "messages":
            assert (body["system"], body["max_tokens"]) == ("Be brief.", 77)
            said, result = body["messages"][1:]
            assert said["content"][0] == {"type": "text", "text": "look"}
            assert said["content"][1] == {
                "type": "tool_use",
                "id": "c-1",
                "name": "shell",
                "input": {"command": "echo hi"},
            }
            assert result["role"] == "user"
            assert result["content"][0]["tool_use_id"] == "c-1"
            assert result["content"][0]["content"].startswith("hi\n")
            assert body["tools"][0].keys() == {"name", "description", "input_schema"}
        case "responses":
            assert (body["instructions"], body["max_output_tokens"]) == ("Be brief.", 77)
            kinds = [item["type"] for item in body["input"]]
            assert kinds == ["message", "message", "function_call", "function_call_output"]
            assert body["input"][2]["arguments"] == '{"command":"echo hi"}'
            assert body["input"][3]["call_id"] == "c-1"
            assert body["store"] is False
        case _:
            assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool"]
            assert body["max_tokens"] == 77


async def test_the_key_is_sent_the_way_the_api_wants_it(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-1")
    _, _, endpoint = await drive(api, [say("ok")], api_key_env="SOME_KEY")
    headers = endpoint.requests[0].headers
    if api == "messages":
        assert headers["x-api-key"] == "sk-secret-1"
        assert headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers
    else:
        assert headers["authorization"] == "Bearer sk-secret-1"


async def test_an_answer_that_is_not_streamed_is_taken_whole(api: str) -> None:
    script = [ask(Call("report_phase", {"name": "a"}, id="x"), text="t", whole=True), say("end", whole=True)]
    end, host, _ = await drive(api, script)
    assert end.outcome == "completed"
    assert [(s.text, len(s.calls), s.finish) for s in host.steps] == [
        ("t", 1, "tool_calls"),
        ("end", 0, "stop"),
    ]


OVERFLOW = "prompt is too long: 250000 tokens > 200000 maximum; context_length_exceeded"
FAULTS: dict[str, tuple[Reply, str, bool]] = {
    "500": (fail(500), "server_error", True),
    "503": (fail(503), "overloaded", True),
    "429": (fail(429, retry_after="3600"), "rate_limited", False),
    "401": (fail(401), "auth", False),
    "404": (fail(404), "rejected", False),
    "overflow": (fail(400, message=OVERFLOW), "context_overflow", False),
    "prose": (say("We're currently experiencing high demand, please try again"), "error_prose", True),
    "prose-error": (say("API Error: 529 overloaded"), "error_prose", True),
    "hang": (say("x", hang_after=0), "unreachable", True),
    "broken": (say("some text", break_after=4), "unreachable", True),
    "garbage": (Reply(raw=b"data: {nope\n\n"), "bad_response", True),
    "other-protocol": (Reply(raw=b'data: {"hello":"world"}\n\n'), "bad_response", True),
    "in-stream": (say("a", error={"type": "overloaded_error", "message": "Overloaded"}), "overloaded", True),
    "in-stream-auth": (say("", error={"type": "authentication_error", "message": "x"}), "auth", False),
    "empty": (Reply(output_tokens=0), "bad_response", False),
}
"""What the endpoint does → what the turn is called, and whether it is tried again first."""


@pytest.mark.parametrize("name", FAULTS)
async def test_every_failure_has_its_name_and_is_no_step(api: str, name: str) -> None:
    reply, cause, retried = FAULTS[name]
    quick = Limits(first_s=0.4, silence_s=0.4, connect_s=0.4)
    end, host, endpoint = await drive(api, [reply], limits=quick)
    assert (end.outcome, end.cause) == ("model_error", cause), end
    assert end.error
    assert host.steps == [], "a failure is no step, so no rule ever sees it"
    assert [c for _, c, _ in host.retries] == ([cause] * 2 if retried else [])
    assert len(endpoint.requests) == (3 if retried else 1)
    assert end.retry_after_ms == (3_600_000 if name == "429" else None)


async def test_an_empty_answer_that_was_billed_is_a_barren_step(api: str) -> None:
    end, host, _ = await drive(api, [Reply(output_tokens=9)])
    assert end.outcome == "empty"
    assert [(s.text, s.usage.output_tokens if s.usage else None) for s in host.steps] == [("", 9)]


async def test_words_about_errors_are_no_error(api: str) -> None:
    text = "I looked at the API error handling. Error code 500 is returned when the disk is full. " * 9
    end, host, _ = await drive(api, [say(text)])
    assert end.outcome == "completed"
    assert host.steps[0].text == text


async def test_one_overflow_is_answered_by_compaction_and_one_more_request(api: str) -> None:
    old = history(20)
    script = [fail(400, message=OVERFLOW), say("The work so far: counted to 20."), say("going on")]
    end, host, endpoint = await drive(api, script, before=old)
    assert end.outcome == "completed"
    (plan,) = host.plans
    assert (plan.reason, plan.summary) == ("overflow", "The work so far: counted to 20.")
    assert host.steps[0].compacted is True
    first, summing, second = endpoint.requests
    assert second.size < first.size * 0.7
    assert "tools" not in summing.json, "the summary is asked for without tools"
    assert b"Sum up the conversation" in summing.body
    assert b"counted to 20." in second.body
    assert hashlib.sha256(second.body).hexdigest() == host.steps[0].request_sha256


async def test_a_second_overflow_is_the_turns_named_end(api: str) -> None:
    old = history(20)
    script = [fail(400, message=OVERFLOW), say("summary"), fail(413, message=OVERFLOW)]
    end, host, endpoint = await drive(api, script, before=old)
    assert (end.outcome, end.cause) == ("model_error", "context_overflow")
    assert len(host.plans) == 1
    assert len(endpoint.requests) == 3


async def test_the_context_is_compacted_before_it_is_full(api: str) -> None:
    old = history(40)
    script = [say("SUMMARY"), say("going on")]
    end, host, endpoint = await drive(api, script, before=old, context_bytes=12_000)
    assert end.outcome == "completed"
    (plan,) = host.plans
    assert plan.reason == "window"
    assert plan.usage is not None
    assert endpoint.requests[1].size < 12_000
    assert json.dumps("go on")[1:-1] in endpoint.requests[1].body.decode(), "the newest input always stays"


async def test_long_old_results_are_cut_before_anything_is_summed_up(api: str) -> None:
    old = (
        *history(2),
        asked("a", ss=100),
        Message(ss=100, role="tool", source="tool", text="x" * 20_000, call_id="a"),
        *history(6, first=200),
    )
    end, host, endpoint = await drive(api, [say("ok")], before=old, context_bytes=20_000)
    assert end.outcome == "completed"
    assert [(p.upto_ss, p.summary, p.result_chars) for p in host.plans] == [(0, "", 1_000)]
    assert len(endpoint.requests) == 1, "no summary was needed"
    assert b"characters left out by loopd" in endpoint.requests[0].body


async def test_a_summary_that_fails_leaves_the_oldest_part_out(api: str) -> None:
    script = [fail(500), fail(500), fail(500), say("going on")]
    end, host, _ = await drive(api, script, before=history(40), context_bytes=12_000)
    assert end.outcome == "completed"
    assert [(p.upto_ss > 0, p.summary) for p in host.plans] == [(True, "")]


def asked(call: str, *, ss: int) -> Message:
    calls = (ToolCall(id=call, name="shell", args={"command": "cat big"}),)
    return Message(ss=ss, role="assistant", source="model", text="", calls=calls)


def history(steps: int, *, first: int = 10) -> tuple[Message, ...]:
    """So many turns of one step, about 400 bytes each."""
    messages: list[Message] = []
    for place in range(steps):
        ss = first + 2 * place
        messages.append(Message(ss=ss, role="user", source="human", text=f"count {place}: " + "u" * 150))
        messages.append(Message(ss=ss + 1, role="assistant", source="model", text=f"{place} " + "a" * 150))
    return tuple(messages)


async def test_the_steps_of_a_turn_share_one_connection(api: str) -> None:
    script = [ask(Call("report_phase", {"name": f"p{n}"})) for n in range(4)] + [say("done")]
    _, _, endpoint = await drive(api, script)
    ports = [f"{request.port}" for request in endpoint.requests]
    assert len(ports) == 5
    assert len(set(ports)) == 1, "each answer was read to its end"


async def test_an_endpoint_that_stays_open_behind_its_last_event_is_not_waited_for(api: str) -> None:
    last = {
        "chat-completions": b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
        "messages": b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
        b'data: {"type":"message_stop"}\n\n',
        "responses": b'data: {"type":"response.completed","response":{"status":"completed","output":'
        b'[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],"usage":{"output_tokens":1}}}\n\n',
    }[api]
    began = anyio.current_time()
    end, host, _ = await drive(api, [Reply(raw=last, hang_after=1)])
    assert (end.outcome, host.steps[0].text) == ("completed", "hi")
    assert anyio.current_time() - began < 5
