"""One session's way through the proxy: its key, its calls under way, and what has passed."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import anyio

from loopd.drivers.proxy.door import Traffic, Upstream
from loopd.drivers.retry import Fault
from loopd_protocol.events import Usage

if TYPE_CHECKING:
    import httpx


class OpenPassage:
    """See `door.Passage`.

    Attributes:
        real_key: the endpoint's own key, or None; never leaves towards the agent.
        client: towards the endpoint.
        scopes: of the calls under way; cancelling one breaks it off.
        closed: no further call is taken.
    """

    def __init__(
        self, sid: str, upstream: Upstream, real_key: str | None, client: httpx.AsyncClient, origin: str
    ) -> None:
        self.sid = sid
        self.upstream = upstream
        self.real_key = real_key
        self.client = client
        self.origin = origin
        self.key = f"loopd-{secrets.token_urlsafe(32)}"
        self.scopes: set[anyio.CancelScope] = set()
        self.closed = False
        self.paused_in: dict[int, int] = {}
        self._calls = 0
        self._usage: Usage | None = None
        self._fault: Fault | None = None
        self._paused: str | None = None
        self._under_way = 0
        self._quiet = anyio.Event()
        self._quiet.set()

    @property
    def base_url(self) -> str:
        """With `/v1`."""
        return f"{self.origin}/v1"

    def take(self) -> Traffic:
        """See `door.Passage`."""
        traffic = Traffic(calls=self._calls, usage=self._usage, fault=self._fault, paused=self._paused)
        self._calls, self._usage, self._fault, self._paused = 0, None, None, None
        return traffic

    async def settled(self) -> None:
        """See `door.Passage`."""
        await self._quiet.wait()

    def begun(self) -> None:
        """A call is under way."""
        if not self._under_way:
            self._quiet = anyio.Event()
        self._under_way += 1

    def over(self) -> None:
        """A call is over, and durable."""
        self._under_way -= 1
        if not self._under_way:
            self._quiet.set()

    def ended(self, usage: Usage | None, fault: Fault | None) -> None:
        """Count a call that was sent on."""
        self._calls += 1
        self._fault = fault
        if usage is not None:
            before = self._usage or Usage()
            self._usage = Usage(
                input_tokens=before.input_tokens + usage.input_tokens,
                output_tokens=before.output_tokens + usage.output_tokens,
                cached_tokens=before.cached_tokens + usage.cached_tokens,
                measured=before.measured and usage.measured,
            )

    def paused(self, why: str, n: int) -> int:
        """Count a call that the proxy answered itself; returns how many there were in this turn before."""
        self._paused = why
        self.paused_in = {n: self.paused_in.get(n, -1) + 1}
        return self.paused_in[n]

    def cut(self) -> None:
        """Break off what is under way."""
        for scope in list(self.scopes):
            scope.cancel()
