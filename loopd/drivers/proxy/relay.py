"""One call through the proxy: asked whether it may leave, sent on, passed back byte by byte, recorded.

read the body ─▶ admitted? ──no──▶ a stop in the model's name
                   │yes
                   ▼
              send on ─▶ each chunk: to the agent first, then to the tally ─▶ recorded
                   └──cannot be reached──▶ 502
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from loopd.drivers.model import Limits
from loopd.drivers.proxy import bodies
from loopd.drivers.proxy.bodies import Gone, Head, Receive, Send, TooLarge, answer, read_body
from loopd.drivers.proxy.door import Witness
from loopd.drivers.proxy.passage import OpenPassage
from loopd.drivers.proxy.stops import error_body, stop_body
from loopd.drivers.proxy.tally import Tally
from loopd.drivers.retry import Fault
from loopd.drivers.wires import WIRES
from loopd_protocol.errors import Refused
from loopd_protocol.events import ModelAsked, ModelCalled

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("loopd.drivers")

ASIDE_S = 30.0
PATIENT_S = 5.0
"""An agent that goes on asking after a stop waits longer each time, up to this."""
PATHS: dict[str, str] = {
    "/chat/completions": "chat-completions",
    "/messages": "messages",
    "/responses": "responses",
}
"""Path behind `/v1` → API."""

_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length", "expect"}
)  # fmt: skip
_KEYS = frozenset({"authorization", "x-api-key", "api-key", "x-goog-api-key"})
_NOT_UP = _HOP | _KEYS | {"cookie", "accept-encoding", "origin", "referer", "forwarded"}
_NOT_DOWN = frozenset(name.encode() for name in _HOP - {"content-length"} | {"set-cookie", "date", "server"})


class Arrival(NamedTuple):
    """A request whose body is not read yet."""

    method: str
    query: bytes
    headers: Head
    receive: Receive
    send: Send

    def url(self, passage: OpenPassage, path: str) -> str:
        """Where it goes."""
        query = "?" + self.query.decode("latin-1") if self.query else ""
        return passage.upstream.base_url.rstrip("/") + path + query


class _Asked(msgspec.Struct):
    """The part of a request that is looked at; the body goes on as it came."""

    model: str = ""
    stream: bool = False
    stream_options: dict[str, Any] | None = None


class Exchange:
    """What a call becomes, collected on its way.

    Args:
        n: turn in which it left.
        began: monotonic seconds.
    """

    def __init__(self, api: str, body: bytes, asked: _Asked, n: int) -> None:
        self.api, self.body, self.asked, self.n = api, body, asked, n
        self.request_sha256 = hashlib.sha256(body).hexdigest()
        self.began = time.monotonic()
        self.first_ms = 0
        self.status = 0
        self.outcome = "cut"
        self.fault: Fault | None = None
        self.tally: Tally | None = None

    def elapsed_ms(self) -> int:
        """Since the call was admitted."""
        return int((time.monotonic() - self.began) * 1_000)

    def passed(self) -> None:
        """The whole answer went to the agent; it may still have been an error."""
        assert self.tally is not None
        self.tally.finish()
        self.fault = self.tally.fault
        self.outcome = "ok" if self.fault is None else "error"

    def failed(self, error: Exception, limits: Limits) -> None:
        """The endpoint was not reached, or the answer broke off."""
        if isinstance(error, TimeoutError):
            silent = (
                f"silence for {limits.silence_s:g} s"
                if self.status
                else f"no answer within {limits.first_s:g} s"
            )
            self.fault = _unreachable(silent)
        else:
            self.fault = _unreachable(f"{type(error).__name__}: {error}")
        self.outcome = "error"

    def asks(self) -> ModelAsked:
        """The call as it is told before it leaves."""
        return ModelAsked(
            n=self.n,
            api=self.api,
            model=self.asked.model[:200],
            request_sha256=self.request_sha256,
            request_bytes=len(self.body),
        )

    def event(self, *, stored: bool) -> ModelCalled:
        """The call as it is recorded."""
        tally = self.tally
        return ModelCalled(
            n=self.n,
            api=self.api,
            model=self.asked.model[:200],
            outcome=self.outcome,
            cause="" if self.fault is None else self.fault.cause,
            status=self.status,
            request_sha256=self.request_sha256,
            request_bytes=len(self.body),
            response_sha256="" if tally is None else tally.sha256,
            response_bytes=0 if tally is None else tally.size,
            stored=stored,
            usage=None if tally is None else tally.usage(len(self.body)),
            first_ms=self.first_ms,
            duration_ms=self.elapsed_ms(),
        )


class Relay:
    """Carries calls of all sessions.

    Args:
        witness: the engine.
        limits: of one call.
        keep_bodies: record bodies, not only their digests.
    """

    def __init__(self, witness: Witness, limits: Limits, *, keep_bodies: bool = True) -> None:
        self._witness = witness
        self._limits = limits
        self._keep_bodies = keep_bodies

    async def call(self, passage: OpenPassage, api: str, arrival: Arrival) -> None:
        """Carry one call. What goes wrong is told to the agent in its protocol, and recorded."""
        try:
            body = await read_body(arrival.receive)
        except TooLarge:
            message = f"the request has more than {bodies.BODY_BYTES} bytes"
            await answer(arrival.send, 413, error_body(api, "request_too_large", message))
            return
        asked = _asked(body)
        exchange: Exchange | None = None
        passage.begun()
        scope = anyio.CancelScope()
        passage.scopes.add(scope)
        try:
            with scope:
                try:
                    n = await self._witness.admit(passage.sid, len(body), scope.cancel)
                except Refused as refusal:
                    await self._stop(passage, api, asked, refusal, arrival.send)
                    return
                exchange = Exchange(api, body, asked, n)
                self._witness.leaving(passage.sid, exchange.asks())
                try:
                    await self._watched(passage, exchange, arrival)
                finally:
                    self._witness.over(passage.sid, scope.cancel)
                    with anyio.CancelScope(shield=True):
                        await self._record(passage, exchange)
            if scope.cancelled_caught and exchange is not None and not exchange.status:
                over = Refused("gate_closed", "The turn in which this was asked is over.")
                await self._stop(passage, api, asked, over, arrival.send)
            elif scope.cancelled_caught:
                raise Gone
        finally:
            passage.scopes.discard(scope)
            passage.over()

    async def aside(self, passage: OpenPassage, path: str, arrival: Arrival) -> None:
        """Pass on a question that is no model call and costs nothing; it is not recorded."""
        import httpx  # noqa: PLC0415

        try:
            body = await read_body(arrival.receive)
            url = arrival.url(passage, path)
            up = _upward(arrival.headers, passage.upstream.apis[0], passage.real_key)
            with anyio.fail_after(ASIDE_S):
                response = await passage.client.request(arrival.method, url, content=body, headers=up)
        except TooLarge:
            message = f"the request has more than {bodies.BODY_BYTES} bytes"
            await answer(arrival.send, 413, error_body("", "request_too_large", message))
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            message = f"the model endpoint did not answer: {type(error).__name__}"
            await answer(arrival.send, 502, error_body("", "unreachable", message))
        else:
            media = response.headers.get("content-type", "application/json")
            await answer(arrival.send, response.status_code, response.content, media=media)

    # -- stopping ------------------------------------------------------------------------------

    async def _stop(
        self, passage: OpenPassage, api: str, asked: _Asked, refusal: Refused, send: Send
    ) -> None:
        n = self._witness.turn_of(passage.sid)
        before = passage.paused(refusal.code, n)
        if before:
            await anyio.sleep(min(PATIENT_S, 0.1 * 2 ** min(before, 10)))
        counted = bool((asked.stream_options or {}).get("include_usage"))
        said = f"[loopd] {refusal.message} This turn ends here."
        body = stop_body(api, asked.model, said, stream=asked.stream, counted=counted)
        media = "text/event-stream" if asked.stream else "application/json"
        await answer(send, 200, body, media=media)
        if before & (before + 1):  # the first, the second, the fourth, … of a turn is recorded
            return
        event = ModelCalled(
            n=n,
            api=api,
            model=asked.model[:200],
            outcome="paused",
            cause=refusal.code,
            status=200,
            response_sha256=hashlib.sha256(body).hexdigest(),
            response_bytes=len(body),
            repeats=before,
        )
        await self._write(passage.sid, event, None, None)

    # -- sending on ----------------------------------------------------------------------------

    async def _watched(self, passage: OpenPassage, exchange: Exchange, arrival: Arrival) -> None:
        """Send on, and break off when the agent hangs up."""
        broken = False
        async with anyio.create_task_group() as tasks:

            async def hang_up() -> None:
                while (await arrival.receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(hang_up)
            try:
                await self._send_on(passage, exchange, arrival)
            except Broken:
                broken = True
            tasks.cancel_scope.cancel()
        if broken:
            raise Broken

    async def _send_on(self, passage: OpenPassage, exchange: Exchange, arrival: Arrival) -> None:
        import httpx  # noqa: PLC0415

        url = arrival.url(passage, WIRES[exchange.api].path)
        try:
            with anyio.fail_after(self._limits.first_s):
                response = await _sent(passage, exchange, url, arrival.headers)
            try:
                await self._pass_back(exchange, response, arrival.send)
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            exchange.failed(error, self._limits)
            if exchange.status:  # the answer had begun: the connection breaks, as that of the endpoint did
                raise Broken from error
            exchange.status = 502
            assert exchange.fault is not None
            message = f"the model endpoint did not answer: {exchange.fault.message}"
            await answer(arrival.send, 502, error_body(exchange.api, "unreachable", message))
        else:
            exchange.passed()

    async def _pass_back(self, exchange: Exchange, response: httpx.Response, send: Send) -> None:
        told = {name.lower(): value for name, value in response.headers.items()}
        exchange.tally = tally = Tally(exchange.api, response.status_code, told, bodies.BODY_BYTES)
        exchange.status = response.status_code
        down = [(name, value) for name, value in response.headers.raw if name.lower() not in _NOT_DOWN]
        await send({"type": "http.response.start", "status": response.status_code, "headers": down})
        chunks = response.aiter_raw()
        while True:
            with anyio.fail_after(self._limits.silence_s):
                chunk = await anext(chunks, None)
            if chunk is None:
                break
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if not tally.size:
                exchange.first_ms = exchange.elapsed_ms()
            tally.feed(chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _record(self, passage: OpenPassage, exchange: Exchange) -> None:
        tally = exchange.tally
        if exchange.outcome == "cut" and tally is not None and tally.complete:
            exchange.passed()  # the agent hung up behind the last event; it had everything
        passage.ended(None if tally is None else tally.usage(len(exchange.body)), exchange.fault)
        response = b"" if tally is None else tally.body
        stored = self._keep_bodies and response is not None
        await self._write(
            passage.sid,
            exchange.event(stored=stored),
            exchange.body if stored else None,
            response if stored else None,
        )

    async def _write(
        self, sid: str, event: ModelCalled, request: bytes | None, response: bytes | None
    ) -> None:
        try:
            await self._witness.called(sid, event, request=request, response=response)
        except Refused as refusal:  # the journal is full or closing; the agent is told by its turn's end
            logger.error("model call not recorded", extra={"sid": sid, "code": refusal.code})


async def _sent(passage: OpenPassage, exchange: Exchange, url: str, headers: Head) -> httpx.Response:
    """Send the request; once more when the connection broke before anything came back.

    An endpoint may close a kept connection at the moment in which it is used again.
    """
    import httpx  # noqa: PLC0415

    up = _upward(headers, exchange.api, passage.real_key)
    try:
        request = passage.client.build_request("POST", url, content=exchange.body, headers=up)
        return await passage.client.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        request = passage.client.build_request("POST", url, content=exchange.body, headers=up)
        return await passage.client.send(request, stream=True)


class Broken(Exception):
    """The answer broke off; the agent's connection has to as well."""


def _asked(body: bytes) -> _Asked:
    try:
        return msgspec.json.decode(body, type=_Asked)
    except (msgspec.DecodeError, RecursionError):  # the endpoint will say what it thinks of it
        return _Asked()


def _upward(headers: Head, api: str, key: str | None) -> Mapping[str, str]:
    kept: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if name not in _NOT_UP and not name.startswith(("proxy-", "x-forwarded", "sec-")):
            value = raw_value.decode("latin-1")
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    # As it comes, so that it can be read along and its digest means something.
    kept["accept-encoding"] = "identity"
    return {**WIRES[api].headers(key), **kept}


def _unreachable(message: str) -> Fault:
    return Fault(cause="unreachable", message=message, retryable=True)
