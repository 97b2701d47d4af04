"""JSON-RPC 2.0 over lines, as agents really speak it. Bytes in, messages out; no I/O of its own.

Agents print banners on stdout, answer requests that were never made, ask for what was not offered.
Nothing of that stops a session: it is counted and named. Only a line without an end does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import msgspec

LINE_BYTES = 8 * 1024 * 1024
"""A longer line ends the agent: it would never stop, and nothing it can say needs as much."""
INBOX = 2_000
"""Messages that wait; then nothing is read until half of them are gone."""
STRANGE_KEPT = 3
UNKNOWN_METHOD = -32601

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()


class RpcError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, method: str, error: Any) -> None:
        fields = error if isinstance(error, dict) else {}
        self.code = fields.get("code") if isinstance(fields.get("code"), int) else 0
        data = fields.get("data")
        text = str(fields.get("message") or error)
        if data not in (None, "", {}):
            text += f": {data if isinstance(data, str) else _encode(data).decode()}"
        super().__init__(text[:2_000])
        self.method = method


class AgentGone(Exception):
    """The agent ended, or was ended, and why. `cause` is a short word."""

    def __init__(self, cause: str, said: str) -> None:
        super().__init__(said)
        self.cause = cause


class Update(msgspec.Struct, frozen=True):
    """A `session/update`."""

    session: str
    body: dict[str, Any]


class Asked(msgspec.Struct, frozen=True):
    """A request of the agent that waits for an answer."""

    id: Any
    method: str
    params: dict[str, Any]


class Answered(msgspec.Struct, frozen=True):
    """The answer to a request that was made with `begin`."""

    id: int
    result: Any = None
    error: RpcError | None = None


class Ended(msgspec.Struct, frozen=True):
    """No more messages come."""

    error: AgentGone


Message = Update | Asked | Answered | Ended


class Connection:
    """One connection with an agent.

    Attributes:
        listening: somebody takes messages; else updates are dropped, from the record too, and counted.
            Nobody does before the first prompt: `session/load` tells the whole story again.
        record: gets every line, `> ` sent or `< ` received; None for nobody.
        dropped: updates that nobody wanted.
        strange: how many lines were no message; `samples` are the first of them.
    """

    def __init__(
        self, write: Callable[[bytes], None], pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._write = write
        self._pause = pause
        self._resume = resume
        self._paused = False
        self._buffer = bytearray()
        self._searched = 0
        self._next_id = 1
        self._waiting: dict[int, tuple[str, asyncio.Future[Any] | None]] = {}
        self._inbox: deque[Message] = deque()
        self._arrived = anyio.Event()
        self._gone: AgentGone | None = None
        self.listening = False
        self.record: Callable[[bytes], None] | None = None
        self.dropped = 0
        self.strange = 0
        self.samples: list[str] = []

    # -- out ----------------------------------------------------------------------------------

    async def request(self, method: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        """Ask and wait for the result.

        Raises:
            RpcError: the agent refused.
            AgentGone: it ended, or did not answer in time.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self._send(method, params, future)
        try:
            with anyio.fail_after(timeout_s):
                return await future
        except TimeoutError:
            raise AgentGone(
                "no_answer", f"no answer to {method} within {timeout_s:g} s{self.oddities()}"
            ) from None
        finally:
            self._waiting.pop(number, None)

    def begin(self, method: str, params: dict[str, Any]) -> int:
        """Ask; the answer comes as `Answered` in order with the updates before it. Returns its id.

        Raises:
            AgentGone: it has ended.
        """
        return self._send(method, params, None)

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Tell without an answer."""
        self._put({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, number: Any, result: Any) -> None:
        """Answer a request of the agent."""
        self._put({"jsonrpc": "2.0", "id": number, "result": result})

    def refuse(self, number: Any, code: int, message: str) -> None:
        """Answer a request of the agent with an error."""
        self._put({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})

    def _send(self, method: str, params: dict[str, Any], future: asyncio.Future[Any] | None) -> int:
        if self._gone is not None:
            raise self._gone
        number, self._next_id = self._next_id, self._next_id + 1
        self._waiting[number] = (method, future)
        self._put({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def _put(self, message: dict[str, Any]) -> None:
        if self._gone is not None:
            return
        line = _encode(message)
        if self.record is not None:
            self.record(b"> " + _encode(without_secrets(message)))
        self._write(line + b"\n")

    # -- in -----------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take bytes of the agent's stdout."""
        if self._gone is not None:
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            self._line(line)
        self._searched = len(self._buffer)
        if self._searched > LINE_BYTES:
            self.end(
                AgentGone(
                    "line_too_long",
                    f"the agent wrote a line of more than {self._searched} bytes; expected at most {LINE_BYTES}",
                )
            )

    def end(self, error: AgentGone) -> None:
        """No more messages: whoever waits is told why. The first reason stays."""
        if self._gone is not None:
            return
        self._gone = error
        self._buffer.clear()
        for _, future in self._waiting.values():
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # whoever waited may have gone away: then nobody is to be warned
        self._waiting.clear()
        self._enqueue(Ended(error))

    @property
    def gone(self) -> AgentGone | None:
        """Why no more messages come, or None while they do."""
        return self._gone

    def oddities(self) -> str:
        """What was met on stdout that was no message, for the end of a sentence."""
        if not self.strange:
            return ""
        return f"; {self.strange} lines on its stdout were no JSON-RPC, the first: {self.samples[0]!r}"

    async def take(self) -> Message:
        """The next message, in the order in which they came."""
        while not self._inbox:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        message = self._inbox.popleft()
        if self._paused and len(self._inbox) <= INBOX // 2:
            self._paused = False
            self._resume()
        return message

    def clear(self) -> None:
        """Forget what waits, but not that the agent has ended."""
        self._inbox.clear()
        if self._paused:
            self._paused = False
            self._resume()
        if self._gone is not None:
            self._enqueue(Ended(self._gone))

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        try:
            message = _decoder.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            message = None
        retold = (
            not self.listening and isinstance(message, dict) and message.get("method") == "session/update"
        )
        if self.record is not None and not retold:
            self.record(b"< " + line)
        if not isinstance(message, dict):
            self._oddity(line)
            return
        method, number = message.get("method"), message.get("id")
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if isinstance(method, str):
            if "id" in message and isinstance(number, str | int) and not isinstance(number, bool):
                self._asked(number, method, params)
            elif method == "session/update":
                self._update(params)
            # other notifications, and requests whose id cannot be answered, are only kept in the record
        elif "id" in message and ("result" in message or "error" in message):
            self._answered(line, message)
        else:
            self._oddity(line)

    def _asked(self, number: Any, method: str, params: dict[str, Any]) -> None:
        if method == "session/request_permission":
            if self.listening:
                self._enqueue(Asked(number, method, params))
            else:
                self.answer(number, {"outcome": {"outcome": "cancelled"}})
            return
        self.refuse(number, UNKNOWN_METHOD, f"this client has no method {method!r}")

    def _update(self, params: dict[str, Any]) -> None:
        body = params.get("update")
        if not self.listening or not isinstance(body, dict):
            self.dropped += 1
            return
        self._enqueue(Update(str(params.get("sessionId", "")), body))

    def _answered(self, line: bytes, message: dict[str, Any]) -> None:
        number = message["id"]
        if isinstance(number, str) and number.isdecimal() and len(number) < 10:
            number = int(number)  # some agents send ids back as text
        known = self._waiting.pop(number, None) if isinstance(number, int) else None
        if known is None or not isinstance(number, int):
            self._oddity(line)
            return
        method, future = known
        error = RpcError(method, message["error"]) if message.get("error") is not None else None
        if future is None:
            self._enqueue(Answered(number, message.get("result"), error))
        elif not future.done():
            if error is not None:
                future.set_exception(error)
                future.exception()
            else:
                future.set_result(message.get("result"))

    def _enqueue(self, message: Message) -> None:
        self._inbox.append(message)
        self._arrived.set()
        if len(self._inbox) >= INBOX and not self._paused:
            self._paused = True
            self._pause()

    def _oddity(self, line: bytes) -> None:
        self.strange += 1
        if len(self.samples) < STRANGE_KEPT:
            self.samples.append(line[:200].decode("utf-8", "replace"))


def without_secrets(message: dict[str, Any]) -> dict[str, Any]:
    """The message as it may stand in the record: without the values that MCP servers are given."""
    params = message.get("params")
    if not isinstance(params, dict) or not params.get("mcpServers"):
        return message
    servers = []
    for server in params["mcpServers"]:
        shown = dict(server)
        for key in ("env", "headers"):
            if shown.get(key):
                shown[key] = [{**entry, "value": "[redacted]"} for entry in shown[key]]
        servers.append(shown)
    return {**message, "params": {**params, "mcpServers": servers}}
