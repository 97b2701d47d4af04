"""Notes: nobody waits for them, they keep their place, and a crash loses at most the last 50 ms."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from loopd.core.writes import LAZY_MS, Append, Fact
from loopd.store import SqliteStore, writer
from loopd.testing.store_suite import Story
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

pytestmark = pytest.mark.anyio
TOP = Path(__file__).parents[2]
SLACK_S = 5.0
"""How much later than it should a machine under load may write; the bound itself is tried with a quiet loop."""


def note(number: int) -> Append:
    event = ev.DetectorNear(rule="cycle", n=1, score=number, soft=9)
    return Append(sid=None, at_ms=number, facts=(Fact(event=event, ss=0),), lazy=True)


async def opened(folder: Path) -> SqliteStore:
    return await SqliteStore.open(folder / "journal.db", boot="b")


async def test_what_nobody_waits_for_goes_by_itself_in_one_group_after_50_ms(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        begun = time.monotonic()
        futures = [store.submit(note(n)) for n in range(100)]
        await anyio.lowlevel.checkpoint()
        assert (store.head, store.commits.groups) == (0, 0)
        with anyio.fail_after(SLACK_S):
            done = await asyncio.gather(*futures)
        assert time.monotonic() - begun >= LAZY_MS / 1_000 * 0.9
        assert [d.first for d in done] == list(range(1, 101))
        assert (store.commits.groups, store.commits.lazy, store.commits.lazy_dropped) == (1, 100, 0)


async def test_it_goes_at_once_with_what_somebody_waits_for_and_before_it(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        story = Story()
        await store.submit(story.created())
        groups = store.commits.groups
        early = store.submit(note(1))
        done = await store.submit(story.tell(story.envelope("and now")))
        assert early.done(), "in the same commit"
        assert (early.result().first, done.first) == (2, 3)
        assert store.commits.groups == groups + 1


async def test_a_full_queue_leaves_it_out_and_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LAZY_ITEMS", 3)
    async with await opened(tmp_path) as store:
        taken = [store.submit(note(n)) for n in range(5) if store.takes_lazy()]
        assert (len(taken), store.commits.lazy_dropped) == (3, 2)
        measures = await store.measures()
        assert (measures["lazy"], measures["lazy_dropped"]) == (3, 2)
        await asyncio.gather(*taken)
        assert store.takes_lazy(), "there is room again"


async def test_a_store_that_closes_writes_what_it_took(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        future = store.submit(note(1))
    assert future.result().first == 1
    async with await SqliteStore.open(tmp_path / "journal.db", boot="b", readonly=True) as again:
        assert again.head == 1
        assert not again.takes_lazy()
        with pytest.raises(Refused, match="storage_readonly"):
            await again.submit(note(2))


def killed(path: Path, dice: random.Random) -> tuple[list[tuple[int, float]], dict[int, int], float]:
    """What a child handed in (number, moment), what was acknowledged (number → of notes before), and its end."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.lazy_child", str(path)], cwd=TOP, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        lines = [child.stdout.readline() for _ in range(dice.randrange(30, 400))]
        os.kill(child.pid, signal.SIGKILL)
        ended = time.monotonic()
        lines += child.stdout.read().splitlines(keepends=True)
    finally:
        child.kill()
        child.stdout.close()
        assert child.wait(timeout=30) == -signal.SIGKILL
    noted: list[tuple[int, float]] = []
    acknowledged: dict[int, int] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            continue
        what, number, rest = line.split()
        if what == b"noted":
            noted.append((int(number), float(rest)))
        else:
            acknowledged[int(number)] = int(rest)
    return noted, acknowledged, ended


@pytest.mark.process
async def test_a_kill_loses_only_the_newest_of_them_and_never_one_before_an_acknowledged_fact(
    tmp_path: Path,
) -> None:
    path, dice = tmp_path / "journal.db", random.Random(11)
    for _ in range(4):
        async with await SqliteStore.open(path, boot="before") as store:
            head = store.head
        with anyio.fail_after(60):
            noted, acknowledged, ended = await anyio.to_thread.run_sync(killed, path, dice)
        assert len(noted) > 10
        assert acknowledged
        async with await SqliteStore.open(path, boot="check") as store:
            rows = await store.page(sid=None, after=head, before=None, limit=10_000)
            proof = await store.verify()
            assert proof["ok"], proof["findings"]
        stored = [ev.decode(row.body) for row in rows]
        kept = [event.score for event in stored if isinstance(event, ev.DetectorNear)]
        assert kept == list(range(len(kept))), "a beginning, in its order"
        assert len(kept) >= max(acknowledged.values()), "what was handed in before an acknowledged fact"
        gone = [moment for number, moment in noted if number >= len(kept)]
        assert all(ended - moment < LAZY_MS / 1_000 + SLACK_S for moment in gone)
        places = [event.interrupted for event in stored if isinstance(event, ev.DaemonStopped)]
        assert set(acknowledged) <= set(places)
