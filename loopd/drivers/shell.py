"""Runs one shell command of an agent and leaves nothing behind.

Confinement is the working directory and the environment, no more: the command runs with the rights
of the daemon's user and can read and write whatever that user can. The environment is an allow-list,
so API keys of the daemon do not reach it.

The command gets its own session and process group and a mark in its environment. When it ends, times
out or is cancelled, the group is ended (TERM, then KILL) and, on Linux, so is every process that
carries the mark: some leave their group on purpose. What a command starts in the background ends with it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
from collections.abc import Collection, Mapping

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from loopd.drivers.marks import end_marked, signal_group
from loopd.drivers.run_as import RunAs
from loopd.drivers.starting import carried_through

KEPT_VARIABLES: tuple[str, ...] = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables of the daemon's environment that a command gets, besides `LC_*`."""

SESSION = "LOOPD_SESSION"
MARK = "LOOPD_CALL"
BOOT = "LOOPD_BOOT"
"""Marks in the environment of what is started for a session: whose it is, which command, and which boot of
which data folder started it."""
OUTPUT_BYTES = 64 * 1024 * 1024
"""A command that writes more is ended: it will not stop by itself."""
KEEP_BYTES = 16 * 1024
"""Kept from the beginning and from the end of an output."""
TERM_GRACE_S = 1.0
DRAIN_S = 0.5


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended.

    Attributes:
        exit_code: negative for a signal, None when it was ended from here.
        head, tail: first and last bytes of stdout and stderr together; `tail` follows after a gap.
        sha256, size: of the whole output.
        ended: why it was ended from here: `timeout` or `output`, else None.
    """

    exit_code: int | None
    head: bytes
    tail: bytes
    sha256: str
    size: int
    ended: str | None = None


class _Output:
    def __init__(self) -> None:
        self.head = bytearray()
        self.tail = bytearray()
        self.digest = hashlib.sha256()
        self.size = 0

    def take(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)
        room = KEEP_BYTES - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        self.tail += chunk
        if len(self.tail) > 2 * KEEP_BYTES:
            del self.tail[:-KEEP_BYTES]


def environment(sid: str, source: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: the allow-list, a dumb terminal and the session's id."""
    kept = {name: source[name] for name in KEPT_VARIABLES if name in source}
    kept |= {name: value for name, value in source.items() if name.startswith("LC_")}
    kept.setdefault("PATH", os.defpath)
    return kept | {
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        SESSION: sid,
    }


async def run_shell(
    command: str, *, cwd: str, env: Mapping[str, str], timeout_s: float, run_as: RunAs | None = None
) -> Ran:
    """Run a command with `sh -c` and wait for its end; stdin is empty. `run_as`: as this user.

    Cancellation ends the command with its whole group within `TERM_GRACE_S` and a little.

    Raises:
        OSError: the shell cannot be started.
    """
    mark = secrets.token_hex(16)
    argv = ["/bin/sh", "-c", command]
    process = await carried_through(
        anyio.open_process(
            run_as.command(argv) if run_as else argv,
            cwd=cwd,
            env={**env, **(run_as.environment if run_as else {}), MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    )
    output = _Output()
    ended: str | None = None
    try:
        with anyio.move_on_after(timeout_s) as limit:
            ended = await _follow(process, output)
        if limit.cancelled_caught:
            ended = "timeout"
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, mark)
    tail = bytes(output.tail[-KEEP_BYTES:])
    return Ran(
        exit_code=None if ended else process.returncode,
        head=bytes(output.head),
        tail=tail,
        sha256=output.digest.hexdigest(),
        size=output.size,
        ended=ended,
    )


async def _follow(process: anyio.abc.Process, output: _Output) -> str | None:
    """Read until the command ended; a background process that holds the pipe is not waited for."""
    overflow = False

    async def drain() -> None:
        nonlocal overflow
        assert process.stdout is not None
        async for chunk in process.stdout:
            output.take(chunk)
            if output.size > OUTPUT_BYTES:
                overflow = True
                return

    async with anyio.create_task_group() as tasks:
        finished = anyio.Event()

        async def read() -> None:
            await drain()
            finished.set()
            if overflow:
                tasks.cancel_scope.cancel()

        tasks.start_soon(read)
        await process.wait()
        with anyio.move_on_after(DRAIN_S):
            await finished.wait()
        tasks.cancel_scope.cancel()
    return "output" if overflow else None


async def _end(process: anyio.abc.Process, mark: str) -> None:
    signal_group(process.pid, signal.SIGTERM)
    if process.returncode is None:
        with anyio.move_on_after(TERM_GRACE_S):
            await process.wait()
    signal_group(process.pid, signal.SIGKILL)
    wanted = f"{MARK}={mark}".encode()
    await anyio.to_thread.run_sync(end_marked, lambda variables: wanted in variables)
    await process.wait()
    await process.aclose()


def end_leftovers(sids: Collection[str]) -> int:
    """End what commands of these sessions left running when the daemon died; returns how many.

    Those that name a boot are left to `acp.process.end_old_boots`: a copy of a data folder has the same
    sessions, and its daemon must not end what the original runs.

    Only this user's processes are seen, and only where /proc exists (elsewhere: 0).
    """
    wanted = {f"{SESSION}={sid}".encode() for sid in sids}
    return len(
        end_marked(
            lambda variables: (
                not wanted.isdisjoint(variables)
                and any(variable.startswith(f"{MARK}=".encode()) for variable in variables)
                and not any(variable.startswith(f"{BOOT}=".encode()) for variable in variables)
            )
        )
    )
