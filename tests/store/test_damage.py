"""What a disk does to a file without anybody's doing: bits of indexes, of stored answers, of rows of the house."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import anyio
import pytest

from loopd.core.writes import Append, HouseRow, Idempotency
from loopd.store import SqliteStore, opening
from loopd.testing.store_suite import Story
from loopd_protocol.errors import Refused
from tests.faults import disk
from tests.faults.judgement import Whole, judged, proof

pytestmark = pytest.mark.anyio
KEY = Idempotency(principal="uid:1", key="k1", command_sha256="ab" * 32, result=b'{"id":"env_1"}')


async def filled(path: Path) -> None:
    """A journal of some events, with a stored answer and a token."""
    async with await SqliteStore.open(path, boot="b1", now_ms=1) as store:
        story = Story(1, at_ms=1_000)
        await store.submit(story.created("one"))
        for n in range(12):
            envelope = story.envelope(f"note {n}")
            await store.submit(story.tell(envelope))
            await store.submit(story.tell(*story.turn("That is done.", envelopes=(envelope.id,))))
        await store.submit(story.tell(story.envelope("keyed"), idempotency=KEY))
        token = HouseRow(kind="token", id="t1", body=b'{"kid":"t1"}')
        await store.submit(Append(sid=None, at_ms=2_000, facts=(), house=(token,)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    file = tmp_path / "d" / "journal.sqlite"
    anyio.run(filled, file)
    assert proof(file)["ok"]
    return file


def change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql)
    connection.close()


async def test_an_answer_that_was_damaged_is_neither_given_nor_made_anew(path: Path) -> None:
    change(path, """UPDATE idempotency SET result = x'7b7d' WHERE key = 'k1'""")
    (finding,) = proof(path)["findings"]
    assert (finding["check"], finding["table"]) == ("row", "idempotency")
    async with await SqliteStore.open(path, boot="b2", now_ms=3_000) as store:
        while await store.learn_keys():
            pass
        with pytest.raises(Refused, match="corrupt"):
            await store.idempotent("uid:1", "k1")


async def test_a_damaged_row_of_the_house_is_named_at_the_next_start(path: Path) -> None:
    change(path, """UPDATE house SET body = x'7b7d' WHERE id = 't1'""")
    assert [f["table"] for f in proof(path)["findings"]] == ["house"]
    with pytest.raises(Refused, match=r"corrupt.*token 't1'"):
        await SqliteStore.open(path, boot="b2", now_ms=3_000)


def test_an_index_that_lost_an_entry_is_found_although_no_row_changed(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    root = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_idempotency_1'"
    ).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * size
    assert data[at] == 10, "a leaf page of an index"
    assert data[at + 3 : at + 5] == b"\0\1", "with one cell"
    data[at + 4] = 0  # and now none
    path.write_bytes(data)
    assert {f["check"] for f in proof(path)["findings"]} == {"pages"}


def test_a_constraint_that_was_taken_away_is_found(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, 'OR until_ms IS NOT NULL', 'OR until_ms IS NULL OR 1') "
        "WHERE name = 'hold'"
    )
    connection.close()
    assert [(f["check"], f["table"]) for f in proof(path)["findings"]] == [("schema", "hold")]


def test_no_flipped_bit_of_the_database_changes_anything_in_silence(path: Path, tmp_path: Path) -> None:
    disk.folded(path)
    whole = Whole(path, tmp_path / "scratch")
    words = []
    for seed in range(60):
        copy = disk.copied(path.parent, tmp_path / "copy")
        did = disk.flip(copy, random.Random(seed), bits=1)
        word, details = judged(whole, copy)
        assert word in {"harmless", "refused", "found"}, (did, word, details)
        words.append(word)
    assert {"harmless", "refused", "found"} == set(words), "each is met, or the test shows little"


def test_a_log_whose_tail_is_gone_is_as_of_an_earlier_commit(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    live = tmp_path / "d" / "journal.sqlite"

    async def leave() -> None:
        store = await SqliteStore.open(live, boot="b1", now_ms=1)
        async with store:
            story = Story(1, at_ms=1_000)
            await store.submit(story.created("one"))
            for n in range(20):
                await store.submit(story.tell(story.envelope(f"note {n}")))
            disk.copied(live.parent, tmp_path / "base")

    anyio.run(leave)
    whole = Whole(tmp_path / "base" / "journal.sqlite", tmp_path / "scratch")
    words = set()
    for seed in range(40):
        copy = disk.copied(tmp_path / "base", tmp_path / "copy")
        did = disk.cut_wal(copy, random.Random(seed), whole_frames=bool(seed % 2))
        word, details = judged(whole, copy)
        assert word in {"harmless", "prefix", "refused"}, (did, word, details)
        words.add(word)
    assert "prefix" in words


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see what is open")
def test_a_file_that_is_no_journal_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"nothing that SQLite knows" * 100)
    with pytest.raises(sqlite3.DatabaseError) as held:  # its traceback keeps what was left open
        opening.connect_reader(path, alone=True)
    opened = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert str(path.resolve()) not in opened, held
