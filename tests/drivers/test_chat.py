"""The chat driver against a real endpoint on loopback."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.core.conversation import AgentReply, Directive, Message, TurnEnd
from loopd.drivers.chat import ChatDriver
from loopd.drivers.model import Limits
from loopd.drivers.retry import RetryPolicy
from loopd.testing.driver_suite import RecordingHost, turn
from loopd.testing.endpoint import Call, Endpoint, Reply, Script, ask, fail, say
from loopd_protocol.commands import ChatSpec
from tests.drivers.processes import Pipe

pytestmark = pytest.mark.anyio
QUICK = RetryPolicy(retries=3, base_ms=2, cap_ms=4)


async def drive(
    script: Script,
    *,
    host: RecordingHost | None = None,
    workspace: Path | None = None,
    withheld: bool = False,
    retry: RetryPolicy = QUICK,
    limits: Limits | None = None,
    **spec: Any,
) -> tuple[TurnEnd, RecordingHost, Endpoint]:
    host = host or RecordingHost()
    async with Endpoint(script) as endpoint:
        driver = ChatDriver(
            "ses_chat",
            ChatSpec(base_url=endpoint.base_url, model="test", **spec),
            None if workspace is None else str(workspace),
            retry=retry,
            limits=limits,
        )
        with anyio.fail_after(20):
            end = await driver.take_turn(turn(withheld=withheld), host)
            await endpoint.wait_for_quiet()
    return end, host, endpoint


async def test_every_step_carries_the_digest_of_the_exact_bytes_that_arrived(tmp_path: Path) -> None:
    script = [
        ask(Call("report_phase", {"name": "a"})),
        ask(Call("shell", {"command": "echo hi"})),
        say("done"),
    ]
    end, host, endpoint = await drive(script, workspace=tmp_path)
    assert end.outcome == "completed"
    assert [step.request_sha256 for step in host.steps] == [r.sha256 for r in endpoint.requests]
    assert [hashlib.sha256(r.body).hexdigest() for r in endpoint.requests] == [
        r.sha256 for r in endpoint.requests
    ]
    assert len(endpoint.requests) == 3


async def test_the_next_request_holds_the_directives_messages_and_nothing_else() -> None:
    mine = Message(ss=9, role="user", source="session", text="a notice of the host")
    host = RecordingHost(directives=[Directive(messages=(mine,)), Directive()])
    _, _, endpoint = await drive([ask(Call("report_phase", {"name": "a"})), say("done")], host=host)
    first, second = (request.json["messages"] for request in endpoint.requests)
    assert [m["content"] for m in first] == ["go on"]
    assert [m["content"] for m in second] == ["go on\n\na notice of the host"]


async def test_parallel_calls_run_in_order_and_unknown_or_malformed_ones_are_answered(tmp_path: Path) -> None:
    script = [
        ask(
            Call("write_file", {"path": "a.txt", "content": "1"}),
            Call("shell", {"command": "cat a.txt; echo 2 > a.txt"}),
            Call("read_file", {"path": "a.txt"}),
            Call("browse", {"url": "x"}),
            Call("read_file", "{broken"),
            Call("read_file", {"path": "a.txt", "colour": "red"}),
            Call("shell", {"command": 5}),
        ),
        say("done"),
    ]
    _, host, endpoint = await drive(script, workspace=tmp_path)
    wrote, ran, read, *bad = host.steps[0].calls
    assert (wrote.ok, ran.ok, read.ok) == (True, True, True)
    assert ran.result == "1\n[exit code 0]"
    assert read.result == "2\n"
    assert [(call.ok, call.error_class) for call in bad] == [(False, "schema")] * 4
    assert "there is no tool 'browse'" in str(bad[0].result)
    assert "request_idle, update_goal, wake_me, report_phase, report_progress, shell, read_file" in str(
        bad[0].result
    )
    assert "no JSON object" in str(bad[1].result)
    assert "colour" in str(bad[2].result)
    assert "$.command" in str(bad[3].result)
    answered = [m for m in endpoint.requests[1].json["messages"] if m["role"] == "tool"]
    assert [m["content"] for m in answered] == [call.result for call in host.steps[0].calls]


async def test_effects_are_intended_before_and_accounted_after_and_reading_is_none(tmp_path: Path) -> None:
    script = [
        ask(
            Call("write_file", {"path": "a", "content": ""}, "w"),
            Call("read_file", {"path": "a"}, "r"),
            Call("shell", {"command": "exit 3"}, "s"),
            Call("edit_file", {"path": "a", "old": "x", "new": "y"}, "e"),
        ),
        say("done"),
    ]
    _, host, _ = await drive(script, workspace=tmp_path)
    assert host.effects == [
        ("w", "intent"),
        ("w", "ok"),
        ("s", "intent"),
        ("s", "error"),
        ("e", "intent"),
        ("e", "error"),
    ]
    assert host.steps[0].calls[2].exit_code == 3


async def test_a_tool_whose_intent_is_refused_does_not_run(tmp_path: Path) -> None:
    host = RecordingHost(forbid=frozenset({"shell"}))
    await drive([ask(Call("shell", {"command": "touch made"})), say("ok")], host=host, workspace=tmp_path)
    call = host.steps[0].calls[0]
    assert (call.ok, call.error_class) == (False, "denied")
    assert not (tmp_path / "made").exists()
    assert host.effects == []


async def test_without_a_workspace_there_are_no_files_and_no_shell() -> None:
    _, host, endpoint = await drive([ask(Call("shell", {"command": "id"})), say("ok")])
    offered = [tool["function"]["name"] for tool in endpoint.requests[0].json["tools"]]
    assert offered == ["request_idle", "update_goal", "wake_me", "report_phase", "report_progress"]
    assert host.steps[0].calls[0].error_class == "schema"


async def test_withheld_tools_are_not_in_the_request_and_come_back_after_it(tmp_path: Path) -> None:
    script = [ask(Call("shell", {"command": "touch made"})), say("ok")]
    _, host, endpoint = await drive(script, workspace=tmp_path, withheld=True)
    assert "tools" not in endpoint.requests[0].json
    assert "tools" in endpoint.requests[1].json
    assert [step.tools_withheld for step in host.steps] == [True, False]
    assert not (tmp_path / "made").exists()


async def test_a_session_without_tools_offers_none_and_runs_none() -> None:
    _, host, endpoint = await drive([ask(Call("report_phase", {"name": "x"})), say("ok")], tools=False)
    assert ["tools" in request.json for request in endpoint.requests] == [False, False]
    assert host.steps[0].calls[0].error_class == "denied"
    assert host.asked == []


async def test_calls_after_the_one_that_ends_the_turn_are_denied(tmp_path: Path) -> None:
    idle = AgentReply(ok=True, text="Idle.", ends_turn=True)
    script = [ask(Call("request_idle", {}), Call("shell", {"command": "touch made"}))]
    end, host, endpoint = await drive(
        script, host=RecordingHost(replies={"request_idle": idle}), workspace=tmp_path
    )
    assert end.outcome == "idle"
    assert [call.ok for call in host.steps[0].calls] == [True, False]
    assert not (tmp_path / "made").exists()
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (fail(429, retry_after="0"), "rate_limited"),
        (fail(500), "server_error"),
        (fail(503), "overloaded"),
        (fail(529), "overloaded"),
        (say("half an answer", break_after=2), "unreachable"),
        (say("", error={"message": "Overloaded", "type": "overloaded_error"}), "overloaded"),
        (Reply(raw=b"data: {nope\n\n"), "bad_response"),
        (say("never", hang_after=0), "unreachable"),
        (say("never", first_ms=60_000), "unreachable"),
    ],
    ids=["429", "500", "503", "529", "break", "error in stream", "malformed", "hangs", "never answers"],
)
async def test_a_passing_fault_is_retried_visibly_with_the_same_request(failure: Reply, cause: str) -> None:
    end, host, endpoint = await drive(
        [failure, failure, say("at last")], limits=Limits(first_s=0.2, silence_s=0.2)
    )
    assert end.outcome == "completed"
    assert [(attempt, seen) for attempt, seen, _ in host.retries] == [(1, cause), (2, cause)]
    assert [step.text for step in host.steps] == ["at last"]
    assert len({request.sha256 for request in endpoint.requests}) == 1
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("failure", "cause", "requests", "after_ms"),
    [
        (fail(429, retry_after="3600"), "rate_limited", 1, 3_600_000),
        (fail(429, retry_after="0"), "rate_limited", 4, 0),
        (fail(500), "server_error", 4, None),
        (fail(401), "auth", 1, None),
        (fail(403), "auth", 1, None),
        (fail(400, message="context is too long"), "rejected", 1, None),
        (fail(404), "rejected", 1, None),
        (fail(302), "bad_response", 1, None),
        (Reply(raw=b"data: {nope\n\n"), "bad_response", 4, None),
        (Reply(output_tokens=0), "bad_response", 1, None),
    ],
    ids=["429 for an hour", "429", "500", "401", "403", "400", "404", "302", "malformed", "nothing at all"],
)
async def test_a_lasting_fault_ends_the_turn_and_says_why(
    failure: Reply, cause: str, requests: int, after_ms: int | None
) -> None:
    end, host, endpoint = await drive([failure])
    assert (end.outcome, end.cause, end.retry_after_ms) == ("model_error", cause, after_ms)
    assert end.error
    assert len(endpoint.requests) == requests
    assert len(host.retries) == requests - 1
    assert host.steps == []


async def test_retry_after_is_waited_for() -> None:
    started = anyio.current_time()
    end, host, _ = await drive([fail(429, retry_after="1"), say("ok")])
    assert end.outcome == "completed"
    assert host.retries[0][2] >= 1_000
    assert anyio.current_time() - started >= 1.0


async def test_an_endpoint_that_is_down_is_unreachable() -> None:
    spec = ChatSpec(base_url="http://127.0.0.1:9/v1", model="test")
    host = RecordingHost()
    end = await ChatDriver("ses_chat", spec, None, retry=QUICK).take_turn(turn(), host)
    assert (end.outcome, end.cause) == ("model_error", "unreachable")
    assert len(host.retries) == 3


async def test_slow_chunks_are_no_silence() -> None:
    end, host, _ = await drive(
        [say("abcdefgh", chunk_chars=1, gap_ms=60)], limits=Limits(first_s=0.4, silence_s=0.4)
    )
    assert (end.outcome, host.retries) == ("completed", [])
    assert host.deltas == list("abcdefgh")


async def test_a_slow_first_byte_is_waited_for_longer_than_a_silence_inside_the_answer() -> None:
    limits = Limits(first_s=20, silence_s=0.2)
    patient, host, _ = await drive([say("late", first_ms=600)], limits=limits)
    assert (patient.outcome, host.retries) == ("completed", [])
    silent, _, endpoint = await drive(
        [say("some text", hang_after=2)], limits=limits, retry=RetryPolicy(retries=0)
    )
    assert (silent.outcome, silent.cause, silent.error) == ("model_error", "unreachable", "silence for 0.2 s")
    assert endpoint.disconnects == 1


async def test_an_endless_stream_is_cut_and_the_connection_closed() -> None:
    end, host, endpoint = await drive(
        [say("All work and no play. ", endless=True)], limits=Limits(answer_chars=5_000)
    )
    assert end.outcome == "completed"
    assert host.steps[0].finish == "cut"
    assert 5_000 < len(host.steps[0].text) < 6_000
    assert endpoint.disconnects == 1


async def test_calls_of_a_cut_answer_do_not_run(tmp_path: Path) -> None:
    script = [ask(Call("shell", {"command": "touch made"}), text="x" * 6_000), say("ok")]
    _, host, _ = await drive(
        [Reply(calls=(Call("shell", {"command": "touch made #" + "x" * 6_000}),)), *script[1:]],
        workspace=tmp_path,
        limits=Limits(answer_chars=5_000),
    )
    assert host.steps[0].calls[0].error_class == "denied"
    assert not (tmp_path / "made").exists()


async def test_usage_is_measured_or_marked_as_estimated() -> None:
    _, host, _ = await drive([say("four score and seven")])
    assert host.steps[0].usage is not None
    assert (host.steps[0].usage.output_tokens, host.steps[0].usage.measured) == (5, True)
    _, host, endpoint = await drive([say("four score and seven", usage=False)])
    assert host.steps[0].usage is not None
    assert (host.steps[0].usage.output_tokens, host.steps[0].usage.measured) == (5, False)
    assert endpoint.requests[0].json["stream_options"] == {"include_usage": True}


async def test_an_empty_answer_that_was_billed_is_an_empty_turn() -> None:
    end, host, _ = await drive([Reply(output_tokens=7)])
    assert end.outcome == "empty"
    assert host.steps[0].text == ""


async def test_an_endpoint_that_does_not_stream_is_understood(tmp_path: Path) -> None:
    script = [ask(Call("read_file", {"path": "a"}), whole=True), say("whole", whole=True)]
    (tmp_path / "a").write_text("content")
    end, host, _ = await drive(script, workspace=tmp_path)
    assert end.outcome == "completed"
    assert host.steps[0].calls[0].result == "content"
    assert host.steps[1].text == "whole"


async def test_a_stream_without_done_is_whole_when_it_said_that_it_ends() -> None:
    end, host, _ = await drive([say("fine", done=False)])
    assert (end.outcome, host.steps[0].text, host.retries) == ("completed", "fine", [])


async def test_thoughts_are_not_shown() -> None:
    _, host, _ = await drive([say("said", thought="thinking about it")])
    assert (host.steps[0].text, "".join(host.deltas)) == ("said", "said")


async def test_the_key_is_sent_and_told_to_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_TEST_KEY", "sk-very-secret")
    script = [ask(Call("shell", {"command": "env"})), fail(401, message="bad key sk-very-secret")]
    end, host, endpoint = await drive(script, workspace=tmp_path, api_key_env="MY_TEST_KEY")
    assert endpoint.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in end.error
    assert "***" in end.error
    assert "sk-very-secret" not in str(host.steps)
    assert b"sk-very-secret" not in b"".join(request.body for request in endpoint.requests)


async def test_a_key_that_went_away_is_an_auth_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TEST_KEY", "k")
    driver = ChatDriver("s", ChatSpec(base_url="http://h/v1", model="m", api_key_env="MY_TEST_KEY"), None)
    monkeypatch.delenv("MY_TEST_KEY")
    end = await driver.take_turn(turn(), RecordingHost())
    assert (end.outcome, end.cause) == ("model_error", "auth")


async def test_loopback_is_reached_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    end, _, _ = await drive([say("ok")])
    assert end.outcome == "completed"


async def test_cancelled_while_it_waits_for_a_retry_it_sends_nothing_more() -> None:
    host = RecordingHost()
    async with Endpoint([fail(503)]) as endpoint, anyio.create_task_group() as tasks:
        spec = ChatSpec(base_url=endpoint.base_url, model="test")
        driver = ChatDriver("s", spec, None, retry=RetryPolicy(base_ms=60_000, cap_ms=60_000))
        tasks.start_soon(driver.take_turn, turn(), host)
        with anyio.fail_after(5):
            await endpoint.wait_for_requests(1)
        tasks.cancel_scope.cancel()
    assert len(endpoint.requests) == 1


@pytest.mark.process
async def test_cancelled_in_a_tool_its_processes_are_gone_and_the_outcome_is_known(tmp_path: Path) -> None:
    host, pipe = RecordingHost(), Pipe(tmp_path / "pid")
    command = "sleep 300 & echo $! > pid; sleep 300"
    async with Endpoint([ask(Call("shell", {"command": command}, "s"))]) as endpoint:
        spec = ChatSpec(base_url=endpoint.base_url, model="test")
        driver = ChatDriver("s", spec, str(tmp_path))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.take_turn, turn(), host)
            sleeper = await pipe.process()
            started = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert anyio.current_time() - started < 2
    assert host.effects == [("s", "intent"), ("s", "cancelled")]
    await sleeper.gone()


async def test_the_first_request_is_the_rendered_one_also_with_a_long_history() -> None:
    before = tuple(Message(ss=n, role="assistant", source="model", text=f"answer {n}") for n in range(1, 30))
    async with Endpoint([say("ok")]) as endpoint:
        driver = ChatDriver("s", ChatSpec(base_url=endpoint.base_url, model="m", system="be brief"), None)
        request = turn(before=before)
        await driver.take_turn(request, RecordingHost())
        assert endpoint.requests[0].body == driver.render(request)
        assert json.loads(driver.render(request))["messages"][0] == {"role": "user", "content": "(continued)"}
