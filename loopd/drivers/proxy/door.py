"""How drivers get a way through the proxy, and what the proxy needs from its daemon. Ports, no code.

A driver asks the door for a `Passage` when it starts an agent, gives `base_url` and `key` to the agent,
and closes it with the agent. In between it may `take` what has passed since it last looked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from loopd.drivers.retry import Fault
from loopd_protocol.events import ModelAsked, ModelCalled, Usage

Api = Literal["chat-completions", "messages", "responses"]
APIS: tuple[Api, ...] = ("chat-completions", "messages", "responses")


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The real endpoint.

    Attributes:
        base_url: where the APIs are, for example `http://127.0.0.1:8080/v1`; `/chat/completions`,
            `/messages` and `/responses` are added.
        api_key_env: variable of the daemon with the real key, or None for none.
        apis: which APIs the agent may use there.
    """

    base_url: str
    api_key_env: str | None = None
    apis: tuple[Api, ...] = APIS


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What passed since the last look.

    Attributes:
        calls: model calls that ended, also failed ones; side calls of the agent count too.
        usage: tokens of these calls together, None when no call reported or allowed an estimate.
        fault: of the last call that ended; None when it succeeded or there was none.
        paused: why the proxy answered a call itself, or None when it did not.
    """

    calls: int = 0
    usage: Usage | None = None
    fault: Fault | None = None
    paused: str | None = None


class Passage(Protocol):
    """One agent's way to its endpoint.

    Attributes:
        base_url: with `/v1`, what chat-completions and responses clients are given.
        origin: without `/v1`, what Anthropic clients are given (they add `/v1/messages`).
        key: the API key of the agent; worth nothing elsewhere and after `close`.
    """

    @property
    def base_url(self) -> str:
        """See the class."""

    @property
    def origin(self) -> str:
        """See the class."""

    @property
    def key(self) -> str:
        """See the class."""

    def take(self) -> Traffic:
        """What passed since the last call of this; for the usage and the fault of a step or turn."""

    async def settled(self) -> None:
        """Wait until no call is under way and all that ended are durable."""

    def cut(self) -> None:
        """Break off what is under way, for example when the agent does not heed its cancellation."""


class ProxyDoor(Protocol):
    """Opens and closes passages; one for each session at a time."""

    async def open(self, sid: str, upstream: Upstream) -> Passage:
        """A way to `upstream` for a session; an earlier one of the session is closed.

        Raises:
            Refused: `invalid` when `base_url` is no address or the key's variable is not set.
        """

    async def close(self, sid: str) -> None:
        """Close the session's passage: its key is void, calls under way are cut. Idempotent."""


class Witness(Protocol):
    """What the proxy asks and tells the engine."""

    async def admit(self, sid: str, request_bytes: int, cut: Callable[[], None]) -> int:
        """May a model call of this session leave now? Returns the number of its running turn.

        Args:
            sid: session.
            request_bytes: size of the request.
            cut: breaks the call off; called when the turn is over or cut.

        Raises:
            Refused: it may not; `code` says why, and the agent is answered with a clean stop.
        """

    def leaving(self, sid: str, call: ModelAsked) -> None:
        """An admitted call is about to be sent. Never waits: it is told to the journal, and goes."""

    def over(self, sid: str, cut: Callable[[], None]) -> None:
        """An admitted call ended by itself."""

    def turn_of(self, sid: str) -> int:
        """Number of the session's newest turn, 0 for none."""

    async def called(
        self, sid: str, call: ModelCalled, *, request: bytes | None, response: bytes | None
    ) -> None:
        """Make a call that ended durable. Bodies that are None are not kept, only their digests.

        Raises:
            Refused: the journal could not take it.
        """
