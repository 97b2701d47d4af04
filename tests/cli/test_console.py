"""What reaches a terminal fits it and cannot act on it."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.cli.console import Cell, Console, columns, cut, safe

ATTACKS = [
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x9b31m",
    "a\rb",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\x00",
    "\x7f",
    "\ud800",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", ATTACKS)
def test_what_a_terminal_acts_on_becomes_visible(text: str) -> None:
    shown = safe(text)
    assert shown != text
    assert shown.isprintable()


@given(st.text(alphabet=st.characters(), max_size=60))
def test_nothing_invisible_passes(text: str) -> None:
    allowed = "\u200c\u200d\ufe0f"
    assert all(char.isprintable() or char in allowed for char in safe(text))
    kept = safe(text, lines=True)
    assert all(char.isprintable() or char in allowed + "\n\t" for char in kept)
    assert "\x1b" not in kept


@given(st.text(alphabet=st.characters(categories=("L", "N", "P")), max_size=40))
def test_readable_text_is_left_alone(text: str) -> None:
    assert safe(text) == text


def test_folded_text_keeps_its_words() -> None:
    assert safe("one\n\ttwo  three") == "one two three"
    assert safe("one\n\ttwo", lines=True) == "one\n\ttwo"


@given(st.text(max_size=40), st.integers(1, 30))
def test_a_cut_text_fits(text: str, width: int) -> None:
    assert columns(cut(safe(text), width)) <= width


def test_wide_characters_count_twice() -> None:
    assert columns("日本") == 4
    assert columns("e" + unicodedata.lookup("COMBINING ACUTE ACCENT")) == 1
    assert cut("日本語", 5) == "日本…"


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=4, max_size=4), max_size=5),
    st.integers(45, 120),
)
def test_a_table_fits_the_terminal(rows: list[list[str]], width: int) -> None:
    out = Terminal()
    console = Console(out=out)
    console.width, console.colours = width, False
    console.table(("A", "B", "C", "D"), rows, flex=3)
    lines = out.getvalue().split("\n")[:-1]
    assert len(lines) == len(rows) + 1
    assert all(columns(line) <= width for line in lines)


def test_a_narrow_terminal_loses_the_least_important_columns_first() -> None:
    out = Terminal()
    console = Console(out=out)
    console.colours = False
    row = ["name", "w" * 60, "1234567890", "1234567890"]
    for width, header in ((120, "NAME WHY A B"), (59, "NAME WHY A"), (47, "NAME WHY"), (20, "NAME WHY")):
        out.seek(0)
        out.truncate()
        console.width = width
        console.table(("NAME", "WHY", "A", "B"), [row], flex=1, optional=(3, 2))
        assert out.getvalue().split("\n")[0].split() == header.split()


def test_a_table_in_a_pipe_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    Console(out=out).table(("NAME", "WHY"), [["n", "x" * 300]])
    assert "x" * 300 in out.getvalue()


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"TERM": ""}, False)],
)  # fmt: skip
def test_colours_need_a_terminal_that_wants_them(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], *, coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    Console(out=out).table(("A",), [[Cell("x", "red")]])
    assert ("\x1b[31m" in out.getvalue()) is coloured
    piped = io.StringIO()
    Console(out=piped).table(("A",), [[Cell("x", "red")]])
    assert "\x1b" not in piped.getvalue()


@given(st.text(max_size=50))
def test_json_is_one_line_of_ascii(text: str) -> None:
    out = io.StringIO()
    Console("json", out=out).json({"text": text})
    assert out.getvalue().isascii()
    assert out.getvalue().count("\n") == 1
    assert "\x7f" not in out.getvalue()
