"""Every guarantee names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "explanation" / "guarantees.md"
README = TOP / "README.md"
NAMED = [
    name
    for page in (PAGE, README)
    for name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8"))
]


def defined(path: Path) -> set[str]:
    """Names of functions and classes at the top of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_test_that_proves_a_guarantee_exists(file: str, name: str) -> None:
    assert (TOP / file).is_file()
    assert not name or name in defined(TOP / file)


@pytest.mark.parametrize(("page", "least"), [(PAGE, 20), (README, 8)])
def test_every_guarantee_is_proved_by_something(page: Path, least: int) -> None:
    text = page.read_text(encoding="utf-8")
    table = text[text.index("proved by |") :].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) > least
    assert [row for row in rows if "`tests/" not in row] == []
