"""How all sessions stand, kept as sums so that a scrape costs the same for ten and ten thousand.

A commit only marks its session; the sums are brought up to date for marked sessions when somebody
looks, or when many are marked.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from loopd.core.writes import PassiveRow

Directory = Callable[[Collection[str] | None], Iterable[PassiveRow]]
"""Rows of the named sessions as they are now, or of all sessions for None."""

MARKED_MAX = 512
"""So many marked sessions are brought up to date at once: about 2 ms of work, never a pile."""


class Standing:
    """Running sums over the sessions of one daemon.

    Attributes:
        statuses, goals, holds: number of sessions by status, goal status (live only) and kind of
            hold (live only).
        repeat, barren: streak → number of live sessions.
        barren_tokens: growth of the sessions' barren tokens as seen from look to look.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._rows: dict[str, PassiveRow] = {}
        self._marked: set[str] = set()
        self._seeded = False
        self._progress: dict[str, int] = {}
        self._oldest: dict[str, int] = {}
        self.statuses: Counter[str] = Counter()
        self.goals: Counter[str] = Counter()
        self.holds: Counter[str] = Counter()
        self.repeat: Counter[int] = Counter()
        self.barren: Counter[int] = Counter()
        self.inbox = 0
        self.running = 0
        self.barren_tokens = 0

    def mark(self, sid: str) -> None:
        """Note that a session changed."""
        if self._seeded:
            self._marked.add(sid)
            if len(self._marked) >= MARKED_MAX:
                self.refresh()

    def refresh(self) -> None:
        """Bring the sums up to date."""
        if not self._seeded:
            self._seeded = True
            rows = list(self._directory(None))
        elif self._marked:
            rows = list(self._directory(self._marked))
        else:
            return
        for sid in self._marked.difference(row.sid for row in rows):
            self._forget(sid)
        for row in rows:
            before = self._rows.get(row.sid)
            if before is row:
                continue
            if before is not None:
                self._count(before, -1)
                grown = row.tokens_barren - before.tokens_barren
                self.barren_tokens += grown if grown >= 0 else row.tokens_barren
            self._count(row, 1)
            self._rows[row.sid] = row
            self._remember(row)
        self._marked = set()

    def _forget(self, sid: str) -> None:
        """Nothing is stored of it any more."""
        row = self._rows.pop(sid, None)
        if row is not None:
            self._count(row, -1)
            self._progress.pop(sid, None)
            self._oldest.pop(sid, None)

    def _count(self, row: PassiveRow, by: int) -> None:
        self.statuses[row.status] += by
        if row.status != "live":
            return
        if row.goal:
            self.goals[row.goal] += by
        if row.holds:
            for kind in row.holds.split(","):
                self.holds[kind] += by
        self.repeat[row.repeat_streak] += by
        self.barren[row.barren_streak] += by
        self.inbox += by * row.inbox
        self.running += by * (1 if row.running else 0)

    def _remember(self, row: PassiveRow) -> None:
        live = row.status == "live"
        if live and row.goal == "active":
            self._progress[row.sid] = row.progress_ms
        else:
            self._progress.pop(row.sid, None)
        if live and row.inbox_oldest_ms is not None:
            self._oldest[row.sid] = row.inbox_oldest_ms
        else:
            self._oldest.pop(row.sid, None)

    def progress_ages(self, now_ms: int, bounds_s: Sequence[float]) -> tuple[list[int], float, float]:
        """(cumulative counts per bound and for all, sum of ages in s, greatest age in s)."""
        moments = sorted(self._progress.values())
        if not moments:
            return [0] * (len(bounds_s) + 1), 0.0, 0.0
        # An age of at most b means a moment of at least now - b.
        total = len(moments)
        counts = [total - bisect_right(moments, now_ms - int(bound * 1000) - 1) for bound in bounds_s]
        age_sum = max(0, now_ms * total - sum(moments)) / 1000
        return [*counts, total], age_sum, max(0, now_ms - moments[0]) / 1000

    def oldest_age(self, now_ms: int) -> float:
        """Age in seconds of the envelope that waits longest, 0 for none."""
        return max(0, now_ms - min(self._oldest.values(), default=now_ms)) / 1000

    def stalest(self, count: int) -> list[tuple[str, int]]:
        """(name, last progress in ms) of the sessions without progress for longest."""
        worst = heapq.nsmallest(count, self._progress.items(), key=lambda item: item[1])
        return [(self._rows[sid].name, moment) for sid, moment in worst]

    def most_repeating(self, count: int) -> list[tuple[str, int]]:
        """(name, streak) of the live sessions with the longest runs of equal turn texts."""
        rows = (row for row in self._rows.values() if row.repeat_streak > 1 and row.status == "live")
        worst = heapq.nlargest(count, rows, key=lambda row: row.repeat_streak)
        return [(row.name, row.repeat_streak) for row in worst]


def cumulative(values: Counter[int], bounds: Sequence[float]) -> tuple[list[int], int, int]:
    """(cumulative counts per bound and for all, sum of values, greatest value)."""
    counts = [0] * (len(bounds) + 1)
    total = greatest = 0
    for value, number in values.items():
        if number <= 0:
            continue
        total += value * number
        greatest = max(greatest, value)
        for place, bound in enumerate(bounds):
            if value <= bound:
                counts[place] += number
        counts[-1] += number
    return counts, total, greatest
