"""A key that was used is never called new; nearly every new one is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.writes import Idempotency
from loopd.store import SqliteStore, known_keys
from loopd.store.known_keys import KnownKeys
from loopd.testing.store_suite import Story

Pair = st.tuples(st.text(max_size=20), st.text(max_size=20))


@given(used=st.lists(Pair, max_size=50), asked=Pair)
def test_a_used_key_is_never_called_new(used: list[tuple[str, str]], asked: tuple[str, str]) -> None:
    keys = KnownKeys()
    keys.complete = True
    for pair in used:
        keys.add(*pair)
    assert not any(keys.surely_new(*pair) for pair in used)
    if asked not in used:
        assert keys.surely_new(*asked) or len(used) > 0


def test_few_new_keys_are_asked_for_in_the_database() -> None:
    keys = KnownKeys()
    for number in range(20_000):
        keys.add("uid:1000", f"key {number}")
    assert not keys.surely_new("uid:1000", "key 20001"), "not before all keys of earlier boots are known"
    keys.complete = True
    doubted = sum(not keys.surely_new("uid:1000", f"new {number}") for number in range(20_000))
    assert doubted <= 20


@pytest.mark.anyio
async def test_keys_of_earlier_boots_are_found_before_and_after_they_were_learned(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    story = Story(1)
    async with await SqliteStore.open(path, boot="one") as store:
        await store.submit(story.created())
        for number in range(2_500):
            key = Idempotency(principal="p", key=f"k{number}", command_sha256="ab", result=b"{}")
            store.submit(story.tell(story.envelope(), idempotency=key))
        await store.submit(story.tell(story.envelope()))
    async with await SqliteStore.open(path, boot="two") as store:
        assert await store.idempotent("p", "k2499") is not None
        assert await store.idempotent("p", "new") is None
        pages = 0
        while await store.learn_keys():
            pages += 1
        assert pages == 1
        asked = 0
        real = store._read

        async def counting(*args: object, **kwargs: object) -> object:
            nonlocal asked
            asked += 1
            return await real(*args, **kwargs)  # type: ignore[arg-type]

        store._read = counting  # type: ignore[method-assign,assignment]
        for number in range(2_500):
            found = await store.idempotent("p", f"k{number}")
            assert found is not None
            assert found[0] == "ab"
        assert asked == 2_500
        for number in range(2_500):
            assert await store.idempotent("q", f"k{number}") is None
        assert asked < 2_550
        key = Idempotency(principal="q", key="k1", command_sha256="cd", result=b"{}")
        await store.submit(story.tell(story.envelope(), idempotency=key))
        assert await store.idempotent("q", "k1") is not None


@pytest.mark.anyio
async def test_what_the_journal_has_forgotten_takes_no_memory_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_keys, "KEYS", 8)
    day_ms = 86_400_000
    story = Story(1)
    async with await SqliteStore.open(tmp_path / "j.db", boot="one") as store:
        await store.submit(story.created())
        assert not await store.learn_keys()
        largest = 0
        for day in range(40):
            keys = [f"{day}.{number}" for number in range(8)]
            for key in keys:
                used = Idempotency(principal="p", key=key, command_sha256="ab", result=b"{}")
                appended = store.submit(story.tell(story.envelope(), at_ms=day * day_ms, idempotency=used))
            await appended
            await store._tend(lambda ledger: ledger.forget_keys(1_000), 0)
            while await store.learn_keys():
                pass
            largest = max(largest, store._keys.filters)
            assert await store.idempotent("p", keys[0]) is not None
            assert await store.idempotent("p", keys[-1]) is not None
            assert await store.idempotent("p", f"{day}.new") is None
        assert largest <= 2 * (8 + known_keys.FRESH) + 1
