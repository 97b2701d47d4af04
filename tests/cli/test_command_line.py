"""Command lines mean what they look like, wherever the options stand, and mistakes are named."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd import __version__
from loopd.cli.arguments import HOLDS, common, hold, label, setting
from loopd.cli.exits import Failure
from loopd.cli.operator import Parser, find_verb, leaf_parser, whole_parser
from loopd.cli.verbs import GROUPS, VERBS
from loopd_protocol.commands import COMMAND_TYPES, MUTATING, ONE_BY_ONE, ForMany
from loopd_protocol.errors import ERRORS
from loopd_protocol.holds import HOLD_KINDS
from tests.cli.conftest import run

NO_DAEMON = "/nonexistent/loopd.sock"


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help_with_examples_that_parse(name: str) -> None:
    said = run(*name.split(), "--help")
    assert said.code == 0
    for example in VERBS[name].examples:
        assert example in said.out
    assert "examples:" in said.out


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "json", "--socket", NO_DAEMON, "gate", "open", "s1", "--kind", "budget"],
        ["gate", "-o", "json", "open", "--socket", NO_DAEMON, "s1", "--kind", "Budget"],
        ["gate", "open", "--kind=budget", "s1", "-ojson", f"--socket={NO_DAEMON}"],
        ["gate", "s1", "open", "--kind", "BUDGET", "--output=json", "--socket", NO_DAEMON],
    ],
)
def test_options_that_go_everywhere_go_everywhere(words: list[str]) -> None:
    name, rest = find_verb(words)
    args = leaf_parser(name, VERBS[name]).parse_args(rest)
    assert (name, args.sid, args.kind) == ("gate open", ["s1"], "Budget")
    assert (args.output, args.socket) == ("json", NO_DAEMON)


MANY = {
    "suspend": "suspend",
    "unsuspend": "unsuspend",
    "interrupt": "interrupt",
    "gate open": "gate.open",
    "gate extend --until 3h": "gate.extend",
    "goal set TEXT": "goal.set",
    "goal pause": "goal.pause",
    "goal resume": "goal.resume",
    "goal infeasible": "goal.infeasible",
    "goal complete": "goal.complete",
    "goal clear": "goal.clear",
    "send TEXT": "send",
    "end": "session.end",
    "resume": "session.resume",
    "set k=v": "session.set",
    "budget set turns=5": "budget.set",
    "budget remove turns": "budget.set",
    "cron put JOB EXPR TEXT": "cron.put",
    "cron pause JOB": "cron.pause",
    "cron resume JOB": "cron.resume",
    "cron remove JOB": "cron.remove",
    "cron run JOB": "cron.run",
    "retention hold": "retention.hold",
    "retention release": "retention.release",
}
"""Verbs, with what they want besides a session, and the command that each sends."""


def test_every_change_of_a_session_is_for_many_or_says_why_not() -> None:
    of_a_session = {name for name in MUTATING if "sid" in COMMAND_TYPES[name].__struct_fields__}
    for_many = {str(cls.__struct_config__.tag) for cls in ForMany.__args__}
    assert for_many | set(ONE_BY_ONE) == of_a_session
    assert not for_many & set(ONE_BY_ONE)
    assert set(MANY.values()) == for_many
    for cls in ForMany.__args__:  # what a batch replaces is all that names a session
        assert not {"other_sid", "parent", "sids"} & set(cls.__struct_fields__)


@pytest.mark.parametrize("line", MANY)
def test_a_verb_for_many_takes_labels_all_and_a_dry_run(line: str) -> None:
    for words in (["-l", "a=b", "-l", "c=d", "--dry-run"], ["--all", "--dry-run"], ["s1", "s2", "--dry-run"]):
        verb = line.split()[: 2 if " ".join(line.split()[:2]) in VERBS else 1]
        name, rest = find_verb([*verb, *words, *line.split()[len(verb) :]])
        args = leaf_parser(name, VERBS[name]).parse_args(rest)
        assert (args.dry_run, args.all) == (True, "--all" in words)
        assert args.label == ([("a", "b"), ("c", "d")] if "-l" in words else [])
        assert args.sid[:2] == ["s1", "s2"] or "s1" not in words


@pytest.mark.parametrize(
    ("line", "sid", "text"),
    [
        ("s1 --dedupe k TEXT", ["s1"], "TEXT"),
        ("--dedupe k s1 TEXT", ["s1"], "TEXT"),
        ("s1 s2 TEXT --dedupe k", ["s1", "s2"], "TEXT"),
        ("-l a=b --dedupe k TEXT", [], "TEXT"),
        ("TEXT -l a=b --dedupe k", [], "TEXT"),
        ("s1 --dedupe k -- --dry-run", ["s1"], "--dry-run"),
        ("--dedupe k -- s1 -l", ["s1"], "-l"),
    ],
)
def test_options_may_stand_between_the_words_of_a_verb(line: str, sid: list[str], text: str) -> None:
    args = leaf_parser("send", VERBS["send"]).parse_args(line.split())
    assert (args.sid, args.text, args.dedupe, args.dry_run) == (sid, text, "k", False)


@pytest.mark.parametrize(
    ("words", "name"),
    [(["inbox", "s1"], "inbox list"), (["gate", "s1"], "gate get"), (["cron"], "cron list"), (["cron", "-o", "json"], "cron list"), (["anchor"], "anchor list"), (["db"], "db status"), (["effect"], "effect list"), (["retention"], "retention status")],
)  # fmt: skip
def test_a_group_has_an_obvious_member(words: list[str], name: str) -> None:
    assert find_verb(words)[0] == name


def test_a_message_may_look_like_anything() -> None:
    for text in ("-", "suspend", "=x", "a b"):
        name, rest = find_verb(["send", "s1", text])
        assert (name, leaf_parser(name, VERBS[name]).parse_args(rest).text) == ("send", text)
    name, rest = find_verb(["send", "s1", "--", "--reason"])
    assert leaf_parser(name, VERBS[name]).parse_args(rest).text == "--reason"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sussend", "s1"], "did you mean 'suspend'?"),
        (["gate"], "get, extend, open"),
        (["gate", "opne"], None),
        (["ps", "-o", "xml"], "invalid choice: 'xml'"),
        (["suspend"], "expected SID, -l KEY=VALUE or --all"),
        (["suspend", "s1", "--all"], "--all selects every live session"),
        (["resume", "s1", "--all"], "--all selects every session;"),
        (["goal", "set", "text"], "expected SID, -l KEY=VALUE or --all"),
        (["goal", "set", "--all"], "required: TEXT"),
        (["gate", "extend", "--all", "--until", "3h"], "expected --kind KIND"),
        (["set", "-l", "a=b"], "what is to change?"),
        (["set", "k=v"], "which session?"),
        (["budget", "set", "turns=5"], "which budget?"),
        (["budget", "set", "-l", "a=b", "s1", "turns=5"], "that of one label"),
        (["budget", "set", "-l", "a=b", "-l", "c=d", "turns=5"], "or --each"),
        (["budget", "remove", "s1", "nothing"], "names no budget"),
        (["suspend", "s1", "--until", "3"], "'3' is no moment; expected a moment such as"),
        (["suspend", "s1", "--untill", "3h"], "--untill"),
        (["suspend", "-l", "=x"], "expected KEY=VALUE"),
        (["interrupt", "s1", "--for", "5"], "'5' is no duration; expected a duration such as"),
        (["gate", "extend", "s1", "Degen", "--until", "3h"], "expected one of UserSuspend"),
        (["tail", "s1", "-n", "0"], "expected a whole number from 1"),
        (["tail", "s1", "-f", "-o", "json"], "use -o ndjson"),
        (["watch", "-o", "json"], "use -o ndjson, or -n N"),
        (["watch", "--after", "-1"], "--after"),
        (["wait", "s1", "--until", "dead"], "expected idle, open, closed, ended or 'turn>N'"),
        (["show", "s1@x"], "expected SID or SID@N"),
        (["cron", "next"], "expected SID JOB or --expr EXPR"),
        (["cron", "next", "s1", "j", "--expr", "* * * * *"], "expected SID JOB or --expr EXPR"),
        (["new"], "which driver?"),
        (["new", "--driver", "scripted"], "needs --script"),
        (["new", "--driver", "chat", "--model", "m"], "needs --base-url"),
        (
            ["new", "--driver", "chat", "--base-url", "http://x/v1", "--model", "m", "--temperature", "9"],
            "0 to 5",
        ),
        (["new", "--driver", "scripted", "--script", "x", "--set", "k"], "expected KEY=VALUE"),
        (["completion", "ksh"], "invalid choice"),
        ([], "usage: loopctl COMMAND"),
    ],
)
def test_a_mistake_is_named_in_one_line_with_exit_code_2(words: list[str], expected: str | None) -> None:
    said = run(*words, "--socket", NO_DAEMON) if words else run()
    if expected is None:  # the second word is a session's name then
        assert said.code == 6
        return
    assert (said.code, said.out) == (2, "")
    assert expected in said.err
    if words:
        assert said.err.count("\n") == 1
        assert said.err.startswith('{"error": {"code": "usage"' if "json" in words else "loopctl: usage: ")


VOCABULARY = [word for name in VERBS for word in name.split()] + [
    "-o", "json", "--socket", NO_DAEMON, "-l", "k=v", "--", "-", "s1", "--until", "5m", "-n", "3", "--help", "--all", "-f", "-x", "", "turn>3", "Budget",
]  # fmt: skip


@given(st.lists(st.sampled_from(VOCABULARY) | st.text(max_size=5), max_size=6))
def test_any_words_are_a_command_or_a_named_mistake(words: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            name, rest = find_verb(words)
            leaf_parser(name, VERBS[name]).parse_args(rest)
        except Failure as failure:
            assert failure.exit == 2  # noqa: PT017
        except SystemExit as ended:
            assert ended.code in {0, 2}  # noqa: PT017


def test_an_error_is_one_json_object_when_json_is_asked_for() -> None:
    for words in (["-o", "json", "suspend"], ["suspend", "--output=json"], ["suspend", "-ondjson"]):
        said = run(*words)
        assert (said.code, said.out) == (2, "")
        assert json.loads(said.err)["error"]["code"] == "usage"


def test_no_daemon_is_exit_code_6_and_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("status", "--socket", NO_DAEMON)
    assert said.code == 6
    assert NO_DAEMON in said.err
    monkeypatch.setenv("LOOPD_SOCKET", NO_DAEMON)
    assert NO_DAEMON in run("ps").err
    monkeypatch.delenv("LOOPD_SOCKET")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent/runtime")
    assert "/loopd/control.sock" in run("ps").err


@pytest.mark.parametrize("code", ERRORS)
def test_every_code_of_the_registry_has_its_exit_code(code: str) -> None:
    assert Failure(code, "x").exit == ERRORS[code].exit
    assert 2 <= Failure(code, "x").exit <= 7


def test_a_code_of_a_newer_daemon_counts_as_unavailable() -> None:
    assert Failure("moon_phase", "x").exit == 6


def test_the_kinds_of_hold_are_those_of_the_protocol() -> None:
    assert HOLDS == HOLD_KINDS
    assert [hold(kind.lower()) for kind in HOLD_KINDS] == list(HOLD_KINDS)
    assert hold("user-suspend") == "UserSuspend"


def test_settings_and_labels_are_read_as_typed() -> None:
    assert setting("a.b=5") == ("a.b", 5)
    assert setting("a=[60, 300]") == ("a", [60, 300])
    assert setting("a=true") == ("a", True)
    assert setting("a=Continue: {goal}") == ("a", "Continue: {goal}")
    assert setting("a=x=y") == ("a", "x=y")
    assert label("team=web") == ("team", "web")
    assert label("nightly") == ("nightly", "")


def test_the_whole_parser_knows_every_verb() -> None:
    listed = whole_parser().format_help()
    assert all(name.split()[0] in listed for name in VERBS)
    assert {name.partition(" ")[0] for name in VERBS if " " in name} == set(GROUPS)


@pytest.mark.parametrize("words", [["--help"], ["help"], ["-h"], ["help", "cron", "put"], ["gate", "--help"]])
def test_help_goes_to_stdout_and_succeeds(words: list[str]) -> None:
    said = run(*words)
    assert (said.code, said.err) == (0, "")
    assert "usage: loopctl" in said.out


def test_version() -> None:
    assert run("--version").out == f"loopctl {__version__}\n"


@pytest.mark.process
def test_status_imports_little() -> None:
    heavy = "{'msgspec', 'asyncio', 'anyio', 'shutil', 'datetime', 'typing', 'loopd_protocol', 'tomllib', 'unicodedata'}"
    code = (
        "import sys; from loopd.cli.operator import main\n"
        f"main(['status', '--socket', {NO_DAEMON!r}, '-o', 'json'])\n"
        f"found = {heavy} & set(sys.modules); assert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", VERBS)
def test_no_argument_of_a_verb_is_taken_for_an_option_of_every_verb(name: str) -> None:
    everywhere = Parser(add_help=False)
    common(everywhere)
    shared = {action.dest for action in everywhere._actions}
    own = Parser(add_help=False)
    VERBS[name].configure(own)
    assert shared & {action.dest for action in own._actions} == set()
