"""The forensic half of the store: long looks, each on a connection and a thread of its own."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loopd.core.redactor import Redactor
from loopd.core.state import Session
from loopd.store import anchors, past
from loopd.store.anchors import Anchor, Signer
from loopd.store.export import build
from loopd.store.extent import Wanted
from loopd.store.keeping import Keeping
from loopd.store.ledger import Ledger
from loopd.store.request import File, Request
from loopd.store.verify import run as run_verification
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_commands import AnchorRecord

T = TypeVar("T")

Stopped = Callable[[], bool]
ANCHOR_BYTES = 512


class Forensics(Keeping):
    """Explains what happened.

    Attributes:
        keys: public keys of anchors, by name.
        signer: signs anchors and archives, or None.
        verifying: what a verification that runs now has done so far: (what, done, of how many).
    """

    keys: Mapping[str, bytes] = {}
    signer: Signer | None = None
    verifying: tuple[str, int, int] | None = None

    def __init__(self) -> None:
        self._past = past.Past()

    @property
    def file(self) -> File | None:
        """Where other processes can read the journal, or None."""
        return None

    @abstractmethod
    async def _study(self, work: Callable[[sqlite3.Connection, Stopped], T]) -> T:
        """Run reading work that may take long; it asks `stopped` now and then whether anybody still waits."""

    # -- verification ---------------------------------------------------------------------------

    async def verify(
        self,
        *,
        sid: str | None = None,
        suspended_since: int | None = None,
        evolve: Callable[..., Session] | None = None,
        given: Sequence[AnchorRecord] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> dict[str, Any]:
        """A proof object for the whole log or one session; see `loopd.store.verify`."""

        def told(what: str, done: int, total: int) -> None:
            self.verifying = what, done, total
            if progress is not None:
                progress(what, done, total)

        request = Request(
            log_id=self.log_id,
            sid=sid,
            suspended_since=suspended_since,
            evolve=evolve,
            keys=self.keys,
            anchors=None
            if given is None
            else tuple(msgspec.convert(msgspec.to_builtins(a), Anchor) for a in given),
            progress=told,
            file=self.file,
        )
        try:
            return await self._verify(request)
        finally:
            self.verifying = None

    async def _verify(self, request: Request) -> dict[str, Any]:
        def work(connection: sqlite3.Connection, stopped: Stopped) -> dict[str, Any]:
            return run_verification(connection, _until(request, stopped))

        return await self._study(work)

    # -- the past ---------------------------------------------------------------------------------

    async def replay(self, sid: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Decide everything of a session once more; see `loopd.core.replay`."""
        return await self._study(lambda c, stopped: past.replay_session(c, sid, overrides, stopped))

    async def state_at(
        self, sid: str, *, seq: int | None = None, at_ms: int | None = None
    ) -> tuple[Session, dict[str, int]]:
        """A session as it was, and the last event that this includes: `seq`, `ss`, `at_ms`.

        Raises:
            Refused: `not_found` when it did not exist yet, or its content was deleted.
        """

        def work(connection: sqlite3.Connection, stopped: Stopped) -> tuple[Session, past.At]:
            return self._past.state(connection, sid, seq=seq, at_ms=at_ms, stopped=stopped)

        session, at = await self._study(work)
        return session, {"seq": at.seq, "ss": at.ss, "at_ms": at.at_ms}

    async def link(self, sid: str, ss: int) -> tuple[int, str] | None:
        """`seq` and hash, in the session's own chain, of one of its events."""

        def look(connection: sqlite3.Connection) -> tuple[int, str] | None:
            row = connection.execute(
                "SELECT j.seq, j.sh FROM journal AS j JOIN session AS s ON s.num = j.sid "
                "WHERE s.sid = ? AND j.ss = ?",
                (sid, ss),
            ).fetchone()
            return None if row is None else (int(row[0]), row[1].hex())

        return await self._read(look)

    async def imports(self) -> set[str]:
        """Sessions that by the journal are here: `session.imported` was said of them, and no `import.dropped` since.

        What retention deleted is not looked at: those of before the first event that is left are not in it.
        """

        def look(connection: sqlite3.Connection, stopped: Stopped) -> set[str]:
            here: set[str] = set()
            for kind, body in connection.execute(
                "SELECT kind, body FROM journal WHERE sid IS NULL AND body IS NOT NULL "
                "AND kind IN ('session.imported', 'import.dropped') ORDER BY seq"
            ):
                if stopped():
                    raise Refused("cancelled", "nobody waits for it any more")
                (here.add if kind == "session.imported" else here.discard)(msgspec.json.decode(body)["sid"])
            return here

        return await self._study(look)

    # -- anchors ------------------------------------------------------------------------------------

    async def anchor(self, now_ms: int) -> Anchor | None:
        """Sign and store the head as it is now; None when it has an anchor already, or nobody can sign."""
        signer = self.signer
        if signer is None:
            return None

        def chore(ledger: Ledger) -> Anchor | None:
            return anchors.add(
                ledger.connection, lambda: signer.sign(ledger.log_id, ledger.seq, ledger.h, now_ms)
            )

        return await self._tend(chore, ANCHOR_BYTES)

    async def anchors(self, *, after: int, limit: int) -> list[dict[str, Any]]:
        """Stored anchors behind `after`, in order of `seq`."""
        return await self._read(anchors.stored, self.log_id, after=after, limit=limit)

    async def last_anchor(self) -> int:
        """`seq` of the newest anchor, 0 for none."""
        return await self._read(anchors.newest)

    # -- export ---------------------------------------------------------------------------------------

    async def export(self, wanted: Wanted, target: Path, redactor: Redactor) -> dict[str, Any]:
        """Write an archive; returns its manifest. See `loopd.store.export`.

        Raises:
            Refused: `not_found`, `invalid` for an empty range, `cancelled`, storage codes.
        """
        return await self._study(
            lambda connection, stopped: build(
                connection, self.log_id, wanted, target, redactor, signer=self.signer, stopped=stopped
            )
        )


def _until(request: Request, stopped: Stopped) -> Request:
    return msgspec.structs.replace(request, stopped=stopped)
