"""Every store does the same: the suite of `loopd.testing` against memory and SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.store import MemoryStore, SqliteStore
from loopd.testing.store_suite import CHECKS


class SqliteStage:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.db"

    @asynccontextmanager
    async def open(self, *, boot: str = "b", **options: Any) -> AsyncIterator[SqliteStore]:
        async with await SqliteStore.open(self._path, boot=boot, **options) as store:
            yield store


class MemoryStage:
    def __init__(self, folder: Path) -> None:
        self._image: bytes | None = None

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[MemoryStore]:
        async with MemoryStore(image=self._image, **options) as store:
            yield store
        self._image = store.image()


@pytest.mark.anyio
@pytest.mark.parametrize("stage", [MemoryStage, SqliteStage])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_every_store_conforms(stage: Any, check: Any, tmp_path: Path) -> None:
    with anyio.fail_after(30):
        await check(stage(tmp_path))
