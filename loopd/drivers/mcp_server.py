"""One MCP server of a session: started, asked for its tools, watched, started again when it dies.

    new ─▶ starting ─▶ up ──ended, silent──▶ down ──a little later──▶ starting …
                │                              └──more than RESTARTS in WINDOW_S──▶ given up
                └──failed──▶ down

One task owns the SDK's client: it enters and leaves it, and pings, because a server that was killed gives
no sign of it. Calls come from other tasks.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

import loopd
from loopd.drivers.mcp_process import ServerProcess, selected, server_process
from loopd.drivers.run_as import RunAs
from loopd_protocol.commands import McpServer

logger = logging.getLogger("loopd.drivers")

START_S = 30.0
PING_EVERY_S = 15.0
PING_S = 5.0
RESTARTS, WINDOW_S = 3, 600.0
RESTART_AFTER_S = 0.5
TOOLS = 256
"""Tools of one server that are offered; no model chooses well among more."""


class ServerGone(Exception):
    """There is no answer of the server; the text says why, for the model.

    Attributes:
        asked: it was asked before: nobody knows whether it did it.
    """

    def __init__(self, why: str, *, asked: bool) -> None:
        super().__init__(f"{why}; nobody knows whether it was carried out" if asked else why)
        self.asked = asked


class Server:
    """See the module. `tools`: as last listed, SDK objects.

    Args:
        sid: session, for the log.
        spec: how it is started or reached.
        env: environment of its process, with the session's mark.
        cwd: where it runs.
        run_as: as which user, or None for the daemon's.
    """

    def __init__(
        self, sid: str, spec: McpServer, *, env: dict[str, str], cwd: str | None, run_as: RunAs | None
    ) -> None:
        self.spec = spec
        self.state = "new"
        self.why = "it has not been started"
        self.starts = 0
        self.tools: list[Any] = []
        self._sid = sid
        self._env = env
        self._cwd = cwd
        self._run_as = run_as
        self._session: Any = None
        self._settled = anyio.Event()
        self._wanted = anyio.Event()
        self._closing = False
        self._closed = anyio.Event()
        self._stale = False
        self._deaths: deque[float] = deque(maxlen=RESTARTS + 1)

    # -- the owner's side -----------------------------------------------------------------------

    async def run(self) -> None:
        """Own the server until `aclose`. Never raises: a server that fails is not the daemon's fault."""
        self.state = "starting"
        try:
            while not self._closing:
                await self._live_once()
                if self._closing:
                    break
                self._settled = anyio.Event()
                self._deaths.append(time.monotonic())
                if len(self._deaths) > RESTARTS and self._deaths[-1] - self._deaths[0] < WINDOW_S:
                    self._down(f"{self.why}; it ended {len(self._deaths)} times in a row", state="given up")
                    await self._wanted.wait()
                    break
                with anyio.move_on_after(RESTART_AFTER_S * 2 ** len(self._deaths)):
                    await self._wanted.wait()
        finally:
            self._down("the session let go of it")
            self._closed.set()

    async def _live_once(self) -> None:
        self.state = "starting"
        self.starts += 1
        try:
            async with self._connected() as (session, process):
                with anyio.fail_after(START_S):
                    await session.initialize()
                    self.tools = await _listed(session)
                self._session, self.state, self.why = session, "up", ""
                self._settled.set()
                logger.info("mcp server is up", extra=self._said(tools=len(self.tools)))
                await self._watch(session, process)
        except BaseExceptionGroup as group:
            rest = group.split(Exception)[1]
            if rest is not None:
                raise rest from None
            self._down(_reason(group))
        except TimeoutError:
            self._down(f"it did not answer within {START_S:g} s")
        except Exception as error:  # noqa: BLE001  # a wall: whatever the SDK or a server does ends here
            self._down(_reason(error))
        finally:
            self._session = None

    async def _watch(self, session: Any, process: ServerProcess | None) -> None:
        """Return when the server is dead, silent, or not wanted any more."""
        while not self._closing:
            with anyio.move_on_after(PING_EVERY_S):
                await self._signal(process)
                if self._closing:
                    return
                said = b"" if process is None else process.stderr[-300:]
                fault = "" if process is None else process.fault
                self._down(fault or f"it ended {said.decode('utf-8', 'replace').strip()!r}")
                return
            try:
                with anyio.fail_after(PING_S):
                    await session.send_ping()
            except TimeoutError:
                self._down(f"it did not answer a ping within {PING_S:g} s")
                return

    async def _signal(self, process: ServerProcess | None) -> None:
        async with anyio.create_task_group() as tasks:

            async def until(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, self._wanted)
            if process is not None:
                tasks.start_soon(until, process.ended)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[Any, ServerProcess | None]]:
        # It takes most of a second, in which the daemon must go on.
        client = await anyio.to_thread.run_sync(importlib.import_module, "mcp.client.session")
        types = importlib.import_module("mcp_types")
        me = types.Implementation(name="loopd", version=loopd.__version__)

        async def told(message: Any) -> None:
            self._stale = self._stale or "ToolListChanged" in type(getattr(message, "root", message)).__name__

        if self.spec.url is not None:
            http = await anyio.to_thread.run_sync(importlib.import_module, "mcp.client.streamable_http")
            httpx2 = importlib.import_module("httpx2")
            headers = {}
            if self.spec.token_env is not None:
                headers["authorization"] = f"Bearer {selected([self.spec.token_env])[self.spec.token_env]}"
            timeout = httpx2.Timeout(self.spec.timeout_s, connect=10.0)
            async with (
                httpx2.AsyncClient(headers=headers, timeout=timeout) as web,
                http.streamable_http_client(self.spec.url, http_client=web) as streams,
                client.ClientSession(streams[0], streams[1], message_handler=told, client_info=me) as session,
            ):
                yield session, None
            return
        assert self.spec.command is not None
        argv = [self.spec.command, *self.spec.args]
        env = {**self._env, **selected(self.spec.env)}
        async with (
            server_process(argv, cwd=self._cwd, env=env, run_as=self._run_as) as process,
            client.ClientSession(
                process.read, process.write, message_handler=told, client_info=me
            ) as session,
        ):
            yield session, process

    def _down(self, why: str, *, state: str = "down") -> None:
        if self.state != "down" and not self._closing:
            logger.warning("mcp server is down", extra=self._said(why=why))
        self.state, self.why, self._session = state, why, None
        self._settled.set()

    def _said(self, **more: Any) -> dict[str, Any]:
        return {"sid": self._sid, "server": self.spec.name, "starts": self.starts, **more}

    # -- the session's side -----------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until it is up, or known to be down; list its tools again if it said that they changed."""
        with anyio.move_on_after(START_S + 1):
            await self._settled.wait()
        session = self._session
        if self._stale and session is not None:
            self._stale = False
            try:
                with anyio.fail_after(PING_S):
                    self.tools = await _listed(session)
            except Exception as error:  # noqa: BLE001  # the old list stands; a dead server is found by the ping
                logger.warning("mcp tools not listed", extra=self._said(why=_reason(error)))

    async def call(self, tool: str, args: dict[str, Any]) -> Any:
        """Call a tool; returns the SDK's result.

        Raises:
            ServerGone: it is down, died under the call, or took too long.
        """
        session = self._session
        if session is None:
            again = "" if self.state == "given up" else "; it is being started again"
            raise ServerGone(f"the MCP server {self.spec.name!r} is down: {self.why}{again}", asked=False)
        try:
            with anyio.fail_after(self.spec.timeout_s):
                return await session.call_tool(tool, args)
        except TimeoutError:
            raise ServerGone(f"no result within {self.spec.timeout_s} s", asked=True) from None
        except Exception as error:  # a wall: the SDK raises whatever went wrong with server or schema
            raise ServerGone(_reason(error), asked=not _refused(error)) from error

    async def aclose(self) -> None:
        """End it; returns when its process is gone."""
        self._closing = True
        self._wanted.set()
        if self.state != "new":
            await self._closed.wait()


async def _listed(session: Any) -> list[Any]:
    types = importlib.import_module("mcp_types")
    tools: list[Any] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or len(tools) >= TOOLS:
            return tools[:TOOLS]


def _refused(error: Exception) -> bool:
    """Whether the server itself answered with an error."""
    code = getattr(error, "code", None)
    types = importlib.import_module("mcp_types")
    return code is not None and code not in {types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT}


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, KeyError):
        return f"environment variable {error.args[0]!r} is not set in the daemon"
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
