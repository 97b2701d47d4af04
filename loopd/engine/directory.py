"""All sessions of the house as plain rows, with their names and numbers. No I/O, no waiting."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

from loopd.core.state import Session
from loopd.core.writes import PassiveRow
from loopd.engine.names import Names, room
from loopd_protocol.errors import Refused


def unknown(ref: str) -> Refused:
    """The refusal of a session that does not exist."""
    return Refused("not_found", f"no session {ref!r}; `loopctl ps` lists them", path="$.sid")


class Directory:
    """What is known of every session without loading it.

    Attributes:
        rows: passive row of every session, by sid.
        names: who has which name.
    """

    def __init__(self, max_sessions: int) -> None:
        self.rows: dict[str, PassiveRow] = {}
        self.names = Names()
        self._max_sessions = max_sessions
        self._next_num = 1
        self._live = 0

    def follow(self, row: PassiveRow) -> None:
        """Keep up with a session."""
        before = self.rows.get(row.sid)
        was = before is not None and before.status == "live"
        self._live += int(row.status == "live") - int(was)
        self._next_num = max(self._next_num, row.num + 1)
        self.rows[row.sid] = row
        self.names.follow(row)

    def begin_after(self, num: int) -> None:
        """No session may ever get the number of one that was forgotten: chains begin with it."""
        self._next_num = max(self._next_num, num + 1)

    def forget(self, sid: str) -> None:
        """An ended session is deleted for good."""
        row = self.rows.pop(sid)
        self.names.forget(row.name, sid)

    def resolve(self, ref: str) -> str:
        """The sid of a session by its sid or its name; a live one comes before an ended one.

        Raises:
            Refused: `not_found`.
        """
        if ref in self.rows:
            return ref
        sid = self.names.find(ref)
        if sid is None:
            raise unknown(ref)
        return sid

    def rows_of(self, sids: Collection[str] | None) -> Iterable[PassiveRow]:
        """Rows of the named sessions, or of all."""
        if sids is None:
            return list(self.rows.values())
        return [self.rows[sid] for sid in sids if sid in self.rows]

    def reserve(self, name: str | None) -> tuple[int, str, str]:
        """Number, sid and name of a session that is about to be created; a name is made up for None.

        Raises:
            Refused: `overloaded` when there is no place, `already_exists` for a name in use.
        """
        room(self._live, self._max_sessions)
        num = self._next_num
        if name is None:
            name = f"s{num}" if f"s{num}" not in self.names else f"s{num}-{random.getrandbits(32):08x}"
        if name in self.names or name in self.rows:
            raise Refused("already_exists", f"a live session is called {name!r}", path="$.name")
        self._next_num += 1
        sid = f"ses_{num:x}{random.getrandbits(32):08x}"
        self.names.reserve(name, sid)
        return num, sid, name

    def revive(self, session: Session) -> None:
        """An ended session is about to live again: it needs a place and its name; see `Names.take`."""
        self.names.take(session.name, session.sid, live=self._live, most=self._max_sessions)
