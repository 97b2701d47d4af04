"""Reads imported sessions: the same answers as for a session of this log, from a database of their own."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from loopd.core.state import Session
from loopd.engine.forensic_ports import Entry, ForensicStore, ImportShelf
from loopd.engine.ports import Clock, DriverFactory
from loopd.engine.queries import Queries
from loopd.engine.router import Router
from loopd_protocol import commands as cm
from loopd_protocol.errors import Refused

READ = (
    cm.SessionGet,
    cm.GateGet,
    cm.Why,
    cm.InboxList,
    cm.CronList,
    cm.CronHistory,
    cm.HistoryPage,
    cm.TurnGet,
    cm.SessionReport,
    cm.EffectList,
)
"""What may be asked of an imported session."""

BADGE = "imported"


class _Host:
    """Looks like a router to `Queries`, with one session that never runs."""

    def __init__(self, router: Router, store: ForensicStore, entry: Entry) -> None:
        self.store = store
        self.clock: Clock = router.clock
        self.make_driver: DriverFactory = router.make_driver
        self.closed_by: str | None = BADGE
        self.unwell: dict[str, str] = {}
        self.rows: dict[str, Any] = {}
        self._sid = entry.sid

    def resolve(self, ref: str) -> str:
        """The one session there is."""
        del ref
        return self._sid

    async def state_of(self, ref: str) -> Session:
        """Its last state."""
        del ref
        session = await self.store.load_session(self._sid)
        assert session is not None
        return session

    def __getattr__(self, name: str) -> Any:
        raise Refused(BADGE, f"an imported session has no {name}; it is only there to be read")


class Reader:
    """Answers reading commands about imported sessions."""

    def __init__(self, router: Router, shelf: ImportShelf) -> None:
        self._router = router
        self._shelf = shelf

    async def answer(self, entry: Entry, command: cm.Command) -> dict[str, Any]:
        """Carry out a reading command.

        Raises:
            Refused: `imported` for every other one: nothing of another log ever runs here.
        """
        if not isinstance(command, READ):
            raise Refused(
                BADGE,
                f"session {entry.name!r} was imported from log {entry.log!r} and is only there to be read; "
                f"`loopctl fork {entry.name}` makes a live session of it",
            )
        store = await self._shelf.store_of(entry)
        queries = Queries(cast("Router", _Host(self._router, store, entry)), dict)
        queries.altered = entry.redaction != "none"
        asked = cast("Any", msgspec.structs.replace(command, sid=entry.sid))
        result = (await queries.answer(asked)).result
        return {**result, BADGE: badge(entry)}

    def listed(self, entry: Entry) -> dict[str, Any]:
        """An imported session in a list of sessions."""
        return {
            "sid": entry.sid,
            "name": entry.name,
            "status": BADGE,
            "gate": "closed",
            "kinds": [],
            "holds": [],
            "goal": None,
            "turn": None,
            "running": False,
            "inbox": 0,
            "labels": {},
            "created_ms": entry.at_ms,
            BADGE: badge(entry),
        }


def badge(entry: Entry) -> dict[str, Any]:
    """Where an imported session comes from."""
    return {
        "log": entry.log,
        "of": entry.of,
        "first_seq": entry.first_seq,
        "last_seq": entry.last_seq,
        "events": entry.events,
        "head_hash": entry.head_hash,
        "redaction": entry.redaction,
        "archive": entry.archive,
        "at_ms": entry.at_ms,
        "by": entry.by,
    }
