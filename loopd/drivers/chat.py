"""The chat driver: takes a turn on any OpenAI-compatible `/chat/completions` endpoint.

A turn is a row of steps. Each step sends one request, streams its answer, runs the tools that it asks
for and hands the step to the host, whose directive says what comes next. The turn ends when the model
asks for no tool, when the host says stop, or when the endpoint has failed more often than is retried.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import msgspec

from loopd.core.conversation import StepDone, TurnEnd, TurnRequest
from loopd.drivers.fittings import Fittings
from loopd.drivers.host import TurnHost
from loopd.drivers.model import CallFailed, Limits, ask_model, open_client
from loopd.drivers.retry import Fault, RetryPolicy
from loopd.drivers.tools import Toolbox, denied
from loopd.drivers.wire import Answer, request_bytes
from loopd_protocol.commands import ChatSpec
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

if TYPE_CHECKING:
    import httpx

WITHHELD = "denied: no tools were offered in this step"
TURN_ENDED = "denied: not run, the turn had ended"
CUT = "denied: the answer was cut before the call was complete"


class ChatDriver:
    """Drives one session on a chat-completions endpoint.

    Nothing is open between turns: each turn has its own connection.

    Args:
        sid: session.
        spec: endpoint, model and parameters.
        workspace: absolute path for files and shell; None offers neither.
        retry: when a failed call is tried again.
        limits: time and size of one call.
        jitter: random numbers in [0, 1).
        fittings: what the daemon lends; None where there is none.

    Raises:
        Refused: `invalid` when the variable named by `api_key_env` is not set, or `base_url` is no address.
    """

    def __init__(
        self,
        sid: str,
        spec: ChatSpec,
        workspace: str | None,
        *,
        retry: RetryPolicy | None = None,
        limits: Limits | None = None,
        jitter: Callable[[], float] = random.random,
        fittings: Fittings | None = None,
    ) -> None:
        self._spec = spec
        self._fittings = fittings or Fittings()
        settings = self._fittings.chat.with_limits(spec.limits)
        self._retry = retry or settings.retry
        self._limits = limits or settings.limits
        self._jitter = jitter
        self._url = completions_url(spec.base_url)
        self._toolbox = Toolbox(sid, workspace)
        _api_key(spec)

    def render(self, request: TurnRequest) -> bytes:
        """The exact body of the turn's first request."""
        return self._body(request.messages, withheld=request.tools_withheld)

    async def aclose(self) -> None:
        """Nothing is held open between turns."""

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Take a turn; every fault of the endpoint becomes a `TurnEnd` with outcome `model_error`."""
        try:
            key = _api_key(self._spec)
        except Refused as error:
            return TurnEnd(outcome="model_error", cause="auth", error=error.message)
        async with open_client(self._spec.base_url, key, self._limits) as client:
            try:
                return await self._steps(client, request, host)
            except CallFailed as error:
                return _failed(error.fault, key)

    async def _steps(self, client: httpx.AsyncClient, request: TurnRequest, host: TurnHost) -> TurnEnd:
        messages = request.messages
        withheld = request.tools_withheld
        while True:
            body = self._body(messages, withheld=withheld)
            answer = await self._ask(client, body, host)
            asked = answer.calls()
            usage = answer.usage(len(body))
            text = answer.text
            silent = not text.strip() and not asked
            if silent and not usage.output_tokens:
                return TurnEnd(
                    outcome="model_error",
                    cause="bad_response",
                    error="the endpoint answered without text, tool call and output tokens",
                )
            calls, ends = await self._run(asked, host, withheld=withheld, cut=answer.finish == "cut")
            directive = await host.step(
                StepDone(
                    text=text,
                    calls=calls,
                    usage=usage,
                    finish=answer.finish or "stop",
                    tools_withheld=withheld,
                    state_fingerprint=await self._toolbox.fingerprint(),
                    request_sha256=hashlib.sha256(body).hexdigest(),
                )
            )
            if directive.stop:
                return TurnEnd(outcome="stopped_by_rule")
            if ends:
                return TurnEnd(outcome="idle")
            if not calls:
                return TurnEnd(outcome="empty" if silent else "completed")
            messages += directive.messages
            withheld = directive.tools_withheld

    def _body(self, messages: tuple[Any, ...], *, withheld: bool) -> bytes:
        offered = () if withheld or not self._spec.tools else self._toolbox.schemas
        return request_bytes(self._spec, messages, offered)

    async def _ask(self, client: httpx.AsyncClient, body: bytes, host: TurnHost) -> Answer:
        attempt = 1
        chanted = False

        def show(text: str) -> None:
            if not host.delta(text):
                raise CallFailed(
                    Fault(
                        cause="chanting",
                        message="the answer says the same over and over",
                        retryable=not chanted,
                    )
                )

        while True:
            try:
                return await ask_model(client, self._url, body, show, self._limits)
            except CallFailed as error:
                delay_ms = self._retry.delay_ms(error.fault, attempt, self._jitter())
                chanted = chanted or error.fault.cause == "chanting"
                if delay_ms is None:
                    raise
                await host.retrying(attempt=attempt, cause=error.fault.cause, delay_ms=delay_ms)
            await anyio.sleep(delay_ms / 1_000)
            attempt += 1

    async def _run(
        self, asked: tuple[ToolCall, ...], host: TurnHost, *, withheld: bool, cut: bool
    ) -> tuple[tuple[ToolCall, ...], bool]:
        calls: list[ToolCall] = []
        ends = False
        for call in asked:
            if withheld or not self._spec.tools:
                calls.append(denied(call, WITHHELD))
            elif cut:
                calls.append(denied(call, CUT))
            elif ends:
                calls.append(denied(call, TURN_ENDED))
            else:
                done, ends = await self._toolbox.run(call, host)
                calls.append(done)
        return tuple(calls), ends


def completions_url(base_url: str) -> str:
    """Where the requests go: `base_url` with `/chat/completions` behind its path.

    Raises:
        Refused: `invalid` when it has no host, a bad port or credentials in it.
    """
    try:
        parts = urlsplit(base_url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise Refused("invalid", f"base_url {base_url!r}: {error}", path="$.driver.base_url") from error
    if "@" in parts.netloc:
        raise Refused(
            "invalid", "base_url holds credentials; expected them in the variable that api_key_env names"
        )
    if not named or parts.scheme not in {"http", "https"}:
        raise Refused(
            "invalid",
            f"base_url {base_url!r}; expected something like 'http://127.0.0.1:8080/v1'",
            path="$.driver.base_url",
        )
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/chat/completions", fragment=""))


def _api_key(spec: ChatSpec) -> str | None:
    if not spec.api_key_env:
        return None
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise Refused(
            "invalid",
            f"environment variable {spec.api_key_env!r} is not set in the daemon; expected the API key",
            path="$.driver.api_key_env",
        )
    return key


def _failed(fault: Fault, key: str | None) -> TurnEnd:
    message = fault.message.replace(key, "***") if key else fault.message
    end = TurnEnd(outcome="model_error", cause=fault.cause, error=message)
    return msgspec.structs.replace(end, retry_after_ms=fault.retry_after_ms)
