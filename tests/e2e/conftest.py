"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.harness import Daemon, House


@pytest.fixture
def house() -> Iterator[House]:
    """A folder in which daemons live; all are ended with the test."""
    house = House()
    try:
        yield house
    finally:
        house.close()


@pytest.fixture
def daemon(house: House) -> Daemon:
    """A running daemon with default settings."""
    return house.daemon().start()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """A running daemon that the tests of a module share; each makes sessions of its own."""
    house = House()
    try:
        yield house.daemon(http=True).start()
    finally:
        house.close()
