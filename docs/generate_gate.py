"""Draw the gate from its tables: `docs/explanation/gate.svg` and the matrix inside `gate.md`.

    python docs/generate_gate.py            write both
    python docs/generate_gate.py --check    say what is stale, exit 1

The picture shows what `loopd.core.gate` does because it is computed from the same tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

import msgspec

from loopd.core.gate import AUTOMATIC, MATRIX, OPENED_BY_HAND, PRESET_CELLS, Cell, cell
from loopd_protocol import holds
from loopd_protocol.sources import Source

HERE = Path(__file__).resolve().parent / "explanation"
BEGIN, END = "<!-- matrix: written by docs/generate_gate.py -->", "<!-- end of matrix -->"
COLUMNS = (Source.HUMAN, *AUTOMATIC)
MARKS = {Cell.REMOVES: "○", Cell.WAITS: "■", Cell.PASSES: "◐"}

CELL_W, ROW_H, NAME_W, TOP = 92, 30, 190, 236
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 12px; fill: #57606a }
  .title { font-weight: 600 }
  .state { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.5 }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#tip) }
  .tip { fill: #57606a }
  .removes { fill: #dafbe1 } .waits { fill: #ffebe9 } .passes { fill: #fff8c5 } .plain { fill: #f6f8fa }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 }
    .state { fill: #151b23; stroke: #9198a1 } .arrow { stroke: #9198a1 } .tip { fill: #9198a1 }
    .removes { fill: #033a16 } .waits { fill: #5d0f12 } .passes { fill: #4b3a00 } .plain { fill: #151b23 }
  }
"""


def deadline_is_required(kind: str) -> bool:
    """Whether a hold of this kind cannot be written down without a deadline."""
    fields = {field.name: field for field in msgspec.structs.fields(getattr(holds, kind))}
    return fields["until_ms"].required


def in_presets(kind: str, source: Source) -> dict[str, Cell]:
    """What the envelope meets, for each preset."""
    return {preset: cell(kind, source, preset) for preset in PRESET_CELLS}


def words(cells: Mapping[str, Cell]) -> str:
    """`removes`, or where presets differ `removes (published), passes (hardened)`."""
    if len(set(cells.values())) == 1:
        return next(iter(cells.values())).value
    return ", ".join(f"{value.value} ({preset})" for preset, value in cells.items())


def table() -> str:
    """The matrix as Markdown, for readers without pictures."""
    head = ["hold", "deadline", *(f"`{source.value}`" for source in COLUMNS), "`gate open`"]
    rows = [head, ["---"] * len(head)]
    rows += [
        [
            f"`{kind}`",
            "required" if deadline_is_required(kind) else "optional",
            *(words(in_presets(kind, source)) for source in COLUMNS),
            "removes" if kind in OPENED_BY_HAND else "refuses",
        ]
        for kind in MATRIX
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def text(x: float, y: float, said: str, *, css: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{css}" text-anchor="{anchor}">{escape(said)}</text>'


def box(x: float, y: float, width: float, height: float, css: str, *, title: str = "") -> str:
    """A rectangle with round corners and a tooltip."""
    told = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{css}">{told}</rect>'
    )


def states() -> list[str]:
    """The two states, and all that leads from one to the other."""
    lifting = [s.value for s in COLUMNS if any(Cell.REMOVES in in_presets(k, s).values() for k in MATRIX)]
    return [
        box(20, 60, 150, 90, "state"),
        text(95, 100, "open", css="title", anchor="middle"),
        text(95, 122, "no hold", css="small", anchor="middle"),
        box(600, 60, 150, 90, "state"),
        text(675, 100, "closed", css="title", anchor="middle"),
        text(675, 122, "1 or more holds", css="small", anchor="middle"),
        '<path d="M 170 80 C 300 40, 470 40, 596 78" class="arrow"/>',
        text(385, 34, f"Close(hold): one of {len(MATRIX)} kinds, at most one of each", anchor="middle"),
        '<path d="M 600 132 C 470 172, 300 172, 174 134" class="arrow"/>',
        text(385, 138, "the last hold goes:", css="small", anchor="middle"),
        text(
            385,
            186,
            "its deadline · " + ", ".join(lifting) + " envelope · gate open, unsuspend",
            anchor="middle",
        ),
        '<path d="M 750 85 C 810 60, 810 150, 753 126" class="arrow"/>',
        text(806, 102, "Extend", css="small"),
        text(806, 120, "another hold", css="small"),
    ]


def picture() -> str:
    """The state diagram above the matrix, as SVG."""
    width = NAME_W + CELL_W * (len(COLUMNS) + 2) + 80
    height = TOP + ROW_H * (len(MATRIX) + 1) + 60
    parts = states()
    heads = [*(source.value for source in COLUMNS), "gate open", "deadline"]
    parts += [
        text(NAME_W + CELL_W * (i + 0.5), TOP + 18, head, css="title", anchor="middle")
        for i, head in enumerate(heads)
    ]
    for row, kind in enumerate(MATRIX):
        y = TOP + ROW_H * (row + 1)
        parts.append(text(20, y + 20, kind))
        for column, source in enumerate(COLUMNS):
            cells = in_presets(kind, source)
            part = (CELL_W - 4) / len(set(cells.values()))
            for i, value in enumerate(dict.fromkeys(cells.values())):
                x = NAME_W + CELL_W * column + 2 + part * i
                parts.append(
                    box(x, y + 2, part, ROW_H - 4, value.value, title=f"{kind} × {source}: {words(cells)}")
                )
                parts.append(text(x + part / 2, y + 20, MARKS[value], anchor="middle"))
        by_hand = Cell.REMOVES if kind in OPENED_BY_HAND else Cell.WAITS
        x = NAME_W + CELL_W * len(COLUMNS) + 2
        parts.append(box(x, y + 2, CELL_W - 4, ROW_H - 4, by_hand.value, title=f"{kind}: gate open"))
        parts.append(text(x + CELL_W / 2 - 2, y + 20, MARKS[by_hand], anchor="middle"))
        parts.append(box(x + CELL_W, y + 2, CELL_W - 4, ROW_H - 4, "plain"))
        required = "required" if deadline_is_required(kind) else "optional"
        parts.append(text(x + CELL_W * 1.5 - 2, y + 20, required, css="small", anchor="middle"))
    legend = (
        f"{MARKS[Cell.REMOVES]} removes the hold · {MARKS[Cell.WAITS]} waits (gate open: refuses) · "
        f"{MARKS[Cell.PASSES]} one turn passes, the hold stands · a divided cell: {' | '.join(PRESET_CELLS)}"
    )
    parts.append(text(20, height - 20, legend, css="small"))
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="The gate: its two states, and what each envelope does to each hold">\n'
        f"<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" class="tip"/></marker></defs>\n'
        f"{body}\n</svg>\n"
    )


def page(old: str) -> str:
    """`gate.md` with its matrix replaced.

    Raises:
        ValueError: the page lacks the two marks between which the matrix stands.
    """
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"gate.md must contain {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(argv: list[str]) -> int:
    """Write or check; returns the exit code."""
    wanted = {
        HERE / "gate.svg": picture(),
        HERE / "gate.md": page((HERE / "gate.md").read_text(encoding="utf-8")),
    }
    stale = [
        path for path, said in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != said
    ]
    if "--check" in argv:
        for path in stale:
            print(f"{path.name} is stale; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
