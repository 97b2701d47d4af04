"""The first screen of the README shows what `loopd demo` really prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
CUT = "…"


def masked(line: str) -> str:
    """A line without what differs from run to run: numbers, times, and spaces that follow from them."""
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,.:]*", "#", line)).strip()


def told() -> list[str]:
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    return readme.partition("```text\n")[2].partition("```")[0].splitlines()


@pytest.mark.process
@pytest.mark.timeout(90)
def test_the_readme_shows_what_the_demonstration_prints() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "loopd.cli.daemon", "demo"],
        cwd=TOP,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\x1b" not in ran.stdout
    printed = iter([masked(line) for line in ran.stdout.splitlines()])
    shown = [masked(line) for line in told() if line != CUT]
    assert len(shown) > 15
    missing = [line for line in shown if line not in printed]  # an iterator: also the order must be the same
    assert missing == []
