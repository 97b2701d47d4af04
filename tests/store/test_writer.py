"""The writer on a real disk: groups, cancellation, checkpoints, and what happens when the disk fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from loopd.core.writes import Append, Fact
from loopd.store import MemoryStore, SqliteStore, writer
from loopd.store.faults import breaks_the_storage, refusal
from loopd.store.hop import hop
from loopd.testing.store_suite import Story, refused
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

pytestmark = pytest.mark.anyio


def noted(at_ms: int, text: str = "") -> Append:
    return Append(
        sid=None,
        at_ms=at_ms,
        facts=(Fact(event=ev.DaemonStopped(reason=text or "x", interrupted=at_ms), ss=0),),
    )


async def opened(folder: Path, **options: object) -> SqliteStore:
    return await SqliteStore.open(folder / "journal.db", boot="b", **options)  # type: ignore[arg-type]


async def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await store.submit(noted(1))
        groups = store.commits.groups
        await asyncio.gather(*(store.submit(noted(n)) for n in range(1_000)))
        assert store.head == 1_001
        assert store.commits.groups - groups <= 3
        assert store.commits.rows == 1_001


async def test_a_cancelled_producer_leaves_its_batch_whole_and_the_file_unlocked(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        story = Story()
        await store.submit(story.created())
        for round_ in range(20):
            with anyio.move_on_after(0) as scope:
                scope.cancel()
                await store.submit(story.tell(story.envelope(str(round_), source=Source.CRON), *story.turn()))
        done = await store.submit(story.tell(story.envelope("last")))
        assert done.last == store.head == 1 + 20 * 4 + 1
        assert (await store.verify())["ok"]
        other = sqlite3.connect(tmp_path / "journal.db", timeout=0)
        other.execute("BEGIN IMMEDIATE")  # nobody holds the lock
        other.close()


async def test_closing_under_cancellation_still_stores_what_was_queued(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    futures = [store.submit(noted(n)) for n in range(100)]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()
    assert [future.result().last for future in futures] == list(range(1, 101))
    assert not (tmp_path / "journal.db-wal").exists(), "the log is folded back and removed"
    async with await opened(tmp_path) as store:
        assert store.head == 100


async def test_the_queue_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUEUE_ITEMS", 50)
    async with await opened(tmp_path) as store:
        futures = [store.submit(noted(n)) for n in range(60)]
        codes = [
            "" if error is None else getattr(error, "code", "")
            for error in (await asyncio.wait(futures)) and [f.exception() for f in futures]
        ]
        assert codes.count("overloaded") == 10
        assert codes[:50] == [""] * 50
        assert store.head == 50
        assert (await store.submit(noted(61))).last == 51


async def test_the_write_ahead_log_stays_bounded_under_load(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        wal = tmp_path / "journal.db-wal"
        largest = 0
        for _ in range(40):
            await asyncio.gather(*(store.submit(noted(n, "t" * 4_000)) for n in range(200)))
            largest = max(largest, (await anyio.Path(wal).stat()).st_size)
        assert store.commits.checkpoints >= 3
        assert largest < 4 * writer.CHECKPOINT_BYTES


async def test_readers_do_not_hold_the_log(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        stop = anyio.Event()

        async def read() -> None:
            while not stop.is_set():
                await store.page(sid=None, after=0, before=None, limit=50)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(read)
            for _ in range(30):
                await asyncio.gather(*(store.submit(noted(n, "t" * 4_000)) for n in range(100)))
            stop.set()
        assert (await anyio.Path(tmp_path / "journal.db-wal").stat()).st_size < 8 * writer.CHECKPOINT_BYTES


async def test_a_failing_listener_does_not_stop_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_events: object) -> None:
        raise RuntimeError("listener")

    async with await opened(tmp_path, on_commit=fails) as store:
        assert (await store.submit(noted(1))).last == 1
        assert (await store.submit(noted(2))).last == 2
    assert "on_commit failed" in caplog.text


async def test_pragmas_are_those_of_the_design(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await store.submit(noted(1))

        def ask(connection: sqlite3.Connection) -> list[object]:
            names = ("journal_mode", "synchronous", "wal_autocheckpoint", "foreign_keys", "application_id")
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

        found = await hop(store._connection, ask)
        assert found == ["wal", 2, 0, 1, 0x6C6F6F70]
        with pytest.raises(Refused, match="readonly"):
            await store._read(lambda connection: connection.execute("DELETE FROM journal"))


async def test_readonly_opens_even_what_does_not_verify(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await asyncio.gather(*(store.submit(noted(n)) for n in range(5)))
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    connection.execute("UPDATE journal SET at_ms = 77 WHERE seq = 5")
    connection.close()
    with pytest.raises(Refused, match="seq 5"):
        await opened(tmp_path)
    async with await opened(tmp_path, readonly=True) as store:
        assert store.head == 5
        assert await refused(store.submit(noted(6))) == "storage_readonly"
        assert [f["seq"] for f in (await store.verify())["findings"]] == [5]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"this is no database, but it is long enough to be looked at as one" * 20, "not a database"),
        (b"SQLite format 3\x00" + b"\xff" * 2_000, "database"),
    ],
)
async def test_what_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes, found: str
) -> None:
    path = anyio.Path(tmp_path / "journal.db")
    await path.write_bytes(content)
    with pytest.raises(Refused, match=found) as error:
        await opened(tmp_path)
    assert error.value.code == "corrupt"
    assert await path.read_bytes() == content


async def test_a_damaged_page_is_refused(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await asyncio.gather(*(store.submit(noted(n, "t" * 3_000)) for n in range(200)))
    path = anyio.Path(tmp_path / "journal.db")
    content = bytearray(await path.read_bytes())
    for start in range(len(content) // 2, len(content), 16_384):
        content[start : start + 64] = b"\x00" * 64
    await path.write_bytes(content)
    with pytest.raises(Refused) as error:
        await opened(tmp_path)
    assert error.value.code == "corrupt"


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nowhere") as error:
        await SqliteStore.open(tmp_path / "nowhere" / "journal.db", boot="b")
    assert error.value.code == "storage_readonly"


async def test_a_torn_write_ahead_log_loses_only_what_was_torn(tmp_path: Path) -> None:
    """The end of the log is cut off, as after a power failure: the rest opens and verifies."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    live.mkdir()
    async with await opened(live) as store:
        for n in range(40):
            await store.submit(noted(n, "t" * 500))
        await anyio.to_thread.run_sync(shutil.copytree, live, copy)
    wal = copy / "journal.db-wal"
    os.truncate(wal, wal.stat().st_size * 2 // 3 + 7)
    (copy / "journal.db-shm").unlink()
    async with await opened(copy) as store:
        assert 0 < store.head < 40
        proof = await store.verify()
        assert proof["ok"], proof["findings"]
        head = store.head
        assert (await store.submit(noted(99))).last == head + 1


async def test_an_automatic_hold_without_deadline_cannot_be_written(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await store.submit(Story().created())
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    connection.execute("INSERT INTO hold VALUES (1, 'UserSuspend', NULL, x'7b7d')")
    with pytest.raises(sqlite3.IntegrityError, match="an_automatic_hold_has_a_deadline"):
        connection.execute("INSERT INTO hold VALUES (1, 'Degeneration', NULL, x'7b7d')")
    with pytest.raises(sqlite3.IntegrityError, match="an_automatic_hold_has_a_deadline"):
        connection.execute("UPDATE hold SET kind = 'RequestIdle'")
    connection.close()


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own that is really full when it is full."""
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root to mount a small tmpfs")
    disk = folder / "disk"
    disk.mkdir()
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_refuses_loses_nothing_and_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PROBE_S", 0.05)
    with small_disk(tmp_path, 6 << 20) as disk, anyio.fail_after(60):
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * (2 << 20))
        async with await opened(disk) as store:
            story = Story()
            await store.submit(story.created())
            acknowledged, refusals = 1, []
            while len(refusals) < 5:
                before = story.state
                future = store.submit(
                    story.tell(story.envelope("y" * 40_000, source=Source.CRON), *story.turn())
                )
                await asyncio.wait([future])
                if future.exception() is None:
                    acknowledged = future.result().last
                else:
                    refusals.append(future.exception().code)  # type: ignore[union-attr]
                    story.state = before
            assert set(refusals) == {"storage_full"}
            assert store.refused is not None
            assert store.refused.code == "storage_full"
            assert store.head == acknowledged
            assert len(await store.page(sid=None, after=None, before=None, limit=1_000)) == min(
                acknowledged, 1_000
            )
            ballast.unlink()
            while store.refused is not None:  # noqa: ASYNC110  (found out by the writer itself, without a write)
                await anyio.sleep(0.01)
            done = await store.submit(story.tell(story.envelope("z" * 40_000)))
            assert done.first == acknowledged + 1
            assert await store.load_session("ses_1") == story.state
        async with await opened(disk) as store:
            proof = await store.verify()
            assert proof["ok"], proof["findings"]
            assert store.head == done.last


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("from a test")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "code", "breaks"),
    [
        (sqlite_error(sqlite3.SQLITE_FULL), "storage_full", False),
        (sqlite_error(sqlite3.SQLITE_READONLY), "storage_readonly", False),
        (sqlite_error(sqlite3.SQLITE_IOERR_WRITE), "storage_readonly", False),
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), "storage_readonly", True),
        (sqlite_error(sqlite3.SQLITE_CORRUPT), "corrupt", True),
        (sqlite_error(sqlite3.SQLITE_BUSY), "overloaded", False),
        (OSError(28, "No space left on device"), "storage_full", False),
        (PermissionError(13, "no"), "storage_readonly", False),
        (TypeError("x"), "invalid", False),
    ],
)
async def test_errors_have_codes(error: Exception, code: str, breaks: bool) -> None:
    assert refusal(error).code == code
    assert breaks_the_storage(error) is breaks


async def test_after_a_failed_fsync_nothing_is_written_until_reopened() -> None:
    """Retrying after a failed fsync would report success for pages that were dropped."""
    async with MemoryStore() as store:
        await store.submit(noted(1))
        store._ledger.broken = refusal(sqlite_error(sqlite3.SQLITE_IOERR_FSYNC))
        assert await refused(store.submit(noted(2))) == "storage_readonly"
        assert store.head == 1
        assert len(await store.page(sid=None, after=None, before=None, limit=9)) == 1


async def test_a_defect_of_the_writer_answers_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with await opened(tmp_path) as store:
        await store.submit(noted(1))
        monkeypatch.setattr(writer.Writer, "_drain", lambda *_: 1 / 0)
        with anyio.fail_after(5):
            assert await refused(store.submit(noted(2))) == "storage_readonly"
            assert await refused(store.submit(noted(3))) == "storage_readonly"
        assert store.refused is not None
    assert "the journal's writer ended" in caplog.text
    monkeypatch.undo()
    async with await opened(tmp_path) as store:
        assert store.head == 1


async def test_a_log_whose_older_events_were_deleted_opens_and_goes_on(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await asyncio.gather(*(store.submit(noted(n)) for n in range(5)))
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    connection.execute("DELETE FROM journal WHERE seq < 5")
    connection.close()
    async with await opened(tmp_path) as store:
        assert store.head == 5
        assert (await store.submit(noted(6))).last == 6
    async with await opened(tmp_path) as store:
        assert store.head == 6


async def test_a_page_over_a_retained_range_is_one_look(tmp_path: Path) -> None:
    async with await opened(tmp_path) as store:
        await asyncio.gather(*(store.submit(noted(n)) for n in range(300)))
    connection = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    connection.execute("DELETE FROM journal WHERE seq < 290")
    connection.close()
    async with await opened(tmp_path, readonly=True) as store:
        assert [e.seq for e in await store.page(sid=None, after=0, before=None, limit=2)] == [290, 291]
        found = await store.page(sid=None, after=0, before=None, limit=2, kinds=["daemon.*"])
        assert [e.seq for e in found] == [290, 291]
        assert await store.page(sid=None, after=0, before=290, limit=2) == []


async def test_readers_in_line_when_it_closes_are_refused_or_answered(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await asyncio.gather(*(store.submit(noted(n)) for n in range(50)))
    reads = [asyncio.ensure_future(store.page(sid=None, after=0, before=None, limit=50)) for _ in range(20)]
    await asyncio.sleep(0)
    await store.aclose()
    with anyio.fail_after(5):
        answers = await asyncio.gather(*reads, return_exceptions=True)
    assert {len(a) if isinstance(a, list) else getattr(a, "code", repr(a)) for a in answers} <= {
        50,
        "draining",
    }
