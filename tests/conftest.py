"""Fixtures that every test may use."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=100, derandomize=True)
settings.register_profile("soak", parent=settings.get_profile("dev"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the daemon itself runs on."""
    return ("asyncio", {"use_uvloop": True})
