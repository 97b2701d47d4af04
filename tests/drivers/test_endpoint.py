"""The test endpoint as a program of its own, and the real model where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from loopd.core.conversation import TurnEnd
from loopd.drivers.chat import ChatDriver
from loopd.testing import realmodel
from loopd.testing.driver_suite import RecordingHost, turn
from loopd.testing.endpoint import Call, Reply
from loopd_protocol.commands import ChatSpec

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[dict[str, Any]]:
    command = [sys.executable, "-m", "loopd.testing.endpoint", *options]
    async with await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=None) as process:
        assert process.stdout is not None
        try:
            with anyio.fail_after(30):
                line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 10_000)
            yield json.loads(line)
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True), anyio.fail_after(10):
                await process.wait()
    assert process.returncode == 0


async def take(url: str) -> tuple[TurnEnd, RecordingHost]:
    host = RecordingHost()
    driver = ChatDriver("s", ChatSpec(base_url=url, model="m"), None)
    with anyio.fail_after(20):
        return await driver.take_turn(turn(), host), host


async def test_it_says_where_it_listens_and_counts_what_it_got() -> None:
    async with running("--say", "16/100. Not complete. No action.") as told:
        assert told["ready"] is True
        steps = []
        for _ in range(3):
            end, host = await take(told["url"])
            assert end.outcome == "completed"
            steps += host.steps
        async with httpx.AsyncClient(trust_env=False) as client:
            seen = (await client.get(told["url"].replace("/v1", "/requests"))).json()
            models = (await client.get(told["url"] + "/models")).json()
    assert [step.text for step in steps] == ["16/100. Not complete. No action."] * 3
    assert seen["count"] == 3
    assert [row["sha256"] for row in seen["requests"]] == [step.request_sha256 for step in steps]
    assert models["data"][0]["id"] == "test"


async def test_it_can_say_something_else_each_time_and_fail_at_first() -> None:
    async with running(
        "--say", "step {n}", "--fail", "429", "--fail-first", "1", "--retry-after", "0"
    ) as told:
        first, second = (await take(told["url"]))[1], (await take(told["url"]))[1]
    assert [cause for _, cause, _ in first.retries] == ["rate_limited"]
    assert [first.steps[0].text, second.steps[0].text] == ["step 2", "step 3"]


async def test_replies_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "replies.json"
    replies = [Reply(calls=(Call("report_phase", {"name": "x"}),)), Reply(text="done")]
    path.write_bytes(msgspec.json.encode(replies))
    async with running("--replies", str(path)) as told:
        end, host = await take(told["url"])
    assert end.outcome == "completed"
    assert [len(step.calls) for step in host.steps] == [1, 0]

    return msgspec.json.encode(replies)


@pytest.mark.real
@pytest.mark.long
async def test_a_real_model_repeats_itself_within_25_continuations() -> None:
    if not (realmodel.FOLDER / "installed").exists():
        pytest.skip("no real model; `python -m loopd.testing.realmodel prepare` installs one")
    python = realmodel.prepare()
    async with realmodel.serving(python) as model:
        texts = await realmodel.probe(model, goal=realmodel.GOAL, turns=25)
    assert realmodel.run_of_equals(texts) == len(texts)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [("", None), ("aaaa", None), ("aaaaa", 5), ("abaaaaa", 7), ("aabbaabb", None), ("aaaabaaaa", None)],
)
def test_a_run_of_equal_texts_is_counted(texts: str, wanted: int | None) -> None:
    assert realmodel.run_of_equals(list(texts)) == wanted
