"""MCP servers as tools of a chat session. The SDK is imported when the first server is started.

A tool of server `time` is offered as `time__get_current_time`. Servers start with the session's first
turn and end with its driver. What goes wrong with a server is the result of the call, for the model,
and a line in the log, for people; the turn goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import msgspec

from loopd.drivers.mcp_server import Server, ServerGone
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import environment
from loopd.drivers.tools import ForeignResult
from loopd_protocol.commands import McpServer
from loopd_protocol.errors import Refused

NAME_CHARS = 64
"""Endpoints refuse longer names of tools."""
SCHEMA_BYTES = 64 * 1024
"""A tool whose schema is larger is not offered."""
TEXT_CHARS = 4_000_000
"""A longer result is cut before it is looked at; the digest is of the whole."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


class McpTools:
    """The tools of a session's MCP servers.

    Args:
        sid: session; servers carry it in their environment.
        servers: from the session's spec.
        workspace: where servers run, or None.
        tasks: where the servers' owners run; None where there is no daemon.
        run_as: the user that servers run as, or None for the daemon's own.
        boot_mark: environment by which the next boot finds them.

    Raises:
        Refused: `invalid` when the SDK is not installed, or a server has neither command nor address.
    """

    def __init__(  # noqa: PLR0917
        self,
        sid: str,
        servers: Sequence[McpServer],
        workspace: str | None,
        tasks: anyio.abc.TaskGroup | None,
        run_as: RunAs | None = None,
        boot_mark: Mapping[str, str] | None = None,
    ) -> None:
        _check(servers)
        self._tasks = tasks
        env = {**environment(sid, os.environ), **(boot_mark or {})}
        self._servers = [Server(sid, spec, env=env, cwd=workspace, run_as=run_as) for spec in servers]
        self._names: dict[str, tuple[Server, str]] = {}
        self._schemas: tuple[dict[str, Any], ...] = ()
        self._listed: list[list[Any]] = []

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The tools of all servers that ever came up, in the form of chat-completions."""
        listed = [server.tools for server in self._servers]
        if listed != self._listed:
            self._listed = listed
            self._list()
        return self._schemas

    def _list(self) -> None:
        self._names.clear()
        schemas: list[dict[str, Any]] = []
        for server in self._servers:
            for tool in server.tools:
                schema = dict(tool.input_schema or {"type": "object"})
                if server.spec.allow and tool.name not in server.spec.allow:
                    continue
                if len(msgspec.json.encode(schema)) > SCHEMA_BYTES:
                    continue
                name = self._free_name(f"{server.spec.name}__{tool.name}")
                self._names[name] = (server, tool.name)
                function = {"name": name, "description": (tool.description or "")[:4_000]}
                schemas.append({"type": "function", "function": {**function, "parameters": schema}})
        self._schemas = tuple(schemas)

    def _free_name(self, wanted: str) -> str:
        plain = _NO_NAME.sub("_", wanted)
        name, n = plain[:NAME_CHARS], 1
        while name in self._names:
            n += 1
            name = f"{plain[: NAME_CHARS - 4]}_{n}"
        return name

    def has(self, name: str) -> bool:
        """Whether a tool is one of these."""
        return bool(self._servers) and bool(self.schemas) and name in self._names

    async def ready(self) -> None:
        """Start the servers if they are not, and wait until each is up or known not to come up.

        Raises:
            Refused: `invalid` where nothing can own them.
        """
        if not self._servers:
            return
        if self._tasks is None:
            raise Refused("invalid", "mcp_servers need a running daemon; there is none here")
        for server in self._servers:
            if server.state == "new":
                server.state = "starting"
                self._tasks.start_soon(server.run)
        for server in self._servers:
            await server.settled()

    async def call(self, name: str, args: dict[str, Any]) -> ForeignResult:
        """Carry out a call; what goes wrong is in the result."""
        assert self.has(name), f"{name!r} is not a tool of these servers"
        server, tool = self._names[name]
        try:
            result = await server.call(tool, args)
        except ServerGone as error:
            gone = _result(f"error: {error}", error_class="infra")
            return msgspec.structs.replace(gone, unknown=error.asked)
        text = _text_of(result)
        return _result(text, error_class="tool" if result.is_error else None)

    async def aclose(self) -> None:
        """End all servers; returns when their processes are gone."""
        async with anyio.create_task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(server.aclose)


def _check(servers: Sequence[McpServer]) -> None:
    if servers and importlib.util.find_spec("mcp") is None:
        raise Refused(
            "invalid",
            "mcp_servers need the package 'mcp', which is not installed; expected `pip install 'loopd[mcp]'`",
            path="$.driver.mcp_servers",
        )
    names: set[str] = set()
    for place, server in enumerate(servers):
        path = f"$.driver.mcp_servers[{place}]"
        if (server.command is None) == (server.url is None):
            raise Refused("invalid", f"mcp server {server.name!r}: expected either command or url", path=path)
        if server.name in names:
            raise Refused("invalid", f"mcp server {server.name!r} is named twice", path=path)
        names.add(server.name)


def _result(text: str, *, error_class: str | None) -> ForeignResult:
    data = text.encode("utf-8", "surrogatepass")
    return ForeignResult(
        ok=error_class is None,
        text=text[:TEXT_CHARS],
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        error_class=error_class,
    )


def _text_of(result: Any) -> str:
    parts: list[str] = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(block.text)
            case "resource":
                text = getattr(block.resource, "text", None)
                parts.append(text if text is not None else f"[{block.resource.uri}: not text, left out]")
            case "resource_link":
                parts.append(f"[{block.uri}]")
            case kind:
                size = len(getattr(block, "data", "") or "")
                parts.append(f"[{kind} of {size} characters, left out]")
    if not parts and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode())
    return "\n".join(parts)
