"""The control socket: listening, admitting, and the tasks that all connections share."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus

from loopd.core.access import Answer, Caller
from loopd.server.auth import PeerPolicy, peer_credentials
from loopd.server.connection import Connection
from loopd.server.fanout import Fanout
from loopd.server.house import Job
from loopd.server.limits import SocketLimits
from loopd.server.ports import Bus, CommandObserver, Dispatcher, Keys, Knock, nobody_listens
from loopd.server.workers import Workers
from loopd_protocol.commands import Command
from loopd_protocol.errors import Refused
from loopd_protocol.frames import ServerInfo, Sub
from loopd_protocol.schema import digest
from loopd_protocol.sources import Source

_log = logging.getLogger("loopd.server")
PATH_LIMIT_BYTES = 107
"""What `sun_path` of `struct sockaddr_un` holds on Linux, without its final zero byte."""
_BACKLOG = 1_024
_FILE_STAYS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""From Python 3.13 on the loop would remove the file of a socket, also of one that systemd handed in."""
_AGENTS = 8
"""Connections that agents may hold together: they get nothing, and must not take operators' places."""
_SOCKET_MODE, _FOLDER_MODE = 0o660, 0o750
_FIRST_INHERITED_FD = 3


class UnixServer:
    """Serves the protocol on a unix stream socket.

    Args:
        path: where to listen; ignored when `sock` is given.
        now_ms: wall clock, for `welcome` and `pong`.
        sock: a listening socket that somebody else made (systemd); it is not unlinked.
        observe: told of every command, for metrics.
        mode, owner: of the socket file.
        keys: tokens that may be shown in `hello`; None knows none.
        knocked: told who is turned away.
    """

    door = "control"

    def __init__(
        self,
        path: str | os.PathLike[str],
        dispatcher: Dispatcher,
        bus: Bus,
        *,
        now_ms: Callable[[], int],
        version: str,
        boot: str,
        policy: PeerPolicy | None = None,
        limits: SocketLimits | None = None,
        sock: socket.socket | None = None,
        observe: CommandObserver | None = None,
        mode: int = _SOCKET_MODE,
        owner: tuple[int, int] | None = None,
        keys: Keys | None = None,
        knocked: Knock = nobody_listens,
    ) -> None:
        self.path = os.fspath(path)
        self.dispatcher = dispatcher
        self.bus = bus
        self.limits = limits or SocketLimits()
        self.info = ServerInfo(ver=version, boot=boot)
        self.fanout = Fanout(bus, self.limits)
        self.now_ms = now_ms
        self._policy = policy or PeerPolicy()
        self._sock = sock
        self._keys = keys
        self.knocked = knocked
        self._mode = mode
        self._owner = owner
        self._observe = observe
        self._connections: set[Connection] = set()
        self._agents: set[Connection] = set()
        self._emptied: anyio.Event | None = None
        self._workers: Workers[Job] = Workers(self._carry_out, limit=self.limits.inflight_total)

    @property
    def connections(self) -> int:
        """Open connections, closing ones as well."""
        return len(self._connections)

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; reports the path when connections are accepted.

        On cancellation nothing new is read, commands under way get `linger_s` to be answered, every
        peer is told `bye draining`, and the socket file goes, if it is still ours.

        Raises:
            Refused: see `bind`.
        """
        loop = asyncio.get_running_loop()
        digest()  # 20 ms, cached: not in the first client's hello
        sock, ours = self._sock, None
        if sock is None:
            sock = bind(self.path, mode=self._mode, owner=self._owner)
            ours = _identity(self.path)
        try:
            if self._keys is not None:
                self._keys.listeners.append(self.end)
            async with anyio.create_task_group() as group:
                self._workers.open(group)
                group.start_soon(self.fanout.run, group)
                group.start_soon(self._tick)
                listener = await loop.create_unix_server(
                    lambda: Connection(self, loop), sock=sock, backlog=_BACKLOG, **_FILE_STAYS
                )
                try:
                    task_status.started(self.path)
                    await anyio.sleep_forever()
                finally:
                    listener.close()
                    with anyio.CancelScope(shield=True):
                        await self._farewell()
        finally:
            sock.close()
            if ours is not None and _identity(self.path) == ours:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)

    # -- for connections ----------------------------------------------------------------------

    def admit(self, connection: Connection) -> Caller:
        """Count a connection in, and find out who it is."""
        self.count(connection)
        peer = peer_credentials(connection.transport.get_extra_info("socket"))
        try:
            caller = self._policy.caller(peer)
            if caller.source is Source.AGENT:
                if len(self._agents) >= _AGENTS:
                    raise Refused(
                        "overloaded", f"{_AGENTS} connections of agents are open; the limit is {_AGENTS}"
                    )
                self._agents.add(connection)
        except Refused as refused:
            _log.warning("peer refused", extra={"uid": peer.uid, "pid": peer.pid})
            self.knocked(self.door, f"uid:{peer.uid}", refused.code, "")
            raise
        return caller

    def count(self, connection: Connection) -> None:
        """Count a connection in; raises `Refused` when there are too many."""
        self._connections.add(connection)
        if len(self._connections) > self.limits.connections:
            limit = self.limits.connections
            raise Refused("overloaded", f"{limit} connections are open; the limit is {limit}")

    def greet(self, connection: Connection, token: str | None) -> Caller:
        """Who it is after `hello`: whom the kernel named, unless a token says otherwise."""
        if token is None:
            return connection.caller
        try:
            return self._holder(connection, token)
        except Refused as refused:
            kid = "" if self._keys is None else self._keys.named(token)
            self.knocked(self.door, connection.caller.principal, refused.code, kid)
            raise

    def _holder(self, connection: Connection, token: str) -> Caller:
        if self._keys is None:
            raise Refused("unauthenticated", "no tokens are known here; leave `auth` out")
        if connection.caller.source is Source.AGENT:
            raise Refused(
                "unauthenticated", "a process of an agent showed a token; agents have their own socket"
            )
        return self._keys.authenticate(token)

    def end(self, kid: str) -> None:
        """Close the connections that live by this token."""
        for connection in list(self._connections):
            if connection.caller.kid == kid:
                connection.bye("unauthenticated", "the token has expired or was revoked")

    def gone(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self._agents.discard(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def submit(self, job: Job) -> None:
        """Have a worker carry it out."""
        self._workers.submit(job)

    # -- tasks --------------------------------------------------------------------------------

    async def _carry_out(self, job: Job) -> None:
        frame, connection = job.frame, job.connection
        if isinstance(frame, Sub):
            try:
                await connection.subscribe(frame)
            except Exception as error:  # noqa: BLE001  (a wall: one client's frame must not end the server)
                connection.subscription_refused(frame, self._translate(error, "sub"))
            return
        assert job.command is not None
        answer = await self.carry_out(
            job.command,
            connection.caller,
            key=frame.key,
            if_rev=frame.if_rev,
            if_gate_gen=frame.if_gate_gen,
            if_turn=frame.if_turn,
        )
        connection.answer(frame, answer)

    async def carry_out(
        self,
        command: Command,
        caller: Caller,
        *,
        key: str | None = None,
        if_rev: int | None = None,
        if_gate_gen: int | None = None,
        if_turn: int | None = None,
    ) -> Answer | Refused:
        """Have the dispatcher carry out a command, whatever way it came in; never raises but for cancellation."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answer: Answer | Refused
        try:
            answer = await self.dispatcher.dispatch(
                command, caller, key=key, if_rev=if_rev, if_gate_gen=if_gate_gen, if_turn=if_turn
            )
        except Exception as error:  # noqa: BLE001  (a wall: one client's command must not end the server)
            answer = self._translate(error, command.type)
        if self._observe is not None:
            code = answer.code if isinstance(answer, Refused) else "ok"
            self._observe(command.type, code, loop.time() - begun)
        return answer

    def _translate(self, error: Exception, what: str) -> Refused:
        if isinstance(error, Refused):
            return error
        _log.error("command failed", extra={"cmd": what}, exc_info=error)
        return Refused("internal", f"{what} failed in the daemon with {type(error).__name__}; see its log")

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self.limits
        period_s = min(1.0, limits.heartbeat_s / 4, limits.stall_s / 4, max(limits.linger_s / 4, 0.01))
        while True:
            await anyio.sleep(period_s)
            now = loop.time()
            for connection in list(self._connections):
                connection.tick(now)
                kid = connection.caller.kid
                if kid is not None and self._keys is not None and not self._keys.valid(kid):
                    connection.bye("unauthenticated", "the token has expired or was revoked")

    async def _farewell(self) -> None:
        for connection in list(self._connections):
            if not connection.closing:
                connection.transport.pause_reading()
        with anyio.move_on_after(self.limits.linger_s):
            await self._workers.finished()
        for connection in list(self._connections):
            connection.bye("draining", "the daemon stops")
        if self._connections:
            self._emptied = anyio.Event()
            with anyio.move_on_after(self.limits.linger_s):
                await self._emptied.wait()
        for connection in list(self._connections):
            connection.transport.abort()


# -- sockets ----------------------------------------------------------------------------------


def bind(path: str, *, mode: int = _SOCKET_MODE, owner: tuple[int, int] | None = None) -> socket.socket:
    """A socket bound to `path` with this mode and owner; its folder is made (0750) if there is none.

    Raises:
        Refused: `invalid` for a path that is too long or cannot be used, `already_exists` when
            something is there already: see `occupant`.
    """
    size = len(os.fsencode(path))
    if size > PATH_LIMIT_BYTES:
        raise Refused(
            "invalid",
            f"socket path has {size} bytes; the system takes at most {PATH_LIMIT_BYTES}: {path!r}",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(path).parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        # On Linux the file gets the socket's own mode, so it is never open wider than this.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        os.chmod(path, mode)
        if owner is not None:
            os.chown(path, *owner)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise Refused("already_exists", f"something is at {path!r}; expected nothing") from error
        raise Refused("invalid", f"cannot listen at {path!r}: {error.strerror}") from error
    return sock


def occupant(path: str) -> str:
    """What is at `path`: `nothing`, `stale` (a socket nobody listens on), `alive` or `other`."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return "nothing"
    if not stat.S_ISSOCK(mode):
        return "other"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return "stale"
        except OSError:
            return "alive"  # full backlog, no permission: somebody's, not ours to take away
        return "alive"


def clear_stale(path: str) -> bool:
    """Remove a socket that nobody listens on. Only for the holder of the data folder's lock.

    Raises:
        Refused: `already_exists`: somebody listens there, or it is no socket at all.
    """
    found = occupant(path)
    if found == "stale":
        os.unlink(path)
        return True
    if found == "nothing":
        return False
    what = "another process listens at" if found == "alive" else "no socket is at"
    raise Refused("already_exists", f"{what} {path!r}; expected a free place")


def inherited_socket() -> socket.socket | None:
    """The listening socket that systemd passed on (`LISTEN_FDS`), or None.

    Raises:
        Refused: `invalid` when something else than one unix stream socket was passed.
    """
    count = os.environ.get("LISTEN_FDS", "")
    if not count or os.environ.get("LISTEN_PID", "") != str(os.getpid()):
        return None
    if count != "1":
        raise Refused("invalid", f"{count} sockets were passed by LISTEN_FDS; expected 1")
    os.set_inheritable(_FIRST_INHERITED_FD, False)  # noqa: FBT003
    sock = socket.socket(fileno=_FIRST_INHERITED_FD)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
        raise Refused("invalid", f"the passed socket is {sock.family.name}; expected a unix stream socket")
    return sock


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
