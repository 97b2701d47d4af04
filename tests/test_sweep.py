"""Memory that nobody uses goes back to the system."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd.daemon.sweep import MADE_MIN, Sweep

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas to speak of")
GIVES_BACK = """
from pathlib import Path
from loopd import allocator

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

pieces = [bytes(30_000) + bytes([n % 7]) for n in range(4_000)]
kept = pieces[::50]
full = resident()
del pieces
held = full - resident()
assert allocator.give_back()
given = full - resident()
print(held, given)
"""
SHARES = """
import threading
from pathlib import Path
from loopd import allocator

assert allocator.limit_arenas()
held = [None] * 24
together = threading.Barrier(24)

def make(n):
    held[n] = bytes(100_000)
    together.wait(30)

threads = [threading.Thread(target=make, args=(n,)) for n in range(24)]
for each in threads: each.start()
for each in threads: each.join(30)
sizes = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()]
spans = [(int(a, 16), int(b, 16)) for a, b in (size.split("-") for size in sizes)]
# each arena of a thread reserves 64 MiB, aligned, that begin with what is in use
ends = {b for _, b in spans}
print(sum(1 for a, b in spans if a % (64 << 20) == 0 and a + (64 << 20) in ends))
"""


class Round:
    """Refers to itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def by_hand() -> Iterator[None]:
    """No collection but those that are asked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def said(program: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.anyio
@pytest.mark.usefixtures("by_hand")
async def test_what_only_refers_to_itself_is_found_once_enough_was_made() -> None:
    sweep = Sweep()
    await sweep.once()
    lost = weakref.ref(Round())
    assert not await sweep.once()
    assert lost() is not None
    made = [[n] for n in range(2 * MADE_MIN)]
    assert await sweep.once()
    assert lost() is None
    assert len(made) == 2 * MADE_MIN
    assert sweep.pause_s > 0


@pytest.mark.anyio
@pytest.mark.usefixtures("by_hand")
async def test_a_look_is_taken_after_the_collector_looked_at_the_youngest_only() -> None:
    sweep = Sweep()
    await sweep.once()
    lost = weakref.ref(Round())
    gc.collect(0)
    assert lost() is None  # it was young
    old = Round()
    gc.collect(1)  # grew old
    lost = weakref.ref(old)
    del old
    assert await sweep.once()
    assert lost() is None


@GLIBC
def test_free_pages_between_others_go_back_to_the_system() -> None:
    held, given = said(GIVES_BACK)
    assert given > 90_000_000
    assert given - held > 30_000_000  # else it would have gone by itself


@GLIBC
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
def test_all_threads_share_two_arenas() -> None:
    (of_threads,) = said(SHARES)
    assert of_threads <= 1
    (unlimited,) = said(SHARES.replace("assert allocator.limit_arenas()", ""))
    assert unlimited > 2
