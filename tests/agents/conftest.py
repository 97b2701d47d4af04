"""Real agents: `make test-agents` installs them and asks for these tests; otherwise they are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from loopd.testing import realagents
from tests.e2e.harness import House

ASKED = "LOOPD_TEST_AGENTS"
AGENTS = ("goose", "kimi-code", "opencode")


def need(name: str) -> None:
    """Skip, with the reason, unless an agent can be run."""
    if not os.environ.get(ASKED):
        pytest.skip(f"needs the real agent {name}: run `make test-agents`")
    reason = realagents.missing(name)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> str:
    """Each agent in turn."""
    name: str = request.param
    need(name)
    return name


@pytest.fixture
def house() -> Iterator[House]:
    """A folder in which daemons live; all are ended with the test."""
    house = House()
    try:
        yield house
    finally:
        house.close()
