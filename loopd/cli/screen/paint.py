"""Cells and events as text that Textual shows. Nothing of it is ever read as markup."""

from __future__ import annotations

from rich.text import Text

from loopd.cli.console import Cell, safe
from loopd.cli.instants import stamp
from loopd.cli.lines import STYLES, WORDS, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def painted(cell: Cell) -> Text:
    """One cell."""
    return Text(cell.text, style=cell.style, no_wrap=True, overflow="ellipsis")


def joined(cells: Iterable[Cell], between: str = "  ") -> Text:
    """Cells on one line."""
    text = Text(between, no_wrap=True, overflow="ellipsis")
    return text.join([painted(cell) for cell in cells])


def pairs(rows: Iterable[tuple[str, Cell]]) -> Text:
    """Names and values, a line each."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, cell in rows:
        line = Text(f"{name:{width}}  ", style="dim", no_wrap=True, overflow="ellipsis")
        line.append(cell.text, style=cell.style or "not dim")
        lines.append(line)
    return Text("\n").join(lines)


def event_line(event: Mapping[str, Any], names: Mapping[str, str] | None) -> Text:
    """One event; with the session's name unless `names` is None."""
    kind, body = str(event.get("k", "")), dict(event.get("b") or {})
    line = Text(stamp(event.get("ts") or 0)[11:], style="dim", no_wrap=True, overflow="ellipsis")
    if names is not None:
        sid = str(event.get("sid") or "-")
        line.append(f" {safe(names.get(sid, sid))}", style="not dim")
    line.append(f" {safe(kind)} ", style=f"not dim {STYLES.get(kind.partition('.')[0], '')}".strip())
    line.append(safe(WORDS.get(kind, unknown)(body)), style="not dim")
    return line
