"""Whether a process stays as large as it is: looks at it, and what they say.

A run is cut into four quarters. The first is the warm-up: sessions are made, contexts fill up to their bound,
and nothing of it is judged. What is compared is the **second quarter with the last one**: between their middles
lies half of the run. Something that grows steadily, and be it slowly, is larger in the last quarter; something
that fills up to a bound is not.

Memory is the resident set, and may differ by ±5 %. Descriptors, threads and tasks are counts that swing with how
many turns run at the moment of a look; medians of many looks are compared, and the later one may not be larger
by more than `SLACK`. A leak of one in two minutes is more than that in a run of twenty.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

FLAT = 0.05
SLACK = {"fds": 4, "threads": 2, "tasks": 4}
DECIDES = frozenset({"resident_kib", *SLACK})
"""What a run is judged by; a process's own pages alone are shown beside it, for whoever looks for what grew."""
FIRST, LAST = 1, 3
"""The quarters that are compared, counted from 0."""

FEWEST = 3
"""Looks in a quarter without which nothing is said."""


class Look(msgspec.Struct, kw_only=True):
    """One look at a process.

    Attributes:
        at_s: since the run began; `age_s`: since the process did.
        anonymous_kib: its own pages; the rest of `resident_kib` is the program, which others may share.
        idle_kib: what sessions at rest keep in memory, as the daemon counts it; `sessions`: how many are loaded.
        running: turns that ran.
    """

    life: int
    at_s: float
    age_s: float
    resident_kib: int
    anonymous_kib: int
    fds: int
    threads: int
    tasks: int = 0
    head: int = 0
    running: int = 0
    sessions: int = 0
    idle_kib: int = 0


class Judgement(msgspec.Struct, kw_only=True):
    """One figure in the two quarters, as medians, and whether it stayed as it was."""

    before: float
    after: float
    allowed: float
    looks: int
    flat: bool

    @property
    def growth(self) -> float:
        """By which share it grew."""
        return self.after / self.before - 1 if self.before else 0.0


def look(pid: int, *, life: int, at_s: float, age_s: float) -> Look:
    """What the kernel says of a process.

    Raises:
        OSError: it is gone.
    """
    folder = Path("/proc", str(pid))
    words = {
        name: rest.split()
        for name, _, rest in (line.partition(":") for line in (folder / "status").read_text().splitlines())
    }
    if "VmRSS" not in words:  # a zombie
        raise ProcessLookupError(pid)
    return Look(
        life=life,
        at_s=round(at_s, 1),
        age_s=round(age_s, 1),
        resident_kib=int(words["VmRSS"][0]),
        anonymous_kib=int(words["RssAnon"][0]),
        threads=int(words["Threads"][0]),
        fds=len(os.listdir(folder / "fd")),
    )


def quarter(looks: Sequence[Look], n: int, run_s: float) -> list[Look]:
    """Looks in the `n`th quarter of a run, counted from 0."""
    return [
        each for each in looks if n <= each.at_s * 4 / run_s < n + 1 or (n == LAST and each.at_s >= run_s)
    ]


def judged(looks: Sequence[Look], run_s: float, *, ripe_s: float = 0.0) -> dict[str, Judgement]:
    """Compare the second quarter of a run with the last.

    Args:
        looks: at the process, or at one process after the other at the same ages.
        run_s: how long the run was.
        ripe_s: memory is judged from this age of a process on: what is killed every minute fills up every minute.
    """
    before, after = (quarter(looks, n, run_s) for n in (FIRST, LAST))
    verdicts: dict[str, Judgement] = {}
    for name in ("resident_kib", "anonymous_kib", *SLACK):
        of_memory = name not in SLACK
        parts = [
            [float(getattr(each, name)) for each in part if not of_memory or each.age_s >= ripe_s]
            for part in (before, after)
        ]
        if min(map(len, parts)) < FEWEST:
            continue
        was, now = map(statistics.median, parts)
        allowed = was * FLAT if of_memory else float(SLACK[name])
        verdicts[name] = Judgement(
            before=was,
            after=now,
            allowed=round(allowed, 1),
            looks=min(map(len, parts)),
            flat=abs(now - was) <= allowed if of_memory else now - was <= allowed,
        )
    return verdicts


def rates(looks: Sequence[Look], run_s: float) -> list[float]:
    """Events a second in each quarter: a process that has more to do may be larger."""
    found = []
    for n in range(LAST + 1):
        part = quarter(looks, n, run_s)
        took = part[-1].at_s - part[0].at_s if part else 0.0
        found.append(round((part[-1].head - part[0].head) / took, 1) if took else 0.0)
    return found


def told(verdicts: dict[str, Judgement]) -> list[str]:
    """One line for each figure; what is not judged says so."""
    lines = []
    for name, found in verdicts.items():
        scale, unit = (1_024, " MiB") if name.endswith("_kib") else (1, "")
        bound = "±5 %" if name.endswith("_kib") else f"+{found.allowed:g}"
        word = "not judged" if name not in DECIDES else "flat" if found.flat else "NOT FLAT"
        lines.append(
            f"{name.removesuffix('_kib'):10} {found.before / scale:8.1f} → {found.after / scale:8.1f}{unit:4} "
            f"{found.growth:+7.1%}  allowed {bound:5}  {word} ({found.looks} looks)"
        )
    return lines


def report(looks: Sequence[Look], verdicts: dict[str, Judgement]) -> dict[str, Any]:
    """Both, as they are written to a file."""
    return {
        "judged": {
            name: {**msgspec.to_builtins(found), "growth": round(found.growth, 4)}
            for name, found in verdicts.items()
        },
        "looks": msgspec.to_builtins(list(looks)),
    }
