"""The door of hosted agents: `agent.sock`, where a session's agent may ask for itself and nothing else.

An agent that somebody else wrote (over ACP) cannot be handed loopd's tools in a model request, so it gets
an MCP server, `loopd mcp`, that speaks to this socket with a token of its session. The token opens one
scope, `agent`, which no person can have and which only `agent.ask` asks for: whatever else is said here
is refused by the same dispatcher that refuses it anywhere. No other socket knows these tokens.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import sys
from collections.abc import Callable
from typing import TypedDict

import anyio
from anyio.abc import TaskStatus

from loopd.core.access import AGENT_SCOPE, Caller
from loopd.server.auth import peer_credentials
from loopd.server.connection import Connection
from loopd.server.limits import SocketLimits
from loopd.server.ports import Bus, CommandObserver, Dispatcher, Knock, nobody_listens
from loopd.server.unix import UnixServer
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

PREFIX = "lpa_"
_MAC_CHARS = 43
_SCOPES = frozenset({AGENT_SCOPE})
AGENT_LIMITS = SocketLimits(
    frame_bytes=65_536, inflight=8, inflight_total=1_024, subs=1, connections=1_024, hello_s=5.0
)


class AgentTokens:
    """Makes and knows tokens `lpa_<sid>_<43 chars>`, one for each session and boot.

    Nothing is stored: the last part is an HMAC of the session under a key that lives as long as the daemon,
    as do the hosted agents, so a token of an earlier boot is worth nothing.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def issue(self, sid: str) -> str:
        """The token of a session; the same each time."""
        return f"{PREFIX}{sid}_{self._mac(sid)}"

    def session_of(self, token: str) -> str:
        """The session that a token speaks for.

        Raises:
            Refused: `unauthenticated`.
        """
        sid, mac = token[len(PREFIX) : -_MAC_CHARS - 1], token[-_MAC_CHARS:]
        known = token.startswith(PREFIX) and token[-_MAC_CHARS - 1 : -_MAC_CHARS] == "_"
        if not hmac.compare_digest(self._mac(sid).encode(), mac.encode()) or not known:
            raise Refused("unauthenticated", "this is no token of a hosted agent of this boot")
        return sid

    def _mac(self, sid: str) -> str:
        mac = hmac.digest(self._key, sid.encode("utf-8", "replace"), hashlib.sha256)
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")


class AgentMcp(TypedDict):
    """How a hosted agent starts its `loopd` MCP server (stdio)."""

    name: str
    command: str
    args: list[str]
    env: dict[str, str]


class AgentDoor:
    """What drivers of hosted agents need: the MCP server of a session. Known before the socket is open.

    Args:
        path: where `agent.sock` will be.
    """

    def __init__(self, path: str, tokens: AgentTokens | None = None) -> None:
        self.path = path
        self.tokens = tokens or AgentTokens()

    def server_for(self, sid: str) -> AgentMcp:
        """The MCP server that speaks for this session."""
        env = {"LOOPD_AGENT_SOCKET": os.path.abspath(self.path), "LOOPD_AGENT_TOKEN": self.tokens.issue(sid)}
        # The module, not the script: it is found whatever PATH the agent has. -P: not in its folder.
        args = ["-P", "-m", "loopd.cli.daemon", "mcp"]
        return AgentMcp(name="loopd", command=sys.executable, args=args, env=env)


class AgentServer(UnixServer):
    """Serves `agent.sock` (mode 0600): every peer needs the token of a session.

    Args:
        owner: user and group that the socket belongs to, when agents run as somebody else.
    """

    door = "agent"

    def __init__(
        self,
        door: AgentDoor,
        dispatcher: Dispatcher,
        bus: Bus,
        *,
        now_ms: Callable[[], int],
        version: str,
        boot: str,
        owner: tuple[int, int] | None = None,
        observe: CommandObserver | None = None,
        limits: SocketLimits = AGENT_LIMITS,
        knocked: Knock = nobody_listens,
    ) -> None:
        super().__init__(
            door.path,
            dispatcher,
            bus,
            now_ms=now_ms,
            version=version,
            boot=boot,
            limits=limits,
            observe=observe,
            mode=0o600,
            owner=owner,
            knocked=knocked,
        )
        self._tokens = door.tokens
        self._owned = owner is not None

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; see the class above. A folder that was made for this socket alone goes with it."""
        try:
            await super().serve(task_status=task_status)
        finally:
            folder = os.path.dirname(self.path)
            if self._owned and os.path.basename(folder).startswith("loopd-agents-"):
                with contextlib.suppress(OSError):  # somebody put something into it
                    os.rmdir(folder)

    def admit(self, connection: Connection) -> Caller:
        """Anybody, until the first frame tells who it is."""
        self.count(connection)
        return Caller(principal="nobody", scopes=frozenset(), source=Source.AGENT)

    def greet(self, connection: Connection, token: str | None) -> Caller:
        """The agent of the session whose token it is."""
        try:
            if token is None:
                raise Refused("unauthenticated", "no token in 'hello'; expected that of a session, in `auth`")
            sid = self._tokens.session_of(token)
        except Refused as refused:
            peer = peer_credentials(connection.transport.get_extra_info("socket"))
            self.knocked(self.door, f"uid:{peer.uid}", refused.code, "")
            raise
        return Caller(principal=f"agent:{sid}", scopes=_SCOPES, source=Source.AGENT, session=sid)
