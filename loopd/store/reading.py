"""The reading half of the store port: each method is one hop to a connection."""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Concatenate, ParamSpec, TypeVar

from loopd.core.state import Session
from loopd.core.writes import PassiveRow, StoredEvent
from loopd.store import house, opening, queries
from loopd.store.answers import idempotent

P = ParamSpec("P")
T = TypeVar("T")

DIRECTORY_PAGE = 5_000


class Reading(ABC):
    """Queries over committed events. What a producer's future has announced is always seen."""

    @property
    @abstractmethod
    def log_id(self) -> str:
        """Identity of the log's chain, for ever: a copy has the same."""

    @property
    @abstractmethod
    def cursor_log(self) -> str:
        """What cursors call the log: a copy that was started has another name, for it goes on otherwise."""

    @property
    @abstractmethod
    def last_at_ms(self) -> int:
        """Moment of the newest event."""

    @abstractmethod
    async def _read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a query on a read-only connection."""

    async def load_session(self, sid: str) -> Session | None:
        """The whole state of a session, or None."""
        return await self._read(queries.load_session, sid)

    async def load_sessions(self, sids: Sequence[str]) -> dict[str, Session]:
        """The whole states of many sessions, by sid; those that do not exist are left out."""
        found: dict[str, Session] = {}
        for start in range(0, len(sids), queries.POINTS_PER_STATEMENT):
            part = sids[start : start + queries.POINTS_PER_STATEMENT]
            found |= {session.sid: session for session in await self._read(queries.load_sessions, part)}
        return found

    async def find_session(self, ref: str) -> str | None:
        """`sid` by id, by the name of a live session, or by that of the newest ended one."""
        return await self._read(queries.find_session, ref)

    async def directory(self) -> Sequence[PassiveRow]:
        """All sessions in order of creation, in short pages on all reading connections at once."""
        last = await self._read(queries.last_number)
        pages = await asyncio.gather(
            *(
                self._read(queries.directory_page, first, first + DIRECTORY_PAGE - 1)
                for first in range(1, last + 1, DIRECTORY_PAGE)
            )
        )
        return list(chain.from_iterable(pages))

    async def page(
        self,
        *,
        sid: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        kinds: Sequence[str] = (),
        newest: bool = False,
        max_bytes: int | None = None,
    ) -> list[StoredEvent]:
        """Events in order of `seq`, strictly between `after` and `before`.

        `kinds` are exact or prefixes such as `gate.*`; `newest` takes the last `limit`; `max_bytes`
        ends the page early.
        """
        return await self._read(
            queries.page,
            sid=sid,
            after=after,
            before=before,
            limit=limit,
            kinds=tuple(kinds),
            newest=newest,
            max_bytes=max_bytes,
        )

    async def session_tail(self, sid: str, *, kinds: Sequence[str], limit: int) -> list[StoredEvent]:
        """The last `limit` events of these kinds of one session, oldest first."""
        return await self._read(queries.session_tail, sid, tuple(kinds), limit)

    async def blobs(self, digests: Sequence[str]) -> dict[str, bytes]:
        """Contents by their SHA-256 (hex); those that are not stored are left out."""
        return await self._read(queries.blobs, tuple(digests))

    async def blob(self, sha: str) -> bytes | None:
        """Content by its SHA-256 (hex), or None."""
        return await self._read(queries.blob, sha)

    async def turn_events(self, sid: str, n: int) -> list[StoredEvent]:
        """All events of turn `n` and the envelopes that it consumed, in order of `ss`."""
        return await self._read(queries.turn_events, sid, n)

    async def events_at(self, sid: str, numbers: Sequence[int]) -> list[StoredEvent]:
        """Events of a session by their `ss`, in order; those that do not exist are left out."""
        return await self._read(queries.events_at, sid, tuple(numbers))

    async def effects(self, sid: str | None, state: str, limit: int) -> list[dict[str, Any]]:
        """Tools that were begun and how they ended: `uncertain`, `open` or `any`, newest first."""
        return await self._read(queries.effects, sid, state, limit)

    async def with_open_effects(self) -> list[str]:
        """Sessions with a tool that was begun and has no outcome."""
        return await self._read(queries.with_open_effects)

    async def recoveries(self, limit: int) -> list[dict[str, Any]]:
        """What the newest boots found and did, newest first."""
        return await self._read(queries.recoveries, limit)

    async def last_boots(self, limit: int = 16) -> list[opening.Boot]:
        """The newest boots, newest first, this one included."""
        return await self._read(queries.last_boots, limit)

    async def last_turn_before(self, sid: str, seq: int) -> int | None:
        """Number of the last turn that began before `seq`, or None."""
        return await self._read(queries.last_turn_before, sid, seq)

    async def occurrences(self, sid: str, job: str | None, limit: int) -> list[dict[str, Any]]:
        """What became of the due moments of cron jobs, newest first."""
        return await self._read(queries.occurrences, sid, job, limit)

    async def cron_jobs(self) -> list[dict[str, Any]]:
        """All cron jobs of live sessions, as `cron.list` shows them."""
        return await self._read(queries.cron_jobs)

    async def idempotent(self, principal: str, key: str) -> tuple[str, bytes, int] | None:
        """Command hash, result and `seq` of a key that was used within seven days, or None."""
        return await self._read(idempotent, principal, key, self.last_at_ms)

    async def audit(
        self, *, principal: str | None, sid: str | None, denied: bool, after: int | None, limit: int
    ) -> list[tuple[int, str | None, int, str, str, bytes]]:
        """What principals did, newest first; see `loopd.store.house.audit`."""
        return await self._read(
            house.audit, principal=principal, sid=sid, denied=denied, after=after, limit=limit
        )

    async def house(self, kind: str) -> dict[str, bytes]:
        """Rows of the house of one kind, by id."""
        return await self._read(house.rows_of, kind)
