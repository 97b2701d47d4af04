"""A large log is verified by processes, and they find what one would have found."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from loopd.store import SqliteStore, opening, parts
from loopd.store.crew import Setting
from loopd.store.parts import Part, parts_of
from loopd.store.request import File, Request
from loopd.store.verify import run
from loopd.testing.store_suite import Story
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source
from tests.store.test_verify import TAMPERINGS, fill, tamper

SESSIONS = 7
WORDS = (
    "a principal",
    "a body",
    "a counter",
    "a deadline",
    "an invented turn",
    "a blob",
    "a lost blob",
    "the freeze",
)


async def populate(path: Path) -> None:
    await fill(path, 60)
    async with await SqliteStore.open(path, boot="more") as store:
        for num in range(3, SESSIONS + 1):
            story = Story(num)
            await store.submit(story.created())
            for _ in range(20):
                envelope = story.envelope(source=Source.CRON)
                await store.submit(story.tell(envelope, *story.turn(envelopes=(envelope.id,))))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("crew") / "journal.db"
    anyio.run(populate, path)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, image: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(parts, "EVENTS_AT_LEAST", 50)
    monkeypatch.setattr(parts, "BLOBS_AT_LEAST", 10)
    path = tmp_path / "journal.db"
    path.write_bytes(image)
    return path


def proven(path: Path, *, crew: bool, **asked: Any) -> dict[str, Any]:
    file = File(path=path, alone=True, rows_worth_it=0) if crew else None
    connection = opening.connect_reader(path, alone=True)
    try:
        log_id = opening.identify(connection).log_id
        proof = run(connection, Request(log_id=log_id, file=file, **asked))
    finally:
        connection.close()
    del proof["took_ms"]
    return proof


def children() -> set[int]:
    """Processes that this one has started and that have not ended."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def test_parts_leave_nothing_out_and_do_nothing_twice(path: Path) -> None:
    connection = sqlite3.connect(path)
    found = parts_of(connection)
    for what in ("sessions", "blobs"):
        ranges = [(part.first, part.last) for part in found if part.what == what]
        assert len(ranges) >= 3
        assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
        assert ranges[-1][1] == parts.NO_END
    events, blobs = (
        connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("journal", "blob")
    )
    for what, rows in (("log", events), ("blobs", blobs)):
        assert sum(part.rows for part in found if part.what == what) == rows
    connection.close()


def test_many_find_what_one_finds_in_the_same_order(path: Path) -> None:
    assert proven(path, crew=True) == proven(path, crew=False)
    for word in WORDS:
        tamper(path, *TAMPERINGS[word][0])
    proof = proven(path, crew=True)
    assert {finding["check"] for finding in proof["findings"]} >= {"chain", "session chain", "I9", "blob"}
    assert proof == proven(path, crew=False)


def test_more_findings_than_are_listed_are_counted_alike(path: Path) -> None:
    tamper(path, "UPDATE journal SET principal = 'uid:0' WHERE seq > 9")
    proof = proven(path, crew=True)
    assert proof["findings_total"] > len(proof["findings"])
    assert proof == proven(path, crew=False)


def test_progress_is_told_in_rows_up_to_all_of_them(path: Path) -> None:
    connection = sqlite3.connect(path)
    events, alone, blobs = connection.execute(
        "SELECT count(*), count(*) - count(sid), (SELECT count(*) FROM blob) FROM journal"
    ).fetchone()
    connection.close()
    for crew in (True, False):
        told: list[tuple[str, int, int]] = []
        proven(path, crew=crew, progress=lambda *at: told.append(at))  # noqa: B023
        assert told == sorted(told)
        # those of the daemon are in no session
        assert told[-1] == ("rows", 2 * events + blobs - alone, 2 * events + blobs)


def test_a_verification_that_is_called_off_leaves_no_process(path: Path) -> None:
    before, seen = children(), set[int]()

    def stopped() -> bool:
        seen.update(children() - before)
        return bool(seen)

    with pytest.raises(Refused, match="called off") as refused:
        proven(path, crew=True, stopped=stopped)
    assert refused.value.code == "cancelled"
    assert seen
    assert children() == before


def test_a_process_that_dies_proves_nothing(path: Path) -> None:
    before = children()

    def stopped() -> bool:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        return False

    with pytest.raises(Refused, match=r"ended with -9; nothing is proven") as refused:
        proven(path, crew=True, stopped=stopped)
    assert refused.value.code == "internal"
    assert children() == before


def test_where_no_process_can_be_started_one_does_all(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(path.with_name("no-python")))
    proof = proven(path, crew=True)
    assert proof["ok"]
    assert proof["checked"]["sessions"] == SESSIONS
    assert [record.message for record in caplog.records] == ["no process can be started, so one verifies all"]


def test_what_the_file_refuses_a_process_tells(path: Path) -> None:
    tamper(path, "DROP TABLE cron")
    with pytest.raises(Refused, match="other tables than this loopd expects") as refused:
        proven(path, crew=True)
    assert refused.value.code == "corrupt"


def test_a_process_ends_with_who_asked(path: Path) -> None:
    connection = sqlite3.connect(path)
    (log_id,) = connection.execute("SELECT log_id FROM meta").fetchone()
    connection.close()
    lines = (
        msgspec.json.encode(Setting(str(path), True, log_id))
        + b"\n"
        + msgspec.json.encode(Part("log"))
        + b"\n"
    )
    process = subprocess.run(
        [sys.executable, "-m", "loopd.store.checker"],
        input=lines,
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert b"called off" in process.stdout, "its input had ended when it looked"


@pytest.mark.anyio
async def test_a_crew_reads_beside_a_working_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = property(lambda store: File(path=store.path, gently=True, rows_worth_it=0))
    monkeypatch.setattr(SqliteStore, "file", at_once)
    async with await SqliteStore.open(path, boot="b2") as store, anyio.create_task_group() as tasks:
        story = Story(SESSIONS + 1)
        await store.submit(story.created())
        proofs: list[dict[str, Any]] = []

        async def verify() -> None:
            proofs.append(await store.verify())

        tasks.start_soon(verify)
        while not proofs:
            await store.submit(story.tell(story.envelope(source=Source.CRON), *story.turn()))
    assert proofs[0]["findings"] == []
    assert proofs[0]["checked"]["sessions"] == SESSIONS + 1
