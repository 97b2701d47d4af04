"""What a boot finds and does: gathered while sessions come back, written as one event, shown by `loopctl recover`."""

from __future__ import annotations

from collections.abc import Iterable

from loopd.core.inputs import Advanced
from loopd.core.writes import PassiveRow
from loopd.engine.ports import Store
from loopd_protocol import events as ev

NAMED = 100
"""Sessions and effects that the event names; the counts are whole."""

ASKED, CALLED = "model.asked", "model.called"
CALLS_LOOKED_AT = 256
"""Of the end of a session that was cut: calls of one turn that were under way at the same time are few."""

RECENT_MS = 15 * 60_000
SPREAD_MS = 5_000
SPREAD_MAX_MS = 60_000
"""Deadlines that passed while the daemon was down are spread over 5 s, over more where many have passed."""


class Boot:
    """The findings of this boot.

    Attributes:
        scheduled_from_ms: until when cron and wake-ups wait because the daemon started too often; 0: they do not.
        spread_ms: over how long overdue deadlines are carried out.
    """

    def __init__(self, *, unstable_boots: int = 3, unstable_wait_ms: int = 300_000) -> None:
        self._unstable_boots = unstable_boots
        self._unstable_wait_ms = unstable_wait_ms
        self.scheduled_from_ms = 0
        self.spread_ms = SPREAD_MS
        self.recovered = 0
        self._clean = True
        self._down_ms: int | None = None
        self._recent = 1
        self._live = self._ended = 0
        self._overdue = 0
        self._interrupted: dict[str, int] = {}
        self._uncertain: dict[str, str] = {}
        self._repeatable = 0
        self._crash_loops: list[str] = []
        self._refused: dict[str, str] = {}
        self._postponed: dict[str, str] = {}
        self._calls: dict[str, int] = {}
        self.leftovers = 0

    async def look_back(self, store: Store, now: int) -> None:
        """How did the last daemon end, and how often was one started of late?"""
        newest = await store.page(sid=None, after=None, before=None, limit=1, newest=True)
        if newest:
            self._clean = newest[-1].kind == "daemon.stopped"
            self._down_ms = max(0, now - newest[-1].at_ms)
        boots = await store.last_boots(16)
        self._recent = max(1, sum(1 for boot in boots if 0 <= now - boot.at_ms <= RECENT_MS))
        if not self._clean and 0 < self._unstable_boots <= self._recent:
            self.scheduled_from_ms = now + self._unstable_wait_ms

    def count(self, rows: Iterable[PassiveRow], now: int, places: int) -> None:
        """Take in the directory; decides over how long overdue deadlines are spread."""
        for row in rows:
            self._live += row.status == "live"
            self._ended += row.status != "live"
            self._overdue += row.deadline_ms is not None and row.deadline_ms <= now and not row.running
        self.spread_ms = max(SPREAD_MS, min(SPREAD_MAX_MS, self._overdue * 1_000 // max(1, places)))

    def settled(self, sid: str, done: Advanced) -> None:
        """A session that the last daemon died in was taken over."""
        self.recovered += 1
        self._postponed.pop(sid, None)
        for event in done.events:
            match event:
                case ev.TurnInterrupted(cause="crash"):
                    self._interrupted[sid] = event.n
                case ev.EffectOutcome(outcome="uncertain"):
                    self._uncertain[event.id] = sid
                case ev.EffectOutcome(outcome="interrupted"):
                    self._repeatable += 1
                case ev.GateChanged(cause="crash_loop"):
                    self._crash_loops.append(sid)
                case _:
                    pass

    async def look_at_calls(self, store: Store, sid: str) -> None:
        """Which model calls of the turn that was cut went out and never came back?"""
        n = self._interrupted.get(sid)
        if n is None:
            return
        tail = await store.session_tail(sid, kinds=(ASKED, CALLED), limit=CALLS_LOOKED_AT)
        under_way = 0
        for event in map(ev.decode, (row.body for row in tail if not row.reduced)):
            match event:
                case ev.ModelAsked() if event.n == n:
                    under_way += 1
                case ev.ModelCalled() if event.n == n and event.outcome != "paused":
                    under_way -= 1
                case _:
                    pass
        if under_way > 0:
            self._calls[sid] = under_way

    def refused(self, sid: str, why: str) -> None:
        """A session could not be taken over."""
        self._refused[sid] = why

    def postponed(self, sid: str, why: str) -> None:
        """A session could not be taken over yet; it is tried again."""
        self._postponed[sid] = why

    def event(self, *, boot: int, took_ms: int) -> ev.DaemonRecovered:
        """All of it as the event that is journaled."""
        return ev.DaemonRecovered(
            boot=boot,
            clean=self._clean,
            took_ms=max(0, took_ms),
            down_ms=self._down_ms,
            boots_recent=self._recent,
            sessions=self._live,
            ended=self._ended,
            interrupted_count=len(self._interrupted),
            interrupted=dict(list(self._interrupted.items())[:NAMED]),
            uncertain_count=len(self._uncertain),
            uncertain=dict(list(self._uncertain.items())[:NAMED]),
            repeatable_count=self._repeatable,
            crash_loops=tuple(self._crash_loops[:NAMED]),
            overdue=self._overdue,
            spread_ms=self.spread_ms if self._overdue else 0,
            refused=dict(list(self._refused.items())[:NAMED]),
            postponed=dict(list(self._postponed.items())[:NAMED]),
            scheduled_wait_until_ms=self.scheduled_from_ms or None,
            leftovers=self.leftovers,
            calls_count=sum(self._calls.values()),
            calls=dict(list(self._calls.items())[:NAMED]),
        )

    @property
    def clean(self) -> bool:
        """Whether the last daemon ended in order."""
        return self._clean
