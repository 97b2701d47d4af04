"""The driver for agents that speak the Agent Client Protocol: one process for each session.

closed ──turn──▶ opening ──▶ open ──idle for a while, aclose──▶ closed
                              │ cancelled, silent, died ──▶ closed: the next turn opens it again
                              └──── and resumes the agent's own session, or tells it what was said
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.drivers.acp import faults, prompts
from loopd.drivers.acp.agent import Agent, open_agent
from loopd.drivers.acp.connection import AgentGone, RpcError
from loopd.drivers.acp.launch import Premises, kind_of, prepare, upstream_of
from loopd.drivers.acp.process import end_session
from loopd.drivers.acp.turn import HostedTurn
from loopd.drivers.acp.usage import UsageMeter
from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.host import TurnHost
from loopd.drivers.proxy.door import Passage
from loopd_protocol.commands import AcpSpec
from loopd_protocol.errors import Refused

SESSION_KEY = "acp.session"
TOLD_KEY = "acp.instructions"
USAGE_KEY = "acp.usage"
"""What is remembered over restarts: the agent's own session id, which instructions it knows, its tokens."""


class AcpDriver:
    """Drives one session on a hosted agent.

    Args:
        sid: session.
        spec: which agent, and its settings.
        workspace: where it works; None for a folder of its own.
        premises: what the daemon lends.
        tasks: where an idle agent's end is waited for; None to keep it until `aclose`.

    Raises:
        Refused: `invalid` or `not_found` when the agent is not there or cannot be set up like this.
    """

    def __init__(
        self,
        sid: str,
        spec: AcpSpec,
        workspace: str | None,
        premises: Premises,
        *,
        tasks: anyio.abc.TaskGroup | None = None,
    ) -> None:
        self._sid = sid
        self._spec = spec
        self._workspace = workspace
        self._premises = premises
        self._tasks = tasks
        self._kind = kind_of(spec, premises)
        prepare(sid, spec, self._kind, workspace, premises)  # refuses now what could never start
        self._agent: Agent | None = None
        self._sensor = WorkspaceSensor(Path(workspace)) if workspace is not None else None
        self._meter: UsageMeter | None = None
        self._total = ""
        self._told: str | None = None
        self._session: str | None = None
        self._resting: anyio.CancelScope | None = None
        self._asks = False
        self._known_ss = 0
        self._closed = False

    def render(self, request: TurnRequest) -> bytes | None:
        """None: what the model gets is the agent's affair; the frames are the record."""
        del request
        return None

    async def aclose(self) -> None:
        """End the agent and all that it started."""
        self._closed = True
        self._wake()
        await self._retire(politely=True)

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Take a turn; see the port. Cancelled, it leaves no process behind."""
        self._wake()
        if self._meter is None:
            self._total = request.memory.get(USAGE_KEY, "")
            self._meter = UsageMeter(self._kind.capabilities.usage_scope, self._total)
        preface: list[str] = []

        async def opened() -> Agent:
            agent, told = await self._opened(request, host)
            preface[:] = told
            return agent

        turn = HostedTurn(
            agent=opened,
            retire=self._retire,
            host=host,
            kind=self._kind,
            sensor=self._sensor,
            meter=self._meter,
            silence_s=self._spec.silence_s or self._kind.patience.silence_s,
            preface=preface,
        )
        try:
            end = await turn.run(
                prompts.fresh_prompt(request, self._known_ss), withheld=request.tools_withheld
            )
            await self._remember(host, USAGE_KEY, self._meter.total)
        except RpcError as error:
            await self._retire()
            return faults.refused(error)
        except AgentGone as error:
            await self._retire()
            return faults.gone(error)
        else:
            return end
        finally:
            if turn.reached:
                self._known_ss = max((message.ss for message in request.messages), default=0)
            self._rest()

    # -- opening and ending ---------------------------------------------------------------------

    async def _opened(self, request: TurnRequest, host: TurnHost) -> tuple[Agent, list[str]]:
        """The agent, and what it must be told before anything else."""
        agent = self._agent
        told: list[str] = []
        if agent is None or not agent.process.alive or self._asks != request.asks:
            await self._retire()
            agent = await self._start(request, host)
            if not agent.resumed:
                told.append(prompts.earlier(request))
        agent.connection.record = host.frame
        known = prompts.instructions(request)
        digest = hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:32] if known else ""
        if self._told is None:
            self._told = request.memory.get(TOLD_KEY, "") if agent.resumed else ""
        if known and digest != self._told:
            told.insert(0, known)
        if digest != self._told:
            self._told = digest
            await self._remember(host, TOLD_KEY, digest)
        return agent, [part for part in told if part]

    async def _start(self, request: TurnRequest, host: TurnHost) -> Agent:
        earlier = self._session if self._session is not None else request.memory.get(SESSION_KEY, "")
        passage = await self._passage()
        try:
            agent = await self._launched(request, host, passage, earlier)
        except BaseException:
            if passage is not None and self._premises.proxy is not None:
                with anyio.CancelScope(shield=True):  # nobody has its key, and no turn may ever follow
                    await self._premises.proxy.close(self._sid)
            raise
        agent.passage = passage
        self._asks = request.asks
        self._agent = agent
        if not agent.resumed:
            self._told = ""
        if agent.session != earlier:
            await self._remember(host, SESSION_KEY, agent.session)
        self._session = agent.session
        return agent

    async def _passage(self) -> Passage | None:
        proxy, upstream = self._premises.proxy, upstream_of(self._spec)
        if proxy is None or upstream is None:
            return None
        try:
            return await proxy.open(self._sid, upstream)
        except Refused as refusal:  # the key was there when the session was created
            raise AgentGone("not_ready", refusal.message) from refusal

    async def _launched(
        self, request: TurnRequest, host: TurnHost, passage: Passage | None, earlier: str
    ) -> Agent:
        try:
            launch = prepare(
                self._sid,
                self._spec,
                self._kind,
                self._workspace,
                self._premises,
                passage=passage,
                asks=request.asks,
            )
        except Refused as refusal:  # it was there when the session was created
            raise AgentGone("not_ready", refusal.message) from refusal
        # A driver before this one may still be ending its agent: two of them on one session would mix it up.
        await anyio.to_thread.run_sync(end_session, self._sid, self._premises.house)
        return await open_agent(
            self._kind,
            launch,
            earlier=earlier,
            mode=self._mode(request),
            servers=self._premises.mcp_servers(self._sid),
            record=host.frame,
            user=self._premises.user,
        )

    def _mode(self, request: TurnRequest) -> str:
        if self._spec.mode is not None:
            return self._spec.mode
        return self._kind.asking.mode if request.asks else self._kind.mode

    async def _remember(self, host: TurnHost, key: str, value: str) -> None:
        if key == USAGE_KEY:
            if value == self._total:
                return
            self._total = value
        with anyio.CancelScope(shield=True):
            await host.remember(key, value)

    async def _retire(self, *, politely: bool = False) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.connection.record = None
            if agent.passage is not None and self._premises.proxy is not None:
                # First of all: a driver that follows this one opens the session's passage anew.
                with anyio.CancelScope(shield=True):
                    await self._premises.proxy.close(self._sid)
            await agent.process.end(politely=politely)

    # -- between turns ------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Between turns nobody listens; after a while the process is ended."""
        agent = self._agent
        if agent is None:
            return
        agent.connection.listening = False
        agent.connection.record = None
        agent.connection.clear()
        if self._tasks is not None and not self._closed:
            self._resting = scope = anyio.CancelScope()
            self._tasks.start_soon(self._end_when_idle, scope)

    def _wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    async def _end_when_idle(self, scope: anyio.CancelScope) -> None:
        with scope:
            await anyio.sleep(self._kind.patience.idle_s)
            if self._resting is scope:
                self._resting = None
                await self._retire(politely=True)
