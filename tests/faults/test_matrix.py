"""The matrix in short: one round of what differs most. `make crash-matrix` runs it for as long as you like."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from loopd.testing.endpoint import Endpoint
from tests.faults import plan
from tests.faults.lane import Lane

pytestmark = [pytest.mark.anyio, pytest.mark.process]
POINTS = (
    ("commit.written", "envelope.accepted", 3),
    ("commit.done", "effect.intent", 2),
    ("tool.after", None, 2),
    ("boot.recovered", None, 1),
)


@pytest.mark.timeout(400)  # a daemon starts five times, on a machine that may be busy
async def test_a_handful_of_kills_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the model's peers die all the time
    lane = Lane(1, "t", tmp_path)
    lane.wait_s = 30.0  # a point that is not reached in time is a failure here, on a busy machine as well
    faults = [plan.at_point(*point) for point in POINTS]
    faults.append(plan.Fault(family="moment", detail="kill -9", after=20))
    faults.append(plan.Fault(family="damage", detail="lying fsync", after=20, times=2))
    async with Endpoint() as endpoint:
        lane.endpoint = endpoint
        try:
            results = [await lane.run(number, fault) for number, fault in enumerate(faults, 1)]
        finally:
            await lane.aclose()
    assert [(r.what, r.wrong) for r in results if r.wrong] == []
    assert [r.what for r in results if not r.reached] == []
    assert results[4].found.acknowledged > 10
    assert results[4].found.effects > 0


def test_the_same_seed_makes_the_same_faults() -> None:
    assert plan.faults(3) == plan.faults(3) != plan.faults(4)


def test_every_durable_kind_is_killed_before_and_behind_its_commit() -> None:
    labels = {fault.detail for fault in plan.faults(1) if fault.family == "point"}
    for kind in plan.KINDS:
        assert {f"{point}/{kind}" for point in plan.COMMIT_POINTS} <= labels
