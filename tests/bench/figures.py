"""How a bench says what it measured: one JSON line on standard output for each figure."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Literal


def report(
    figure: str,
    runs: Sequence[float],
    unit: str,
    *,
    goal: float | None = None,
    better: Literal["less", "more"] = "less",
    note: str = "",
) -> None:
    """Print the median of `runs` with its range, and the goal that it is held against.

    Args:
        figure: what was measured, for example `append: ratio to raw sqlite3, 1,000 producers`.
        runs: one value for each run, all in `unit`.
        unit: for example `ms`, `x`, `events/s`.
        goal: the value to reach; None for a figure that only informs.
        better: which direction is better.
        note: sizes and settings that a reader needs.
    """
    line = {
        "figure": figure,
        "median": statistics.median(runs),
        "min": min(runs),
        "max": max(runs),
        "runs": len(runs),
        "unit": unit,
        "goal": goal,
        "better": better,
        "note": note,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
