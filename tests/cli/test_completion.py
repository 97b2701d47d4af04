"""Completion scripts are accepted by their shells and offer verbs, options and sessions."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Stage, run
from tests.e2e.harness import BIN


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
@pytest.mark.parametrize("program", ["loopctl", "loopd"])
def test_a_script_is_printed_for_every_shell(shell: str, program: str) -> None:
    said = run("completion", shell, "--program", program)
    assert (said.code, said.err) == (0, "")
    assert program in said.out
    word = {"loopctl": "suspend", "loopd": "serve"}[program]
    assert word in said.out
    if program == "loopctl" and shell != "powershell":
        assert "loopctl ps -q" in said.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_accepts_it(shell: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    for program in ("loopctl", "loopd"):
        script = run("completion", shell, "--program", program).out
        done = subprocess.run(
            [found, "-n"], input=script, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


KEYS = {
    "loopctl unsus": "unsuspend",
    "loopctl gate ext": "extend",
    "loopctl suspend x --mode aft": "after_turn",
    "loopctl verify --data /de": "/dev",
}
"""What is typed before the Tab key, and what stands there behind it."""


class Terminal:
    """A shell that believes to talk to a person."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        os.close(theirs)

    def types(self, keys: str, expected: str) -> None:
        """Type, and wait until the screen shows what is expected."""
        os.write(self.ours, keys.encode())
        seen = b""
        while expected.encode() not in seen:
            assert select.select([self.ours], [], [], 30)[0], (
                f"after {keys!r}: {seen!r}; expected {expected!r}"
            )
            seen += os.read(self.ours, 65_536)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.ours)


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def named(stage: Stage, name: str) -> None:
    """A session of this name."""
    script = stage.house.script(("done",), f"{name}.jsonl")
    stage.ok("new", "--driver", "scripted", "--script", str(script), "--name", name)


def surroundings(stage: Stage) -> dict[str, str]:
    """Of a person without any settings, in the terminal that promises least."""
    home = str(stage.house.folder)
    return {"PATH": f"{BIN}:/usr/bin:/bin", "LOOPD_SOCKET": stage.daemon.socket, "TERM": "dumb", "HOME": home}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "options", "load"),
    [
        ("bash", ["--norc", "--noprofile", "-i"], ". {script}"),
        ("zsh", ["-f", "-i"], "fpath=({script:h} $fpath); autoload -Uz compinit; compinit -D -u"),
    ],
)
def test_the_tab_key_completes_verbs_values_files_and_sessions(
    name: str, options: list[str], load: str, stage: Stage, tmp_path: Path
) -> None:
    found = shell(name)
    named(stage, f"tab-{name}")
    script = tmp_path / "_loopctl"  # the name that zsh looks for
    script.write_text(run("completion", name).out)
    loading = load.replace("{script:h}", str(tmp_path)).replace("{script}", str(script))
    terminal = Terminal([found, *options], surroundings(stage))
    try:
        terminal.types(f"{loading}; echo loa''ded\n", "loaded")
        for typed, expected in {**KEYS, f"loopctl why tab-{name[0]}": f"tab-{name}"}.items():
            terminal.types(f"\x15{typed}\t", expected)
        terminal.types(f"\x15loopctl goal set tab-{name[0]}\t", f"tab-{name}")
        terminal.types("'x' -o js\t", "json")
    finally:
        terminal.close()


@pytest.mark.process
def test_fish_completes_verbs_values_files_and_sessions(stage: Stage) -> None:
    found = shell("fish")
    named(stage, "tab-fish")
    asked = [*KEYS, "loopctl why tab-f", "loopctl top tab-f"]
    lines = "".join(f"complete -C '{typed}'; echo ...\n" for typed in asked)
    done = subprocess.run(
        [found, "--no-config"], input=run("completion", "fish").out + "\n" + lines,
        capture_output=True, text=True, timeout=60, check=False, env=surroundings(stage),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    offered = [{line.partition("\t")[0] for line in part.splitlines()} for part in done.stdout.split("...\n")]
    expected = [*KEYS.values(), "tab-fish", "tab-fish"]
    missing = [
        word
        for word, words in zip(expected, offered[:-1], strict=True)
        if word not in {each.rstrip("/") for each in words}
    ]
    assert missing == []
    assert offered[0] == {"unsuspend"}


@pytest.mark.process
def test_bash_completes_verbs_and_sessions(stage: Stage) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    name = stage.session()
    script = (
        run("completion", "bash").out
        + """
try() {
  COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
  spec=$(complete -p loopctl); fn=${spec##*-F }; fn=${fn%% *}
  "$fn" loopctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
  printf '%s ' "${COMPREPLY[@]}"; echo
}
try loopctl unsus
try loopctl why unit
try loopctl gate ext
try loopctl suspend x --mode aft
"""
    )
    done = subprocess.run(
        [bash], input=script, capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "LOOPD_SOCKET": stage.daemon.socket},
    )  # fmt: skip
    verbs, sessions, members, modes = done.stdout.splitlines()
    assert verbs.split() == ["unsuspend"]
    assert name in sessions.split()
    assert members.split() == ["extend"]
    assert modes.split() == ["after_turn"]
