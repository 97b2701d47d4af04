"""Every guarantee names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "explanation" / "guarantees.md"
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))


def defined(path: Path) -> set[str]:
    """Names of functions and classes at the top of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, kinds)}


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_test_that_proves_a_guarantee_exists(file: str, name: str) -> None:
    assert (TOP / file).is_file()
    assert not name or name in defined(TOP / file)


def test_every_guarantee_is_proved_by_something() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    assert [row for row in rows if "`tests/" not in row] == []
