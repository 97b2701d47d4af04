"""Databases that a daemon finds when it starts, written through the real store and the pure core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anyio

from loopd.core.evolution import evolve
from loopd.core.inputs import CronPutRequested, GoalChangeRequested, House, Input, SuspendRequested
from loopd.core.session import advance
from loopd.core.settings import settings_for
from loopd.core.state import Session
from loopd.core.writes import Append, Fact
from loopd.store.sqlite import SqliteStore
from loopd_protocol import events as ev


class Making:
    """A session that is made in the past: feed it inputs, each at a moment of its own."""

    def __init__(self, num: int, script: Path, at_ms: int, **fields: Any) -> None:
        created = ev.SessionCreated(
            sid=f"ses_{num:x}",
            num=num,
            name=f"s{num}",
            driver={"kind": "scripted", "script": str(script), "once": False, "delay_ms": 0},
            preset="published",
            settings=fields.pop("settings", {}),
            **fields,
        )
        self.session: Session = evolve(None, created, ss=1, at_ms=at_ms)
        self.appends = [
            Append(
                sid=created.sid,
                at_ms=at_ms,
                facts=(Fact(event=created, ss=1),),
                after=self.session,
                principal="test",
            )
        ]

    @property
    def sid(self) -> str:
        """Its id."""
        return self.session.sid

    def feed(self, given: Input, at_ms: int) -> Making:
        """Decide an input as the engine would have at that moment."""
        before = self.session
        house = House(settings=settings_for(before.preset, before.overrides))
        done = advance(before, given, at_ms, house)
        facts = tuple(Fact(event=event, ss=before.ss + i) for i, event in enumerate(done.events, 1))
        self.session = done.session
        self.appends.append(
            Append(
                sid=self.sid, at_ms=at_ms, facts=facts, before=before, after=done.session, principal="test"
            )
        )
        return self

    def goal(self, text: str, at_ms: int) -> Making:
        """Set an active goal."""
        return self.feed(GoalChangeRequested(by="test", status="active", text=text), at_ms)

    def suspend(self, at_ms: int, until_ms: int | None = None) -> Making:
        """Suspend it."""
        return self.feed(SuspendRequested(by="test", until_ms=until_ms, reason="made"), at_ms)

    def cron(self, at_ms: int, job: str, expr: str, **fields: Any) -> Making:
        """Put a cron job."""
        return self.feed(CronPutRequested(by="test", job=job, expr=expr, text=f"do {job}", **fields), at_ms)


def write(data: Path, makings: Iterable[Making], *, on_each: Callable[[Making], None] | None = None) -> None:
    """Write a database as a daemon would leave it behind."""
    data.mkdir(parents=True, exist_ok=True)

    async def work() -> None:
        async with await SqliteStore.open(data / "journal.sqlite", boot="making") as store:
            pending = []
            for making in makings:
                pending += [store.submit(append) for append in making.appends]
                if on_each is not None:
                    on_each(making)
                if len(pending) > 4_000:
                    for future in pending:
                        await future
                    pending = []
            for future in pending:
                await future

    anyio.run(work)
