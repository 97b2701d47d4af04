"""Names of sessions: unique among the live ones; an ended session keeps its name until it is taken again."""

from __future__ import annotations

from loopd.core.writes import PassiveRow
from loopd_protocol.errors import Refused


def room(live: int, most: int) -> None:
    """Check that one more session may live.

    Raises:
        Refused: `overloaded` with both numbers.
    """
    if live >= most:
        raise Refused("overloaded", f"{live} live sessions; at most {most} are allowed")


class Names:
    """Name → sid."""

    def __init__(self) -> None:
        self._live: dict[str, str] = {}
        self._past: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a live session, or one that is being created, has this name."""
        return name in self._live

    def find(self, name: str) -> str | None:
        """The live session of this name, else the newest ended one."""
        return self._live.get(name) or self._past.get(name)

    def reserve(self, name: str, sid: str) -> None:
        """Give a name to a session that is being created."""
        self._live[name] = sid

    def take(self, name: str, sid: str, *, live: int, most: int) -> None:
        """Give an ended session its name back.

        Raises:
            Refused: `already_exists` when a live session has it, `overloaded` when there are too many.
        """
        if self._live.get(name, sid) != sid:
            raise Refused("already_exists", f"a live session is called {name!r}; end that one first")
        room(live, most)
        self._live[name] = sid

    def release(self, name: str, sid: str) -> None:
        """Take it back: the creation failed."""
        if self._live.get(name) == sid:
            del self._live[name]

    def forget(self, name: str, sid: str) -> None:
        """An ended session is deleted."""
        if self._past.get(name) == sid:
            del self._past[name]

    def follow(self, row: PassiveRow) -> None:
        """Keep up with a session's status."""
        if row.status == "live":
            self._live[row.name] = row.sid
        else:
            self.release(row.name, row.sid)
            self._past[row.name] = row.sid
