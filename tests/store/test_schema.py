"""Migrations: forward only, whole or not at all, and old files stay readable for ever."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import anyio
import pytest

from loopd.store import SqliteStore, schema
from loopd.store.schema import APPLICATION_ID, migrate, migrations, migrations_folder
from loopd_protocol.errors import Refused

GOLDEN = Path(__file__).parents[1] / "golden" / "store"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The real migrations, to be added to."""
    return Path(shutil.copytree(migrations_folder(), tmp_path / "sqlite"))


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_new_file_gets_all_migrations_once() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    newest = migrations()[-1][0]
    assert list(migrate(connection)) == list(range(1, newest + 1))
    assert list(migrate(connection)) == []
    assert version(connection) == newest
    assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    connection.close()


def test_all_tables_are_strict_and_no_hot_table_has_a_needless_index() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    tables = connection.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'").fetchall()
    assert {name for name, strict in tables if not strict and not name.startswith("sqlite_")} == set()
    indexes = connection.execute("SELECT name FROM pragma_index_list('journal')").fetchall()
    assert len(indexes) == 1
    connection.close()


def test_an_older_file_gets_what_it_lacks(folder: Path) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, folder=folder)
    number = version(connection) + 1
    (folder / f"{number:04}_more.sql").write_text("CREATE TABLE more (x INTEGER) STRICT;")
    assert list(migrate(connection, folder=folder)) == [number]
    connection.execute("INSERT INTO more VALUES (1)")
    connection.close()


def test_a_failing_migration_leaves_the_last_whole_version(folder: Path) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, folder=folder)
    before = version(connection)
    (folder / f"{before + 1:04}_bad.sql").write_text(
        "CREATE TABLE half (x INTEGER) STRICT; INSERT INTO nowhere VALUES (1);"
    )
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(connection, folder=folder)
    assert version(connection) == before
    assert not connection.in_transaction
    assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchone() is None
    connection.close()


def test_a_hole_in_the_numbers_is_a_broken_installation(folder: Path) -> None:
    (folder / "0099_late.sql").write_text("SELECT 1;")
    with pytest.raises(RuntimeError, match=r"99\]; expected 1, 2, …"):
        migrations(folder)


@pytest.mark.anyio
async def test_a_newer_database_is_refused_naming_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with await SqliteStore.open(path, boot="b"):
        pass
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for readonly in (False, True):
        with pytest.raises(
            Refused, match=rf"schema 99; this loopd knows up to {migrations()[-1][0]}"
        ) as error:
            await SqliteStore.open(path, boot="b", readonly=readonly)
        assert error.value.code == "unsupported_version"


@pytest.mark.anyio
@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 1"])
async def test_another_programs_database_is_refused(tmp_path: Path, pragma: str) -> None:
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE recipes (x)")
    connection.execute(f"PRAGMA {pragma}")
    connection.close()
    with pytest.raises(Refused, match="another program") as error:
        await SqliteStore.open(path, boot="b")
    assert error.value.code == "corrupt"
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("recipes",)]
    connection.close()


def test_a_checkout_wins_over_a_stale_copy_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "loopd"
    for where in (tmp_path / "migrations" / "sqlite", package / "migrations" / "sqlite"):
        where.mkdir(parents=True)
    (package / "store").mkdir()
    monkeypatch.setattr(schema, "__file__", str(package / "store" / "schema.py"))
    assert migrations_folder() == tmp_path / "migrations" / "sqlite"
    shutil.rmtree(tmp_path / "migrations")
    assert migrations_folder() == package / "migrations" / "sqlite"


@pytest.mark.anyio
@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.db.gz")), ids=lambda path: path.name)
async def test_old_databases_open_migrate_and_verify(golden: Path, tmp_path: Path) -> None:
    """Files written by released versions; see `tests/golden/store/README.md`."""
    path = tmp_path / "journal.db"
    await anyio.Path(path).write_bytes(gzip.decompress(await anyio.Path(golden).read_bytes()))
    expected = json.loads(await anyio.Path(golden.with_suffix("").with_suffix(".json")).read_text())
    async with await SqliteStore.open(path, boot="now") as store:
        assert store.log_id == expected["log_id"]
        assert store.head == expected["head"]
        page = await store.page(sid=None, after=None, before=None, limit=1_000)
        assert [[event.seq, event.sid, event.kind] for event in page] == expected["events"]
        states = {row.sid: await store.load_session(row.sid) for row in await store.directory()}
        assert {sid: [s.ss, s.status, s.turns] for sid, s in states.items() if s} == expected["sessions"]
        for sha, size in expected["blobs"].items():
            content = await store.blob(sha)
            assert content is not None
            assert len(content) == size
        proof = await store.verify()
        # What rules and counters derive may differ in a later version: those are notes. Nothing else may.
        assert proof["findings"] == []
        assert {note["check"] for note in proof.get("notes", [])} <= {"I9", "retention"}


def test_there_is_a_golden_database_for_each_schema() -> None:
    found = {int(path.name.split("_")[1].split(".")[0]) for path in GOLDEN.glob("schema_*.db.gz")}
    assert found == {number for number, _ in migrations()}


def golden(schema: int, path: Path) -> Path:
    path.write_bytes(gzip.decompress((GOLDEN / f"schema_{schema}.db.gz").read_bytes()))
    return path


def test_schema_1_is_brought_to_schema_2_whole_and_keeps_every_byte(tmp_path: Path) -> None:
    path = golden(1, tmp_path / "journal.db")
    connection = sqlite3.connect(path, isolation_level=None)
    blobs = "SELECT id, sha, codec, len, data FROM blob ORDER BY id"
    rows = "SELECT * FROM journal ORDER BY seq"
    before = connection.execute(blobs).fetchall(), connection.execute(rows).fetchall()
    last = connection.execute("SELECT max(at_ms) FROM journal").fetchone()[0]
    assert version(connection) == 1
    assert list(migrate(connection))[:1] == [2]
    assert (connection.execute(blobs).fetchall(), connection.execute(rows).fetchall()) == before
    # What was stored before anybody noted its use counts as used at the end of that log.
    assert set(connection.execute("SELECT at_ms, used_ms FROM blob")) == {(last, last)}
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_upgrade_that_fails_halfway_leaves_schema_1_usable(tmp_path: Path, folder: Path) -> None:
    path = golden(1, tmp_path / "journal.db")
    second = next(folder.glob("0002_*.sql"))
    second.write_text(f"{second.read_text()}\nINSERT INTO nowhere VALUES (1);")
    connection = sqlite3.connect(path, isolation_level=None)
    before = list(connection.iterdump())
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(connection, folder=folder)
    assert version(connection) == 1
    assert list(connection.iterdump()) == before
    assert list(migrate(connection))[:1] == [2]
    connection.close()


def test_a_schema_newer_than_ours_is_refused_before_anything_is_changed(tmp_path: Path, folder: Path) -> None:
    path = golden(1, tmp_path / "journal.db")
    for newer in sorted(folder.glob("*.sql"))[1:]:
        newer.unlink()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA user_version = 2")
    before = list(connection.iterdump())
    with pytest.raises(Refused, match="schema 2; this loopd knows up to 1"):
        migrate(connection, folder=folder)
    assert list(connection.iterdump()) == before
    connection.close()
