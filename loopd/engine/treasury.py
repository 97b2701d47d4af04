"""Limits that many sessions share: of a label, and of a parent with its children. Counted here, decided in the core.

A purse is fed with the difference that each commit makes to an account, so it is never behind the journal.
At boot, and when a limit is set, it is filled again: totals from the states of its members, a window from
the events of that window. Sessions without a shared limit cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from loopd.core.account import NOTHING, Purse, Used, own_purses, total_of, which, window_end, window_of
from loopd.core.state import Session
from loopd.core.writes import HouseRow, PassiveRow, StoredEvent
from loopd.engine.ports import Store
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.policy import BudgetLimit
from loopd_protocol.policy_events import BudgetChanged

PAGE = 1_000
CHARGING = (
    "turn.started",
    "turn.step",
    "turn.completed",
    "turn.interrupted",
    "model.called",
    "context.compacted",
)
"""Kinds of events that spend something."""


CHILD = "child"
LABEL_LIMIT = "label_limit"
"""Kinds of rows of the house: a session's parent, and a limit of a label."""


def child_row(child: str, parent: str) -> HouseRow:
    """Remember whose child a session is."""
    return HouseRow(kind=CHILD, id=child, body=parent.encode())


def limit_row(event: BudgetChanged) -> HouseRow:
    """Remember a limit of a label, or forget it."""
    body = None if event.limit is None else msgspec.json.encode(event)
    return HouseRow(kind=LABEL_LIMIT, id=which(event.label, event.what, event.per_ms), body=body)


class States(Protocol):
    """Who knows the committed states of sessions."""

    async def state_of(self, ref: str) -> Session:
        """The state of one."""


async def parent_of(states: States, ref: str) -> Session:
    """The session that is to be the parent of a new one.

    Raises:
        Refused: `not_found`, or `session_terminal` when it has ended.
    """
    parent = await states.state_of(ref)
    if parent.status != "live":
        raise Refused(
            "session_terminal", f"session {parent.name!r} has ended as {parent.status!r}", path="$.parent"
        )
    return parent


class _Count:
    """One shared limit and what is spent of it."""

    __slots__ = ("index", "limit", "since", "used")

    def __init__(self, limit: BudgetLimit) -> None:
        self.limit = limit
        self.index = 0
        self.since = 0
        self.used = NOTHING

    def add(self, used: Used, at_ms: int) -> None:
        per_ms = self.limit.per_ms
        if per_ms is not None:
            index = max(self.index, window_of(at_ms, per_ms))
            if index != self.index:
                self.index, self.used = index, NOTHING
        self.used = self.used.plus(used)

    @property
    def spent(self) -> bool:
        return self.used.of(self.limit.kind) >= self.limit.limit

    def purse(self, scope: str, now: int) -> Purse:
        per_ms, used, until_ms = self.limit.per_ms, self.used, None
        if per_ms is not None:
            index = max(self.index, window_of(now, per_ms))
            used = self.used if index == self.index else NOTHING
            until_ms = (index + 1) * per_ms
        return Purse(
            scope=scope,
            kind=self.limit.kind,
            limit=self.limit.limit,
            used=used.of(self.limit.kind),
            per_ms=per_ms,
            until_ms=until_ms,
        )


class Treasury:
    """All shared limits.

    Attributes:
        parents: child → parent, of all sessions that have one.
    """

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}
        self._children: dict[str, set[str]] = {}
        self._labels: dict[str, dict[tuple[str, int | None], _Count]] = {}
        self._trees: dict[str, dict[tuple[str, int | None], _Count]] = {}
        self._filling = asyncio.Lock()
        self._moved: dict[str, Used] = {}

    def __bool__(self) -> bool:
        return bool(self._labels or self._trees)

    # -- reading ------------------------------------------------------------------------------

    def purses(self, session: Session, now: int) -> tuple[Purse, ...]:
        """The shared limits that bind a session."""
        if not self._labels and not self._trees:
            return ()
        found = []
        for label, counts in self._labels.items():
            key, _, value = label.partition("=")
            if session.labels.get(key) == value:
                found += [count.purse(label, now) for count in counts.values()]
        for sid in self._line(session.sid, session.account.parent):
            scope = "session" if sid == session.sid else sid
            found += [count.purse(scope, now) for count in self._trees.get(sid, {}).values()]
        return tuple(found)

    def of_label(self, label: str, now: int) -> tuple[Purse, ...]:
        """The limits of one label."""
        return tuple(count.purse(label, now) for count in self._labels.get(label, {}).values())

    def labels(self) -> tuple[str, ...]:
        """Labels that have limits."""
        return tuple(self._labels)

    def family(self, sid: str) -> list[str]:
        """Sids of a session's descendants, without itself."""
        return sorted(self._descendants(sid) - {sid})

    def with_label(self, label: str, rows: Iterable[PassiveRow]) -> list[str]:
        """Sids of the sessions that have a label."""
        key, _, value = label.partition("=")
        return [row.sid for row in rows if row.labels and msgspec.json.decode(row.labels).get(key) == value]

    def _line(self, sid: str, parent: str | None) -> list[str]:
        line, above = [sid], parent if parent is not None else self.parents.get(sid)
        while above is not None and above not in line:
            line.append(above)
            above = self.parents.get(above)
        return line

    def _descendants(self, sid: str) -> set[str]:
        found, todo = {sid}, [sid]
        while todo:
            for child in self._children.get(todo.pop(), ()):
                if child not in found:
                    found.add(child)
                    todo.append(child)
        return found

    # -- following ----------------------------------------------------------------------------

    def follow(self, before: Session, after: Session, at_ms: int, seq: int) -> list[str]:
        """A commit that ends at `seq` changed a session: what it spent goes from all that it shares.

        Returns:
            Scopes (labels, sids of parents) of which a total is spent by this: their members have to look.
        """
        if before.account.limits != after.account.limits:
            self._retree(after, at_ms)
        if not self._labels and not self._trees:
            return []
        spent = total_of(after).minus(total_of(before))
        if spent == NOTHING:
            return []
        if self._filling.locked():
            self._moved[after.sid] = total_of(after)
        over = []
        for scope, count in self._counts_of(after.sid, after.labels, after.account.parent):
            if seq > count.since:
                was = count.spent
                count.add(spent, at_ms)
                if count.spent and not was and count.limit.per_ms is None:
                    over.append(scope)
        return over

    def spent(self) -> list[str]:
        """Scopes of which a total is spent."""
        scopes = [*self._labels.items(), *self._trees.items()]
        return [
            scope
            for scope, counts in scopes
            if any(count.spent and count.limit.per_ms is None for count in counts.values())
        ]

    def members(self, scope: str, rows: Mapping[str, PassiveRow]) -> list[str]:
        """Sids of the sessions that a scope binds."""
        return self.with_label(scope, rows.values()) if "=" in scope else sorted(self._descendants(scope))

    def _counts_of(
        self, sid: str, labels: Mapping[str, str], parent: str | None
    ) -> Iterator[tuple[str, _Count]]:
        for label, counts in self._labels.items():
            key, _, value = label.partition("=")
            if labels.get(key) == value:
                yield from ((label, count) for count in counts.values())
        for each in self._line(sid, parent):
            yield from ((each, count) for count in self._trees.get(each, {}).values())

    def adopt(self, child: str, parent: Session, now: int) -> None:
        """A child was created: its parent's limits are shared from now on."""
        self.parents[child] = parent.sid
        self._children.setdefault(parent.sid, set()).add(child)
        if parent.sid not in self._trees:
            self._retree(parent, now)

    def _retree(self, session: Session, now: int) -> None:
        """Limits of a session with children: what is known goes on, new ones begin with its own spending."""
        if session.sid not in self._children:
            return
        known = self._trees.get(session.sid, {})
        own = {(purse.kind, purse.per_ms): purse for purse in own_purses(session, now)}
        counts: dict[tuple[str, int | None], _Count] = {}
        for limit in session.account.limits:
            key = (limit.kind, limit.per_ms)
            count = _Count(limit)
            if key in known:
                count.index, count.used = known[key].index, known[key].used
            else:
                count.index = 0 if limit.per_ms is None else window_of(now, limit.per_ms)
                count.used = _as_used(limit.kind, own[key].used)
            counts[key] = count
        if counts:
            self._trees[session.sid] = counts
        else:
            self._trees.pop(session.sid, None)

    def limit_label(self, event: BudgetChanged) -> None:
        """A limit of a label was set or removed; `fill` counts a new one."""
        counts = self._labels.setdefault(event.label, {})
        key = (event.what, event.per_ms)
        if event.limit is None:
            counts.pop(key, None)
        else:
            limit = BudgetLimit(kind=event.what, limit=event.limit, per_ms=event.per_ms)  # type: ignore[arg-type]
            if key in counts:
                counts[key].limit = limit
            else:
                counts[key] = _Count(limit)
        if not counts:
            del self._labels[event.label]

    # -- filling ------------------------------------------------------------------------------

    async def open(self, store: Store, rows: Mapping[str, PassiveRow], now: int) -> None:
        """Read what is shared, and count what was spent of it."""
        for child, parent in (await store.house(CHILD)).items():
            self.parents[child] = parent.decode()
            self._children.setdefault(parent.decode(), set()).add(child)
        for body in (await store.house(LABEL_LIMIT)).values():
            self.limit_label(msgspec.json.decode(body, type=BudgetChanged))
        for session in (await store.load_sessions(list(self._children))).values():
            self._retree(session, now)
        if self:
            await self.fill(store, rows, now, lambda _: None, labels=self.labels(), trees=tuple(self._trees))

    async def fill(
        self,
        store: Store,
        rows: Mapping[str, PassiveRow],
        now: int,
        durable: Callable[[str], Session | None],
        *,
        labels: Iterable[str] = (),
        trees: Iterable[str] = (),
        only: tuple[str, int | None] | None = None,
    ) -> None:
        """Count anew what was spent of these limits, from what is committed.

        Sessions may go on meanwhile. A window takes in events up to the head at which this began, and
        follows what is later; a total is summed up in one go in the end. `durable` gives the committed state
        of a session that is loaded, for it can have changed since it was read; `only` picks one limit.
        One at a time: two that count the same window together would count it twice.
        """
        async with self._filling:
            self._moved = {}
            await self._fill(store, rows, now, durable, labels, trees, only)

    async def _fill(  # noqa: PLR0917
        self,
        store: Store,
        rows: Mapping[str, PassiveRow],
        now: int,
        durable: Callable[[str], Session | None],
        labels: Iterable[str],
        trees: Iterable[str],
        only: tuple[str, int | None] | None,
    ) -> None:
        chosen: list[tuple[_Count, set[str]]] = []
        for label in labels:
            members = set(self.with_label(label, rows.values()))
            chosen += [
                (count, members) for key, count in self._labels.get(label, {}).items() if only in {None, key}
            ]
        for sid in trees:
            members = self._descendants(sid)
            chosen += [
                (count, members) for key, count in self._trees.get(sid, {}).items() if only in {None, key}
            ]
        head = store.head
        for count, _ in chosen:
            count.index = 0 if count.limit.per_ms is None else window_of(now, count.limit.per_ms)
            count.used, count.since = NOTHING, 0 if count.limit.per_ms is None else head
        totals = [(count, members) for count, members in chosen if count.limit.per_ms is None]
        windows = [(count, members) for count, members in chosen if count.limit.per_ms is not None]
        await self._fill_windows(store, windows, head, now)
        await self._fill_totals(store, totals, durable)

    async def _fill_totals(
        self,
        store: Store,
        chosen: list[tuple[_Count, set[str]]],
        durable: Callable[[str], Session | None],
    ) -> None:
        wanted = sorted(set().union(*(members for _, members in chosen))) if chosen else []
        read: dict[str, Used] = {}
        for start in range(0, len(wanted), PAGE):
            part = await store.load_sessions(wanted[start : start + PAGE])
            read |= {sid: total_of(session) for sid, session in part.items()}
        read |= {
            sid: self._moved[sid] for sid in wanted if sid in self._moved
        }  # it may have left memory again
        for sid in wanted:  # no waiting from here on
            if (session := durable(sid)) is not None:
                read[sid] = total_of(session)
        for count, members in chosen:
            count.used = NOTHING
            for sid in members & read.keys():
                count.used = count.used.plus(read[sid])

    async def _fill_windows(
        self, store: Store, chosen: list[tuple[_Count, set[str]]], head: int, now: int
    ) -> None:
        if not chosen:
            return
        begins = min(
            window_end(now, count.limit.per_ms or 1) - (count.limit.per_ms or 1) for count, _ in chosen
        )
        before = head + 1
        while True:
            page = await store.page(
                sid=None, after=None, before=before, limit=PAGE, kinds=CHARGING, newest=True
            )
            for stored in page:
                used = spent_by(stored)
                for count, members in chosen:
                    per_ms = count.limit.per_ms or 1
                    if stored.sid in members and window_of(stored.at_ms, per_ms) == count.index:
                        count.used = count.used.plus(used)
            if len(page) < PAGE or page[0].at_ms < begins:
                return
            before = page[0].seq


def spent_by(stored: StoredEvent) -> Used:
    """What a committed event spent."""
    if stored.kind == "turn.started":
        return Used(turns=1)
    if not stored.body:
        return NOTHING  # its content is gone
    charge = getattr(ev.decode(stored.body), "charge", None)
    if charge is None:
        return NOTHING
    return Used(input=charge.input, output=charge.output, cost=charge.cost_micro, wall=charge.wall_ms)


def _as_used(kind: str, amount: int) -> Used:
    field = {"tokens": "input", "input_tokens": "input", "output_tokens": "output"}.get(kind, kind)
    return Used(**{field: amount})
