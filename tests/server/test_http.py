"""The HTTP side, served by the real server and asked by a real client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from loopd.server.http import serve_http
from loopd_protocol.errors import Refused

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def served(reasons: list[str] | None = None, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with anyio.create_task_group() as group:

        async def run(*, task_status: Any) -> None:
            await serve_http(
                more.pop("host", "127.0.0.1"),
                0,
                metrics=lambda: b"loopd_boot_total 1\n",
                health=lambda: reasons or [],
                task_status=task_status,
                **more,
            )

        host, port = await group.start(run)
        name = f"[{host}]" if ":" in host else host
        async with httpx.AsyncClient(base_url=f"http://{name}:{port}", timeout=5) as client:
            yield client
        group.cancel_scope.cancel()


async def test_metrics_are_the_text_that_prometheus_reads():
    async with served() as client:
        answer = await client.get("/metrics")
        assert (answer.status_code, answer.content) == (200, b"loopd_boot_total 1\n")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        head = await client.head("/metrics")
        assert (head.status_code, head.content) == (200, b"")


async def test_ready_names_its_reasons_when_it_is_not():
    reasons: list[str] = []
    async with served(reasons) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})
        reasons += ["draining", "storage_full"]
    async with served(reasons) as client:
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"ready": False, "reasons": reasons})
        assert (await client.get("/livez")).json() == {"live": True}


async def test_everything_else_is_a_problem_document():
    async with served() as client:
        for path in ("/", "/v1/commands", "/metrics/", "/docs", "/%00"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["cache-control"] == "no-store"
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            answer = await client.request(method, "/metrics")
            assert (answer.status_code, answer.json()["status"]) == (405, 405)
            assert "access-control-allow-origin" not in answer.headers


async def test_a_host_that_is_not_ours_is_refused():
    async with served(hosts=["metrics.example"]) as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.", "evil.example:80", "[::2]"):
            answer = await client.get("/metrics", headers={"host": host})
            assert answer.status_code == 421, host
            assert b"loopd_boot_total" not in answer.content
        for host in ("localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:5", "metrics.example"):
            assert (await client.get("/metrics", headers={"host": host})).status_code == 200, host


async def raw_answer(client: httpx.AsyncClient, request: bytes) -> bytes:
    port = client.base_url.port
    assert port
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(request)
        data = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError), anyio.move_on_after(3):
            while True:
                data += await stream.receive()
    return data


async def test_requests_without_a_host_with_two_or_too_large_are_refused():
    async with served() as client:
        none = await raw_answer(client, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert none.split(b" ")[1] == b"421"
        two = await raw_answer(
            client, b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"
        )
        assert two.split(b" ")[1] in {b"400", b"421"}
        large = await raw_answer(client, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
        assert large.split(b" ")[1] == b"400"
        assert (await client.get("/livez")).status_code == 200


async def test_signal_handlers_and_logs_are_left_alone(caplog: pytest.LogCaptureFixture):
    before = {sig: signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)}
    with caplog.at_level(logging.INFO):
        async with served() as client:
            assert {sig: signal.getsignal(sig) for sig in before} == before
            await client.get("/livez")
    assert not [
        record
        for record in caplog.records
        if "GET /livez" in record.getMessage() and record.name.startswith("uvicorn")
    ]


async def test_the_server_ends_when_it_is_cancelled_even_with_a_silent_peer():
    async with anyio.create_task_group() as group:

        async def run(*, task_status: Any) -> None:
            await serve_http("127.0.0.1", 0, metrics=bytes, health=list, task_status=task_status)

        _, port = await group.start(run)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"GET /metr")
            with anyio.fail_after(3):
                group.cancel_scope.cancel()
                with (
                    anyio.CancelScope(shield=True),
                    contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError),
                ):
                    while True:
                        await stream.receive()
    with pytest.raises(OSError, match=r"failed|refused"):
        await anyio.connect_tcp("127.0.0.1", port)


async def test_an_address_beyond_loopback_needs_a_word_of_the_operator():
    with pytest.raises(Refused, match="allow_remote") as met:
        await serve_http("0.0.0.0", 0, metrics=bytes, health=list)
    assert met.value.code == "invalid"
    async with served(host="0.0.0.0", allow_remote=True) as client:
        answer = await client.get("/livez", headers={"host": "127.0.0.1"})
        assert answer.status_code == 200


async def test_an_address_that_cannot_be_bound_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=str(port)):
            await serve_http("127.0.0.1", port, metrics=bytes, health=list)
    with pytest.raises(Refused, match="unknown"):
        await serve_http("no host at all", 0, metrics=bytes, health=list)


def test_it_runs_on_the_plain_loop_too():
    async def main() -> None:
        async with served() as client:
            assert json.loads((await client.get("/livez")).content) == {"live": True}

    asyncio.run(main())
