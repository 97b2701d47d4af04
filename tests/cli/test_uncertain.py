"""What a command says when the daemon refuses, hangs or dies in the middle of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopd_protocol.errors import ERRORS
from tests.cli.conftest import run

Frame = dict[str, Any]
Answer = Callable[[Frame], Frame | None]
WELCOME = {
    "t": "welcome", "v": 1, "server": {"ver": "9", "boot": "b"}, "caps": [], "schema": "", "now_ms": 0,
    "limits": {"frame": 1_048_576, "inflight": 64, "subs": 32, "hb_ms": 10_000},
    "auth": {"principal": "uid:0", "scopes": []}, "head": {"log": "lg_x", "seq": 5},
}  # fmt: skip


@contextlib.contextmanager
def peer(answer: Answer) -> Iterator[tuple[str, list[Frame]]]:
    """A peer that welcomes and then answers each command as told; None hangs up. What it heard."""
    heard: list[Frame] = []
    with tempfile.TemporaryDirectory(prefix="lp") as folder:
        path = os.path.join(folder, "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        listener.settimeout(20)

        def serve() -> None:
            with listener, contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as lines:
                    for line in lines:
                        frame = json.loads(line)
                        heard.append(frame)
                        said = WELCOME if frame["t"] == "hello" else answer(frame)
                        if said is None:
                            return
                        if said:
                            lines.write(json.dumps(said).encode() + b"\n")
                            lines.flush()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path, heard
        listener.close()
        thread.join(20)


def refusing(code: str, **more: Any) -> Answer:
    return lambda frame: {"t": "err", "id": frame["id"], "code": code, "msg": f"no: {code}", **more}


@pytest.mark.parametrize("code", ERRORS)
def test_a_refusal_ends_with_the_exit_code_of_the_registry(code: str) -> None:
    with peer(refusing(code)) as (path, _):
        said = run("suspend", "s1", "--socket", path)
    assert said.code == ERRORS[code].exit
    assert said.out == ""
    assert said.err.startswith(f"loopctl: {code}: no: {code}")
    assert said.err.count("\n") == 1


def test_a_refusal_names_the_field_and_when_to_try_again() -> None:
    with peer(refusing("invalid", path="$.until_ms", retry={"after_ms": 50})) as (path, _):
        said = run("suspend", "s1", "--socket", path)
    assert said.err == "loopctl: invalid: no: invalid at $.until_ms; try again in 50 ms\n"
    with peer(refusing("invalid", path="$.until_ms")) as (path, _):
        error = json.loads(run("suspend", "s1", "--socket", path, "-o", "json").err)["error"]
    assert error == {"code": "invalid", "message": "no: invalid", "exit": 2, "path": "$.until_ms"}


@pytest.mark.parametrize("answer", [lambda _: None, lambda _: {}], ids=["hangs up", "says nothing"])
def test_an_answer_that_never_comes_is_uncertain_and_says_how_to_repeat(answer: Answer) -> None:
    with peer(answer) as (path, heard):
        said = run("suspend", "s1", "--socket", path, "--timeout", "300ms")
    assert (said.code, said.out) == (7, "")
    (command,) = [frame for frame in heard if frame["t"] == "cmd"]
    assert f"the same with `--key {command['key']}` does it once" in said.err
    with peer(answer) as (path, _):
        assert "--key" not in run("status", "--socket", path, "--timeout", "300ms").err


def test_every_change_has_a_fresh_key_and_no_question_has_one() -> None:
    keys = set()
    for words in (["suspend", "a"], ["suspend", "a"], ["goal", "clear", "a"]):
        with peer(refusing("conflict")) as (path, heard):
            run(*words, "--socket", path)
        keys.add(heard[-1]["key"])
    assert len(keys) == 3
    with peer(refusing("conflict")) as (path, heard):
        run("why", "a", "--socket", path)
    assert "key" not in heard[-1]


def test_what_listens_there_may_be_something_else() -> None:
    with peer(lambda _: {"hello": "world"}) as (path, _):
        said = run("status", "--socket", path, "--timeout", "2s")
    assert said.code == 6
    assert "does not speak this protocol" in said.err


def test_a_stranger_may_not_even_connect() -> None:
    if os.geteuid() == 0:
        # Permissions do not bind root; the daemon's own refusal is what remains.
        with peer(refusing("unauthenticated")) as (path, _):
            assert run("status", "--socket", path).code == 5
        return
    with peer(lambda _: {}) as (path, _):
        os.chmod(path, 0)
        assert run("status", "--socket", path).code == 5


def test_a_refusal_cannot_act_on_the_terminal() -> None:
    with peer(lambda frame: {"t": "err", "id": frame["id"], "code": "invalid", "msg": "\x1b[2J\u202e"}) as (
        path,
        _,
    ):
        assert not set("\x1b\u202e") & set(run("status", "--socket", path).err)


@pytest.mark.parametrize(
    "words", [["ps"], ["why", "a"], ["tail", "a"], ["suspend", "a"], ["status"], ["send", "a", "x"], ["cron"]]
)
@pytest.mark.parametrize(
    "result", [{}, {"sessions": 5, "events": [{}], "gate": 1}, {"sessions": [{}], "jobs": [None]}]
)
def test_an_answer_of_another_shape_is_no_traceback(words: list[str], result: Frame) -> None:
    with peer(lambda frame: {"t": "ok", "id": frame["id"], "seq": 1, "r": result}) as (path, _):
        said = run(*words, "--socket", path)
    assert said.code in {0, 7}
    if said.code == 7:
        assert said.err.startswith("loopctl: uncertain: the answer cannot be shown: ")
        assert said.err.count("\n") == 1
