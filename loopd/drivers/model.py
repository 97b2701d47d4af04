"""One model call over HTTP: send the exact bytes, read the stream, sort every fault.

httpx is imported on the first call, not with the daemon.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import msgspec

from loopd.drivers.retry import Fault, fault_of_error, fault_of_status
from loopd.drivers.sse import EventParser, EventTooLarge
from loopd.drivers.wires.answer import Answer, BadChunk, ErrorChunk

if TYPE_CHECKING:
    import httpx

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ERROR_BODY_BYTES = 4_096
REST_S, REST_EVENTS = 0.5, 16
"""How long, and for how many events, an answer is read on behind its last one."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one model call.

    Attributes:
        connect_s: for the connection with TLS.
        first_s: longest wait for the first byte of an answer; a local model may read a long prompt
            for minutes.
        silence_s: longest time without a byte inside the answer.
        answer_chars: an answer is cut here (text, thoughts and arguments together) and ends with
            finish `cut`; a stream without end costs no more than that.
    """

    connect_s: float = 10.0
    first_s: float = 600.0
    silence_s: float = 120.0
    answer_chars: int = 512 * 1024


class CallFailed(Exception):
    """A model call failed; `fault` says how."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@cache
def _tls(*, verify: bool) -> ssl.SSLContext:
    import httpx  # noqa: PLC0415

    # One for all sessions: it costs milliseconds and megabytes to load the authorities. Without TLS a client
    # makes one all the same, for nothing.
    return httpx.create_ssl_context(verify=verify)


def open_client(base_url: str, more_headers: Mapping[str, str], limits: Limits) -> httpx.AsyncClient:
    """A client for one turn."""
    headers = {"accept": "text/event-stream", "content-type": "application/json", "user-agent": "loopd"}
    return client_for(base_url, {**headers, **more_headers}, limits, connections=1)


def client_for(
    base_url: str, headers: Mapping[str, str], limits: Limits, *, connections: int
) -> httpx.AsyncClient:
    """A client towards one endpoint. Proxies from the environment are used, but never towards loopback."""
    import httpx  # noqa: PLC0415

    parts = urlsplit(base_url)
    return httpx.AsyncClient(
        headers=dict(headers),
        timeout=httpx.Timeout(limits.first_s, connect=limits.connect_s),
        trust_env=parts.hostname not in _LOOPBACK,
        verify=_tls(verify=parts.scheme == "https"),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    )


async def ask_model(
    client: httpx.AsyncClient,
    url: str,
    body: bytes,
    answer: Answer,
    *,
    show: Callable[[str], None],
    limits: Limits,
) -> Answer:
    """Send `body` and collect the streamed answer in `answer`; `show` gets the visible text as it comes.

    Raises:
        CallFailed: with the fault. What was shown before stays shown.
    """
    import httpx  # noqa: PLC0415

    try:
        async with client.stream("POST", url, content=body) as response:
            if response.status_code != 200:
                raise CallFailed(await _refusal(response))
            return await _read(response, answer, show, limits)
    except httpx.ConnectTimeout as error:
        raise CallFailed(_unreachable(f"no connection within {limits.connect_s:g} s")) from error
    except httpx.TimeoutException as error:
        raise CallFailed(_unreachable(f"no answer within {limits.first_s:g} s")) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
        raise CallFailed(Fault(cause="rejected", message=f"{url!r}: {error}")) from error
    except (httpx.LocalProtocolError, httpx.DecodingError, UnicodeError) as error:
        raise CallFailed(Fault(cause="bad_response", message=_named(error))) from error
    except httpx.HTTPError as error:
        raise CallFailed(_unreachable(_named(error))) from error


async def _read(
    response: httpx.Response, answer: Answer, show: Callable[[str], None], limits: Limits
) -> Answer:
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        events = _events(response, limits, plain=media == "application/json")
        async for data in events:
            fresh = answer.take(data)
            if fresh:
                show(fresh)
            if answer.done:
                await _rest(events)
                return answer
            if answer.size > limits.answer_chars:
                answer.finish = "cut"
                return answer
    except BadChunk as error:
        raise CallFailed(Fault(cause="bad_response", message=str(error), retryable=True)) from error
    except EventTooLarge as error:
        raise CallFailed(Fault(cause="bad_response", message=str(error))) from error
    except ErrorChunk as error:
        raise CallFailed(fault_of_error(error.error)) from error
    if answer.finish is None and media == "application/json":
        answer.finish = "stop"
    if answer.finish is None:
        raise CallFailed(_unreachable("the stream ended in the middle of an answer"))
    return answer


async def _rest(events: AsyncIterator[str]) -> None:
    """Read to the end, which is near, so that the connection can be used again; whatever comes is nothing."""
    import httpx  # noqa: PLC0415

    with anyio.move_on_after(REST_S), contextlib.suppress(CallFailed, EventTooLarge, httpx.HTTPError):
        for _ in range(REST_EVENTS):
            if await anext(events, None) is None:
                return


async def _events(response: httpx.Response, limits: Limits, *, plain: bool) -> AsyncIterator[str]:
    if plain:  # the endpoint does not stream; its whole answer counts as one chunk
        body = bytearray()
        async for chunk in _chunks(response, limits):
            body += chunk
            if len(body) > 8 * limits.answer_chars + 65_536:
                raise EventTooLarge(f"an answer of more than {len(body)} bytes; expected a smaller one")
        yield body.decode("utf-8", "replace")
        return
    parser = EventParser()
    async for chunk in _chunks(response, limits):
        for event in parser.feed(chunk):
            yield event.data


async def _chunks(response: httpx.Response, limits: Limits) -> AsyncIterator[bytes]:
    stream = response.aiter_bytes()
    patience_s = limits.first_s
    while True:
        try:
            with anyio.fail_after(patience_s):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise CallFailed(_unreachable(f"silence for {patience_s:g} s")) from error
        if chunk is None:
            return
        yield chunk
        patience_s = limits.silence_s


async def _refusal(response: httpx.Response) -> Fault:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) >= _ERROR_BODY_BYTES:
            break
    text = bytes(body[:_ERROR_BODY_BYTES]).decode("utf-8", "replace")
    return fault_of_status(response.status_code, response.headers, text)


def _unreachable(message: str) -> Fault:
    return Fault(cause="unreachable", message=message, retryable=True)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
