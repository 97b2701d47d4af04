from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.drivers.acp.stage import AcpStage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[AcpStage]:
    """A stage whose agents are ended with the test."""
    stage = AcpStage(tmp_path)
    try:
        yield stage
    finally:
        await stage.aclose()
