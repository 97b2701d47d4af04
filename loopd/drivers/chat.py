"""The chat driver: takes a turn on a model endpoint, by chat-completions, messages or responses.

A turn is a row of steps. Each step sends one request, streams its answer, runs the tools that it asks
for and hands the step to the host, whose directive says what comes next. The turn ends when the model
asks for no tool, when the host says stop, or when the endpoint has failed more often than is retried.
When the conversation outgrows the model's window it is compacted; see `loopd.drivers.window`.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from loopd.core.conversation import Message, StepDone, TurnEnd, TurnRequest
from loopd.drivers.asking import Asker
from loopd.drivers.batch import run_calls
from loopd.drivers.error_prose import ErrorProse
from loopd.drivers.fittings import Fittings
from loopd.drivers.host import TurnHost
from loopd.drivers.mcp_tools import McpTools
from loopd.drivers.model import CallFailed, Limits, open_client
from loopd.drivers.proxy.door import Passage, Upstream
from loopd.drivers.retry import Fault, RetryPolicy
from loopd.drivers.tools import Toolbox, denied
from loopd.drivers.window import OVERFLOW_PERCENT, Window, plan_for
from loopd.drivers.wires import WIRES, endpoint_url
from loopd.drivers.wires.answer import Answer
from loopd_protocol.commands import ChatSpec
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

WITHHELD = "denied: no tools were offered in this step"
CUT = "denied: the answer was cut before the call was complete"


class ChatDriver:
    """Drives one session on a model endpoint.

    Between turns nothing is open but the session's MCP servers, if it has any.

    Args:
        sid: session.
        spec: endpoint, model and parameters.
        workspace: absolute path for files and shell; None offers neither.
        retry, limits: instead of those of `fittings` and `spec`.
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
        self._sid = sid
        self._spec = spec
        self._fittings = fittings or Fittings()
        settings = self._fittings.chat.with_limits(spec.limits)
        self._settings = msgspec.structs.replace(
            settings, retry=retry or settings.retry, limits=limits or settings.limits
        )
        self._jitter = jitter
        self._wire = WIRES[spec.api]
        self._url = endpoint_url(spec.base_url, self._wire.path)
        self._prose = ErrorProse(settings.error_prose)
        self._window = Window(spec, settings.compact_percent)
        run_as = self._fittings.run_as
        mark = self._fittings.boot_mark
        self._mcp = McpTools(sid, spec.mcp_servers, workspace, self._fittings.tasks, run_as, mark)
        self._toolbox = Toolbox(
            sid, workspace, settings=settings, mcp=self._mcp, run_as=run_as, boot_mark=mark
        )
        self._passage: Passage | None = None
        _api_key(spec)

    def render(self, request: TurnRequest) -> bytes:
        """The exact body of the turn's first request, as far as its context is not compacted first."""
        tools = self._offered() if request.tools is None else request.tools
        return self._body(request.messages, b"" if request.tools_withheld else tools)

    async def aclose(self) -> None:
        """End the session's MCP servers and give the way through the proxy back."""
        await self._mcp.aclose()
        if self._passage is not None and self._fittings.proxy is not None:
            self._passage = None
            await self._fittings.proxy.close(self._sid)

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Take a turn; every fault of the endpoint becomes a `TurnEnd` with outcome `model_error`."""
        key: str | None = None
        try:
            key = _api_key(self._spec)
            base_url, url, key = await self._way(key)
        except Refused as error:
            return TurnEnd(outcome="model_error", cause="auth", error=error.message)
        await self._mcp.ready()
        async with open_client(base_url, self._wire.headers(key), self._settings.limits) as client:
            asker = Asker(client, url, self._wire, self._settings, self._prose, host, self._jitter)
            try:
                return await self._steps(asker, request, host)
            except CallFailed as error:
                return _failed(error.fault, key)

    async def _way(self, key: str | None) -> tuple[str, str, str | None]:
        """Address and key for the requests: the endpoint's own, or the proxy's."""
        spec, door = self._spec, self._fittings.proxy
        if not spec.proxy:
            return spec.base_url, self._url, key
        if door is None:
            raise Refused("invalid", "proxy: true, but there is no model proxy here; expected a daemon")
        if self._passage is None:
            upstream = Upstream(base_url=spec.base_url, api_key_env=spec.api_key_env, apis=(spec.api,))
            self._passage = await door.open(self._sid, upstream)
        base_url = self._passage.base_url
        return base_url, endpoint_url(base_url, self._wire.path), self._passage.key

    async def _steps(self, asker: Asker, request: TurnRequest, host: TurnHost) -> TurnEnd:
        messages = request.messages
        withheld = request.tools_withheld
        compacted = False
        while True:
            tools = b"" if withheld else self._offered()
            if not compacted and self._window.is_full(len(self._body(messages, tools))):
                await host.afford()
                smaller = await self._compact(messages, asker, host, "window", self._window.limit_bytes)
                compacted, messages = smaller is not None, smaller or messages
            body = self._body(messages, tools)
            await host.afford()
            try:
                answer = await asker.ask(body)
            except CallFailed as error:
                if error.fault.cause != "context_overflow" or compacted:
                    raise
                limit = min(self._window.limit_bytes, len(body) * OVERFLOW_PERCENT // 100)
                smaller = await self._compact(messages, asker, host, "overflow", limit)
                if smaller is None:
                    raise
                compacted, messages = True, smaller
                continue
            end, directive_messages, withheld = await self._step(
                answer, body, tools, host, withheld=withheld, compacted=compacted
            )
            if end is not None:
                return end
            messages += directive_messages
            compacted = False

    async def _step(
        self, answer: Answer, body: bytes, tools: bytes, host: TurnHost, *, withheld: bool, compacted: bool
    ) -> tuple[TurnEnd | None, tuple[Message, ...], bool]:
        """Carry out one answer: how the turn ends, if it does; else what comes next."""
        if self._passage is not None:
            await self._passage.settled()  # what was said is durable before anything is done about it
        asked, usage, text = answer.calls(), answer.usage(len(body)), answer.text
        self._window.measured(len(body), usage)
        silent = not text.strip() and not asked
        if silent and not usage.output_tokens:
            return self._said_nothing(), (), False
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
                compacted=compacted,
                tools=tools or None,
            )
        )
        if directive.stop:
            return TurnEnd(outcome="stopped_by_rule"), (), False
        if ends:
            return TurnEnd(outcome="idle"), (), False
        if not calls:
            return TurnEnd(outcome="empty" if silent else "completed"), (), False
        return None, directive.messages, directive.tools_withheld

    def _said_nothing(self) -> TurnEnd:
        paused = None if self._passage is None else self._passage.take().paused
        if paused is not None:  # the proxy answered itself: the turn may not go on
            return TurnEnd(outcome="completed")
        return TurnEnd(
            outcome="model_error",
            cause="bad_response",
            error="the endpoint answered without text, tool call and output tokens",
        )

    async def _compact(
        self, messages: tuple[Message, ...], asker: Asker, host: TurnHost, reason: str, limit_bytes: int
    ) -> tuple[Message, ...] | None:
        plan = await plan_for(
            messages,
            reason=reason,
            limit_bytes=limit_bytes,
            asker=asker,
            spec=self._spec,
            render=lambda spec, some: self._wire.request_bytes(spec, some, ()),
        )
        return None if plan is None else await host.compacted(plan, messages)

    def _offered(self) -> bytes:
        """The tool schemas as they are offered, JSON; nothing when none are."""
        if not self._spec.tools:
            return b""
        return msgspec.json.encode([self._wire.schema(tool) for tool in self._toolbox.schemas])

    def _body(self, messages: Sequence[Message], tools: bytes) -> bytes:
        offered = msgspec.json.decode(tools, type=list[msgspec.Raw]) if tools else ()
        return self._wire.request_bytes(self._spec, messages, offered)

    async def _run(
        self, asked: tuple[ToolCall, ...], host: TurnHost, *, withheld: bool, cut: bool
    ) -> tuple[tuple[ToolCall, ...], bool]:
        if withheld or not self._spec.tools or cut:
            why = CUT if cut and not withheld and self._spec.tools else WITHHELD
            return tuple(map(partial(denied, text=why), asked)), False
        return await run_calls(asked, self._toolbox, host, parallel=self._settings.tool_parallel)


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
