"""Why something is not stored any more: which deletion took it, when, and by which policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from loopd.core.writes import StoredEvent
from loopd.engine.ports import Store
from loopd_protocol.errors import Refused
from loopd_protocol.retention_events import RetentionDeleted, RetentionSwept

Result = dict[str, Any]


class Deletions(Protocol):
    """Knows what was deleted."""

    async def deletions(self) -> Sequence[tuple[int, int, Any]]:
        """(seq, at_ms, event) of everything that retention has journaled, in order."""


async def deletion_of(store: Deletions, events: Iterable[StoredEvent]) -> Result | None:
    """The deletion that took the content of the first of these events that has none; None when all have it."""
    event = next((e for e in events if e.reduced), None)
    if event is None:
        return None
    for seq, at_ms, told in await store.deletions():
        if not isinstance(told, RetentionSwept) or told.what != "content":
            continue
        mine = told.sid == event.sid and any(first <= event.ss <= last for first, last in told.runs)
        if mine or (told.sid is None and told.first <= event.seq <= told.last):
            return {"what": "content", "at_ms": at_ms, "policy": told.policy, "seq": seq}
    return {"what": "content", "at_ms": None, "policy": None, "seq": None}  # it is under way


async def missing_turn(store: Store, name: str, n: int) -> Refused:
    """The answer for a turn of which no event is left."""
    months = [told for _, _, told in await store.deletions() if isinstance(told, RetentionDeleted)]
    if not months:
        return Refused("not_found", f"no event of turn {n} of {name!r} is stored", path="$.n")
    told = months[-1]
    return Refused(
        "not_found",
        f"turn {n} of {name!r} is gone: the months up to {told.month} were deleted by the policy {told.policy!r}",
        path="$.n",
    )


def said(deletion: Result, what: str) -> str:
    """A deletion as a sentence."""
    if deletion["at_ms"] is None:
        return f"{what} is being deleted by retention"
    day = datetime.fromtimestamp(deletion["at_ms"] / 1_000, UTC)
    return (
        f"{what} was deleted on {day:%Y-%m-%d %H:%M} UTC by the policy {deletion['policy']!r} "
        f"(retention.swept, seq {deletion['seq']})"
    )
