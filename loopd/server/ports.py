"""What the server needs from the rooms beside it; they match these by shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from loopd.core.access import Answer, Caller
from loopd.core.writes import StoredEvent
from loopd_protocol.commands import Command
from loopd_protocol.frames import EventSelector


class Dispatcher(Protocol):
    """Carries out commands."""

    async def dispatch(
        self,
        command: Command,
        caller: Caller,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Answer:
        """Carry out one command, after checking that the caller may.

        The server never cancels this because a client went away: an effect is not undone by that.

        Raises:
            Refused: nothing was changed.
        """

    async def snapshot(
        self, selector: EventSelector, caller: Caller | None = None
    ) -> tuple[int, list[dict[str, Any]]]:
        """The selected sessions that the caller reaches, and the `seq` up to which they include everything.

        `selector.sids` are ids here; `kinds` do not matter.
        """

    def sees(self, caller: Caller) -> Callable[[str | None, str], bool] | None:
        """Which events `(sid, kind)` exist for this caller, or None for all; the same object for equal reach."""


class Keys(Protocol):
    """Tokens of people and programs."""

    @property
    def listeners(self) -> list[Callable[[str], None]]:
        """Called with the kid of each token that is revoked."""

    @property
    def configured(self) -> bool:
        """Whether any token is worth something."""

    def authenticate(self, token: str) -> Caller:
        """Who holds this token; raises `Refused`."""

    def caller_of(self, kid: str) -> Caller:
        """The holder of a token that was shown before; raises `Refused`."""

    def valid(self, kid: str) -> bool:
        """Whether the token is still worth something."""

    def named(self, token: str) -> str:
        """The kid that a token carries, if there is one of that name; else nothing."""


class Chunk(Protocol):
    """Consecutive events. `cursor` is how far the log was read; `gap` what is not stored any more."""

    @property
    def events(self) -> Sequence[StoredEvent]:
        """In order of `seq`."""

    @property
    def cursor(self) -> int:
        """Where to read on."""

    @property
    def gap(self) -> tuple[int, int] | None:
        """First and last `seq` that should come before `events` and are gone."""


class Deltas(Protocol):
    """A bounded receiver of live text. `dropped` counts what did not fit."""

    @property
    def dropped(self) -> int:
        """How many were dropped so far."""

    async def receive(self) -> tuple[str, int, str]:
        """The next (sid, turn, text)."""


class Bus(Protocol):
    """The log, read by cursor."""

    @property
    def log_id(self) -> str:
        """What cursors call the log."""

    @property
    def head(self) -> int:
        """`seq` of the newest event."""

    @property
    def deletions(self) -> int:
        """How often something of the log was deleted."""

    async def read(self, after: int, *, limit: int = 512) -> Chunk:
        """What follows the cursor, at once; empty at the head."""

    async def wait(self, after: int) -> object:
        """Return when the head is beyond `after`."""

    def open_deltas(self, maxlen: int = 256) -> AbstractContextManager[Deltas]:
        """Receive live text while the context is open."""


class Health(Protocol):
    """Why the daemon is not ready: `draining`, `storage_full`, `corrupt`, …; empty when it is."""

    def __call__(self) -> Sequence[str]:
        """The reasons."""


CommandObserver = Callable[[str, str, float], None]
"""(command type, `ok` or an error code, seconds): for metrics. Never fails, never waits."""

Knock = Callable[[str, str, str, str], None]
"""(door, source, code, kid of the token that was shown or ""): somebody was turned away. Never fails, never waits."""


def nobody_listens(door: str, source: str, code: str, kid: str) -> None:
    """Let them knock."""
    del door, source, code, kid
