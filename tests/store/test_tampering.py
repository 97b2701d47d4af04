"""Any change of any column of any row of the journal, its projections or its blobs is found.

What verification cannot know is written down in `UNSEEN`, with the reason, and proven to be just that.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopd import __version__
from loopd.core.writes import Append, Fact
from loopd.store import SqliteStore, anchors, opening
from loopd.store.anchors import Signer
from loopd.store.request import Request
from loopd.store.verify import run
from loopd_protocol import events as ev
from tests.store.test_verify import fill

JOURNAL = (
    "seq", "sid", "ss", "epoch", "boot", "at_ms", "kind", "kv", "turn", "cause_seq", "principal", "body", "body_sha",
    "blob", "h", "sh",
)  # fmt: skip
CHECKED: dict[str, tuple[str, ...]] = {
    "journal": JOURNAL,
    "session": (),
    "hold": (),
    "inbox": (),
    "turn": (),
    "cron": (),
    "cron_occurrence": (),
    "effect": (),
    "blob": ("sha", "codec", "len", "data"),
    "boot": ("n", "id", "version", "epoch", "head", "log"),
    "anchor": (),
    "meta": ("log_id", "epoch", "boots", "frozen"),
}
"""Table → columns; none named: all."""

UNSEEN: dict[tuple[str, str], str] = {
    ("turn", "id"): "a surrogate key: nothing refers to it",
    ("cron_occurrence", "id"): "a surrogate key",
    ("effect", "rowid_"): "a surrogate key",
    ("effect", "effect_key"): "what a tool was given for itself; not folded from events of old schemas",
}


async def filled(path: Path) -> None:
    """What `test_verify` has, with a boot that told of itself, a freeze and two anchors."""
    await fill(path, 30)
    async with await SqliteStore.open(path, boot="b2", now_ms=5) as store:
        started = ev.DaemonStarted(
            version=__version__, boot="b2", pid=1, epoch=store.epoch, log=store.cursor_log
        )
        await store.submit(Append(sid=None, at_ms=9, facts=(Fact(event=started, ss=0),), principal="daemon"))
        store.signer = Signer.of_folder(path.parent)
        await store.anchor(10)
        frozen = ev.DaemonFrozen(by="uid:1", reason="test")
        await store.submit(Append(sid=None, at_ms=11, facts=(Fact(event=frozen, ss=0),), principal="uid:1"))
        await store.anchor(12)


class Image:
    """A database file and the keys of its anchors; small where hypothesis shows it."""

    def __init__(self, folder: Path) -> None:
        self.data = (folder / "journal.db").read_bytes()
        self.keys = anchors.public_keys(folder)

    def __repr__(self) -> str:
        return "image"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("tampering")
    anyio.run(filled, folder / "journal.db")
    return Image(folder)


class Fleeting(sqlite3.Connection):
    """Closes itself when nobody uses it any more; Python 3.13 and newer warn of a database that is left open."""

    def __del__(self) -> None:
        self.close()


def opened(image: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Fleeting)
    connection.deserialize(image[:18] + b"\1\1" + image[20:])  # in memory there is no write-ahead log
    return connection


def verified(connection: sqlite3.Connection, keys: dict[str, bytes], **asked: Any) -> dict[str, Any]:
    log_id = opening.identify(connection).log_id
    return run(connection, Request(log_id=log_id, keys=keys, **asked))


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    named = CHECKED[table]
    found = tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
    return named or tuple(c for c in found if (table, c) not in UNSEEN)


def another(value: Any, draw: st.DrawFn) -> Any:
    """A value that is not the same, of a kind that the column can hold."""
    match value:
        case None:
            return draw(st.sampled_from([0, 1, 7]))
        case bool() | int():
            return draw(
                st.sampled_from([value + 1, value - 1, 0, value + 1_000_000]).filter(lambda v: v != value)
            )
        case str():
            return draw(st.sampled_from([value + "x", value[:-1], "other"]).filter(lambda v: v != value))
        case _:
            place = draw(st.integers(0, max(0, len(value) - 1)))
            bit = 1 << draw(st.integers(0, 7))
            return bytes(b ^ bit if i == place else b for i, b in enumerate(value)) if value else b"x"


def is_whole(image: Image) -> None:
    proof = verified(opened(image.data), image.keys)
    assert proof["ok"], proof["findings"]


def test_the_untouched_journal_is_whole(image: Image) -> None:
    is_whole(image)


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_changed_column_of_any_row_is_found(image: Image, data: st.DataObject) -> None:
    connection = opened(image.data)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    table = data.draw(st.sampled_from(sorted(CHECKED)))
    column = data.draw(st.sampled_from(columns_of(connection, table)))
    keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    rows = connection.execute(f"SELECT {', '.join(keys)}, {column} FROM {table}").fetchall()
    if table == "boot" and column in {"id", "version", "log"}:
        rows = rows[-1:]  # a boot that died before it was ready told nobody who it was
    if not rows:
        return
    *key, value = rows[data.draw(st.integers(0, len(rows) - 1))]
    new = data.draw(st.composite(lambda draw: another(value, draw))())
    where = " AND ".join(f"{k} IS ?" for k in keys)
    try:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new, *key))
    except sqlite3.Error:
        return  # the database itself refuses: another type, or a number that is taken
    proof = verified(connection, image.keys)
    assert not proof["ok"], f"{table}.{column} of {key}: {value!r} → {new!r}"
    assert proof["findings"][0]["what"]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_deleted_row_is_found(image: Image, data: st.DataObject) -> None:
    connection = opened(image.data)
    connection.execute("PRAGMA foreign_keys = OFF")
    table = data.draw(st.sampled_from(sorted(set(CHECKED) - {"meta", "anchor"})))
    keys = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[5]]
    rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
    if not rows:
        return
    key = rows[data.draw(st.integers(0, len(rows) - 1))]
    connection.execute(f"DELETE FROM {table} WHERE {' AND '.join(f'{k} IS ?' for k in keys)}", key)
    proof = verified(connection, image.keys)
    assert not proof["ok"], f"{table} {key}"


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_two_events_that_change_places_are_found(image: Image, data: st.DataObject) -> None:
    connection = opened(image.data)
    last = connection.execute("SELECT max(seq) FROM journal").fetchone()[0]
    a, b = sorted(data.draw(st.lists(st.integers(1, last), min_size=2, max_size=2, unique=True)))
    for one, other in ((a, -1), (b, a), (-1, b)):
        connection.execute("UPDATE journal SET seq = ? WHERE seq = ?", (other, one))
    found = verified(connection, image.keys)["findings"]
    assert {f.get("seq") for f in found} & {a, b}, "it is named"


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_cut_off_end_is_found_by_projections_or_anchors(image: Image, data: st.DataObject) -> None:
    connection = opened(image.data)
    last = connection.execute("SELECT max(seq) FROM journal").fetchone()[0]
    cut = data.draw(st.integers(1, last - 1))
    connection.execute("DELETE FROM journal WHERE seq > ?", (cut,))
    proof = verified(connection, image.keys)
    assert not proof["ok"]
    assert any("its end is missing" in f["what"] for f in proof["findings"])


def test_only_an_anchor_kept_elsewhere_finds_an_end_that_was_taken_back_with_everything_in_it(
    tmp_path: Path,
) -> None:
    """The honest limit: an older copy of the whole file is a journal that never went on."""
    path = tmp_path / "journal.db"
    anyio.run(filled, path)
    keys = anchors.public_keys(tmp_path)
    kept = anyio.run(_anchors, path)
    older = opened(path.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal.db"
        copy.write_bytes(path.read_bytes())
        anyio.run(_go_on, copy, tmp_path)
        newer = anyio.run(_anchors, copy)
    assert verified(older, keys)["ok"], "nothing in it tells that it went on"
    assert verified(older, keys, anchors=tuple(kept))["ok"]
    proof = verified(older, keys, anchors=tuple(newer))
    assert [f["check"] for f in proof["findings"]] == ["anchor"]
    assert "its end is missing" in proof["findings"][0]["what"]


async def _anchors(path: Path) -> list[anchors.Anchor]:
    async with await SqliteStore.open(path, boot="x", readonly=True) as store:
        return [msgspec.convert(a, anchors.Anchor) for a in await store.anchors(after=0, limit=100)]


async def _go_on(path: Path, keys: Path) -> None:
    async with await SqliteStore.open(path, boot="b3", now_ms=20) as store:
        thawed = ev.DaemonUnfrozen(by="uid:1")
        await store.submit(Append(sid=None, at_ms=21, facts=(Fact(event=thawed, ss=0),), principal="uid:1"))
        store.signer = Signer.of_folder(keys)
        await store.anchor(22)


def test_what_is_not_seen_is_just_what_is_written_down(image: Image) -> None:
    for table, column in UNSEEN:
        connection = opened(image.data)
        rows = connection.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchall()
        if not rows or column in {"id", "rowid_"}:
            continue
        connection.execute(f"UPDATE {table} SET {column} = 7")
        assert verified(connection, image.keys)["ok"], (
            f"{table}.{column} is seen after all: take it off the list"
        )


def test_a_log_that_was_written_anew_as_a_whole_is_found_by_an_anchor(tmp_path: Path) -> None:
    """Chains alone cannot tell: whoever writes all of it anew writes them too."""
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        anyio.run(filled, folder / "journal.db")
    kept = anyio.run(_anchors, first / "journal.db")
    forged = opened((second / "journal.db").read_bytes())
    proof = verified(forged, anchors.public_keys(second), anchors=tuple(kept))
    assert {f["check"] for f in proof["findings"]} == {"anchor"}


def test_an_anchor_that_nobody_signed_is_found(image: Image) -> None:
    connection = opened(image.data)
    seq, h = connection.execute("SELECT seq, h FROM journal WHERE seq = 50").fetchone()
    key = next(iter(image.keys))
    connection.execute("INSERT INTO anchor VALUES (?, ?, 1, ?, zeroblob(64))", (seq, h, key))
    found = verified(connection, image.keys)["findings"]
    assert [(f["check"], f["seq"]) for f in found] == [("anchor", 50)]
