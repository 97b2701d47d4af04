"""How the scripted agent uses the MCP server that its client named: one call, and it is ended again."""

from __future__ import annotations

import asyncio
import json
import os

from loopd.testing.acp_quirks import Json


class Answer(Exception):
    """A request is answered with an error."""


async def use_server(server: Json, name: str, args: Json) -> Json:
    """Start an MCP server, call one tool and end it."""
    env = {**os.environ, **{entry["name"]: entry["value"] for entry in server.get("env", [])}}
    process = await asyncio.create_subprocess_exec(
        server["command"], *server["args"], env=env,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def put(message: Json) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def answer_to(number: int) -> Json:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message: Json = json.loads(line)
            if message.get("id") == number:
                return message
        raise Answer({"code": -32603, "message": "the MCP server ended"})

    put({"id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}})  # fmt: skip
    await answer_to(1)
    put({"method": "notifications/initialized"})
    put({"id": 2, "method": "tools/call", "params": {"name": name, "arguments": args}})
    message = await answer_to(2)
    process.stdin.close()
    await process.wait()
    result: Json = message.get("result") or {
        "isError": True,
        "content": [{"type": "text", "text": str(message)}],
    }
    return result
