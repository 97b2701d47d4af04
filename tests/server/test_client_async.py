"""The asynchronous client when whoever uses it is cancelled at any moment."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loopd.client_async import connect
from tests.control_stage import serving

pytestmark = pytest.mark.anyio
ROUNDS = 60


async def test_a_client_that_is_cancelled_while_bytes_arrive_leaves_the_loop_alone() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    with anyio.fail_after(60):
        async with serving() as (server, _, path):
            for _ in range(ROUNDS):
                async with anyio.create_task_group() as group, connect(path) as client:
                    await client.ping()
                    await anyio.lowlevel.checkpoint()  # it reads again
                    (line,) = server._connections
                    line.transport.write(b"{}")
                    group.cancel_scope.cancel()  # in the same step of the loop
                while server._connections:
                    await anyio.lowlevel.checkpoint()
    assert told == []


async def test_nobody_listens_is_an_error_of_the_system() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.raises(FileNotFoundError):
        async with connect(Path(folder) / "none.sock"):
            raise AssertionError
