"""`loopd`: starts only on a sound configuration, says what is wrong otherwise, and prints what it must."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd import __version__
from loopd.cli.daemon import default_data, main
from loopd_protocol import schema
from tests.cli.conftest import Said
from tests.e2e.harness import BIN, DaemonDied, House


def loopd(*words: str) -> Said:
    """`loopd` in this process; for commands that end by themselves."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    try:
        yield house
    finally:
        house.close()


def test_version_and_help() -> None:
    assert loopd("--version") == (0, f"loopd {__version__}\n", "")
    assert "examples:" in loopd("--help").out
    assert "--http" in loopd("serve", "--help").out
    nothing = loopd()
    assert (nothing.code, nothing.out) == (2, "")
    assert "usage: loopd" in nothing.err


@pytest.mark.parametrize(
    "words", [(verb,) for verb in ("serve", "demo", "mcp", "schema", "config")] + [("config", "check"), ("config", "show")]
)  # fmt: skip
def test_every_command_has_help_with_examples(words: tuple[str, ...]) -> None:
    said = loopd(*words, "--help")
    assert (said.code, said.err) == (0, "")
    example = said.out.partition("examples:\n")[2].splitlines()[0].strip()
    assert f"loopd {words[0]}" in example
    assert "--base-url" in said.out or words != ("demo",)


def test_config_check_names_every_mistake(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[http]\nlistn = 1\n[drain]\nbudget_ms = -1\n")
    said = loopd("config", "check", str(file))
    assert (said.code, said.out) == (2, "")
    lines = said.err.splitlines()
    assert len(lines) == 2
    assert "nearest known key is 'http.listen'" in lines[0]
    assert "drain.budget_ms: expected `int` >= 0; got -1" in lines[1]
    file.write_text("[drain]\nbudget_ms = 1\n")
    assert loopd("config", "check", str(file)) == (0, f"{file} is fine\n", "")
    assert loopd("config", "check", str(tmp_path / "no.toml")).code == 2


def test_config_show_prints_what_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text("data = '/from/file'\n[drain]\nbudget_ms = 1\n[metrics]\ntop_k = 4\n")
    monkeypatch.setenv("LOOPD_DRAIN_BUDGET_MS", "2")
    shown = loopd("config", "show", "--config", str(file), "--data", "/from/flag").json
    assert (shown["data"], shown["drain"]["budget_ms"], shown["metrics"]["top_k"]) == ("/from/flag", 2, 4)
    assert shown["limits"]["concurrent_turns"] == 64
    monkeypatch.setenv("LOOPD_CONFIG", str(file))
    assert loopd("config", "show").json["data"] == "/from/file"


def test_without_a_folder_the_users_state_folder_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("LOOPD_DATA", raising=False)
    monkeypatch.delenv("LOOPD_CONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/x/state")
    assert loopd("config", "show").json["data"] == "/home/x/state/loopd"
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/loopd:/var/lib/other")
    assert default_data() == "/var/lib/loopd"


def test_the_schema_is_printed_with_its_digest() -> None:
    document = loopd("schema").json
    assert schema.digest_of(document) == loopd("schema", "--digest").out.strip()


@pytest.mark.process
def test_serve_refuses_a_bad_configuration_before_anything_is_made(house: House) -> None:
    daemon = house.daemon(config="[limits]\nconcurrent_turn = 5\n")
    with pytest.raises(DaemonDied) as died:
        daemon.start()
    assert (died.value.code, died.value.out) == (2, "")
    assert "nearest known key is 'limits.concurrent_turns'" in died.value.err
    assert not daemon.data.exists()


@pytest.mark.process
def test_serve_prints_one_line_and_logs_json_on_stderr(house: House) -> None:
    daemon = house.daemon(http=True).start()
    assert set(daemon.ready) == {"ready", "socket", "http", "boot"}
    assert daemon.ready["socket"] == daemon.socket
    assert daemon.terminate() == 0
    assert len(daemon.lines) == 1
    for line in daemon.stderr().splitlines():
        assert {"ts", "level", "logger", "event"} <= set(json.loads(line))


@pytest.mark.process
def test_text_logs_are_for_people(house: House) -> None:
    daemon = house.daemon(argv=["--log-format", "text", "--log-level", "info"]).start()
    daemon.terminate()
    assert " info " in daemon.stderr()
    assert not daemon.stderr().startswith("{")


@pytest.mark.process
def test_a_second_daemon_on_the_same_data_names_the_owner(house: House) -> None:
    first = house.daemon().start()
    second = subprocess.run(
        [str(BIN / "loopd"), "serve", "--data", str(first.data)], capture_output=True, text=True, timeout=30, check=False
    )  # fmt: skip
    assert (second.returncode, second.stdout) != (0, "")
    assert str(first.pid) in second.stderr
    assert second.stderr.startswith("loopd: ")
    assert first.ctl("status")["pid"] == first.pid


@pytest.mark.process
def test_help_of_the_daemon_imports_no_event_loop() -> None:
    code = (
        "import sys; from loopd.cli.daemon import main\n"
        "try: main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "found = {'asyncio', 'msgspec', 'anyio', 'uvicorn'} & set(sys.modules); assert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
