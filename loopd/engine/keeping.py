"""What upkeep needs of the store; it matches by shape, like the other ports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from loopd.core.ageing import Context, Kept, Protection, Segment, Work
from loopd_protocol.event import Event
from loopd_protocol.retention_events import RetentionDeleted, RetentionSealed, RetentionSwept


class Upkept(Protocol):
    """A store that can be made smaller. Each call is one short step; one caller at a time."""

    async def work_at_hand(self) -> Work | None:
        """What was begun and not finished, possibly by an earlier boot."""

    async def fade(self, first: int, last: int) -> int:
        """Take from projections of sessions with these numbers what they remember of deleted content."""

    async def due_content(self, cutoff_ms: int) -> tuple[int, int] | None:
        """The next range of events that are old enough, or None."""

    async def due_through(self, cutoff_ms: int) -> tuple[int, int] | None:
        """First and last of all events whose content is due, or None."""

    async def begin_work(self, event: RetentionSwept) -> Work:
        """Note what is about to be deleted."""

    async def sweep_content(self, work: Work, context: Context, known: dict[int, Protection]) -> Work:
        """Delete the content of the next few events of a range."""

    async def kept_sessions(self, after: int) -> list[Kept]:
        """Sessions with a higher number that kept content below the level, a page of them."""

    async def sweep_kept(self, kept: Kept, context: Context, policy: str, cutoff_ms: int) -> Work | None:
        """Delete what a session need not keep any longer, a step of it; None when there is nothing."""

    async def note_needed(self, kept: Kept, after: int, now_ms: int) -> int:
        """Note that the blobs are in use that kept content names; returns how far that was looked."""

    async def note_founded(self, first: int, last: int, cutoff_ms: int, now_ms: int) -> None:
        """Note the blobs that sessions with these numbers build on."""

    async def sweep_blobs(self, work: Work) -> Work:
        """Delete the next few blobs that nobody uses."""

    async def last_number(self) -> int:
        """The highest number that any session ever had."""

    async def due_seal(self, now_ms: int) -> RetentionSealed | None:
        """The oldest month that has ended and is not sealed."""

    async def segments(self) -> list[Segment]:
        """All sealed months."""

    async def keepers(self, segment: Segment) -> list[tuple[str, str]]:
        """(sid, why) of sessions that need a segment."""

    async def put_links(self, segment: Segment, policy: str, cutoff_ms: int) -> RetentionDeleted:
        """Store the links that a segment leaves; returns the event to be journaled before its rows go."""

    async def drop_rows(self, segment: Segment) -> bool:
        """Delete some rows of a segment and of its projections; false when none are left."""

    async def forgettable(self, segment: Segment) -> list[tuple[int, str]]:
        """Ended sessions of which no event is left."""

    async def learn_keys(self) -> bool:
        """Learn some of the idempotency keys that earlier boots have stored; false when all are known."""

    async def forget_keys(self) -> int:
        """Delete some idempotency keys that are older than seven days; returns how many."""

    async def free_pages(self) -> int:
        """Pages of the file that hold nothing and can be given back."""

    async def give_back(self, pages: int) -> None:
        """Cut so many free pages off the file."""

    async def cut_log(self) -> bool:
        """Cut the write-ahead log to nothing: what was deleted still stands in it. False while somebody reads."""

    async def upkeep_state(self) -> dict[str, Any]:
        """Numbers for `retention.status`."""

    async def deletions(self) -> list[tuple[int, int, Event]]:
        """(seq, moment, event) of everything that retention has journaled."""

    async def estimate(self, first: int, last: int) -> tuple[int, int]:
        """Events of a range and the bytes of their bodies."""

    async def measures(self) -> dict[str, Any]:
        """Sizes of the database; see `db.status`."""

    async def snapshot(self, target: Path, *, verify: bool) -> dict[str, Any]:
        """Copy one moment of the log to a new file and check it."""
