"""`make bench` shows what was measured against its goal, and says which bench failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import page, rows, verdict
from tests.bench.figures import report

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def figure(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    report("status: CPU", [61.0, 58.5, 60.0], "ms", goal=60, note="warm cache")
    line: dict[str, object] = json.loads(capsys.readouterr().out)
    return line


def test_a_figure_is_the_median_with_its_range(figure: dict[str, object]) -> None:
    assert (figure["median"], figure["min"], figure["max"], figure["runs"]) == (60.0, 58.5, 61.0, 3)


@pytest.mark.parametrize(
    ("better", "median", "expected"),
    [("less", 60, "met"), ("less", 60.1, "missed"), ("more", 60, "met"), ("more", 59.9, "missed")],
)
def test_a_goal_is_met_at_its_value(
    figure: dict[str, object], better: str, median: float, expected: str
) -> None:
    assert verdict({**figure, "better": better, "median": median}) == expected


def test_the_table_shows_the_goal_beside_the_figure(figure: dict[str, object]) -> None:
    assert rows([figure])[1] == ("status: CPU", "60", "58.5 – 61", "ms", "≤ 60", "met")
    assert rows([{**figure, "goal": None}])[1][-2:] == ("", "")


def test_the_page_says_on_what_machine_and_under_which_load(figure: dict[str, object]) -> None:
    machine = {"python": "3.11.7", "cores": 2, "machine": "x86_64"}
    said = page([{**figure, "load_1m": 0.25}, {**figure, "load_1m": 3.0}], machine)
    assert "Python 3.11.7, 2 shared cores (x86_64), load 0.2 to 3.0" in said
    assert "| status: CPU | 60 | 58.5 – 61 | ms | ≤ 60 | met |" in said


@pytest.mark.process
def test_an_unknown_bench_is_named_with_those_that_exist() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench", "no_such_bench"],
        cwd=TOP,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "no_such_bench" in ran.stderr
