"""Completion scripts are accepted by their shells and offer verbs, options and sessions."""

from __future__ import annotations

import shutil
import subprocess

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
