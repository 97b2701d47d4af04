"""Which sessions are in memory, and which of those that rest leave it.

         add                        rested                     over a bound, or ended
stored ──────▶ in memory, working ◀─────────▶ in memory, at rest ───────────────▶ stored

What rests is kept only so that the next turn need not read it again. It is bounded by number and by bytes, for
the context of one session may be as large as that of a thousand others. A session that works is not counted:
how many of those there are is bounded by `limits.concurrent_turns`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from loopd.engine.session_loop import SessionLoop

IDLE_SESSIONS_MAX = 256
"""Sessions at rest that stay in memory however small they are."""

IDLE_BYTES_MAX = 16 << 20
"""What they may take together."""

LOADED_BYTES = 16_384
WAITING_BYTES = 512
"""About what a session in memory takes beside its messages, and an envelope beside its text."""


def size_bytes(loop: SessionLoop) -> int:
    """Approximately what a session takes in memory."""
    return LOADED_BYTES + WAITING_BYTES * len(loop.session.inbox) + loop.history.size_bytes()


class Residents:
    """The sessions in memory, by sid. Nothing here waits: whoever takes one out closes it.

    Attributes:
        idle_bytes: what the sessions at rest take, as they were when they came to rest.
        idle_bytes_max: more than that makes the longest unused ones leave.
    """

    def __init__(self, *, idle_sessions: int | None = None, idle_bytes: int | None = None) -> None:
        self.idle_bytes = 0
        self.idle_bytes_max = IDLE_BYTES_MAX if idle_bytes is None else idle_bytes
        self._idle_max = IDLE_SESSIONS_MAX if idle_sessions is None else idle_sessions
        self._loops: dict[str, SessionLoop] = {}
        self._lost: dict[str, SessionLoop] = {}
        self._idle: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, sid: object) -> bool:
        return sid in self._loops

    def __iter__(self) -> Iterator[SessionLoop]:
        return iter(list(self._loops.values()))

    def __len__(self) -> int:
        return len(self._loops)

    @property
    def idle(self) -> int:
        """How many are known to be at rest."""
        return len(self._idle)

    def get(self, sid: str) -> SessionLoop | None:
        """The session, if it is in memory; it is not used by that."""
        return self._loops.get(sid)

    def use(self, sid: str) -> SessionLoop | None:
        """The session, if it is in memory; it is now the last one to leave."""
        if sid in self._idle:
            self._idle.move_to_end(sid)
        return self._loops.get(sid)

    def add(self, loop: SessionLoop) -> None:
        """Keep a session in memory; it works until it `rested`."""
        self._loops[loop.session.sid] = loop
        self._lost.pop(loop.session.sid, None)

    def lose(self, loop: SessionLoop) -> None:
        """Take out a session whose write failed: the next one that is read has to wait for it."""
        if self._loops.get(loop.session.sid) is loop:
            self._lost[loop.session.sid] = loop
        self.remove(loop)

    async def left(self, sid: str) -> SessionLoop | None:
        """What was lost of a session, when all that it still wrote has arrived: only then it may be read."""
        lost = self._lost.get(sid)
        if lost is not None:
            await lost.written()
        return lost

    def forget(self, sid: str) -> None:
        """It will not be read again: it was never written."""
        self._lost.pop(sid, None)

    def remove(self, loop: SessionLoop) -> None:
        """Take a session out, if it is this one that is here."""
        sid = loop.session.sid
        if self._loops.get(sid) is loop:
            del self._loops[sid]
            self.idle_bytes -= self._idle.pop(sid, 0)

    def rested(self, loop: SessionLoop) -> None:
        """A session of these may have come to rest: note what it takes, as the last one to leave."""
        sid = loop.session.sid
        if not loop.idle or self._loops.get(sid) is not loop:
            return
        size = size_bytes(loop)
        self.idle_bytes += size - self._idle.pop(sid, 0)
        self._idle[sid] = size

    def surplus(self) -> list[SessionLoop]:
        """Take out what rests beyond the bounds, the longest unused first.

        The newest stays even when it alone is over them: somebody is about to use it.
        """
        gone: list[SessionLoop] = []
        while len(self._idle) > 1 and (
            len(self._idle) > self._idle_max or self.idle_bytes > self.idle_bytes_max
        ):
            sid, size = self._idle.popitem(last=False)
            self.idle_bytes -= size
            loop = self._loops[sid]
            if loop.idle:  # else it works again, and is noted anew when it comes to rest
                gone.append(self._loops.pop(sid))
        return gone
