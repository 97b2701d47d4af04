"""The reference says what this version does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from loopd.cli.verbs import VERBS
from loopd.config import known_keys
from loopd.telemetry.catalogue import METRICS
from loopd_protocol.commands import COMMAND_TYPES
from loopd_protocol.errors import ERRORS
from loopd_protocol.events import EVENT_TYPES

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_reference.py"))


def test_the_reference_is_fresh(generator: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert generator["main"](["--check"]) == 0, capsys.readouterr().err


def test_a_changed_code_makes_its_page_stale(
    generator: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    generator["main"].__globals__["ERRORS"] = {"moon_phase": ERRORS["invalid"]}
    assert generator["main"](["--check"]) == 1
    assert capsys.readouterr().err == "docs/reference/errors.md is stale; run `make docs`\n"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("cli.md", [f"### `loopctl {name}`" for name in VERBS]),
        ("events.md", [f"## `{kind}`" for kind in EVENT_TYPES]),
        ("commands.md", [f"## `{kind}`" for kind in COMMAND_TYPES]),
        ("errors.md", [f"| `{code}` |" for code in ERRORS]),
        ("metrics.md", [f"| `{name}` |" for name in METRICS]),
        ("configuration.md", [f"| `{key}` |" for key in known_keys()]),
    ],
)
def test_nothing_is_left_out(page: str, names: list[str]) -> None:
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert [name for name in names if name not in text] == []


def test_every_type_and_default_is_shown_readably() -> None:
    for name in ("events.md", "commands.md", "configuration.md"):
        text = (DOCS / "reference" / name).read_text(encoding="utf-8")
        assert not re.search(r"msgspec|NODEFAULT|Annotated|object at 0x", text)


def test_links_within_a_page_lead_to_a_heading() -> None:
    for path in (DOCS / "reference").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        anchors = {
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors, path.name
