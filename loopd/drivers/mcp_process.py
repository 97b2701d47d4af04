"""An MCP server as a process: lines of JSON on its stdin and stdout, nothing left when it is over.

Its environment carries the session's mark, so that whatever it starts is found again, also by the next
boot after a crash of the daemon. What it writes to stderr is drained; the end of it is kept to explain
its death.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from loopd.drivers.marks import end_marked, signal_group
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import MARK
from loopd.drivers.starting import carried_through

LINE_BYTES = 16 * 1024 * 1024
"""A longer line ends the server: no tool's output is read that far."""
STDERR_BYTES = 4_096
STDIN_GRACE_S = 1.0
TERM_GRACE_S = 1.0


class ServerProcess:
    """A running server.

    Attributes:
        read, write: what the SDK's session is made of.
        ended: set when the server's stdout is at its end.
        stderr: the end of what it wrote there.
        fault: why it was ended from here, or empty.
    """

    def __init__(self, read: Any, write: Any) -> None:
        self.read: MemoryObjectReceiveStream[Any] = read
        self.write: MemoryObjectSendStream[Any] = write
        self.ended = anyio.Event()
        self.stderr = b""
        self.fault = ""


@contextlib.asynccontextmanager
async def server_process(
    argv: Sequence[str], *, cwd: str | None, env: Mapping[str, str], run_as: RunAs | None
) -> AsyncIterator[ServerProcess]:
    """Start a server; leaving the block ends it with everything that it started.

    Raises:
        OSError: it cannot be started.
    """
    mark = secrets.token_hex(16)
    process = await carried_through(
        anyio.open_process(
            run_as.command(argv) if run_as else list(argv),
            cwd=cwd,
            env={**env, **(run_as.environment if run_as else {}), MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    )
    inward, read = anyio.create_memory_object_stream[Any](0)
    write, outward = anyio.create_memory_object_stream[Any](0)
    server = ServerProcess(read, write)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_from_server, process, inward, server)
            tasks.start_soon(_to_server, process, outward)
            tasks.start_soon(_drain, process, server)
            try:
                yield server
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, mark)
            for stream in (inward, read, write, outward):
                stream.close()


async def _from_server(
    process: anyio.abc.Process, inward: MemoryObjectSendStream[Any], server: ServerProcess
) -> None:
    from mcp.shared.message import SessionMessage  # noqa: PLC0415
    from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

    assert process.stdout is not None
    buffer = bytearray()
    try:
        async with inward:
            async for chunk in process.stdout:
                buffer += chunk
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                if len(buffer) > LINE_BYTES:
                    server.fault = f"a line of more than {LINE_BYTES} bytes"
                    return
                for line in lines:
                    if not line.strip():
                        continue
                    try:
                        message: Any = SessionMessage(
                            jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
                        )
                    except ValueError:
                        continue  # servers print greetings; whoever waits for an answer has a time limit
                    await inward.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    finally:
        server.ended.set()


async def _to_server(process: anyio.abc.Process, outward: MemoryObjectReceiveStream[Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async for message in outward:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(line.encode() + b"\n")


async def _drain(process: anyio.abc.Process, server: ServerProcess) -> None:
    assert process.stderr is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for chunk in process.stderr:
            server.stderr = (server.stderr + chunk)[-STDERR_BYTES:]


async def _end(process: anyio.abc.Process, mark: str) -> None:
    """By the protocol: its stdin is closed and it may go; then it must, with everything that is marked."""
    assert process.stdin is not None
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        await process.stdin.aclose()
    for number, grace_s in ((None, STDIN_GRACE_S), (signal.SIGTERM, TERM_GRACE_S)):
        if process.returncode is not None:
            break
        if number is not None:
            signal_group(process.pid, number)
        with anyio.move_on_after(grace_s):
            await process.wait()
    signal_group(process.pid, signal.SIGKILL)
    wanted = f"{MARK}={mark}".encode()
    await anyio.to_thread.run_sync(end_marked, lambda variables: wanted in variables)
    await process.wait()
    await process.aclose()


def selected(names: Sequence[str]) -> dict[str, str]:
    """Variables of the daemon that a server gets.

    Raises:
        KeyError: one is not set.
    """
    return {name: os.environ[name] for name in names}
