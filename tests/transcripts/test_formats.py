"""Logs of real agents become the steps that they were. Samples are cut, not written, by hand."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from loopd.core.judge import LoggedStep
from loopd.core.settings import settings_of
from loopd.transcripts import claude_code, loopd_events
from loopd.transcripts.inspection import Report, inspect
from loopd.transcripts.logs import Amend, Begin
from loopd.transcripts.reading import read
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger
from tests.transcripts.making import DATA, begins_of, faults_of, items, steps_of

HARDENED = settings_of("hardened", {})
SAMPLES = sorted(DATA.iterdir())


def report_of(path: Path) -> Report:
    found = list(inspect(path, HARDENED))
    assert len(found) == 1
    assert isinstance(found[0], Report)
    return found[0]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_is_read_without_a_fault_and_its_steps_rise_from_one(path: Path) -> None:
    assert faults_of(path) == []
    assert [step.n for step in steps_of(path)] == list(range(1, len(steps_of(path)) + 1))
    assert len(begins_of(path)) == 1


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_what_a_sample_says_is_the_same_however_it_is_packed(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"  # recognised by its bytes, whatever it is called
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert steps_of(packed) == steps_of(path)


# -- Claude Code ------------------------------------------------------------------------------


def test_a_claude_code_session_is_one_step_for_each_message() -> None:
    path = DATA / "claude-code-2.1.jsonl"
    steps = steps_of(path)
    assert len(steps) == 8
    first = steps[0]
    assert first.trigger is Trigger.HUMAN
    assert [step.trigger for step in steps[1:]] == [None] * 7
    assert first.text == "Running the tests again (0)."
    assert [(call.name, call.ok, call.result) for call in first.calls] == [
        ("Bash", True, "hello"),
        ("Read", False, "File does not exist. Note: your current working directory is /home/user/project."),
    ]
    assert first.usage == Usage(input_tokens=1_500, output_tokens=25, cached_tokens=300)
    assert (steps[1].calls[0].exit_code, steps[1].calls[0].ok) == (5, False)
    assert steps[-1].calls == ()
    begin = report_of(path).begin
    assert (begin.source, begin.task) == ("claude-code", "run the tests until they pass")
    assert begin.id == "5d07395b-6038-4efa-af95-e9eb50ba5357"


def test_a_sub_agent_is_a_log_of_its_own() -> None:
    (begin,) = begins_of(DATA / "claude-code-2.1-agent.jsonl")
    assert begin.id == "59e98a94-7b9b-4a5c-b662-b008f5976195/ab0bd73c157611dde"
    assert steps_of(DATA / "claude-code-2.1-agent.jsonl")[0].trigger is Trigger.AGENT


def test_a_sub_agent_in_the_same_file_does_not_mix_with_the_session(tmp_path: Path) -> None:
    main = (DATA / "claude-code-2.1.jsonl").read_text().splitlines(keepends=True)
    side = (DATA / "claude-code-2.1-agent.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "both.jsonl"
    path.write_text("".join(a + b for a, b in zip(main, side, strict=False)) + "".join(main[len(side) :]))
    reports = [each for each in inspect(path, HARDENED) if isinstance(each, Report)]
    assert [report.judgement.steps for report in reports] == [4, 8]
    assert reports[1].judgement == report_of(DATA / "claude-code-2.1.jsonl").judgement


def claude(tmp_path: Path, *lines: dict[str, object]) -> Path:
    path = tmp_path / "claude.jsonl"
    whole = [{"sessionId": "s", "uuid": f"u{number}", **line} for number, line in enumerate(lines)]
    path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    return path


def says(identity: str, text: str) -> dict[str, object]:
    return {"type": "assistant", "message": {"id": identity, "content": [{"type": "text", "text": text}]}}


def asks(text: str, **more: object) -> dict[str, object]:
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


def test_what_claude_code_itself_puts_into_user_messages_is_nobody_speaking(tmp_path: Path) -> None:
    path = claude(
        tmp_path,
        asks("build it"),
        says("m1", "one"),
        asks("<local-command-stdout>x</local-command-stdout>"),
        says("m2", "two"),
        asks("skill text", isMeta=True),
        says("m3", "three"),
        asks("This session is being continued", isCompactSummary=True),
        says("m4", "four"),
        {"type": "system", "subtype": "compact_boundary"},
        says("m5", "five"),
        asks([{"type": "text", "text": "[Request interrupted by user]"}]),  # type: ignore[arg-type]
        says("m6", "six"),
    )
    steps = steps_of(path)
    assert [step.trigger for step in steps] == [Trigger.HUMAN, None, None, None, None, Trigger.HUMAN]
    assert [step.compacted for step in steps] == [False, False, False, True, True, False]


def test_the_stream_of_claude_code_says_what_its_session_log_says() -> None:
    stream, log = (steps_of(DATA / f"claude-code-2.1{kind}.jsonl") for kind in ("-stream", ""))
    assert [step.text for step in stream] == [step.text for step in log]
    assert [call.args for step in stream for call in step.calls] == [
        c.args for step in log for c in step.calls
    ]
    assert begins_of(DATA / "claude-code-2.1-stream.jsonl")[0].id == "4bf4364f-9c5a-4ba9-90de-d080803307ba"


def test_conversations_beyond_the_bound_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code, "CHAINS_MAX", 2)
    path = claude(tmp_path, *({"sessionId": f"s{n}", **says(f"m{n}", "one")} for n in range(4)))
    assert [fault.message for fault in faults_of(path)] == [
        "more than 2 conversations; later ones are not judged"
    ]
    assert [begin.id for begin in begins_of(path)] == ["s0", "s1"]


# -- Codex ------------------------------------------------------------------------------------


def test_a_codex_rollout_has_exit_codes_and_outputs_without_the_head_that_codex_writes() -> None:
    path = DATA / "codex-0.169.jsonl"
    steps = steps_of(path)
    assert len(steps) == 9
    assert steps[0].trigger is Trigger.HUMAN
    assert (steps[0].calls[0].result, steps[0].calls[0].exit_code, steps[0].calls[0].ok) == (
        "hello\n",
        0,
        True,
    )
    tests = [step.calls[0] for step in steps[1:7]]
    assert {call.exit_code for call in tests} == {127}
    # each output began with a "Chunk ID" of its own; the digests show that nothing else differed
    assert len({call.result_sha256 for call in tests}) == 1
    assert steps[3].usage == Usage(input_tokens=903, output_tokens=20, cached_tokens=100)
    report = report_of(path)
    assert report.begin.id == "01a2008e-015c-7851-9db4-ad45fef0fcd2"
    assert report.begin.task == "run the tests until they pass"
    assert report.tokens == 8_316
    assert report.judgement.first_soft == 4


@pytest.mark.parametrize(
    ("output", "result", "code", "ok"),
    [
        ('{"output":"hi\\n","metadata":{"exit_code":2,"duration_seconds":0.1}}', "hi\n", 2, False),
        ({"content": "done", "success": True}, "done", None, True),
        ([{"type": "input_text", "text": "two"}], "two", None, None),
        ("Exit code: 1\nWall time: 0.2 seconds\nTotal output lines: 3\nOutput:\nbad", "bad", 1, False),
        ("the log says\nExit code: 7", "the log says\nExit code: 7", 7, False),
        ("", "", None, None),
    ],
)
def test_codex_outputs_of_all_ages(
    tmp_path: Path, output: object, result: str, code: int | None, ok: bool | None
) -> None:
    path = tmp_path / "rollout.jsonl"
    rows = [
        {"type": "session_meta", "payload": {"id": "r"}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "shell", "call_id": "c", "arguments": "{"}},
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c", "output": output}},
        {"type": "compacted", "payload": {"message": "…"}},
        {"type": "response_item", "payload": {"type": "custom_tool_call", "name": "apply_patch", "call_id": "d", "input": "*** Begin"}},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = steps_of(path)
    call = first.calls[0]
    assert (call.args, call.result, call.exit_code, call.ok) == ({"_raw": "{"}, result, code, ok)
    assert (second.compacted, second.calls[0].args, second.calls[0].result) == (
        True,
        {"input": "*** Begin"},
        None,
    )


# -- SWE-agent and mini-swe-agent ---------------------------------------------------------------

MINI = [f"mini-swe-agent-2.4-{kind}.traj.json" for kind in ("toolcalls", "text", "responses")]


@pytest.mark.parametrize("name", MINI)
def test_the_three_kinds_of_messages_of_mini_swe_agent_say_the_same(name: str) -> None:
    path = DATA / name
    calls = [step.calls[0] for step in steps_of(path)]
    commands = [call.args["command"] for call in calls]
    assert commands == ["ls", "cat missing.txt", *["python3 -c 'import nope'"] * 6, commands[-1]]
    assert commands[-1].startswith("echo COMPLETE_TASK")
    assert [call.exit_code for call in calls[:3]] == [0, 1, 1]
    assert [call.ok for call in calls[:3]] == [True, False, False]
    assert len({call.result_sha256 for call in calls[2:8]}) == 1
    report = report_of(path)
    assert (report.begin.source, report.begin.outcome, report.begin.id) == (
        "mini-swe-agent",
        "Submitted",
        name,
    )
    assert report.begin.task == "Please solve this issue: make the import work"
    assert (report.judgement.first_soft, report.judgement.first_hard) == (5, 8)


def test_the_digest_is_that_of_the_raw_output_and_not_of_what_the_model_was_shown(tmp_path: Path) -> None:
    raw = "x" * 50_000
    messages = [
        {"role": "assistant", "content": "go", "tool_calls": [{"id": "c", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "cut", "extra": {"raw_output": raw, "returncode": 0}},
    ]  # fmt: skip
    path = tmp_path / "a.traj.json"
    path.write_text(json.dumps({"messages": messages, "instance_id": "django-1"}))
    (step,) = steps_of(path)
    assert step.calls[0].result == "cut"
    assert step.calls[0].result_sha256 == hashlib.sha256(f"0\n{raw}".encode()).hexdigest()
    assert report_of(path).begin.id == "django-1"


def swe_agent(path: Path, *, indent: int | None) -> Path:
    rows = [
        {"action": "ls\n", "observation": "a b", "response": "Looking.\n```\nls\n```", "thought": "Looking.", "state": {}},
        {"action": "submit", "observation": None, "response": "Done.", "thought": ""},
        {"action": "", "observation": "", "response": "Only words."},
    ]  # fmt: skip
    document = {
        "environment": "swe_main",
        "trajectory": rows,
        "history": [{"role": "system", "content": 'quotes " and { brackets ] \\'}] * 3,
        "info": {"exit_status": "submitted", "model_stats": {}},
        "replay_config": "{}",
    }
    path.write_text(json.dumps(document, indent=indent))
    return path


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
def test_a_swe_agent_trajectory(tmp_path: Path, indent: int | None) -> None:
    path = swe_agent(tmp_path / "x.traj", indent=indent)
    first, second, third = steps_of(path)
    assert first.text == "Looking."
    assert first.calls[0].args == {"command": "ls"}
    assert (first.calls[0].result, first.calls[0].ok) == ("a b", None)
    assert (second.text, second.calls[0].result) == ("Done.", None)
    assert (third.text, third.calls) == ("Only words.", ())
    begin = report_of(path).begin
    assert (begin.id, begin.source, begin.outcome) == ("swe_main", "swe-agent", "submitted")


def test_several_documents_may_follow_each_other(tmp_path: Path) -> None:
    one = swe_agent(tmp_path / "one.traj", indent=None).read_text()
    many = swe_agent(tmp_path / "many.traj", indent=1).read_text()
    for place, whole in enumerate((f"{one}\n{one}\n", f"{many}\n{many}")):
        path = tmp_path / f"{place}.traj"
        path.write_text(whole)
        assert [
            report.judgement.steps for report in inspect(path, HARDENED) if isinstance(report, Report)
        ] == [3, 3]


# -- loopd's own --------------------------------------------------------------------------------


def event(seq: int, session: str, kind: str, **body: object) -> str:
    return (
        json.dumps(
            {
                "seq": seq,
                "ss": seq,
                "sid": session,
                "ts": 1_000 * seq,
                "k": kind,
                **body,
                "b": {"k": kind, **body},
            }
        )
        + "\n"
    )


def test_sessions_that_are_interleaved_in_the_daemons_log_come_out_apart(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    call = {
        "id": "c",
        "name": "bash",
        "args": {"command": "ls"},
        "ok": True,
        "result": "a",
        "result_bytes": 1,
    }
    lines = [
        event(1, "ses_a", "session.created", sid="ses_a", num=1, name="mapper", driver={}, preset="published", settings={"x": 1}),
        event(2, "ses_b", "turn.started", n=1, trigger="cron"),
        event(3, "ses_a", "turn.started", n=1, trigger="human"),
        event(4, "ses_a", "gate.changed", cause="x"),
    ]  # fmt: skip
    for n in range(1, 4):
        lines += [
            event(2 * n + 10, s, "turn.step", n=1, step=n, total=n, text=s, calls=[call])
            for s in ("ses_a", "ses_b")
        ]
    lines.append(lines[-1])  # `tail` and `watch` of the same time overlap
    lines += [
        event(30, "ses_b", "turn.completed", n=1, outcome="completed"),
        event(31, "ses_a", "session.ended", status="done_success", stop_reason="x"),
    ]
    path.write_text("".join(lines))
    assert faults_of(path) == []
    a, b = begins_of(path)
    assert (a.id, a.task, a.preset, a.settings, b.id, b.preset) == (
        "ses_a",
        "mapper",
        "published",
        {"x": 1},
        "ses_b",
        None,
    )
    reports = [each for each in inspect(path, HARDENED) if isinstance(each, Report)]
    assert [(report.begin.id, report.judgement.steps) for report in reports] == [("ses_a", 3), ("ses_b", 3)]
    assert reports[0].begin.outcome == "done_success"
    logged = [item for item in items(path) if isinstance(item, LoggedStep)]
    assert [step.trigger for step in logged if step.n == 1] == [Trigger.HUMAN, Trigger.CRON]
    assert isinstance(logged[0].calls[0], ToolCall)
    assert logged[0].at_ms == 12_000


def test_sessions_beyond_the_bound_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopd_events, "SESSIONS_MAX", 2)
    path = tmp_path / "events.ndjson"
    path.write_text("".join(event(n, f"s{n}", "turn.step", n=1, step=1, total=1) for n in range(1, 5)))
    assert [fault.where for fault in faults_of(path)] == [f"{path}, line 3"]
    assert [begin.id for begin in begins_of(path)] == ["s1", "s2"]


def test_a_step_that_goes_back_in_the_daemons_log_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text("".join(event(n, "s", "turn.step", n=1, step=1, total=4 - n) for n in range(1, 3)))
    assert [fault.message for fault in faults_of(path)] == [
        "step 2 of s after step 3; expected rising numbers"
    ]


def test_a_head_is_told_before_its_steps_and_amended_behind_them() -> None:
    kinds = [type(item) for item in read(DATA / MINI[0])]
    assert kinds[:2] == [Begin, Amend]
