"""The how-to shows what the programs print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import run

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs/howto/inspect.md"
BLOCKS = re.findall(
    r"^```console\n\$ loopctl ([^\n]*)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command.split()[0] for command, _ in BLOCKS])
def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch, command: str, shown: str) -> None:
    monkeypatch.chdir(TOP)
    assert run(*shlex.split(command)).out == shown


def test_the_page_shows_both_commands() -> None:
    assert [command.split()[0] for command, _ in BLOCKS] == ["inspect", "backtest"]
