"""The picture and the matrix of the gate are what its tables say."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from loopd.core.gate import Cell, cell
from loopd_protocol.holds import HOLD_KINDS
from loopd_protocol.sources import Source

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "explanation/gate.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_gate.py"))


def test_the_gate_page_and_its_picture_are_fresh(
    generator: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert generator["main"](["--check"]) == 0, capsys.readouterr().err


def test_the_written_matrix_says_cell_by_cell_what_the_gate_does() -> None:
    rows = [
        [part.strip(" `") for part in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line[:1] == "|"
    ]
    head, body = rows[0], rows[2:]
    assert [row[0] for row in body] == list(HOLD_KINDS)
    for row in body:
        for name, said in zip(head, row, strict=True):
            if name not in set(Source):
                continue
            met = {preset: cell(row[0], Source(name), preset).value for preset in ("published", "hardened")}
            if len(set(met.values())) == 1:
                assert said == met["published"]
            else:
                assert said == f"{met['published']} (published), {met['hardened']} (hardened)"


def test_the_picture_has_a_field_for_each_hold_and_source() -> None:
    titles = [title.text for title in ET.parse(DOCS / "explanation/gate.svg").iter(f"{SVG}title")]
    fields = {
        f"{kind} × {source.value}" for kind in HOLD_KINDS for source in Source if source is not Source.SYSTEM
    }
    assert fields <= {str(title).split(":")[0] for title in titles}


def test_a_changed_table_makes_the_page_stale(
    generator: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {**generator["MATRIX"], "Budget": MappingProxyType(dict.fromkeys(Source, Cell.REMOVES))}
    # The functions read their module's globals, and `cell` reads those of the gate: replace both.
    scope = generator["table"].__globals__
    scope["in_presets"] = lambda kind, source: dict.fromkeys(("published", "hardened"), changed[kind][source])
    assert generator["main"](["--check"]) == 1
    assert "gate.md is stale; run `make docs`" in capsys.readouterr().err
