"""`loopd mcp`: loopd's own tools for a hosted agent, as an MCP server on stdin and stdout.

The agent starts it, so it is small and quick: JSON-RPC on lines and five tools with nothing but the
standard library (12 MB, 40 ms), where the official SDK takes 62 MB and 0.8 s for each of them. It knows nothing and
decides nothing: each call goes to `agent.sock` with the session's token. It ends when its input does, or
when its parent is gone.
"""

from __future__ import annotations

import json
import os
import select
import sys

from loopd.core.agent_schemas import AGENT_TOOLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.client import Client

    Message = dict[str, Any]

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first; a client that asks for another one is offered the newest."""
LOOK_S = 2.0
"""How often it is looked whether the parent still lives."""
LINE_BYTES = 1 << 20
CALL_S = 30.0
INSTRUCTIONS = (
    "loopd supervises this session. Use these tools to tell it what only you know: that you are waiting "
    "(request_idle, wake_me), that the goal is reached or cannot be (update_goal), and how far you are "
    "(report_phase, report_progress). Repeating that there is nothing to do is no substitute for them."
)
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602


class RpcError(Exception):
    """A JSON-RPC error to be answered."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class McpServer:
    """Answers one message after the other; `client` is made at the first call of a tool."""

    def __init__(self, socket: str, token: str) -> None:
        self._socket = socket
        self._token = token
        self._client: Client | None = None

    def answer(self, line: bytes) -> bytes | None:
        """The answer to a line, or None when there is none (notifications, answers of the client)."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return _failure(None, RpcError(PARSE_ERROR, "not JSON"))
        if not isinstance(message, dict):
            return _failure(None, RpcError(INVALID_REQUEST, "expected one JSON-RPC object on a line"))
        if "method" not in message or "id" not in message:
            return None
        given = message["id"]
        if isinstance(given, bool) or not isinstance(given, str | int):
            return _failure(None, RpcError(INVALID_REQUEST, "`id` must be a string or an integer"))
        try:
            params = message.get("params") or {}
            if not isinstance(params, dict):
                raise RpcError(INVALID_PARAMS, "`params` must be an object")
            result = self._result(message["method"], params)
        except RpcError as error:
            return _failure(given, error)
        return _line({"jsonrpc": "2.0", "id": given, "result": result})

    def _result(self, method: object, params: Message) -> Message:
        if method == "initialize":
            asked = params.get("protocolVersion")
            from loopd import __version__

            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "loopd", "title": "loopd", "version": __version__},
                "instructions": INSTRUCTIONS,
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [_described(tool) for tool in AGENT_TOOLS]}
        if method == "tools/call":
            return self._call(params.get("name"), params.get("arguments") or {})
        raise RpcError(NO_METHOD, f"no method {method!r}")

    def _call(self, name: object, arguments: object) -> Message:
        known = [tool["name"] for tool in AGENT_TOOLS]
        if name not in known:
            raise RpcError(INVALID_PARAMS, f"no tool {name!r}; expected one of {', '.join(known)}")
        if not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "`arguments` must be an object")
        ok, text = self._ask(str(name), arguments)
        return {"content": [{"type": "text", "text": text}], "isError": not ok}

    def _ask(self, name: str, arguments: Message) -> tuple[bool, str]:
        from loopd.client import CallFailed, Client

        for last in (False, True):
            if self._client is None:
                self._client = Client(self._socket, name="loopd-mcp", timeout_s=CALL_S, token=self._token)
            fresh = not self._client.welcome
            try:
                reply = self._client.call({"t": "agent.ask", "name": name, "args": arguments})
            except CallFailed as error:
                if error.code in {"unavailable", "draining", "timeout", "unauthenticated"}:
                    self._client.close()
                    self._client = None
                    if error.code == "unavailable" and not fresh and not last:
                        continue  # it hung up while we were idle; nothing was sent
                return False, f"loopd did not take this ({error.code}): {error.message}"
            return bool(reply.get("ok")), str(reply.get("text", ""))
        raise AssertionError("the second try answers")


def _described(tool: Message) -> Message:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": {**tool["schema"], "additionalProperties": False},
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    }


def _failure(given: str | int | None, error: RpcError) -> bytes:
    return _line({"jsonrpc": "2.0", "id": given, "error": {"code": error.code, "message": error.message}})


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def serve(server: McpServer, source: int, sink: int) -> int:
    """Answer lines of the file `source` on `sink` until it ends or the parent is gone; the exit code."""
    parent = os.getppid()
    held = b""
    while True:
        ready, _, _ = select.select([source], [], [], LOOK_S)
        if not ready:
            if os.getppid() != parent:
                return 0
            continue
        data = os.read(source, 65_536)
        if not data:
            return 0
        *lines, held = (held + data).split(b"\n")
        if len(held) > LINE_BYTES:
            sys.stderr.write(f"loopd mcp: a line of more than {LINE_BYTES} bytes; giving up\n")
            return 2
        for line in lines:
            answer = server.answer(line) if line.strip() else None
            if answer is not None:
                _write(sink, answer)


def _write(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def main() -> int:
    """Serve stdin and stdout; socket and token come from the environment."""
    path, token = os.environ.get("LOOPD_AGENT_SOCKET"), os.environ.get("LOOPD_AGENT_TOKEN")
    if not path or not token:
        sys.stderr.write(
            "loopd mcp: LOOPD_AGENT_SOCKET and LOOPD_AGENT_TOKEN are not set; "
            "the daemon hands them to the agents that it hosts\n"
        )
        return 2
    try:
        return serve(McpServer(path, token), sys.stdin.fileno(), sys.stdout.fileno())
    except (BrokenPipeError, KeyboardInterrupt):
        return 0
