"""`kill -9` while it writes: what was acknowledged is there, once, and everything verifies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from loopd.store import SqliteStore

TOP = Path(__file__).parents[2]
SESSIONS = 20


def run_until_killed(path: Path, after_lines: int) -> list[tuple[int, int, int]]:
    """Acknowledgements that the child reported before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.crash_child", str(path), str(SESSIONS)],
        cwd=TOP,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        lines = [child.stdout.readline() for _ in range(after_lines)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.read().splitlines(keepends=True)
    finally:
        child.kill()
        child.stdout.close()
        assert child.wait(timeout=30) == -signal.SIGKILL
    whole = [line.split() for line in lines if line.endswith(b"\n")]
    return [(int(num), int(ss), int(seq)) for num, ss, seq in whole]


async def crash_and_check(path: Path, rounds: int, seed: int) -> None:
    dice = random.Random(seed)
    reached: dict[int, int] = {}
    for _ in range(rounds):
        reported = await anyio.to_thread.run_sync(run_until_killed, path, dice.randrange(1, 400))
        assert reported
        async with await SqliteStore.open(path, boot="check") as store:
            assert store.head >= max(seq for _, _, seq in reported)
            for num, ss, seq in reported:
                reached[num] = max(reached.get(num, 0), ss)
                event = (await store.events_at(f"ses_{num}", [ss]))[0]
                assert event.seq == seq
            for num, ss in reached.items():
                state = await store.load_session(f"ses_{num}")
                assert state is not None
                assert state.ss >= ss
            proof = await store.verify()
            assert proof["ok"], proof["findings"]
            assert proof["checked"]["events"] == store.head


@pytest.mark.anyio
@pytest.mark.process
async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        await crash_and_check(tmp_path / "journal.db", rounds=4, seed=9)


@pytest.mark.anyio
@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_kill_9_sixty_times_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with anyio.fail_after(800):
        await crash_and_check(tmp_path / "journal.db", rounds=60, seed=60)
