"""Sends events to sinks: one task for each, one cursor for each, nobody waits for anybody.

A sink gets its events one after the other. While it takes none, its cursor stands still; the log is its queue, so
nothing is lost while the log keeps it, and nothing grows. What it refuses for good goes to the dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.abc

from loopd.core.webhook import Webhook, delay_ms, given_up
from loopd.core.writes import StoredEvent
from loopd.webhooks import formats, signature
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("loopd.webhooks")

CHUNK_EVENTS = 256
SAVE_EVERY = 1_000
"""A cursor that moves over events that are not wanted is stored each so many of them."""
ANSWER_CHARS = 200
_LATER = frozenset({408, 425, 429})


class Chunk(Protocol):
    """Consecutive events of the log."""

    @property
    def events(self) -> Sequence[StoredEvent]:
        """In order of `seq`."""

    @property
    def cursor(self) -> int:
        """Where to read on."""

    @property
    def gap(self) -> tuple[int, int] | None:
        """What is not stored any more."""


class Bus(Protocol):
    """The log, read by cursor."""

    @property
    def log_id(self) -> str:
        """Identity of the log."""

    async def read(self, after: int, *, limit: int = 512) -> Chunk:
        """What follows the cursor, at once."""

    async def wait(self, after: int) -> object:
        """Return when the head is beyond `after`."""


class Hooks(Protocol):
    """The webhooks, and where it is written down how far they are."""

    def names(self) -> frozenset[str]:
        """All webhooks."""

    def get(self, name: str) -> Webhook | None:
        """A webhook as it stands, None when it is gone."""

    def reaches(self, hook: Webhook, sid: str | None) -> bool:
        """Whether events of this session go there at all."""

    def session_name(self, sid: str) -> str | None:
        """Name of a session."""

    async def changed(self, known: frozenset[str]) -> None:
        """Return when there are other webhooks than these."""

    async def hurry(self, name: str) -> None:
        """Return when somebody wants this one tried now."""

    async def passed(self, name: str, seq: int, *, rewinds: int) -> None:
        """Everything up to `seq` was delivered or is not wanted."""

    async def delivered(self, name: str, seq: int, now: int, *, rewinds: int) -> None:
        """The sink took event `seq`. `rewinds`: of the webhook, when the event was chosen."""

    async def failed(self, name: str, seq: int, error: str, now: int, next_ms: int) -> None:
        """It did not; it is tried again at `next_ms`."""

    async def dead(self, name: str, seq: int, error: str, now: int, *, rewinds: int) -> None:
        """It refused event `seq` for good."""

    async def missed(self, name: str, first: int, last: int, *, rewinds: int) -> None:
        """Events `first` to `last` were deleted before they came to it."""


class Sink(Protocol):
    """Takes requests: httpx, or a test's own."""

    async def post(
        self, url: str, *, content: bytes, headers: dict[str, str], timeout: float
    ) -> httpx.Response:
        """Send one request."""


Observe = Callable[[str, str], None]
"""(kind of event, `taken` or `failed`) of each try: for metrics. Never fails, never waits."""
OpenSink = Callable[[], AbstractAsyncContextManager[Any]]
Sleep = Callable[[float], Awaitable[None]]


def open_sink() -> AbstractAsyncContextManager[Any]:
    """A client that follows no redirects, uses no proxy and keeps no cookies."""
    import httpx  # noqa: PLC0415  (a daemon without webhooks never loads it)

    return httpx.AsyncClient(follow_redirects=False, trust_env=False, headers={"user-agent": "loopd"})


class Deliveries:
    """Runs one task for each webhook.

    Args:
        now_ms: wall clock.
        sink: opens what requests go through.
        sleep: waits; tests in virtual time have their own.
        observe: told of each try.
    """

    def __init__(
        self,
        bus: Bus,
        hooks: Hooks,
        *,
        now_ms: Callable[[], int],
        sink: OpenSink = open_sink,
        sleep: Sleep = anyio.sleep,
        observe: Observe = lambda _kind, _result: None,
    ) -> None:
        self._bus = bus
        self._hooks = hooks
        self._now = now_ms
        self._sink = sink
        self._sleep = sleep
        self._observe = observe
        self._running: dict[str, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                names = self._hooks.names()
                for name in names - set(self._running):
                    scope = self._running[name] = anyio.CancelScope()
                    group.start_soon(self._serve, name, scope)
                for name in set(self._running) - names:
                    self._running.pop(name).cancel()
                await self._hooks.changed(names)

    async def _serve(self, name: str, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                try:
                    async with self._sink() as sink:
                        return await self._follow(name, sink)
                except Refused as refused:  # the journal takes nothing now: the cursor could not be stored
                    log.warning(
                        "webhook waits for the journal", extra={"webhook": name, "code": refused.code}
                    )
                except Exception:  # a wall: one webhook's defect must not end the others
                    log.exception("webhook failed", extra={"webhook": name})
                await self._sleep(5.0)

    async def _follow(self, name: str, sink: Sink) -> None:
        hook = self._hooks.get(name)
        if hook is None:
            return
        cursor = saved = hook.cursor
        rewinds = hook.rewinds
        while True:
            hook = self._hooks.get(name)
            if hook is None:
                return
            if hook.rewinds != rewinds:
                cursor = saved = hook.cursor
                rewinds = hook.rewinds
            await self._news(name, cursor)
            chunk = await self._bus.read(cursor, limit=CHUNK_EVENTS)
            if chunk.gap is not None and chunk.gap[0] > cursor:
                first, last = chunk.gap
                log.warning(
                    "webhook missed what retention deleted", extra={"webhook": name, "gap": chunk.gap}
                )
                await self._hooks.missed(name, first, last, rewinds=rewinds)
                cursor = saved = last
            for event in chunk.events:
                hook = self._hooks.get(name)
                if hook is None:
                    return
                if hook.rewinds != rewinds:
                    break
                if hook.wants(event.kind) and self._hooks.reaches(hook, event.sid):
                    await self._deliver(name, event, sink, rewinds)
                    saved = event.seq
                cursor = event.seq
            else:
                cursor = max(cursor, chunk.cursor)
            if cursor - saved >= SAVE_EVERY:
                await self._hooks.passed(name, cursor, rewinds=rewinds)
                saved = cursor

    async def _news(self, name: str, cursor: int) -> None:
        """Wait until the log has more, or somebody wants this one looked at."""
        async with anyio.create_task_group() as group:

            async def hurried() -> None:
                await self._hooks.hurry(name)
                group.cancel_scope.cancel()

            group.start_soon(hurried)
            await self._bus.wait(cursor)
            group.cancel_scope.cancel()

    async def _deliver(self, name: str, event: StoredEvent, sink: Sink, rewinds: int) -> None:
        """Send one event until it is taken, or refused for good, or the webhook was set back behind it."""
        while (hook := self._hooks.get(name)) is not None and hook.rewinds == rewinds:
            now = self._now()
            if hook.next_ms is not None and hook.next_ms > now:
                await self._wait(name, (hook.next_ms - now) / 1_000)
                continue
            error, refused, asked_ms = await self._try(hook, event, sink)
            self._observe(event.kind, "taken" if error is None else "failed")
            now = self._now()
            if error is None:
                await self._hooks.delivered(name, event.seq, now, rewinds=rewinds)
                return
            tries = hook.tries + 1
            await self._hooks.failed(name, event.seq, error, now, now + delay_ms(tries, asked_ms=asked_ms))
            hook = self._hooks.get(name)
            if hook is not None and given_up(hook, now, refused=refused):
                await self._hooks.dead(name, event.seq, error, now, rewinds=rewinds)
                return

    async def _wait(self, name: str, seconds: float) -> None:
        """Wait, or less if somebody wants it tried now."""
        async with anyio.create_task_group() as group:

            async def hurried() -> None:
                await self._hooks.hurry(name)
                group.cancel_scope.cancel()

            group.start_soon(hurried)
            await self._sleep(seconds)
            group.cancel_scope.cancel()

    async def _try(
        self, hook: Webhook, event: StoredEvent, sink: Sink
    ) -> tuple[str | None, bool, int | None]:
        """One request: the error or None, whether the sink itself refused, and when it wants to be asked again."""
        whose = None if event.sid is None else self._hooks.session_name(event.sid)
        body, headers = formats.request(hook, event, self._bus.log_id, whose)
        signed = signature.headers(hook.secret, f"{self._bus.log_id}:{event.seq}", self._now() // 1_000, body)
        limit_s = hook.timeout_ms / 1_000
        try:
            # Also as a whole: a sink that sends a byte now and then would never time out.
            with anyio.fail_after(limit_s):
                answer = await sink.post(
                    hook.url, content=body, headers={**headers, **signed}, timeout=limit_s
                )
        except TimeoutError:
            return f"no answer within {limit_s:g} s", False, None
        except Exception as error:  # noqa: BLE001  (whatever a network does is one kind of failure here)
            return f"{type(error).__name__}: {error}"[:ANSWER_CHARS], False, None
        status = int(answer.status_code)
        if 200 <= status < 300:
            return None, False, None
        return f"status {status}", 400 <= status < 500 and status not in _LATER, _asked(answer)


def _asked(answer: httpx.Response) -> int | None:
    given = answer.headers.get("retry-after", "")
    return int(given) * 1_000 if given.isascii() and given.isdigit() and len(given) < 8 else None
