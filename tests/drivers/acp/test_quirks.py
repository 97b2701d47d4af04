"""Whatever an agent does, a turn has one end with the right name, and the record says what happened."""

from __future__ import annotations

import json

import anyio
import pytest
from msgspec.structs import replace

from loopd.core.conversation import Directive, Message, StepDone
from loopd.drivers.acp import kinds
from loopd.testing.driver_suite import RecordingHost, turn
from loopd_protocol.events import ToolCall
from tests.drivers.acp.stage import AcpStage, living, take, told

pytestmark = pytest.mark.anyio


async def test_a_call_reported_before_it_is_announced_is_one_call_with_all_its_fields(
    stage: AcpStage,
) -> None:
    end, host = await take(stage.driver("late_call"))
    assert end.outcome == "completed"
    (call,) = host.steps[0].calls
    assert (call.name, call.args, call.ok, call.result) == ("Bash", {"command": "ls"}, True, "a.txt")
    assert (call.exit_code, call.tool_class) == (0, "exec")
    assert host.steps[1].text == "listed"


async def test_a_cancel_that_is_ignored_ends_in_a_kill_within_the_grace(stage: AcpStage) -> None:
    driver, host = stage.driver("ignored_cancel"), RecordingHost()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, driver, host)
        with anyio.fail_after(20):
            await host.spoke.wait()
        tasks.cancel_scope.cancel()
        started = anyio.current_time()
    assert anyio.current_time() - started < 3.0
    assert {"cancel": "s1"}.items() <= told(driver)[-1].items()
    assert living(stage.premises) == []
    assert host.steps == []


@pytest.mark.parametrize(("quirk", "text"), [("stderr_flood", "fine"), ("long_line", "fine")])
async def test_floods_of_stderr_and_long_lines_harm_nobody(stage: AcpStage, quirk: str, text: str) -> None:
    driver = stage.driver(quirk)
    end, host = await take(driver)
    assert (end.outcome, host.steps[0].text) == ("completed", text)
    kept = [path.stat().st_size for path in stage.premises.folder("ses_stage").glob("stderr.log*")]
    assert len(kept) <= 2
    assert max(kept) <= 512 * 1024


async def test_a_line_without_an_end_is_a_named_fault_and_the_next_turn_works(stage: AcpStage) -> None:
    driver = stage.driver(script=[[{"raw_bytes": 10_000_000}, {"hang": True}], [{"say": "better"}]])
    end, host = await take(driver)
    assert (end.outcome, end.cause) == ("failed", "line_too_long")
    assert "8388608" in end.error
    assert host.steps == []
    end, host = await take(driver, request=turn(n=2))
    assert (end.outcome, host.steps[0].text) == ("completed", "better")


async def test_a_death_in_the_turn_is_named_with_its_exit_code_and_the_session_is_resumed(
    stage: AcpStage,
) -> None:
    driver = stage.driver("death_in_turn")
    end, _ = await take(driver)
    assert (end.outcome, end.cause) == ("failed", "agent_died")
    assert "exit code 3" in end.error
    assert "out of cheese" in end.error
    end, host = await take(driver, request=turn(n=2))
    assert (end.outcome, host.steps[0].text) == ("completed", "back again")
    assert {"resume": "s1"}.items() <= next(entry for entry in told(driver) if "resume" in entry).items()


async def test_a_killed_agent_is_named_with_its_signal(stage: AcpStage) -> None:
    end, _ = await take(stage.driver("killed_in_turn"))
    assert (end.outcome, end.cause) == ("failed", "agent_died")
    assert "signal 9" in end.error


async def test_updates_after_the_answer_change_nothing_and_do_not_leak_into_the_next_turn(
    stage: AcpStage,
) -> None:
    driver = stage.driver("late_updates", scope="none")
    end, host = await take(driver)
    assert end.outcome == "completed"
    assert [step.text for step in host.steps] == ["done"]
    end, host = await take(driver, request=turn(n=2))
    assert [step.text for step in host.steps] == ["second"]


async def test_usage_that_comes_after_the_answer_is_counted(stage: AcpStage) -> None:
    _, host = await take(stage.driver("late_usage"))
    usage = host.steps[0].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.measured, usage.scope) == (70, 7, True, "turn")


async def test_error_prose_is_a_model_error_and_no_step(stage: AcpStage) -> None:
    end, host = await take(stage.driver("error_prose"))
    assert (end.outcome, end.cause) == ("model_error", "overloaded")
    assert "Server error (503)" in end.error
    assert host.steps == []


async def test_silence_is_ended_by_the_watchdog_and_named(stage: AcpStage) -> None:
    driver = stage.driver("silence")
    started = anyio.current_time()
    end, host = await take(driver)
    assert (end.outcome, end.cause) == ("model_error", "silence")
    assert "nothing for 1 s" in end.error
    assert anyio.current_time() - started < 10
    assert host.steps == []


async def test_garbage_on_stdout_is_counted_and_named_but_stops_nothing(stage: AcpStage) -> None:
    driver = stage.driver("garbage")
    end, host = await take(driver)
    assert (end.outcome, host.steps[0].text) == ("completed", "fine")
    assert driver._agent is not None
    assert driver._agent.connection.strange == 3
    assert "Welcome to the agent!" in driver._agent.connection.oddities()


async def test_a_terminal_status_never_goes_back(stage: AcpStage) -> None:
    _, host = await take(stage.driver("double_terminal"))
    (call,) = host.steps[0].calls
    assert (call.ok, call.exit_code, call.error_class) == (False, 1, "tool")
    assert [outcome for _, outcome in host.effects] == ["intent", "error"]


async def test_a_call_without_input_has_its_title_as_command(stage: AcpStage) -> None:
    _, host = await take(stage.driver("no_input"))
    (call,) = host.steps[0].calls
    assert (call.args, call.tool_class, call.exit_code, call.result) == ({"command": "true"}, "exec", 0, "")


async def test_a_permission_is_answered_by_kind_once_the_intent_is_durable(stage: AcpStage) -> None:
    driver = stage.driver("asks_permission")
    end, host = await take(driver)
    assert end.outcome == "completed"
    (answer,) = [entry["permission"] for entry in told(driver) if "permission" in entry]
    assert answer == {"outcome": {"outcome": "selected", "optionId": "x3"}}
    assert [outcome for _, outcome in host.effects] == ["intent", "ok"]
    assert host.steps[0].calls[0].result == "removed"


async def test_arguments_that_stream_in_are_whole_when_somebody_is_asked_about_them(stage: AcpStage) -> None:
    driver, host = stage.driver("streamed_arguments"), RecordingHost()
    asked: list[object] = []
    intent = host.intent

    async def recorded(call: ToolCall) -> None:
        asked.append((call.name, call.args))
        await intent(call)

    host.intent = recorded  # type: ignore[method-assign]
    await take(driver, host)
    assert asked == [("Bash", {"command": "rm -r x"})]
    (call,) = host.steps[0].calls
    assert (call.name, call.args, call.result) == ("Bash", {"command": "rm -r x"}, "removed")


async def test_a_refused_permission_reaches_the_agent_as_a_rejection(stage: AcpStage) -> None:
    driver, host = stage.driver("asks_permission"), RecordingHost(forbid=frozenset({"shell"}))
    end, _ = await take(driver, host)
    assert end.outcome == "completed"
    (answer,) = [entry["permission"] for entry in told(driver) if "permission" in entry]
    assert answer == {"outcome": {"outcome": "selected", "optionId": "x2"}}
    (call,) = host.steps[0].calls
    assert (call.ok, call.error_class) == (False, "denied")
    assert host.effects == []


async def test_a_tool_that_left_its_session_is_ended_with_a_cancelled_turn(stage: AcpStage) -> None:
    driver, host = stage.driver("setsid_tool"), RecordingHost()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, driver, host)
        with anyio.fail_after(20):
            await host.intended.wait()
            while not any("tool_pid" in entry for entry in told(driver)):  # noqa: ASYNC110  another process
                await anyio.sleep(0.01)
        assert len(living(stage.premises)) >= 2
        tasks.cancel_scope.cancel()
    assert living(stage.premises) == []
    assert host.effects[-1][1] == "cancelled"


async def test_cumulative_usage_is_counted_once_also_over_a_restart(stage: AcpStage) -> None:
    state = stage.folder / "same"
    driver = stage.driver("cumulative_usage", scope="cumulative", state=state)
    _, host = await take(driver)
    _, second = await take(driver, host=RecordingHost(), request=turn(n=2))
    memory = {**host.memory, **second.memory}
    await driver.aclose()
    again = stage.driver("cumulative_usage", scope="cumulative", state=state)
    request = turn(n=3)
    _, third = await take(
        again,
        request=type(request)(
            **{**{f: getattr(request, f) for f in request.__struct_fields__}, "memory": memory}
        ),
    )
    seen = [step.usage for each in (host, second, third) for step in each.steps]
    assert [(usage.input_tokens, usage.output_tokens) for usage in seen if usage] == [
        (100, 10),
        (150, 15),
        (150, 15),
    ]


async def test_an_empty_answer_is_a_model_error_unless_it_was_billed(stage: AcpStage) -> None:
    end, host = await take(stage.driver("empty"))
    assert (end.outcome, end.cause, host.steps) == ("model_error", "empty_answer", [])
    end, host = await take(stage.driver("empty_billed"))
    assert end.outcome == "empty"
    assert [step.usage.output_tokens for step in host.steps if step.usage] == [3]


async def test_what_was_not_offered_is_refused_and_what_is_unknown_is_passed_over(stage: AcpStage) -> None:
    driver = stage.driver("unknown_kinds")
    end, host = await take(driver)
    assert (end.outcome, [step.text for step in host.steps]) == ("completed", ["fine"])
    answers = [entry["answered"] for entry in told(driver) if "answered" in entry]
    assert [answer["error"]["code"] for answer in answers] == [-32601, -32601]
    hello = told(driver)[0]["initialize"]["clientCapabilities"]
    assert hello == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


async def test_answers_to_requests_that_were_never_made_are_passed_over(stage: AcpStage) -> None:
    end, host = await take(stage.driver("bad_ids", "ids_as_text"))
    assert (end.outcome, host.steps[0].text) == ("completed", "fine")


async def test_an_error_answer_is_sorted_by_what_it_says(stage: AcpStage) -> None:
    end, host = await take(stage.driver("rpc_error"))
    assert (end.outcome, end.cause, end.retry_after_ms) == ("model_error", "rate_limited", 7_000)
    assert host.steps == []


async def test_an_agent_that_cancels_itself_has_failed(stage: AcpStage) -> None:
    end, _ = await take(stage.driver("cancels_itself"))
    assert (end.outcome, end.cause) == ("failed", "cancelled")


async def test_a_tool_of_which_no_end_is_known_is_uncertain(stage: AcpStage) -> None:
    end, host = await take(stage.driver("open_tool"))
    assert end.outcome == "completed"
    assert [outcome for _, outcome in host.effects] == ["intent", "uncertain"]
    assert host.steps[0].calls[0].ok is None


async def test_steps_are_cut_where_tools_have_ended(stage: AcpStage) -> None:
    _, host = await take(stage.driver("two_calls"))
    assert [(step.text, [call.name for call in step.calls]) for step in host.steps] == [
        ("", ["shell"]),
        ("then that", ["read_file"]),
        ("all done", []),
    ]
    assert [name for name, _ in host.effects] == ["a", "a"]  # reading has no effect


async def test_parallel_calls_are_one_step(stage: AcpStage) -> None:
    _, host = await take(stage.driver("parallel_calls"))
    assert [[(call.id, call.result) for call in step.calls] for step in host.steps] == [
        [("a", "A"), ("b", "B")],
        [],
    ]


@pytest.mark.parametrize(
    ("habit", "cause", "says"),
    [
        ("exits_at_once", "agent_died", "no such model"),
        ("never_initializes", "no_answer", "initialize within 2 s"),
        ("garbage_only", "no_answer", "50 lines on its stdout were no JSON-RPC, the first: 'Hello!"),
        ("endless_line_first", "line_too_long", "8388608"),
        ("wrong_version", "protocol", "version 2"),
        ("no_session_id", "protocol", "sessionId"),
        ("closes_stdout", "no_answer", "initialize within 2 s"),  # uvloop tells of it at the exit only
    ],
)
async def test_an_agent_that_cannot_be_opened_is_a_clear_failure_in_time(
    stage: AcpStage, habit: str, cause: str, says: str
) -> None:
    started = anyio.current_time()
    end, host = await take(stage.driver(habit, start_s=2))
    assert (end.outcome, end.cause) == ("failed", cause), end
    assert says in end.error
    assert anyio.current_time() - started < 10
    assert host.steps == []
    assert living(stage.premises) == []


@pytest.mark.parametrize(("habit", "cause"), [("refuses_session", "agent_error"), ("auth_required", "auth")])
async def test_an_agent_that_refuses_its_session_is_the_models_side(
    stage: AcpStage, habit: str, cause: str
) -> None:
    end, _ = await take(stage.driver(habit))
    assert (end.outcome, end.cause) == ("model_error", cause)
    assert living(stage.premises) == []


# -- what loopd says in between -------------------------------------------------------------------


def note(text: str) -> Message:
    return Message(ss=9, role="user", source="system", text=text)


async def test_a_nudge_reaches_the_agent_in_the_middle_of_its_prompt(stage: AcpStage) -> None:
    script = [
        [{"tool": {"name": "shell", "input": {"command": "true"}}}, {"say": "and"}, {"hang": True}],
        [{"say": "you are right"}],
    ]
    driver, host = (
        stage.driver(script=script),
        RecordingHost(directives=[Directive(messages=(note("stop this"),))]),
    )
    end, _ = await take(driver, host)
    assert end.outcome == "completed"
    assert [step.text for step in host.steps] == ["", "you are right"]
    prompts = [entry["prompt"] for entry in told(driver) if "prompt" in entry]
    assert prompts == ["go on", "[loopd: note]\nstop this"]


async def test_a_stop_cancels_the_prompt_and_nothing_more_is_asked(stage: AcpStage) -> None:
    driver, host = (
        stage.driver("noop_loop"),
        RecordingHost(directives=[Directive(), Directive(), Directive(stop=True)]),
    )
    end, _ = await take(driver, host)
    assert (end.outcome, len(host.steps)) == ("stopped_by_rule", 3)
    assert [entry for entry in told(driver) if "cancel" in entry]
    assert len([entry for entry in told(driver) if "prompt" in entry]) == 1


async def test_a_text_only_step_is_asked_for_in_words_and_a_call_ends_the_turn(stage: AcpStage) -> None:
    driver = stage.driver(script=[[{"tool": {"name": "shell", "input": {"command": "true"}, "sleep": 5}}]])
    end, host = await take(driver, withheld=True)
    assert end.outcome == "stopped_by_rule"
    (step,) = host.steps
    assert step.tools_withheld
    assert [(call.ok, call.error_class) for call in step.calls] == [(False, "denied")]
    assert "[loopd: text only]" in next(entry["prompt"] for entry in told(driver) if "prompt" in entry)
    assert host.effects == []


async def test_a_chanting_answer_is_cut_asked_again_and_then_given_up(stage: AcpStage) -> None:
    driver, host = stage.driver("chant"), RecordingHost()
    host.delta = lambda text: False  # type: ignore[method-assign]  # the host finds every stream chanting
    end, _ = await take(driver, host)
    assert (end.outcome, end.cause) == ("model_error", "chanting")
    assert [(attempt, cause) for attempt, cause, _ in host.retries] == [(1, "chanting")]
    assert len([entry for entry in told(driver) if "prompt" in entry]) == 2


async def test_each_source_has_its_marker(stage: AcpStage) -> None:
    driver = stage.driver("plain")
    for source, marker in (
        ("continuation", "[loopd: continuation]"),
        ("cron", "[loopd: cron]"),
        ("human", ""),
    ):
        asked = Message(ss=5, role="user", source=source, text="do it")
        request = turn()
        request = type(request)(
            **{
                **{f: getattr(request, f) for f in request.__struct_fields__},
                "messages": (asked,),
                "fresh": 1,
            }
        )
        await take(driver, request=request)
        last = [entry["prompt"] for entry in told(driver) if "prompt" in entry][-1]
        assert last == (f"{marker}\ndo it" if marker else "do it")


async def test_frames_of_both_ways_are_kept_without_secrets(stage: AcpStage) -> None:
    server = {"name": "loopd", "command": "x", "args": [], "env": [{"name": "TOKEN", "value": "s3cret"}]}
    stage.premises = type(stage.premises)(
        data=stage.premises.data, boot="test", mcp_servers=lambda sid: [server]
    )
    driver = stage.driver("plain")
    _, host = await take(driver)
    assert told(driver)[1]["new"]["mcpServers"] == [server]
    frames = b"\n".join(host.frames)
    assert b"s3cret" not in frames
    assert b"[redacted]" in frames
    sent = [json.loads(frame[2:]) for frame in host.frames if frame.startswith(b"> ")]
    assert [message["method"] for message in sent] == ["initialize", "session/new", "session/prompt"]
    assert any(b"agent_message_chunk" in frame for frame in host.frames if frame.startswith(b"< "))


async def test_a_tool_that_began_while_the_prompt_was_cut_is_ended_too(stage: AcpStage) -> None:
    script = [[{"tool": {"name": "shell", "input": {"command": "true"}, "output": "x"}},
               {"sleep": 0.3}, {"tool": {"name": "shell", "run": "sleep 300", "setsid": True}}]]  # fmt: skip
    driver, host = stage.driver("plain", script=script), RecordingHost()

    async def slow(done: StepDone) -> Directive:
        while not any("tool_pid" in entry for entry in told(driver)):  # noqa: ASYNC110  another process
            await anyio.sleep(0.01)
        return Directive(stop=True)

    host.step = slow  # type: ignore[method-assign]
    end, _ = await take(driver, host)
    assert end.outcome == "stopped_by_rule"
    assert living(stage.premises) == []


async def test_the_unattended_mode_is_asked_for_again_behind_each_opening(stage: AcpStage) -> None:
    driver = stage.driver("death_in_turn", "wants_mode", mode="yolo")
    for n in (1, 2):
        await take(driver, request=turn(n=n))
    assert [entry["mode"] for entry in told(driver) if "mode" in entry] == ["yolo", "yolo"]


async def test_a_mode_that_is_not_offered_is_named_with_those_that_are(stage: AcpStage) -> None:
    end, _ = await take(stage.driver("plain", "wants_mode", mode="brave"))
    assert (end.outcome, end.cause) == ("failed", "mode")
    assert end.error == "the agent offers no mode 'brave'; it offers default, yolo"


async def test_a_session_with_a_policy_opens_the_agent_in_the_mode_that_asks(stage: AcpStage) -> None:
    driver = stage.driver("plain", "wants_mode", mode="yolo")
    driver._kind = replace(driver._kind, asking=kinds.Asking(mode="default"))
    for n, asks in ((1, False), (2, True), (3, True)):
        end, _ = await take(driver, request=replace(turn(n=n), asks=asks))
        assert end.outcome == "completed"
    assert [
        entry.get("mode", "resumed") for entry in told(driver) if "mode" in entry or "resume" in entry
    ] == [
        "yolo",
        "resumed",  # in its own default mode, which asks
    ]


async def test_a_session_that_cannot_be_resumed_is_begun_anew_with_what_was_said(stage: AcpStage) -> None:
    driver, host = stage.driver("plain", "resume_fails"), RecordingHost()
    asked = Message(ss=2, role="user", source="human", text="one")
    said = Message(ss=3, role="assistant", source="model", text="hello")
    request = replace(turn(n=2, before=(asked, said)), fresh=1, memory={"acp.session": "s77"})
    await take(driver, host, request)
    assert host.memory["acp.session"] == "s1"
    (prompt,) = [entry["prompt"] for entry in told(driver) if "prompt" in entry]
    assert prompt.startswith("[loopd: earlier conversation]")
    assert "User: one\nYou: hello" in prompt
    assert prompt.endswith("go on")
