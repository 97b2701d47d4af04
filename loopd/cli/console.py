"""What the operator sees: tables that fit the terminal, colours where they help, nothing that bites.

Names, goals and texts come from agents, so control characters and the invisible characters that
turn text around are shown as escapes instead of being sent to the terminal.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

STYLES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
STYLES.update(bold="1", dim="2")
_HARMLESS = frozenset("\u200c\u200d\ufe0f")
"""Joiners that emoji and many scripts need."""
COLUMN_MIN = 8
FLEX_MIN = 30


class Cell:
    """Text in a table with a style."""

    __slots__ = ("style", "text")

    def __init__(self, text: str, style: str = "") -> None:
        self.text = text
        self.style = style


class Console:
    """Standard output and error with the caller's choice of format.

    Attributes:
        format: `table`, `json` or `ndjson`.
        width: columns of the terminal, or None when stdout is none: then nothing is cut.
    """

    def __init__(self, output: str = "table", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.format = output
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.tty = self.out.isatty()
        self.colours = self.tty and _colours_wanted()
        self.width = terminal_width() if self.tty else None

    # -- machines -------------------------------------------------------------------------

    def json(self, value: object) -> None:
        """Print one JSON value on one line (indented on a terminal). ASCII only, so it is safe."""
        import json

        indent = 2 if self.tty and self.format == "json" else None
        self.line(json.dumps(value, indent=indent))

    # -- people ---------------------------------------------------------------------------

    def line(self, text: str = "") -> None:
        """Print one line as it is; escape foreign text with `safe` first."""
        self.out.write(text + "\n")

    def flush(self) -> None:
        """Bring live lines out at once."""
        self.out.flush()

    def styled(self, text: str, style: str) -> str:
        """Text in a style, or as it is where colours are off."""
        if not self.colours or not style or not text:
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[str | Cell]],
        *,
        flex: int = -1,
        optional: Sequence[int] = (),
    ) -> None:
        """Print aligned columns.

        On a terminal that is too narrow, `optional` columns go first, in their order, until `flex`
        has `FLEX_MIN` columns; then `flex` is cut, then the widest.
        """
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        for row in cells:
            for cell in row:
                cell.text = safe(cell.text)
        lines = [[Cell(name, "bold") for name in header], *cells]
        widths = [max(columns(line[place].text) for line in lines) for place in range(len(header))]
        kept = self._kept(widths, flex, optional)
        lines = [[line[place] for place in kept] for line in lines]
        widths = [widths[place] for place in kept]
        if self.width is not None:
            room = self.width - 2 * (len(widths) - 1)
            _shrink(widths, room, kept.index(flex) if flex in kept else -1)
        for line in lines:
            self._row(line, widths)

    def _kept(self, widths: list[int], flex: int, optional: Sequence[int]) -> list[int]:
        """Which columns there is room for."""
        kept = list(range(len(widths)))
        if self.width is None:
            return kept
        need = [min(width, FLEX_MIN) if place == flex else width for place, width in enumerate(widths)]
        for place in optional:
            if sum(need[column] for column in kept) + 2 * (len(kept) - 1) <= self.width:
                break
            kept.remove(place)
        return kept

    def _row(self, row: list[Cell], widths: list[int]) -> None:
        parts = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = cut(cell.text, width)
            last = place == len(widths) - 1
            pad = "" if last else " " * (width - columns(text))
            parts.append(self.styled(text, cell.style) + pad)
        self.line("  ".join(parts).rstrip())

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print names and values, one per line."""
        shown = [(name, safe(value)) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{self.styled(name.ljust(width), 'dim')}  {value}")


def plural(number: int, things: str) -> str:
    """`1 event`, `2,000 events`; `things` is the plural."""
    return f"{number:,} {things.removesuffix('s') if number == 1 else things}"


def safe(text: str, *, lines: bool = False) -> str:
    r"""Text without anything that a terminal acts on.

    Control characters, bidirectional overrides, unpaired surrogates and the like become escapes
    such as `\x1b`. White space is folded to single spaces unless `lines` keeps line ends and tabs.
    """
    if not lines:
        if text.isprintable():
            return text
        text = " ".join(text.split())
    keep = "\n\t" if lines else ""
    return "".join(
        char
        if char.isprintable() or char in keep or char in _HARMLESS
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def columns(text: str) -> int:
    """How many terminal columns a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if char in _HARMLESS or combining(char) else 2 if east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, width: int) -> str:
    """Text in at most so many columns; `…` stands for what is missing."""
    if columns(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + "…"
    kept, room = [], width - 1
    for char in text:
        room -= columns(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + "…"


def _shrink(widths: list[int], room: int, flex: int) -> None:
    over = sum(widths) - room
    if over > 0 and flex >= 0:
        taken = min(over, max(0, widths[flex] - COLUMN_MIN))
        widths[flex] -= taken
        over -= taken
    while over > 0:
        place = max(range(len(widths)), key=widths.__getitem__)
        if widths[place] <= COLUMN_MIN:
            return  # a terminal this narrow wraps
        widths[place] -= 1
        over -= 1


def _colours_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in {"", "dumb"}


def terminal_width() -> int:
    """Columns of the terminal: `COLUMNS`, else stdout's own, else 80."""
    wish = os.environ.get("COLUMNS", "")
    if wish.isascii() and wish.isdigit() and int(wish) > 0:
        return int(wish)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
