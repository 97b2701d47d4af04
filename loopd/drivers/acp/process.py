"""An agent's process: started in a session of its own, drained, and ended with all that it started.

What ends it, in order: the end of its stdin, TERM and KILL for its process group, KILL for every process
that descends from it or carries its mark. Tools leave the group on purpose, so only the last is sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from loopd.drivers.acp.connection import AgentGone, Connection
from loopd.drivers.acp.launch import AGENT, HOMELESS, Launch
from loopd.drivers.marks import descendants, end_marked, let_go, signal_group
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import BOOT, SESSION

STDERR_BYTES = 512 * 1024
"""Kept of stderr in each of two files: the newest, and the one before it."""
TAIL_BYTES = 2_048
LEAVE_S = 1.0
"""An agent whose stdin ended has so long to leave by itself, and as long again after TERM."""
REAP_S = 5.0


class _Stderr:
    """A bounded file, and the last bytes in memory for error messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = open(path, "ab", buffering=0)  # noqa: SIM115 - lives as long as the process
        self._size = self._stream.tell()
        self.tail = b""
        self.size = 0

    def take(self, data: bytes) -> None:
        self.size += len(data)
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        if self._stream.closed:
            return
        try:
            if self._size + len(data) > STDERR_BYTES:
                self._stream.close()
                os.replace(self._path, f"{self._path}.1")
                self._stream = open(self._path, "ab", buffering=0)  # noqa: SIM115
                self._size = 0
                data = data[-STDERR_BYTES:]
            self._stream.write(data)
            self._size += len(data)
        except OSError:  # a full disk: the agent must not stand still because of it
            self._size += len(data)

    def close(self) -> None:
        self._stream.close()

    def last_line(self) -> str:
        lines = self.tail.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""


class AgentProcess(asyncio.SubprocessProtocol):
    """One running agent; `connection` is the way to it.

    Attributes:
        mark: value of its mark in the environment of all that it starts.
        returncode: once it has ended.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = secrets.token_hex(16)
        self.connection = Connection(self._write, self._pause, self._resume)
        self.exited = anyio.Event()
        self.returncode: int | None = None
        self._folder = folder
        self._stderr = _Stderr(folder / "stderr.log")
        self._transport: asyncio.SubprocessTransport | None = None
        self._ended = False
        self._ending = anyio.Lock()

    @classmethod
    async def start(cls, launch: Launch, user: RunAs | None = None) -> AgentProcess:
        """Write the settings files and start.

        Raises:
            OSError: it cannot be started.
        """
        await anyio.to_thread.run_sync(_furnish, launch, user)
        process = cls(launch.folder)
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {}
        if user is not None:
            more = {"preexec_fn": user.enter}
        try:
            with anyio.CancelScope(shield=True):  # what has begun must be known, or nobody could end it
                await loop.subprocess_exec(
                    lambda: process,
                    *launch.argv,
                    cwd=launch.cwd,
                    env={**launch.env, AGENT: process.mark},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                    **more,
                )
        except BaseException:
            process._stderr.close()
            raise
        return process

    # -- what the loop tells --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.SubprocessProtocol`."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        """See `asyncio.SubprocessProtocol`."""
        assert isinstance(data, bytes)
        if fd == 1:
            self.connection.feed(data)
        else:
            self._stderr.take(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """See `asyncio.SubprocessProtocol`."""
        del exc
        if fd == 1 and self.returncode is None:
            # Its exit code says more, if it comes at once.
            asyncio.get_running_loop().call_later(
                0.5, self.connection.end, AgentGone("agent_died", "the agent closed its stdout")
            )

    def process_exited(self) -> None:
        """See `asyncio.SubprocessProtocol`."""
        assert self._transport is not None
        self.returncode = self._transport.get_returncode()
        # What it wrote last may still be in the pipe: the next round of the loop reads it.
        asyncio.get_running_loop().call_later(0.02, self._tell_exit)
        self.exited.set()

    def _tell_exit(self) -> None:
        self.connection.end(AgentGone("agent_died", self.obituary()))

    def obituary(self) -> str:
        """How it ended, with the last line of its stderr."""
        code = self.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        last = self._stderr.last_line()
        said = f", its stderr ends with {last!r}" if last else ""
        return f"the agent ended with {how}{said}{self.connection.oddities()}"

    # -- talking --------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if pipe is not None and not pipe.is_closing():
            pipe.write(data)

    def _pause(self) -> None:
        pipe = self._stdout()
        if pipe is not None:
            pipe.pause_reading()

    def _resume(self) -> None:
        pipe = self._stdout()
        if pipe is not None:
            with contextlib.suppress(RuntimeError):  # it ended a moment ago
                pipe.resume_reading()

    def _stdout(self) -> asyncio.ReadTransport | None:
        assert self._transport is not None
        pipe = cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(1))
        return None if pipe is None or pipe.is_closing() else pipe

    @property
    def pid(self) -> int:
        """Of the agent, and of its process group."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def stderr_bytes(self) -> int:
        """Written to stderr so far."""
        return self._stderr.size

    @property
    def alive(self) -> bool:
        """It runs and can be talked to."""
        return self.returncode is None and self.connection.gone is None and not self._ended

    # -- ending -----------------------------------------------------------------------------------

    async def end(self, *, politely: bool = True) -> None:
        """End it and all that it started; returns when nothing of it is left. Idempotent, uncancellable.

        Args:
            politely: let it leave by itself first.
        """
        with anyio.CancelScope(shield=True):
            async with self._ending:
                if self._ended:
                    return
                self._ended = True
                await self._end(politely=politely)

    async def _end(self, *, politely: bool) -> None:
        assert self._transport is not None
        self.connection.end(AgentGone("agent_ended", "the agent was ended by loopd"))
        pid = self.pid
        below = await anyio.to_thread.run_sync(descendants, pid)
        if politely and self.returncode is None:
            pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
            if pipe is not None:
                pipe.close()
            await self._exits(LEAVE_S)
            if self.returncode is None:
                below = list({*below, *await anyio.to_thread.run_sync(descendants, pid)})
                signal_group(pid, signal.SIGTERM)
                await self._exits(LEAVE_S)
        signal_group(pid, signal.SIGKILL)
        wanted = f"{AGENT}={self.mark}".encode()
        ended = await anyio.to_thread.run_sync(
            lambda: end_marked(lambda variables: wanted in variables, also=below)
        )
        await self._exits(REAP_S)
        let_go([each for each in ended if each != pid])
        self._transport.close()
        self._stderr.close()

    async def _exits(self, within_s: float) -> None:
        if self.returncode is None:
            with anyio.move_on_after(within_s):
                await self.exited.wait()


def _furnish(launch: Launch, user: RunAs | None) -> None:
    """Make the folders and files of a session; a file takes the place of whatever stands there."""
    launch.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if user is not None and HOMELESS in launch.quarters.parents:
        launch.quarters.parent.mkdir(parents=True, exist_ok=True)
        launch.quarters.mkdir(exist_ok=True, mode=0o700)
        os.chown(launch.quarters, user.uid, user.gid, follow_symlinks=False)
    with user.files() if user is not None else contextlib.nullcontext():
        home = launch.quarters / "home"
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if Path(launch.cwd).parent == launch.quarters:
            Path(launch.cwd).mkdir(exist_ok=True, mode=0o700)
        for path, text in launch.files.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)


def end_session(sid: str, house: str) -> int:
    """End every process of one session's agents; returns how many."""
    whose, ours = f"{SESSION}={sid}".encode(), f"{BOOT}={house}.".encode()
    ended = end_marked(
        lambda variables: whose in variables and any(each.startswith(ours) for each in variables)
    )
    return len(ended)


def end_old_boots(house: str, boot: str) -> int:
    """End every agent process that an earlier boot of this data folder left; returns how many."""
    ours, now = f"{BOOT}={house}.".encode(), f"{BOOT}={house}.{boot}".encode()
    ended = end_marked(lambda variables: any(each.startswith(ours) and each != now for each in variables))
    let_go(list(ended))
    return len(ended)
