"""Real agents: `make test-agents` installs them and asks for these tests; otherwise they are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from loopd.testing import realagents
from tests.e2e.harness import House

ASKED = "LOOPD_TEST_AGENTS"
"""Set by `make test-agents`: `1` for all, or the names of some."""
AGENTS = ("goose", "kimi-code", "opencode", "pi")


def need(name: str) -> None:
    """Skip, with the reason, unless an agent can be run."""
    asked = os.environ.get(ASKED, "").split()
    if not asked:
        pytest.skip(f"needs the real agent {name}: run `make test-agents`")
    if asked != ["1"] and name not in asked:
        pytest.skip(f"the real agent {name} was not asked for: {ASKED} names {' '.join(asked)}")
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
