"""A disk that is full, for real: a small file system is filled up beside the daemon, and emptied again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import NO_RULES, Daemon, House, working

pytestmark = pytest.mark.process
BALLAST = 4 << 20
CONFIG = f"[store]\nballast_bytes = {BALLAST}\n"


@pytest.fixture
def small_disk(house: House) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = house.folder / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("mounting a small file system needs root; `make crash-matrix` fills disks without")
    try:
        yield folder
    finally:
        for daemon in house.daemons:
            daemon.close()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room at all."""
    path = folder / "filler"
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    return path


def eventually(test: Callable[[], object], within_s: float = 15.0) -> None:
    """Wait for something that must come about by itself."""
    ends = time.monotonic() + within_s
    while not test():
        assert time.monotonic() < ends, "it did not come about"
        threading.Event().wait(0.1)


def page(daemon: Daemon, path: str) -> tuple[int, str]:
    """Status and body of an HTTP page."""
    try:
        with urllib.request.urlopen(daemon.ready["http"] + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_full_disk_stops_new_work_and_nothing_else_until_there_is_room(
    house: House, small_disk: Path
) -> None:
    daemon = house.daemon(config=CONFIG, http=True)
    daemon.data = small_disk / "d"
    daemon.socket = str(daemon.data / "control.sock")
    daemon.start()
    ballast = daemon.data / "ballast"
    assert ballast.stat().st_size == BALLAST
    script = house.script(working(400))
    busy = daemon.scripted(script, goal="write", delay_ms=20, set={"continuation.min_gap_ms": 0, **NO_RULES})
    quiet = daemon.scripted(script)
    told = [daemon.call("send", quiet, text=f"note {n}")["id"] for n in range(5)]
    daemon.until(busy, "turn.completed", count=2)

    filler = fill(small_disk)
    eventually(lambda: not daemon.call("daemon.status")["ready"])
    eventually(lambda: "Maintenance" in daemon.call("daemon.status")["holds"])
    status = daemon.call("daemon.status")
    assert status["reasons"] == ["storage_full"]
    assert status["holds"]["Maintenance"] == 2
    assert not ballast.exists(), "it was there to be deleted"
    assert page(daemon, "/readyz")[0] == 503
    assert page(daemon, "/livez")[0] == 200
    refused = daemon.refusal("send", quiet, text="no room for this")
    assert (refused.code, refused.retry_after_ms is not None) == ("storage_full", True)
    assert (
        daemon.refusal("session.create", driver={"kind": "scripted", "script": str(script)}).code
        == "storage_full"
    )
    why = daemon.ctl("why", quiet)
    assert (why["house"], [h["kind"] for h in why["holds"]]) == ("maintenance", ["Maintenance"])
    assert why["holds"][0]["until_ms"]
    assert [e["b"]["id"] for e in daemon.events(quiet, "envelope.accepted")] == told
    turns = len(daemon.events(busy, "turn.started"))

    filler.unlink()
    eventually(lambda: daemon.call("daemon.status")["ready"])
    assert ballast.stat().st_size == BALLAST
    assert daemon.call("daemon.status")["holds"] == {}
    daemon.until(busy, "turn.completed", count=turns + 2)
    daemon.call("send", quiet, text="there is room again")
    states = [e["b"]["state"] for e in daemon.events(None, "storage.changed")]
    assert states == ["full", "writable"]
    daemon.call("suspend", busy, mode="kill")
    daemon.verified()


def test_a_daemon_that_starts_on_a_full_disk_lets_people_look(house: House, small_disk: Path) -> None:
    daemon = house.daemon(config=CONFIG)
    daemon.data = small_disk / "d"
    daemon.socket = str(daemon.data / "control.sock")
    daemon.start()
    sid = daemon.scripted(house.script(working()))
    daemon.call("send", sid, text="hello")
    daemon.until(sid, "turn.completed")
    daemon.kill()
    filler = fill(small_disk)
    daemon.start()
    eventually(lambda: daemon.call("daemon.status")["reasons"] == ["storage_full"])
    assert daemon.call("why", sid)["name"]
    assert daemon.refusal("send", sid, text="x").code == "storage_full"
    filler.unlink()
    eventually(lambda: daemon.call("daemon.status")["ready"])
    daemon.call("send", sid, text="again")
    daemon.until(sid, "turn.completed", count=2)
    daemon.verified()
