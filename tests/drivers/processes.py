"""Watch processes that a tool started, without polling."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.to_thread


class Watched:
    """A process that was seen alive; holds on to it, so that its pid cannot come to mean another one."""

    def __init__(self, pid: int) -> None:
        self._handle = os.pidfd_open(pid)

    async def gone(self) -> None:
        """Wait for its end.

        Raises:
            TimeoutError: it still lives after 5 s.
        """
        try:
            with anyio.fail_after(5):
                await anyio.wait_readable(self._handle)
        finally:
            os.close(self._handle)


class Pipe:
    """A named pipe into which a command writes a pid: reading it waits for the writer."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path

    async def process(self) -> Watched:
        """The process whose pid is written next."""
        with anyio.fail_after(10):
            text = await anyio.to_thread.run_sync(self._path.read_text, abandon_on_cancel=True)
        return Watched(int(text))
