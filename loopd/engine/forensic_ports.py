"""What the forensic desk needs from the rooms beside the engine; they match by shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from loopd.core.redactor import Redactor
from loopd.core.state import Session
from loopd.engine.ports import Store
from loopd_protocol.forensic_commands import AnchorRecord


class ForensicStore(Store, Protocol):
    """The journal, for long looks."""

    @property
    def verifying(self) -> tuple[str, int, int] | None:
        """What a verification that runs now has done so far."""

    @property
    def keys(self) -> Mapping[str, bytes]:
        """Public keys of anchors, by name."""

    async def verify(
        self, *, sid: str | None, suspended_since: int | None, given: Sequence[AnchorRecord] | None = None
    ) -> dict[str, Any]:
        """A proof object; `given` are anchors that somebody kept elsewhere."""

    async def replay(self, sid: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Decide everything of a session once more."""

    async def state_at(
        self, sid: str, *, seq: int | None = None, at_ms: int | None = None
    ) -> tuple[Session, dict[str, int]]:
        """A session as it was, and the last event that this includes."""

    async def link(self, sid: str, ss: int) -> tuple[int, str] | None:
        """`seq` and hash of an event in the session's own chain."""

    async def imports(self) -> set[str]:
        """Ids of the imported sessions that the journal knows to be here."""

    async def anchors(self, *, after: int, limit: int) -> list[dict[str, Any]]:
        """Stored anchors, in order of `seq`."""


class Entry(Protocol):
    """An imported session."""

    @property
    def sid(self) -> str:
        """Its id here."""

    @property
    def name(self) -> str:
        """Its name here."""

    @property
    def log(self) -> str:
        """Its own log."""

    @property
    def of(self) -> str:
        """Its id there."""

    @property
    def first_seq(self) -> int:
        """Its first event."""

    @property
    def last_seq(self) -> int:
        """Its last event."""

    @property
    def events(self) -> int:
        """How many there are."""

    @property
    def head_hash(self) -> str:
        """The end of its chain."""

    @property
    def redaction(self) -> str:
        """By which profile content was replaced."""

    @property
    def archive(self) -> str:
        """Digest of the archive it came in."""

    @property
    def at_ms(self) -> int:
        """When it was imported."""

    @property
    def by(self) -> str:
        """Who imported it."""


class ImportShelf(Protocol):
    """Imported sessions."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All of them, by their id here."""

    def find(self, ref: str) -> Entry | None:
        """By id or name."""

    async def store_of(self, entry: Any) -> ForensicStore:
        """The database of an entry."""

    async def verify(
        self, entry: Any, *, suspended_since: int | None = None, given: Sequence[AnchorRecord] | None = None
    ) -> dict[str, Any]:
        """A proof about the archive of an entry."""

    async def check_in(
        self, path: Path, *, by: str, now_ms: int, taken: Callable[[str], bool]
    ) -> tuple[Sequence[Entry], bool]:
        """Verify an archive and add its sessions."""

    async def drop(self, entry: Any) -> None:
        """Forget an entry."""


class Archivist(Protocol):
    """Writes archives."""

    async def export(
        self,
        sid: str | None,
        target: Path,
        redactor: Redactor,
        *,
        since: int | None,
        until: int | None,
        links: bool,
    ) -> dict[str, Any]:
        """Write an archive; returns its manifest."""
