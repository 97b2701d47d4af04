"""Run every `bench_*.py` beside this file, one after another, and show goals against what was measured.

    python -m tests.bench [--page] [WORD...]     only benches whose file name contains one of the words

Each bench is a process of its own that prints figures (`tests.bench.figures`). All figures go to
`bench-results/TIME.jsonl`, each with the load of the machine when it was taken. Exit code 1 when a
bench failed; a goal that was missed is shown, not an error: figures depend on the machine. `--page`
also writes them to `docs/reference/figures.md`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
BENCH_TIMEOUT_S = 900


def measured(bench: Path) -> tuple[list[dict[str, Any]], int]:
    """Figures of one bench, and its exit code."""
    began = time.monotonic()
    sys.stderr.write(f"{bench.stem} …\n")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{bench.stem}"],
        cwd=TOP,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=BENCH_TIMEOUT_S,
        check=False,
    )
    load = os.getloadavg()[0]
    took = round(time.monotonic() - began, 1)
    figures = []
    for line in done.stdout.splitlines():
        try:
            figure = json.loads(line)
        except ValueError:
            figure = None
        if not isinstance(figure, dict) or not figure.keys() >= {"figure", "median", "unit"}:
            sys.stderr.write(f"  {line}\n")
            continue
        figures.append({"bench": bench.stem, **figure, "load_1m": load, "bench_took_s": took})
    return figures, done.returncode


def number(value: float | None) -> str:
    """Four significant digits, no exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def verdict(figure: dict[str, Any]) -> str:
    """`met`, `missed`, or nothing where there is no goal."""
    goal, median = figure.get("goal"), figure["median"]
    if goal is None:
        return ""
    return "met" if (median <= goal if figure.get("better") == "less" else median >= goal) else "missed"


def rows(figures: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table, head first."""
    head = ("figure", "median", "min – max", "unit", "goal", "")
    signs = {"less": "≤", "more": "≥"}
    return [
        head,
        *(
            (
                figure["figure"],
                number(figure["median"]),
                f"{number(figure['min'])} – {number(figure['max'])}",
                figure["unit"],
                f"{signs[figure['better']]} {number(figure['goal'])}"
                if figure.get("goal") is not None
                else "",
                verdict(figure),
            )
            for figure in figures
        ),
    ]


def shown(table: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def page(figures: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    """The figures as a page of the documentation."""
    loads = [figure["load_1m"] for figure in figures]
    head, *body = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows(figures)]
    lines = [
        "# Figures",
        "",
        "<!-- Written by `make bench BENCH=--page`; not by hand. -->",
        "",
        (
            f"Measured on {time.strftime('%Y-%m-%d', time.gmtime())}: Python {machine['python']}, {machine['cores']} shared "
            f"cores ({machine['machine']}), load {min(loads):.1f} to {max(loads):.1f} while it ran. Each figure is the median "
            "of several runs with its range. Absolute figures move by a factor of two between machines and with what else "
            "runs; ratios of one run are what counts."
        ),
        "",
        *("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *body)),
        "",
    ]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Measure, write, show."""
    paged = "--page" in words
    words = [word for word in words if word != "--page"]
    benches = [
        path
        for path in sorted(HERE.glob("bench_*.py"))
        if not words or any(word in path.stem for word in words)
    ]
    if not benches:
        sys.stderr.write(
            f"no bench is called like {words}; there are {[p.stem for p in HERE.glob('bench_*.py')]}\n"
        )
        return 2
    figures: list[dict[str, Any]] = []
    failed: list[str] = []
    for bench in benches:
        found, code = measured(bench)
        figures += found
        if code != 0 or not found:
            failed.append(f"{bench.stem} (exit {code}, {len(found)} figures)")
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "machine": platform.machine()}
    folder = TOP / "bench-results"
    folder.mkdir(exist_ok=True)
    out = folder / time.strftime("%Y%m%dT%H%M%SZ.jsonl", time.gmtime())
    out.write_text(
        "".join(json.dumps({**figure, **machine}, ensure_ascii=False) + "\n" for figure in figures)
    )
    if paged and figures:
        (TOP / "docs/reference/figures.md").write_text(page(figures, machine), encoding="utf-8")
    sys.stdout.write(f"{shown(rows(figures))}\n\n{len(figures)} figures in {out.relative_to(TOP)}\n")
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
