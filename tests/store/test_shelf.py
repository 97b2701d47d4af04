"""Imported archives: what is on the shelf is whole, has a name of its own, and stays after a power cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path

import anyio
import pytest

from loopd.store.shelf import Imported, Shelf
from tests.store.test_export import Made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = Made(tmp_path_factory.mktemp("shelf"))
    for profile in ("none", "content"):
        made.export(profile, profile, sid="ses_1")
    return made


def archive(made: Made, folder: Path, profile: str = "none") -> Path:
    path = Path(shutil.copy(made.export(profile, profile, sid="ses_1"), folder / f"{profile}.in"))
    path.chmod(0o600)  # as in the spool
    return path


@pytest.mark.anyio
async def test_imports_at_once_have_names_of_their_own(made: Made, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "imports", made.keys)
    meeting = threading.Barrier(2)

    def taken(_: str) -> bool:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)  # both choose now, if both can
        return False

    async def check_in(profile: str) -> None:
        await shelf.check_in(archive(made, tmp_path, profile), by="uid:1", now_ms=1, taken=taken)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for profile in ("none", "content"):
                tasks.start_soon(check_in, profile)
    names = sorted(entry.name for entry in shelf.entries.values())
    assert (len(names), names[1]) == (2, f"{names[0]}-2")
    for name in names:
        assert shelf.find(name) is not None
    await shelf.aclose()


@pytest.mark.anyio
async def test_an_archive_that_comes_twice_at_once_is_added_once(made: Made, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "imports", made.keys)
    told: list[bool] = []

    async def check_in(name: str) -> None:
        path = Path(shutil.copy(made.export("none", "none", sid="ses_1"), tmp_path / name))
        told.append((await shelf.check_in(path, by="uid:1", now_ms=1, taken=lambda _: False))[1])

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                tasks.start_soon(check_in, name)
    assert (sorted(told), len(shelf.entries)) == ([False, True], 1)
    (entry,) = shelf.entries.values()
    assert (await shelf.verify(entry))["ok"]
    assert await (await shelf.store_of(entry)).load_session(entry.sid) is not None
    await shelf.aclose()


@pytest.mark.anyio
async def test_what_an_entry_stands_on_is_on_the_disk_before_the_entry(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "imports"
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def forced(descriptor: int) -> None:
        steps.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix or 'folder'}")
        fsync(descriptor)

    def counts(source: Path, target: Path) -> None:
        steps.append(f"rename {Path(target).suffix}")
        replace(source, target)

    shelf = Shelf(folder, made.keys)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", forced)
        disk.setattr(os, "replace", counts)
        added, dup = await shelf.check_in(
            archive(made, tmp_path), by="uid:1", now_ms=1, taken=lambda _: False
        )
    assert not dup
    last = steps.index("rename .json")
    assert {"fsync .making", "fsync .zip", "fsync .tmp", "fsync folder"} <= set(steps[:last]), steps
    assert steps.index("fsync .making") < steps.index("rename .sqlite"), steps
    assert "fsync folder" in steps[last:], steps
    assert {file.stat().st_mode & 0o077 for file in folder.iterdir()} == {0}
    again = Shelf(folder, made.keys)
    again.load()
    assert list(again.entries.values()) == list(added)
    assert all(isinstance(entry, Imported) for entry in added)


@pytest.mark.anyio
async def test_an_import_that_stopped_before_it_counted_is_made_again(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "imports"
    shelf = Shelf(folder, made.keys)
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).suffix == ".json":
            raise OSError(28, "no space left on device")
        replace(source, target)

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", full)
        with pytest.raises(OSError, match="no space"):
            await shelf.check_in(archive(made, tmp_path), by="uid:1", now_ms=1, taken=lambda _: False)
    again = Shelf(folder, made.keys)
    again.load()
    assert not shelf.entries
    assert not again.entries
    _, dup = await again.check_in(archive(made, tmp_path), by="uid:1", now_ms=1, taken=lambda _: False)
    assert (dup, sorted(file.suffix for file in folder.iterdir())) == (False, [".json", ".sqlite", ".zip"])
