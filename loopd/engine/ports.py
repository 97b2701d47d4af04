"""What the engine needs from the rooms beside it. They match these by shape; nobody inherits.

The type checker proves the fit in `loopd.daemon`; the suites in `loopd.testing` prove behaviour.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from loopd.core.compaction import Plan
from loopd.core.conversation import (
    AgentReply,
    AgentRequest,
    Directive,
    Message,
    StepDone,
    TurnEnd,
    TurnRequest,
)
from loopd.core.state import Session
from loopd.core.writes import Append, Appended, PassiveRow, StoredEvent
from loopd_protocol.events import Event, ToolCall


class Clock(Protocol):
    """The only source of time. `now_ms`: wall clock, UTC; `monotonic_ms`: never goes back."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch (UTC)."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment."""


class TurnHost(Protocol):
    """What a driver may do while it takes a turn."""

    def delta(self, text: str) -> bool:
        """Show streamed text to live watchers. Lossy, synchronous, cheap; keeps the partial text.

        False: the stream goes in circles. Cancel it and ask once more; a second time, give the turn up.
        """

    def frame(self, line: bytes) -> None:
        """Keep a protocol message of a hosted agent: `> ` and what was sent, or `< ` and what came."""

    async def remember(self, key: str, value: str) -> None:
        """Keep a fact over restarts; it comes back as `TurnRequest.memory`. Durable when it returns."""

    async def retrying(self, *, attempt: int, cause: str, delay_ms: int) -> None:
        """Tell that a model call failed and will be tried again after `delay_ms`."""

    async def afford(self) -> None:
        """Ask before each model call whether a budget is left for it.

        Raises:
            Refused: `gate_closed`: make no call and return from `take_turn`; the host knows why.
        """

    async def permit(self, call: ToolCall) -> None:
        """Ask whether policy lets a tool run, without intending it: for reads, and for an agent's own question.

        It may wait for a person's answer, for a long time but not for ever. An `intent` for the same call
        of the step is not asked about again.

        Raises:
            Refused: `forbidden`, with words for the model: the tool must not run.
        """

    async def intent(self, call: ToolCall) -> None:
        """Make the intention to run a tool durable. Call it before the tool runs. It may wait as `permit` does.

        Raises:
            Refused: the tool must not run; `forbidden` when policy or a person says so, with words for the model.
        """

    async def outcome(self, call: ToolCall, outcome: str) -> None:
        """Record how the tool ended: `ok`, `error` or `cancelled`."""

    async def ask(self, request: AgentRequest) -> AgentReply:
        """Carry out one of loopd's own tools for the agent."""

    async def compacted(self, plan: Plan, before: Sequence[Message]) -> tuple[Message, ...]:
        """Carry out a plan on the messages of the running turn; durable, and binding, when this returns.

        Raises:
            Refused: the turn is over.
        """

    async def step(self, done: StepDone) -> Directive:
        """Hand in a finished step; it is durable and judged when this returns."""


class Driver(Protocol):
    """Takes turns for one session. One call of `take_turn` at a time.

    Faults of the model or agent become a `TurnEnd` with outcome `model_error` or `failed`, never an
    exception. Cancellation (the scope around `take_turn`) stops the stream and running tools at once
    and propagates; nothing of the turn runs afterwards.
    """

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Take one turn; see the class."""

    def render(self, request: TurnRequest) -> bytes | None:
        """The exact bytes of the model request that `take_turn` would send first; None if there are none."""

    async def aclose(self) -> None:
        """Release connections and processes; idempotent."""


class BootRow(Protocol):
    """A start of the daemon on this log."""

    @property
    def at_ms(self) -> int:
        """When it began."""


class Store(Protocol):
    """The journal with its projections."""

    @property
    def log_id(self) -> str:
        """Identity of the log's chain."""

    @property
    def cursor_log(self) -> str:
        """What cursors call the log."""

    @property
    def head(self) -> int:
        """Sequence number of the last committed event, 0 for none."""

    @property
    def boots(self) -> int:
        """Number of this boot, from 1."""

    @property
    def epoch(self) -> int:
        """Rises with each change of owner."""

    @property
    def frozen(self) -> bytes | None:
        """Body of the `daemon.frozen` event that stands."""

    def submit(self, batch: Append) -> Future[Appended]:
        """Queue one atomic batch. Batches commit in the order of submission.

        The future fails with `Refused` (`storage_full`, `storage_readonly`, `overloaded`,
        `conflict` when an earlier batch of the same session failed); then nothing of it is stored.
        """

    def takes_lazy(self) -> bool:
        """Ask before each lazy append, a note, whether it would be taken now.

        False when much waits already, or the storage takes nothing: the note is left out, and counted.
        """

    async def load_session(self, sid: str) -> Session | None:
        """The state of a session as last committed."""

    async def load_sessions(self, sids: Sequence[str]) -> dict[str, Session]:
        """The states of many sessions as last committed, by sid."""

    async def find_session(self, ref: str) -> str | None:
        """`sid` of a session by its id or its unique name."""

    async def deletions(self) -> list[tuple[int, int, Event]]:
        """(seq, moment, event) of everything that retention has journaled, in order."""

    async def last_number(self) -> int:
        """The highest number that any session ever had, also one that was forgotten."""

    async def directory(self) -> Sequence[PassiveRow]:
        """All sessions, as the columns that lists and metrics need."""

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
        """Events in order of `seq`, strictly after and before; `newest` takes the last `limit`.

        `max_bytes` ends a page early once the bodies are that large; it holds at least one event.
        """

    async def session_tail(self, sid: str, *, kinds: Sequence[str], limit: int) -> list[StoredEvent]:
        """The last `limit` events of these kinds of one session, in order of `ss`."""

    async def events_at(self, sid: str, numbers: Sequence[int]) -> list[StoredEvent]:
        """Events of a session by their `ss`, in order."""

    async def blobs(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Contents by their SHA-256 (hex); those that are not stored are left out."""

    async def blob(self, sha: str) -> bytes | None:
        """Content by its SHA-256 (hex)."""

    async def turn_events(self, sid: str, n: int) -> list[StoredEvent]:
        """All events of turn `n`, and the accepted envelopes that it consumed, in order of `ss`."""

    async def occurrences(self, sid: str, job: str | None, limit: int) -> list[dict[str, Any]]:
        """What became of due moments, newest first."""

    async def cron_jobs(self) -> list[dict[str, Any]]:
        """All cron jobs of live sessions, as `cron.list` shows them."""

    async def last_boots(self, limit: int = 16) -> Sequence[BootRow]:
        """The newest boots, newest first, this one included."""

    async def effects(self, sid: str | None, state: str, limit: int) -> list[dict[str, Any]]:
        """Tools that were begun and how they ended: `uncertain`, `open` or `any`, newest first."""

    async def with_open_effects(self) -> list[str]:
        """Sessions with a tool that was begun and has no outcome."""

    async def recoveries(self, limit: int) -> list[dict[str, Any]]:
        """What the newest boots found and did, newest first."""

    async def audit(
        self, *, principal: str | None, sid: str | None, denied: bool, after: int | None, limit: int
    ) -> list[tuple[int, str | None, int, str, str, bytes]]:
        """What principals did, newest first: `(seq, sid, at_ms, kind, principal, body)`."""

    async def house(self, kind: str) -> dict[str, bytes]:
        """Rows of the house of one kind (see `HouseRow`), by id."""

    async def idempotent(self, principal: str, key: str) -> tuple[str, bytes, int] | None:
        """Hash of the command, its stored result and its `seq`, for a key that was used before."""

    async def verify(self, *, sid: str | None, suspended_since: int | None) -> dict[str, Any]:
        """A proof object; see `loopctl verify`."""


class Telemetry(Protocol):
    """Counts what happened; never fails, never waits."""

    def committed(self, events: Iterable[StoredEvent]) -> None:
        """Count events that are durable now."""


DriverFactory = Callable[[str, Mapping[str, Any], str | None], Driver]
"""(sid, driver spec as stored in `session.created`, workspace) → driver.

Raises `Refused` (`invalid`) when the spec cannot work, for example a script that is no trajectory.
"""
