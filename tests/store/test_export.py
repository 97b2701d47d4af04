"""Archives: they verify alone, any change of one is found, and a database can be made of one."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopd.core.redactor import Redactor
from loopd.store import SqliteStore, anchors
from loopd.store.archive import Archive
from loopd.store.archive_base import importable, into_database, renamed
from loopd.store.archive_check import verify
from loopd.store.export import JOURNAL, MANIFEST
from loopd.store.extent import Wanted
from loopd_protocol.errors import Refused
from tests.store.test_tampering import filled


class Made:
    """A database and its archives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.db"
        anyio.run(filled, self.path)
        self.keys = anchors.public_keys(folder)

    def __repr__(self) -> str:
        return "made"

    def export(self, name: str, profile: str = "none", **wanted: Any) -> Path:
        target = self.folder / f"{name}.zip"
        if not target.exists():
            anyio.run(self._export, target, profile, Wanted(**wanted))
        return target

    async def _export(self, target: Path, profile: str, wanted: Wanted) -> None:
        async with await SqliteStore.open(self.path, boot="x", readonly=True) as store:
            store.signer = anchors.Signer.of_folder(self.folder)
            await store.export(wanted, target, Redactor(profile, key=b"k"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("export"))


def proof_of(path: Path, **asked: Any) -> dict[str, Any]:
    with Archive(path) as archive:
        return verify(archive, **asked)


def outcome(path: Path, made: Made) -> str:
    """`whole`, `findings`, or the code of a refusal."""
    try:
        return "whole" if proof_of(path, keys=made.keys)["ok"] else "findings"
    except Refused as refused:
        return refused.code


@pytest.mark.parametrize("profile", ["none", "secrets", "content"])
@pytest.mark.parametrize("sid", [None, "ses_1"])
def test_an_archive_verifies_alone(made: Made, profile: str, sid: str | None) -> None:
    path = made.export(f"{profile}-{sid}", profile, sid=sid)
    proof = proof_of(path, keys=made.keys)
    assert proof["ok"], proof["findings"]
    assert proof["signature"]["status"] == "trusted"
    assert proof_of(path)["signature"]["status"] == "holds"
    assert proof["anchors"]["compared"] == (0 if sid else 2)


def test_the_same_log_makes_the_same_archive(made: Made, tmp_path: Path) -> None:
    first = made.export("none-None")
    anyio.run(made._export, tmp_path / "again.zip", "none", Wanted())
    assert first.read_bytes() == (tmp_path / "again.zip").read_bytes()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), profile=st.sampled_from(["none", "secrets"]))
def test_any_changed_byte_of_any_file_is_found(
    made: Made, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, profile: str
) -> None:
    path = made.export(f"{profile}-ses_1", profile, sid="ses_1")
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    name = data.draw(st.sampled_from(sorted(set(files) - {"README.txt", "manifest.sig"})))
    how = data.draw(st.sampled_from(["bit", "drop file", "cut"]))
    if not files[name]:
        return
    if how == "drop file":
        del files[name]
    elif how == "cut":
        files[name] = files[name][: data.draw(st.integers(0, len(files[name]) - 1))]
    else:
        place = data.draw(st.integers(0, len(files[name]) - 1))
        changed = bytearray(files[name])
        changed[place] ^= 1 << data.draw(st.integers(0, 7))
        files[name] = bytes(changed)
    target = tmp_path_factory.mktemp("changed") / "changed.zip"
    with zipfile.ZipFile(target, "w") as new:
        for each, content in files.items():
            new.writestr(each, content)
    assert outcome(target, made) in {"invalid", "corrupt", "findings"}, (name, how)


def test_rows_that_were_moved_dropped_or_added_are_named(made: Made, tmp_path: Path) -> None:
    """Also when whoever did it wrote the manifest anew; only the signature can then tell the manifest."""
    path = made.export("none-ses_1", sid="ses_1")
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    lines = files[JOURNAL].splitlines(keepends=True)
    shuffled = [*lines[:5], lines[6], lines[5], *lines[7:]]
    for kind, changed in (
        ("moved", shuffled),
        ("dropped", lines[:7] + lines[8:]),
        ("added", [*lines, lines[-1]]),
    ):
        target = tmp_path / f"{kind}.zip"
        with zipfile.ZipFile(target, "w") as new:
            for name, content in files.items():
                new.writestr(name, b"".join(changed) if name == JOURNAL else content)
        found = proof_of(target)["findings"]
        assert {"I8", "session chain"} <= {f["check"] for f in found}, kind
        assert any(f.get("seq") for f in found)


def test_a_forged_manifest_needs_the_key(made: Made, tmp_path: Path) -> None:
    path = made.export("none-ses_1", sid="ses_1")
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    signer = anchors.Signer.of_folder(stranger)
    target = tmp_path / "forged.zip"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(
                name,
                content.replace(b'"redacted_events": 0', b'"redacted_events": 1')
                if name == MANIFEST
                else content,
            )
    assert "signature" in {f["check"] for f in proof_of(target, keys=made.keys)["findings"]}
    assert signer.key not in made.keys


def test_a_foreign_or_damaged_file_is_refused_and_never_raises_anything_else(
    made: Made, tmp_path: Path
) -> None:
    path = made.export("none-ses_1", sid="ses_1")
    whole = path.read_bytes()
    chance = random.Random(7)
    cases = [b"", b"PK", b"x" * 1_000, whole[: len(whole) // 2]]
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(3):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        cases.append(bytes(changed))
    target = tmp_path / "case.zip"
    whole_ones = 0
    for case in cases:
        target.write_bytes(case)
        told = outcome(target, made)
        assert told in {"invalid", "corrupt", "findings", "whole"}
        whole_ones += told == "whole"
    assert whole_ones <= 6, "bits that carry nothing: dates, the README, flags of the zip"
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as new:
        new.writestr("../evil", "x")
        new.writestr(MANIFEST, "{}")
    with pytest.raises(Refused, match="evil"):
        Archive(tmp_path / "slip.zip")


def test_a_database_made_of_an_archive_reads_like_the_journal(made: Made, tmp_path: Path) -> None:
    path = made.export("none-None")
    aliases = {1: ("imp_a", "first"), 2: ("imp_b", "second")}
    with Archive(path) as archive:
        assert [each["sid"] for each in importable(archive)] == ["ses_1", "ses_2"]
        into_database(archive, tmp_path / "journal.db", aliases)

    async def compare() -> None:
        async with (
            await SqliteStore.open(tmp_path / "journal.db", boot="x", readonly=True) as copy,
            await SqliteStore.open(made.path, boot="x", readonly=True) as original,
        ):
            for mine, theirs in (("imp_a", "ses_1"), ("imp_b", "ses_2")):
                one, other = await copy.load_session(mine), await original.load_session(theirs)
                assert one is not None
                assert other is not None
                assert (one.ss, one.turns, one.gate) == (other.ss, other.turns, other.gate)
                bounds: dict[str, Any] = {"after": None, "before": None, "limit": 1_000}
                page, theirs_page = (
                    await copy.page(sid=mine, **bounds),
                    await original.page(sid=theirs, **bounds),
                )
                assert [e.body for e in page] == [e.body for e in theirs_page]
                assert (await copy.verify(sid=mine, evolve=renamed(aliases)))["ok"]

    anyio.run(compare)


def test_a_session_without_its_beginning_can_be_verified_and_not_imported(made: Made) -> None:
    path = made.export("late", sid="ses_1", since=1_030)
    assert proof_of(path)["ok"]
    with Archive(path) as archive, pytest.raises(Refused, match="from its first event on"):
        importable(archive)


def test_an_empty_range_is_refused(made: Made) -> None:
    with pytest.raises(Refused, match="nothing to export"):
        made.export("nothing", sid="ses_1", since=99_999_999_999)
