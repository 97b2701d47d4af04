"""One running agent with its session open: started, asked for its abilities, taken up where it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

import loopd
from loopd.drivers.acp.connection import AgentGone, Connection, RpcError
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.acp.launch import Launch
from loopd.drivers.acp.process import AgentProcess
from loopd.drivers.proxy.door import Passage
from loopd.drivers.run_as import RunAs

PROTOCOL = 1
_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class Agent:
    """An agent that can be prompted.

    Attributes:
        process: its process.
        session: the id that it gave its session.
        mode: session mode that it is in, empty for unknown; `modes`: all that it offers.
        resumed: it knows what was said before.
        passage: its way through the daemon's proxy, or None.
    """

    def __init__(self, process: AgentProcess, session: str, opened: Any, *, resumed: bool) -> None:
        self.process = process
        self.session = session
        self.mode, self.modes = _modes(opened)
        self.resumed = resumed
        self.passage: Passage | None = None

    @property
    def connection(self) -> Connection:
        """The way to it."""
        return self.process.connection


async def open_agent(
    kind: AgentKind,
    launch: Launch,
    *,
    earlier: str,
    mode: str,
    servers: list[dict[str, Any]],
    record: Callable[[bytes], None],
    user: RunAs | None = None,
) -> Agent:
    """Start an agent and open its session: the earlier one if it can, else a new one.

    Args:
        kind: what is known of it.
        launch: what to start.
        earlier: id of the session that it had before, empty for none.
        mode: session mode that is asked for; empty for none.
        servers: MCP servers that it is told of.
        record: gets all frames.
        user: as whom it runs.

    Raises:
        AgentGone: it did not start, speak or open a session; nothing of it is left.
        RpcError: it refused to open a session; nothing of it is left.
    """
    try:
        process = await AgentProcess.start(launch, user)
    except OSError as error:
        raise AgentGone("not_started", f"{launch.argv[0]!r} cannot be started: {error.strerror}") from error
    process.connection.record = record
    try:
        agent = await _opened(process, kind, launch, earlier, servers)
        if mode:
            await _set_mode(agent, kind, mode)
        # What an agent says of itself before the first prompt is no answer to it.
        await anyio.sleep(kind.capabilities.late_ms / 1_000)
    except BaseException:
        await process.end(politely=False)
        raise
    return agent


async def _opened(
    process: AgentProcess, kind: AgentKind, launch: Launch, earlier: str, servers: list[dict[str, Any]]
) -> Agent:
    connection, limit = process.connection, kind.patience.start_s
    hello = await connection.request(
        "initialize",
        {
            "protocolVersion": PROTOCOL,
            "clientCapabilities": _CAPABILITIES,
            "clientInfo": {"name": "loopd", "version": loopd.__version__},
        },
        timeout_s=limit,
    )
    hello = hello if isinstance(hello, dict) else {}
    spoken = hello.get("protocolVersion")
    if isinstance(spoken, int) and spoken != PROTOCOL:
        raise AgentGone("protocol", f"the agent speaks version {spoken} of the protocol; expected {PROTOCOL}")
    place = {
        "cwd": await anyio.to_thread.run_sync(os.path.realpath, launch.cwd),
        "mcpServers": _offered(servers, hello),
    }
    method = _way_back(kind, hello)
    if earlier and method:
        try:
            result = await connection.request(method, {"sessionId": earlier, **place}, timeout_s=limit)
            return Agent(process, earlier, result, resumed=True)
        except RpcError:
            pass  # it knows the session no more: a new one is told what was said
    result = await connection.request("session/new", place, timeout_s=limit)
    session = result.get("sessionId") if isinstance(result, dict) else None
    if not isinstance(session, str) or not session or len(session) > 2_000:
        raise AgentGone("protocol", f"session/new answered {str(result)[:200]!r}; expected a sessionId")
    return Agent(process, session, result, resumed=False)


def _way_back(kind: AgentKind, hello: dict[str, Any]) -> str | None:
    known = kind.capabilities.resume
    offered = hello.get("agentCapabilities")
    offered = offered if isinstance(offered, dict) else {}
    sessions = offered.get("sessionCapabilities")
    resumes = isinstance(sessions, dict) and sessions.get("resume") not in (None, False)
    if known == "none":
        return None
    if known == "resume" or (known == "auto" and resumes):
        return "session/resume"
    return "session/load" if known == "load" or offered.get("loadSession") is True else None


def _offered(servers: list[dict[str, Any]], hello: dict[str, Any]) -> list[dict[str, Any]]:
    """The servers that the agent can reach: it must know HTTP and SSE, stdio all do."""
    offered = hello.get("agentCapabilities")
    speaks = offered.get("mcpCapabilities") if isinstance(offered, dict) else None
    speaks = speaks if isinstance(speaks, dict) else {}
    return [
        server for server in servers if server.get("type") in (None, "stdio") or speaks.get(server["type"])
    ]


def _modes(result: Any) -> tuple[str, tuple[str, ...]]:
    modes = result.get("modes") if isinstance(result, dict) else None
    if not isinstance(modes, dict):
        return "", ()
    offered = [mode.get("id") for mode in modes.get("availableModes") or () if isinstance(mode, dict)]
    return str(modes.get("currentModeId") or ""), tuple(mode for mode in offered if isinstance(mode, str))


async def _set_mode(agent: Agent, kind: AgentKind, mode: str) -> None:
    if agent.mode == mode or not agent.modes:
        return
    if mode not in agent.modes:
        raise AgentGone("mode", f"the agent offers no mode {mode!r}; it offers {', '.join(agent.modes)}")
    await agent.connection.request(
        "session/set_mode",
        {"sessionId": agent.session, "modeId": mode},
        timeout_s=kind.patience.start_s,
    )
