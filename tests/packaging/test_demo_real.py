"""`make demo-real` tells a true story: it checks itself and says which promise was broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import anyio.abc
import pytest

from loopd.testing.demo_real import Relay
from loopd.testing.realmodel import FOLDER, RealModel

TOP = Path(__file__).resolve().parents[2]


@pytest.mark.anyio
async def test_the_relay_passes_bytes_on_and_counts_the_requests_among_them() -> None:
    async def model(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            heard = await stream.receive()
            await stream.send(heard[::-1])

    with anyio.fail_after(10):
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as server,
            anyio.create_task_group() as tasks,
        ):
            port = server.extra(anyio.abc.SocketAttribute.local_port)
            relay = Relay(RealModel(url=f"http://127.0.0.1:{port}/v1", model="m", pid=1))
            tasks.start_soon(server.serve, model)
            await tasks.start(relay.serve)
            host, _, own = relay.url.removeprefix("http://").removesuffix("/v1").rpartition(":")
            for asked in (b"POST /v1/chat/completions HTTP/1.1", b"GET /v1/models HTTP/1.1"):
                async with await anyio.connect_tcp(host, int(own)) as client:
                    await client.send(asked)
                    assert await client.receive() == asked[::-1]
            assert relay.requests == 1
            tasks.cancel_scope.cancel()


@pytest.mark.real
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_real_model_degenerates_and_is_caught_suspended_killed_and_brought_back() -> None:
    if not (TOP / FOLDER / "installed").exists():
        pytest.skip("the real model is not installed (220 MB): run `make demo-real` once")
    told = subprocess.run(
        [sys.executable, "-m", "loopd.testing.demo_real", "--folder", TOP / FOLDER, "--agent", "none"],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "All of it happened" in told.stdout
