"""How calls and texts are read: shell lines, traits, likeness of texts, and a stream that chants."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core import similarity
from loopd.core.records import CallRecord, call_record
from loopd.core.rules.chanting import Chanting, ChantingParameters
from loopd.core.shell_lines import line, normalise
from loopd_protocol.events import ToolCall
from tests.rules.agents import call, sh


def made(given_call: ToolCall) -> CallRecord:
    return call_record(given_call)


@pytest.mark.parametrize(
    "command",
    [
        "true",
        ":",
        "exit 0",
        "printf ''",
        'printf ""',
        "echo ok",
        "echo -n",
        "echo 'still here'",
        "x",
        "pwd",
        "date",
        "date +%s",
        "true && true",
        "echo a; echo b",
        "# just a thought",
        "",
    ],
)
def test_commands_that_do_nothing(command: str) -> None:
    assert made(sh(command)).noop


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "echo $HOME",
        "echo x > file",
        "echo a | tee b",
        "cat a.py",
        "cd src",
        "cd src && ls",
        "true | make",
        "echo " + "x" * 60,
        "sleep 5",
        "make",
        "python -c 'pass'",
        "xy",
        "git",
    ],
)
def test_commands_that_do_something(command: str) -> None:
    assert not made(sh(command)).noop


@pytest.mark.parametrize(
    ("name", "args", "noop"),
    [
        ("read_file", {"path": ""}, True),
        ("Read", {"file_path": "/dev/null"}, True),
        ("bash", {}, True),
        ("read_file", {"path": "a"}, False),
        ("get_status", {}, False),
        ("list_files", {}, False),
        ("look", None, False),
    ],
)
def test_tools_that_are_called_with_nothing(name: str, args: object, noop: bool) -> None:
    assert made(call(name, args)).noop is noop


@pytest.mark.parametrize("command", ["sleep 30", "sleep 0.5", "sleep 1m", "wait", "sleep 5; sleep 5"])
def test_commands_that_only_wait(command: str) -> None:
    assert made(sh(command)).waits
    assert not made(sh(command)).noop


@pytest.mark.parametrize(
    "command",
    [
        "sed -i s/a/b/ f",
        "cat > f <<'E'\nx\nE",
        "echo x >> log",
        "git commit -am x",
        "cd a && rm -rf b",
        "sudo apt-get install x",
        "kubectl apply -f m.yaml",
        "tmux send-keys -t a b",
        "for f in *; do mv $f x; done",
        "pip install x",
        "curl -X POST http://x",
        "mkdir -p a/b",
    ],
)
def test_commands_that_change_something(command: str) -> None:
    assert made(sh(command)).writes
    assert not made(sh(command)).reads


@pytest.mark.parametrize(
    "command",
    [
        "ls -la",
        "cat a | grep b",
        "git status",
        "git --no-pager log -3",
        "cd x && rg foo",
        "sed -n 1,5p f",
        "grep 'a->b' f",
        "ls 2>/dev/null",
        "find . -name x | wc -l",
        "kubectl get pods",
        "pip show x",
    ],
)
def test_commands_that_only_read(command: str) -> None:
    assert made(sh(command)).reads
    assert not made(sh(command)).writes


@pytest.mark.parametrize("command", ["python x.py", "make", "./run.sh", "npm run build", "ls && ./go"])
def test_what_a_program_does_is_unknown(command: str) -> None:
    assert not made(sh(command)).writes
    assert not made(sh(command)).reads


@pytest.mark.parametrize(
    "command",
    [
        "kubectl get pods -w",
        "gh run view 1",
        "docker ps",
        "sleep 5 && cat log",
        "tail -n 3 train.log",
        "curl -s http://x/status",
        "squeue -u me",
        "watch ls",
    ],
)
def test_commands_that_poll(command: str) -> None:
    assert made(sh(command)).polls


@pytest.mark.parametrize(
    "name",
    [
        "get_status",
        "job_status",
        "pollQueue",
        "wait_for_task",
        "BashOutput",
        "mcp__ci__build_status",
        "checkStatus",
        "get_task",
    ],
)
def test_tools_that_poll(name: str) -> None:
    record = made(call(name, {"id": 1}))
    assert record.polls or record.waits


@pytest.mark.parametrize("name", ["read_file", "search", "statusline"])
def test_tools_that_do_not(name: str) -> None:
    assert not made(call(name, {"id": 1})).polls


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ls  -la", "ls -la", True),
        ("ls -la # again", "ls -la", True),
        ("make 2>&1", "make", True),
        ("make || true", "make", True),
        ("ls a", "ls b", False),
        ("python - <<E\n  x\nE", "python - <<E\nx\nE", False),
        ("echo '#a'", "echo '#b'", False),
    ],
)
def test_command_lines_are_the_same_thing_or_not(one: str, other: str, same: bool) -> None:
    assert (made(sh(one)).identity == made(sh(other)).identity) is same


def test_volatile_fields_do_not_make_another_call() -> None:
    def identity(**args: object) -> str:
        return made(call("search", args)).identity

    assert identity(q="a", request_id="1") == identity(q="a", request_id="2") == identity(q="a", timestamp=5)
    assert identity(q="a") != identity(q="b")
    assert made(call("think", {"thought": "a"})).identity != made(call("think", {"thought": "b"})).identity
    assert made(call("a", {"x": 1})).identity != made(call("b", {"x": 1})).identity


@pytest.mark.parametrize(
    ("ok", "exit_code", "result", "expected"),
    [
        (True, None, "error: x", False),
        (False, None, "", True),
        (None, 1, "", True),
        (None, 0, "error", False),
        (None, None, "Error: no such file", True),
        (None, None, "Traceback (most recent call last)", True),
        (None, None, "an error-free day", False),
        (None, None, None, False),
    ],
)
def test_failures(ok: bool | None, exit_code: int | None, result: str | None, expected: bool) -> None:
    assert made(call("x", {}, result, ok, exit_code=exit_code)).failed is expected


def test_failures_of_a_service_and_of_tools_that_do_not_exist() -> None:
    assert made(call("x", {}, "HTTP 503 Service Unavailable", False)).infra
    assert made(call("x", {}, "boom", False, error_class="infra")).infra
    assert not made(call("x", {}, "timeout", False, error_class="tool")).infra
    assert not made(call("x", {}, "assert 3 == 4", False)).infra
    assert made(
        call("x", {}, "there is no tool 'x'; the tools are: a", False, error_class="schema")
    ).unresolved
    assert made(call("x", {}, "Unknown tool: x", False)).unresolved
    assert made(call("x", {}, "Tool x does not exist", None)).unresolved is False
    assert not made(
        call("x", {}, "denied: no tools were offered in this step", False, error_class="denied")
    ).unresolved
    assert not made(call("x", {}, "bad argument path", False, error_class="schema")).unresolved


@given(st.text(max_size=300))
def test_any_command_line_can_be_read(command: str) -> None:
    look = line(command)
    assert normalise(look.normal) is not None
    assert not (look.noop and look.writes)


@given(
    st.text(max_size=200),
    st.text(max_size=40),
    st.none() | st.text(max_size=300),
    st.sampled_from([True, False, None]),
)
def test_any_call_can_be_read(command: str, name: str, result: str | None, ok: bool | None) -> None:
    assert len(made(call(name, {"command": command}, result, ok)).identity) == 16
    assert len(made(call(name, command, result, ok)).identity) == 16


# -- likeness of texts -----------------------------------------------------------------------------------


def alike(a: str, b: str) -> int:
    return similarity.permille(
        similarity.sketch(similarity.tokens(a)), similarity.sketch(similarity.tokens(b))
    )


def test_likeness_is_the_jaccard_index_of_digit_masked_words() -> None:
    assert alike("one two three four", "one two three five") == 600
    assert alike("step 16 of 100 done", "step 17 of 100 done") == 1_000
    assert alike("a b c", "d e f") == 0
    assert alike("Not Complete", "not complete") == 1_000


def test_texts_without_spaces_are_compared_by_three_characters() -> None:
    assert alike("目前没有任何可以采取的行动", "目前没有任何可以采取的措施") >= 600
    assert alike("目前没有任何可以采取的行动", "我们已经完成了全部的工作了") == 0


def test_of_long_texts_likeness_is_an_estimate() -> None:
    words = [f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(600)]
    one, other = words[:400], words[100:500]
    assert abs(alike(" ".join(one), " ".join(other)) - 600) < 150
    assert len(similarity.sketch(words)) == 64 * 4


@given(
    st.lists(st.sampled_from("abcdefghij"), max_size=12), st.lists(st.sampled_from("abcdefghij"), max_size=12)
)
def test_likeness_of_short_texts_is_exact(one: list[str], other: list[str]) -> None:
    a, b = set(one), set(other)
    expected = 1_000 * len(a & b) // len(a | b) if a | b else 1_000
    assert similarity.permille(similarity.sketch(one), similarity.sketch(other)) == expected


# -- chanting ----------------------------------------------------------------------------------------------

CHANTING = ChantingParameters(enabled=True)


def chant(text: str, size: int = 7, parameters: ChantingParameters = CHANTING) -> int | None:
    """Characters fed when it fires, in pieces as they stream."""
    judge = Chanting(parameters)
    for at in range(0, len(text), size):
        if judge.feed(text[at : at + size]) is not None:
            return at + size
    return None


def test_the_same_sentence_over_and_over_is_a_chant() -> None:
    at = chant("I will now complete the task as requested by the user. " * 400)
    assert at is not None
    assert at <= 9_000
    assert chant("The file\nis not\nthere, so I\nlook again for it.\n" * 400) is not None
    assert chant("loop" * 4_000) is not None


def test_a_chant_that_begins_late_is_heard() -> None:
    chance = random.Random(1)
    prose = " ".join(str(chance.random()) for _ in range(2_000))
    at = chant(prose + " and so on and so forth, as was said before, again" * 300)
    assert at is not None
    assert len(prose) < at <= len(prose) + 9_000


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"- item number {n} of the list is called {n * 7919 % 1000} and done" for n in range(400)),
        "\n".join(f"| row {n} | same | same | same | same |" for n in range(600)),
        "```\n" + "x = [0, 0, 0, 0, 0, 0, 0, 0]\n" * 800 + "```\n",
        " ".join(str(random.Random(n).random()) for n in range(4_000)),
        "short. " * 20,
    ],
    ids=["list", "table", "code", "prose", "short"],
)
def test_lists_tables_code_and_prose_are_no_chants(text: str) -> None:
    assert chant(text) is None


def test_it_fires_once_and_says_how_little_was_new() -> None:
    judge = Chanting(CHANTING)
    found = [made for _ in range(3_000) if (made := judge.feed("again and again and again. "))]
    assert len(found) == 1
    assert (found[0].rule, found[0].level, found[0].verdict) == ("chanting", "hard", "warn")
    assert found[0].score < found[0].threshold == 20


@pytest.mark.parametrize("off", [ChantingParameters(), ChantingParameters(enabled=False)])
def test_it_can_be_switched_off(off: ChantingParameters) -> None:
    assert chant("the same again and again, as ever. " * 999, parameters=off) is None


@given(st.integers(1, 5_000))
def test_how_the_stream_is_cut_makes_no_difference_to_whether_it_fires(size: int) -> None:
    text = "The task is done and there is nothing more to be said about it here. " * 300
    assert chant(text, size) is not None


@pytest.mark.parametrize(
    "command",
    [
        "\t \n" * 1_300,
        "open(" * 1_000,
        "((((" * 1_000,
        ";" * 4_000,
        "a=1 " * 1_000,
        "git -a b " * 400,
        "x | " * 1_000,
    ],
    ids=["white space", "open", "parentheses", "semicolons", "variables", "options", "pipes"],
)
def test_no_command_line_takes_long_to_read(command: str) -> None:
    started = time.thread_time()
    made(call("bash", {"command": command}, command, ok=False))
    assert time.thread_time() - started < 0.25
