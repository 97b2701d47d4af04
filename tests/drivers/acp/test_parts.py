"""The parts of the driver without a process: messages, kinds, prompts, words about failures, tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loopd.core.conversation import Message
from loopd.drivers.acp import faults, kinds, prompts
from loopd.drivers.acp.calls import Call
from loopd.drivers.acp.connection import (
    INBOX,
    LINE_BYTES,
    AgentGone,
    Answered,
    Asked,
    Connection,
    Ended,
    Update,
)
from loopd.drivers.acp.effects import option_for
from loopd.drivers.acp.launch import Premises, kind_of, prepare
from loopd.drivers.acp.usage import UsageMeter
from loopd.testing.driver_suite import turn
from loopd_protocol.commands import AcpSpec
from loopd_protocol.errors import Refused

pytestmark = pytest.mark.anyio
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)


class Wire:
    """A connection and what it wrote."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.paused = 0
        self.connection = Connection(
            lambda data: self.sent.append(json.loads(data)), lambda: self._pause(1), lambda: self._pause(-1)
        )
        self.connection.listening = True

    def _pause(self, by: int) -> None:
        self.paused += by

    def feed(self, *messages: Any) -> None:
        for message in messages:
            self.connection.feed(json.dumps(message).encode() + b"\n")


def update(text: str = "x") -> dict[str, Any]:
    body = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": body}}


# -- connection -----------------------------------------------------------------------------------


async def test_messages_come_in_order_however_their_bytes_are_cut() -> None:
    wire = Wire()
    number = wire.connection.begin("session/prompt", {})
    data = b"".join(
        json.dumps(m).encode() + b"\n" for m in [update("ä"), {"id": number, "result": {"a": 1}}, update("b")]
    )
    for at in range(len(data)):
        wire.connection.feed(data[at : at + 1])
    got = [await wire.connection.take() for _ in range(3)]
    assert [type(message) for message in got] == [Update, Answered, Update]
    assert got[1] == Answered(number, {"a": 1}, None)


async def test_a_line_is_bounded_and_the_first_reason_stays() -> None:
    wire = Wire()
    wire.connection.feed(b"x" * LINE_BYTES)
    assert wire.connection.gone is None
    wire.connection.feed(b"x")
    wire.connection.end(AgentGone("agent_died", "later"))
    message = await wire.connection.take()
    assert isinstance(message, Ended)
    assert message.error.cause == "line_too_long"
    with pytest.raises(AgentGone, match="line of more than"):
        await wire.connection.request("initialize", {}, timeout_s=1)


async def test_an_inbox_that_nobody_empties_stops_the_reading() -> None:
    wire = Wire()
    wire.feed(*(update() for _ in range(INBOX)))
    assert wire.paused == 1
    for _ in range(INBOX // 2):
        await wire.connection.take()
    assert wire.paused == 0


async def test_nobody_listens_between_turns_and_permissions_are_cancelled_then() -> None:
    wire = Wire()
    wire.connection.listening = False
    ask = {"id": 7, "method": "session/request_permission", "params": {"options": []}}
    wire.feed(update(), ask)
    assert wire.connection.dropped == 1
    assert wire.sent == [{"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "cancelled"}}}]
    wire.connection.listening = True
    wire.feed({**ask, "id": "eight"})
    assert await wire.connection.take() == Asked("eight", "session/request_permission", {"options": []})


async def test_a_request_without_an_answer_ends_in_time_and_says_what_was_met_instead() -> None:
    wire = Wire()
    wire.connection.feed(b"Hello!\n")
    with pytest.raises(
        AgentGone, match=r"no answer to initialize within 0.01 s; 1 lines .* the first: 'Hello!'"
    ):
        await wire.connection.request("initialize", {}, timeout_s=0.01)


@given(st.lists(st.one_of(JSON.map(lambda v: json.dumps(v).encode()), st.binary(max_size=40)), max_size=20))
async def test_no_line_whatever_it_is_raises_or_is_taken_for_an_answer(lines: list[bytes]) -> None:
    wire = Wire()
    number = wire.connection.begin("session/prompt", {})
    for line in lines:
        wire.connection.feed(line.replace(b"\n", b" ") + b"\n")
    wire.feed({"jsonrpc": "2.0", "id": number, "result": None})
    with anyio.fail_after(5):
        while not isinstance(message := await wire.connection.take(), Answered):
            pass
    assert message.id == number


@given(st.lists(st.fixed_dictionaries({"sessionUpdate": st.sampled_from(["tool_call", "tool_call_update"])},
    optional={"status": JSON | st.sampled_from(["pending", "in_progress", "completed", "failed"]), "title": JSON,
              "kind": JSON, "rawInput": JSON, "rawOutput": JSON, "content": JSON, "locations": JSON, "_meta": JSON,
              "name": JSON}), max_size=8))  # fmt: skip
def test_no_report_of_a_call_raises_and_a_terminal_status_stays(reports: list[dict[str, Any]]) -> None:
    call, ended = Call("c1"), None
    for report in reports:
        call.take(report)
        record = call.record(kinds.plain(("x",)))
        assert record.id == "c1"
        assert record.name
        json.dumps(record.args)
        if ended is not None:
            assert call.status == ended
        ended = call.status if call.ended else None


@pytest.mark.parametrize(
    ("reports", "name"),
    [
        ([{"name": "grep", "title": "Search for x"}], "grep"),
        ([{"title": "shell · ls", "_meta": {"goose": {"toolCall": {"toolName": "shell"}}}}], "shell"),
        ([{"title": "Bash"}, {"title": "Running: ls -l"}], "Bash"),
        ([{"title": "Read file a", "kind": "read"}], "read"),
        ([{"title": "true", "kind": "execute"}], "execute"),
        ([{"title": "bash", "kind": "execute"}], "bash"),
        ([{"title": "Edit `a`", "kind": "edit"}, {"name": "apply_patch"}], "apply_patch"),
        ([{}], "tool"),
    ],
)
def test_a_tool_is_named_by_the_best_that_is_known(reports: list[dict[str, Any]], name: str) -> None:
    call = Call("call_1")
    for report in reports:
        call.take(report)
    assert call.name == name


@pytest.mark.parametrize(
    ("call_id", "name"),
    [
        ("functions.Bash:0", "Bash"),
        ("shell_3", "shell"),
        ("call_3", "tool"),
        ("toolu_01", "tool"),
        ("0:c_1", "tool"),
    ],
)
def test_an_id_names_the_tool_only_when_it_holds_a_name(call_id: str, name: str) -> None:
    call = Call(call_id)
    call.take({"title": "does something long"})
    assert call.name == name


def test_a_permission_is_answered_once_and_never_by_id_or_name() -> None:
    options = [
        {"optionId": "allow", "name": "Allow", "kind": "reject_once"},
        {"optionId": "b", "name": "No", "kind": "allow_always"},
        {"optionId": "c", "name": "No", "kind": "allow_once"},
        {"optionId": 5, "kind": "reject_once"},
        "junk",
    ]
    assert option_for(options, allow=True) == "c"
    assert option_for(options[:2], allow=True) == "b"
    assert option_for(options, allow=False) == "allow"
    assert option_for(None, allow=True) is None


# -- words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause", "wait_ms"),
    [
        ("429 Too Many Requests", "rate_limited", None),
        ("Rate limit reached, please try again in 20s", "rate_limited", 20_000),
        ("retry-after: 120 s", "otherwise", 120_000),
        ("available in 2 minutes", "otherwise", 120_000),
        ("Authentication required", "auth", None),
        ("HTTP 401", "auth", None),
        ("We're currently experiencing high demand", "overloaded", None),
        ("503 Service Unavailable", "overloaded", None),
        ("This model's maximum context length is 8192 tokens", "context_overflow", None),
        ("error sending request: Connection refused", "unreachable", None),
        ("Internal server error", "server_error", None),
        ("something odd", "otherwise", None),
    ],
)
def test_failures_are_sorted_by_what_is_said(text: str, cause: str, wait_ms: int | None) -> None:
    assert faults.cause_of(text, "otherwise") == cause
    assert faults.retry_after_ms(text) == wait_ms


def test_numbers_in_a_failure_are_no_times_to_wait() -> None:
    assert faults.retry_after_ms("wait for task 17 to finish 3 steps") is None


def test_pieces_of_a_terminals_output_are_put_together() -> None:
    call = Call("call_5_0")
    call.take({"title": "cat a; exit 3", "kind": "execute", "status": "pending"})
    for data in ("hi there\n", "", "\n\nCommand exited with code 3"):
        call.take({"status": "in_progress", "_meta": {"terminal_output": {"data": data}}})
    call.take({"status": "failed", "_meta": {"terminal_exit": {"exit_code": 1}}})
    record = call.record(kinds.plain(("x",)))
    assert (record.ok, record.exit_code) == (False, 1)
    assert record.result == "hi there\n\n\nCommand exited with code 3"


ERROR, EMPTY, ANSWER = "error", "empty", "answer"


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("goose", "Ran into this error: Server error: overloaded.\n\nPlease retry if you think", ERROR),
        ("goose", "Ran into this error trying to compact: Failed to compact: the base prompt", ERROR),
        ("goose", "Network error: Stream decode error: error decoding response body", ERROR),
        ("goose", "The model returned an empty response. Please resend your message to continue.", EMPTY),
        ("goose", "I ran the tests; three still fail with a network error in test_fetch.", ANSWER),
        (
            "kimi-code",
            "Compaction is blocked by the current turn; retry when the turn is idle.Compaction cancelled.",
            ERROR,
        ),
        (
            "kimi-code",
            "Compacting conversation context…Compaction completed. - Tokens after: 22,307It works again.",
            ANSWER,
        ),
        ("pi", "Retrying (attempt 3/3, waiting 8s)...Retry finished, resuming.", ERROR),
        ("pi", "Retrying (attempt 1/3, waiting 2s)...Ten passes are left.Retry finished, resuming.", ANSWER),
        ("opencode", "We're currently experiencing high demand, please try again later.", ERROR),
    ],
)
def test_what_agents_say_about_their_models_failures_is_no_answer(name: str, text: str, meant: str) -> None:
    kind = kinds.find(name)
    assert faults.is_empty_prose(text, kind) == (meant == EMPTY)
    assert faults.is_error_prose(text, kind) == (meant == ERROR)


def message(ss: int, source: str, text: str, role: Any = "user") -> Message:
    return Message(ss=ss, role=role, source=source, text=text)


def test_a_turn_says_its_own_input_and_what_an_earlier_one_did_not_get_to_say() -> None:
    history = (
        message(1, "human", "one"),
        message(2, "model", "fine", "assistant"),
        message(3, "human", "two"),
        message(4, "session", "[loopd] The previous turn was interrupted (suspend)"),
        message(6, "continuation", "go on"),
    )
    request = replace(turn(), messages=history, fresh=1)
    assert prompts.fresh_prompt(request, 0) == (
        "two\n\n[loopd: note]\nThe previous turn was interrupted (suspend)\n\n[loopd: continuation]\ngo on"
    )
    assert "two" not in prompts.fresh_prompt(request, 3)
    assert "interrupted" in prompts.fresh_prompt(request, 3)
    assert prompts.earlier(request).endswith("\n\nUser: one\nYou: fine")


def test_what_was_said_before_is_cut_to_its_end() -> None:
    history = [message(n, "human", f"{n} " + "x" * 5_000) for n in range(1, 20)]
    history.append(message(30, "model", "yes", "assistant"))
    request = replace(turn(), messages=(*history, message(31, "human", "now")), fresh=1)
    told = prompts.earlier(request)
    assert len(told) < prompts.EARLIER_CHARS + 1_000
    assert told.split("\n\n", 1)[1].startswith("[…]\nUser: ")
    assert "now" not in told


# -- tokens -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_the_parts_of_a_growing_total_add_up_to_it(steps: list[tuple[int, int]]) -> None:
    meter = UsageMeter("cumulative")
    total_in = total_out = seen_in = seen_out = 0
    for given_in, given_out in steps:
        total_in, total_out = total_in + given_in, total_out + given_out
        meter.begin()
        meter.take({"inputTokens": total_in, "outputTokens": total_out})
        usage = meter.settle()
        assert usage is not None
        seen_in, seen_out = seen_in + usage.input_tokens, seen_out + usage.output_tokens
        meter = UsageMeter("cumulative", meter.total)  # a restart in between changes nothing
    assert (seen_in, seen_out) == (total_in, total_out)


def test_a_total_that_falls_begins_anew() -> None:
    meter = UsageMeter("cumulative", "100/10/0")
    meter.take({"inputTokens": 30, "outputTokens": 3})
    usage = meter.settle()
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (30, 3)


# -- kinds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["claude", "codex", "goose", "kimi-code", "opencode", "pi"])
def test_each_kind_that_ships_is_whole(name: str) -> None:
    kind = kinds.find(name)
    assert kind.name == name
    assert kind.install
    assert kind.model.required


def with_program(folder: Path, name: str) -> dict[str, str]:
    program = folder / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return {"PATH": str(folder), "KEY": "s3cret"}


@pytest.mark.parametrize("name", ["claude", "codex", "goose", "kimi-code", "opencode", "pi"])
def test_the_models_settings_reach_each_kind(tmp_path: Path, name: str) -> None:
    kind = kinds.find(name)
    premises = Premises(data=tmp_path / "data", environ=with_program(tmp_path, kind.command[0]))
    spec = AcpSpec(agent=name, model='an "odd" model', base_url="http://127.0.0.1:8080/v1", api_key_env="KEY")
    launch = prepare("ses_a", spec, kind, None, premises)
    told = " ".join([*launch.env.values(), *launch.files.values()])
    assert "s3cret" in told
    assert "odd" in told
    assert "127.0.0.1:8080" in told
    assert launch.env["HOME"].startswith(str(tmp_path / "data"))
    for path, text in launch.files.items():
        if path.suffix == ".json":
            assert 'an "odd" model' in json.dumps(json.loads(text)).replace("\\", "")
    plain = prepare("ses_a", AcpSpec(agent=name), kind, None, premises)
    assert plain.files == {}
    assert "odd" not in " ".join(plain.env.values())


def test_the_daemons_secrets_do_not_reach_an_agent_that_was_not_given_them(tmp_path: Path) -> None:
    environ = {**with_program(tmp_path, "pi-acp"), "AWS_SECRET": "x"}
    launch = prepare(
        "ses_a", AcpSpec(agent="pi"), kinds.find("pi"), None, Premises(data=tmp_path, environ=environ)
    )
    assert "AWS_SECRET" not in launch.env
    assert "KEY" not in launch.env
    assert launch.env["LOOPD_SESSION"] == "ses_a"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "m"}, "needs base_url"),
        ({"base_url": "http://x/v1"}, "needs model"),
        ({"model": "m", "base_url": "http://x/v1", "api_key_env": "NONE"}, "'NONE' is not set"),
    ],
)
def test_settings_that_cannot_reach_the_agent_are_refused(
    tmp_path: Path, fields: dict[str, str], says: str
) -> None:
    premises = Premises(data=tmp_path, environ=with_program(tmp_path, "goose"))
    with pytest.raises(Refused, match=says):
        prepare("ses_a", AcpSpec(agent="goose", **fields), kinds.find("goose"), None, premises)  # type: ignore[arg-type]


def test_a_model_for_an_agent_that_takes_none_is_refused(tmp_path: Path) -> None:
    premises = Premises(data=tmp_path, environ=with_program(tmp_path, "own"))
    spec = AcpSpec(command=("own",), model="m")
    with pytest.raises(Refused, match="takes no model settings"):
        prepare("ses_a", spec, kind_of(spec, premises), None, premises)


def test_a_users_own_kind_wins_over_one_that_ships(tmp_path: Path) -> None:
    (tmp_path / "goose.toml").write_text('name = "goose"\ncommand = ["my-goose"]\n')
    assert kinds.find("goose", tmp_path).command == ("my-goose",)
    assert "goose" in kinds.names(tmp_path)
    with pytest.raises(Refused, match="expected one of claude"):
        kinds.find("../../etc/passwd", tmp_path)


@given(st.binary(max_size=200))
def test_no_file_whatever_it_holds_is_more_than_refused(data: bytes) -> None:
    try:
        kinds.decode(data, "own.toml")
    except Refused as refusal:
        assert "own.toml" in refusal.message  # noqa: PT017
