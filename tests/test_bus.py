"""The bus: cursors over ring and store see each event once, in order, or an explicit gap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loopd.bus import Bus, Chunk
from loopd.core.writes import StoredEvent


def event(seq: int, body: bytes = b"{}") -> StoredEvent:
    return StoredEvent(seq=seq, sid="ses_1", ss=seq, at_ms=seq, kind="turn.step", kv=1, body=body)


class Shelf:
    """A store that is a list, whose oldest events retention may take away."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self.pages = 0

    async def page(
        self,
        *,
        sid: str | None,
        after: int | None,
        before: int | None,
        limit: int,
        kinds: Sequence[str] = (),
        newest: bool = False,
        max_bytes: int | None = None,
    ) -> list[StoredEvent]:
        assert sid is None
        assert not newest
        self.pages += 1
        found: list[StoredEvent] = []
        size = 0
        for stored in self.events:
            if stored.seq > (after or 0) and (before is None or stored.seq < before) and len(found) < limit:
                size += len(stored.body)
                if found and max_bytes is not None and size > max_bytes:
                    break
                found.append(stored)
        return found


def make(**options: Any) -> tuple[Bus, Shelf]:
    shelf = Shelf()
    return Bus(log_id="lg_1", head=0, pages=shelf, **options), shelf


def publish(bus: Bus, shelf: Shelf, count: int, body: bytes = b"{}") -> None:
    events = [event(bus.head + 1 + i, body) for i in range(count)]
    shelf.events += events
    bus.publish(events)


async def drain(bus: Bus, after: int, limit: int = 512) -> tuple[list[int], list[tuple[int, int]]]:
    seqs: list[int] = []
    gaps: list[tuple[int, int]] = []
    while True:
        chunk = await bus.read(after, limit=limit)
        if chunk.gap is not None:
            gaps.append(chunk.gap)
        seqs += [stored.seq for stored in chunk.events]
        if chunk.cursor == after and not chunk.events:
            return seqs, gaps
        after = chunk.cursor


@pytest.mark.anyio
async def test_a_tail_reads_the_ring_and_a_straggler_the_store() -> None:
    bus, shelf = make(ring_events=100)
    publish(bus, shelf, 50)
    assert await drain(bus, 0) == (list(range(1, 51)), [])
    assert shelf.pages == 0
    for _ in range(10):
        publish(bus, shelf, 50)
    assert await drain(bus, 0) == (list(range(1, 551)), [])
    assert shelf.pages > 0
    assert len(bus._ring) <= 100


@pytest.mark.anyio
async def test_every_cursor_around_the_end_of_the_ring_goes_on_where_it_was() -> None:
    bus, shelf = make(ring_events=8)
    publish(bus, shelf, 40)
    for after in range(41):
        assert await drain(bus, after, limit=3) == (list(range(after + 1, 41)), [])


@pytest.mark.anyio
async def test_a_frozen_reader_gets_everything_later_and_costs_nothing_now() -> None:
    bus, shelf = make(ring_events=64)
    chunk = await bus.read(0)
    assert chunk == Chunk(events=(), cursor=0)
    for _ in range(200):
        publish(bus, shelf, 100)
    assert len(bus._ring) <= 64, "nothing is kept for it"
    assert await drain(bus, 0) == (list(range(1, 20_001)), [])


@pytest.mark.anyio
async def test_below_retention_is_an_explicit_gap() -> None:
    bus, shelf = make(ring_events=10)
    publish(bus, shelf, 100)
    del shelf.events[:40]
    assert await drain(bus, 5) == (list(range(41, 101)), [(6, 40)])
    del shelf.events[:]
    first = bus._ring[0].seq
    assert await drain(bus, 5) == (list(range(first, 101)), [(6, first - 1)])


@pytest.mark.anyio
async def test_a_hole_in_the_store_is_an_explicit_gap() -> None:
    bus, shelf = make(ring_events=4)
    publish(bus, shelf, 40)
    del shelf.events[10:20]
    assert await drain(bus, 0) == ([*range(1, 11), *range(21, 41)], [(11, 20)])


@pytest.mark.anyio
async def test_a_cursor_from_the_future_is_an_explicit_gap() -> None:
    bus, shelf = make()
    publish(bus, shelf, 5)
    assert await bus.read(9) == Chunk(events=(), cursor=5, gap=(6, 9))


@pytest.mark.anyio
async def test_waiting_ends_with_the_publication() -> None:
    bus, shelf = make()
    heads: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def wait(after: int) -> None:
            heads.append(await bus.wait(after))

        for after in (0, 0, 3):
            tasks.start_soon(wait, after)
        await anyio.wait_all_tasks_blocked()
        publish(bus, shelf, 2)
        await anyio.wait_all_tasks_blocked()
        assert heads == [2, 2]
        publish(bus, shelf, 2)
    assert heads == [2, 2, 4]
    assert await bus.wait(1) == 4


@pytest.mark.anyio
async def test_a_listener_hears_each_publication_until_it_leaves() -> None:
    bus, shelf = make()
    heard: list[int] = []
    with bus.listening(heard.append):
        publish(bus, shelf, 3)
        publish(bus, shelf, 1)
    publish(bus, shelf, 1)
    assert heard == [3, 4]


@pytest.mark.anyio
async def test_the_ring_is_bounded_in_bytes() -> None:
    bus, shelf = make(ring_bytes=100_000)
    publish(bus, shelf, 50, b"x" * 10_000)
    assert sum(len(stored.body) for stored in bus._ring) <= 100_000
    publish(bus, shelf, 1, b"x" * 1_000_000)
    assert await drain(bus, 49) == ([50, 51], [])


@pytest.mark.anyio
async def test_deltas_are_lossy_and_count_what_was_lost() -> None:
    bus, _ = make()
    bus.publish_delta("ses_1", 1, "unseen")
    with bus.open_deltas(maxlen=3) as slow, bus.open_deltas() as fast:
        assert bus.watchers == 2
        for index in range(5):
            bus.publish_delta("ses_1", 1, str(index))
        assert [(await slow.receive())[2] for _ in range(3)] == ["2", "3", "4"]
        assert slow.dropped == 2
        assert [delta[2] for delta in fast.receive_nowait()] == ["0", "1", "2", "3", "4"]
        assert fast.receive_nowait() == []
        async with anyio.create_task_group() as tasks:
            received: list[str] = []

            async def receive() -> None:
                received.append((await slow.receive())[2])

            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            assert received == []
            bus.publish_delta("ses_1", 1, "late")
        assert received == ["late"]
    assert bus.watchers == 0


class BusAgainstList(RuleBasedStateMachine):
    """Readers with cursors of their own against the plain list of all events."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: list[int] = []
        self.seen: list[list[int]] = []

    @initialize(ring_events=st.integers(1, 40), ring_bytes=st.sampled_from([600, 5_000, 1 << 20]))
    def begin(self, ring_events: int, ring_bytes: int) -> None:
        self.bus, self.shelf = make(ring_events=ring_events, ring_bytes=ring_bytes)
        self.deleted = 0

    @rule(count=st.integers(1, 30), size=st.sampled_from([2, 300]))
    def publish(self, count: int, size: int) -> None:
        publish(self.bus, self.shelf, count, b"x" * size)

    @rule()
    def subscribe(self) -> None:
        self.cursors.append(0)
        self.seen.append([])

    @precondition(lambda self: self.cursors)
    @rule(data=st.data(), limit=st.integers(1, 50))
    def read(self, data: st.DataObject, limit: int) -> None:
        index = data.draw(st.integers(0, len(self.cursors) - 1))
        before = self.cursors[index]
        chunk = asyncio.run(self.bus.read(before, limit=limit))
        seqs = [stored.seq for stored in chunk.events]
        assert len(seqs) <= limit
        if chunk.gap is not None:
            first, last = chunk.gap
            assert first == before + 1
            assert last <= self.deleted, "only what retention took is a gap"
            self.seen[index] += range(first, last + 1)
            before = last
        assert seqs == list(range(before + 1, before + 1 + len(seqs)))
        assert seqs or chunk.gap or before == self.bus.head, "a reader behind the head gets something"
        self.seen[index] += seqs
        assert chunk.cursor == (seqs[-1] if seqs else before)
        self.cursors[index] = chunk.cursor

    @rule(share=st.integers(0, 100))
    def retention(self, share: int) -> None:
        """The store forgets its oldest events, never those that the ring still has."""
        ring = self.bus._ring[0].seq if self.bus._ring else self.bus.head + 1
        upto = min(ring - 1, self.bus.head * share // 100)
        self.shelf.events = [stored for stored in self.shelf.events if stored.seq > upto]
        self.deleted = max(self.deleted, upto)

    @invariant()
    def each_reader_has_seen_all_up_to_its_cursor(self) -> None:
        for cursor, seen in zip(self.cursors, self.seen, strict=True):
            assert seen == list(range(1, cursor + 1))


BusAgainstList.TestCase.settings = settings(
    settings.get_profile("dev"), max_examples=60, stateful_step_count=40
)
TestBusAgainstList = BusAgainstList.TestCase
