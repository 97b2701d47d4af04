"""Each driver keeps each promise of the port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from loopd.testing.driver_suite import CHECKS, Stage
from loopd.testing.endpoint import Endpoint
from tests.drivers.acp.stage import AcpStage
from tests.drivers.stages import ChatStage, ScriptedStage

pytestmark = pytest.mark.anyio
Check = Callable[[Stage], Awaitable[None]]
named = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))


@named
async def test_the_scripted_driver(check: Check, tmp_path: Path) -> None:
    await check(ScriptedStage(tmp_path))


@named
async def test_the_chat_driver(check: Check, tmp_path: Path) -> None:
    async with Endpoint() as endpoint:
        await check(ChatStage(endpoint, tmp_path))


@named
async def test_the_acp_driver(check: Check, tmp_path: Path) -> None:
    stage = AcpStage(tmp_path)
    try:
        await check(stage)
    finally:
        await stage.aclose()
