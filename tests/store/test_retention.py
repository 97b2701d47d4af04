"""Retention deletes what is old enough and nothing else; what is left still verifies, and says what is gone."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopd.core.access import Caller
from loopd.core.content import CONTENT, KEPT, after_retention
from loopd.core.writes import Append, Idempotency, StoredEvent
from loopd.engine.clock import ManualClock
from loopd.engine.retention import Policy, Trusted
from loopd.engine.router import Router
from loopd.engine.upkeep import Upkeep
from loopd.store import SqliteStore
from loopd.testing.store_suite import Story
from loopd_protocol import events as ev
from loopd_protocol.command import DAY_MS
from loopd_protocol.errors import Refused
from loopd_protocol.holds import UserSuspend
from loopd_protocol.retention_commands import RetentionHold, RetentionRelease
from loopd_protocol.sources import Source

pytestmark = pytest.mark.anyio

START = int(datetime(2026, 1, 10, tzinfo=UTC).timestamp() * 1_000)
POLICY = Policy(content_days=30, metadata_days=100)
ADMIN = Caller(principal="uid:0", scopes=frozenset({"admin"}), source=Source.HUMAN)
FOR_EVER = Policy(content_days=0, metadata_days=0)


class Clock:
    """Stands where it is put."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


def no_driver(*_: object) -> Any:
    raise AssertionError("nobody takes turns here")


class House:
    """A store with a router around it, and stories that go on day by day."""

    def __init__(self, store: SqliteStore, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.router = Router(store=store, clock=clock, make_driver=no_driver, on_delta=lambda *_: None)

    async def upkeep(self, policy: Policy = POLICY) -> Upkeep:
        for row in await self.store.directory():
            self.router.directory.follow(row)
        return Upkeep(self.router, self.store, policy, pause_share=0)

    async def tend(self, days: float, policy: Policy = POLICY) -> dict[str, Any]:
        """Run what is due so many days after the start."""
        self.clock.now = START + int(days * DAY_MS)
        return await (await self.upkeep(policy)).once()

    async def event(self, n: int) -> StoredEvent:
        (found,) = await self.store.page(sid=None, after=n - 1, before=n + 1, limit=1)
        return found


@asynccontextmanager
async def house(path: Path, now_ms: int = START) -> AsyncIterator[House]:
    async with await SqliteStore.open(path, boot="b", now_ms=now_ms) as store:
        yield House(store, Clock(now_ms))


def day(days: float) -> int:
    return START + int(days * DAY_MS)


async def live_through(
    store: SqliteStore,
    story: Story,
    days: Iterator[float] | range,
    *,
    text: str = "it is done",
    turns: int = 1,
) -> None:
    """Turns on each of these days, each with a message, a manifest and a reply."""
    for when in days:
        for _ in range(turns):
            story.at_ms = day(when)
            envelope = story.envelope(f"secret of day {when}")
            manifest = (
                f'{{"manifest": "{story.sid} {when} {story.state.turns if story.state else 0}"}}'.encode()
            )
            await store.submit(story.tell(envelope, at_ms=day(when)))
            await store.submit(
                story.tell(
                    *story.turn(f"{text} {when}", envelopes=(envelope.id,)), at_ms=day(when), blobs=[manifest]
                )
            )


async def end(store: SqliteStore, story: Story, when: float) -> None:
    await store.submit(story.tell(ev.SessionEnded(status="done_success", stop_reason="x"), at_ms=day(when)))


async def verified(store: SqliteStore) -> dict[str, Any]:
    proof = await store.verify()
    assert proof["findings"] == []
    for row in await store.directory():
        alone = await store.verify(sid=row.sid)
        assert alone["findings"] == []
    return proof


@contextmanager
def sql(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


# -- content --------------------------------------------------------------------------------------


async def test_content_goes_after_its_age_and_metadata_and_chains_stay(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created("night"))
        await live_through(at.store, story, range(40))
        await end(at.store, story, 40)
        before = await at.store.page(sid=None, after=None, before=None, limit=1_000)
        done = await at.tend(50)
        after = await at.store.page(sid=None, after=None, before=before[-1].seq + 1, limit=1_000)
        assert [(e.seq, e.ss, e.kind, e.at_ms, e.principal) for e in after] == [
            (e.seq, e.ss, e.kind, e.at_ms, e.principal) for e in before
        ]
        for old, new in zip(before, after, strict=True):
            left = after_retention(old.kind, old.body) if old.at_ms < day(20) else old.body
            assert new.reduced == (left != old.body or (old.blob is not None and old.at_ms < day(20))), new
            if not new.reduced:
                assert new.body == old.body
            else:
                assert b"secret" not in new.body
                assert b"it is done" not in new.body
                ev.decode(new.body)  # what is left is an event of its kind
        assert done["content"] == sum(e.reduced for e in after)
        told = [
            e for _, _, e in await at.store.deletions() if e.kind == "retention.swept" and e.what == "content"
        ]
        assert [(e.policy, e.count, e.cutoff_ms) for e in told] == [
            ("content 30 d", done["content"], day(20))
        ]
        await verified(at.store)
        assert (await at.tend(50))["content"] == 0


async def test_the_state_of_an_ended_session_forgets_what_was_said_with_the_content(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with house(path) as at:
        ended, living, held = (Story(n, at_ms=START) for n in (1, 2, 3))
        for story in (ended, living, held):
            await at.store.submit(story.created())
            goal = ev.GoalChanged(
                status="active", origin="user", text="find the secret", note="a secret note"
            )
            intent = ev.EffectIntent(id="f1", n=1, call="c", tool="bash", args_sha256="00", tool_class="exec")
            outcome = ev.EffectOutcome(id="f1", outcome="failed", by="uid:1", note="a secret outcome")
            await at.store.submit(story.tell(goal, intent, outcome, at_ms=day(0)))
            await live_through(at.store, story, range(3), text="the secret is out")
        for story in (ended, held):
            await end(at.store, story, 4)
        await hold(await at.upkeep(), "ses_3")
        before = {sid: await at.store.load_session(sid) for sid in ("ses_1", "ses_2", "ses_3")}
        assert all(b"secret" in msgspec.json.encode(state) for state in before.values())
        await at.tend(20)
        assert {sid: await at.store.load_session(sid) for sid in before} == before, "it is not old enough"
        await at.tend(40)
        after = {sid: await at.store.load_session(sid) for sid in before}
        assert (after["ses_2"], after["ses_3"]) == (before["ses_2"], before["ses_3"])
        left, whole = after["ses_1"], before["ses_1"]
        assert left is not None
        assert whole is not None
        assert b"secret" not in msgspec.json.encode(left)
        assert (left.ss, left.turns, left.spent, left.permits) == (
            whole.ss, whole.turns, whole.spent, whole.permits,
        )  # fmt: skip
        with sql(path) as connection:
            notes = connection.execute("SELECT sid, note FROM effect ORDER BY sid").fetchall()
        assert notes == [(1, None), (2, "a secret outcome"), (3, "a secret outcome")], (
            "a context needs its own"
        )
        await verified(at.store)
        assert await at.store.fade(1, 100) == 0, "there is nothing left to be done"
        resumed = ev.SessionResumed(run=2, by="uid:1")
        again = Story(1, at_ms=day(41))
        again.state = left
        await at.store.submit(again.tell(resumed, at_ms=day(41)))
        await live_through(at.store, again, range(42, 44))
        await verified(at.store)


async def test_deleted_content_stands_nowhere_in_the_files_any_more(tmp_path: Path) -> None:
    """Not in free pages, not in slack, not in the write-ahead log: `strings` finds nothing of it."""
    path = tmp_path / "j.db"

    def found() -> list[str]:
        return [file.name for file in sorted(tmp_path.iterdir()) if b"secret" in file.read_bytes()]

    async with house(path) as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(20), text="the secret is out " * 200, turns=3)
        await end(at.store, story, 21)
        while not await at.store.cut_log():
            await anyio.lowlevel.checkpoint()
        assert found() == ["j.db"]
        await at.tend(60)
        assert found() == []
        await verified(at.store)


async def test_the_log_is_cut_later_when_somebody_reads_it_now(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with house(path) as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        with sql(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM journal").fetchall()
            await live_through(at.store, story, range(3))
            assert not await at.store.cut_log()
            await at.store.submit(story.tell(story.envelope(), at_ms=day(4)))
        while not await at.store.cut_log():
            await anyio.lowlevel.checkpoint()
        assert (await at.store.measures())["wal_bytes"] == 0


async def test_nothing_is_deleted_when_the_policy_says_never(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(10))
        await end(at.store, story, 11)
        before = await at.store.page(sid=None, after=None, before=None, limit=1_000)
        await at.tend(5_000, FOR_EVER)
        after = await at.store.page(sid=None, after=None, before=before[-1].seq + 1, limit=1_000)
        assert after == before


async def test_legal_hold_keeps_everything_until_it_is_released(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        held, other = Story(1, at_ms=START), Story(2, at_ms=START)
        for story in (held, other):
            await at.store.submit(story.created())
            await live_through(at.store, story, range(5))
            await end(at.store, story, 6)
        await at.upkeep()
        upkeep = await at.upkeep()
        await hold(upkeep, "ses_1")
        before = await at.store.page(sid="ses_1", after=None, before=None, limit=1_000)
        await at.tend(300)
        assert await at.store.page(sid="ses_1", after=None, before=None, limit=1_000) == before
        assert all(
            e.reduced or b"secret" not in e.body
            for e in await at.store.page(sid="ses_2", after=None, before=None, limit=1_000)
        )
        status = await (await at.upkeep()).status()
        assert [h["sid"] for h in status["holds"]] == ["ses_1"]
        assert status["segments"][0]["kept_for"] == [{"sid": "ses_1", "why": "legal hold"}]
        assert status["segments"][0]["deleted_ms"] is None
        for event in before:
            for name in [event.blob] if event.blob else []:
                assert await at.store.blob(name) is not None
        await verified(at.store)
        await release(upkeep, "ses_1")
        await at.tend(301)
        status = await (await at.upkeep()).status()
        assert status["segments"][0]["deleted_ms"] is not None
        assert await at.store.directory() == []
        await verified(at.store)


async def test_a_hold_that_comes_while_a_step_is_prepared_wins(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(5))
        await end(at.store, story, 6)
        upkeep = await at.upkeep()
        real = at.store._read

        async def slow(query: Any, *args: Any, **kwargs: Any) -> Any:
            result = await real(query, *args, **kwargs)
            if query.__name__ == "look_at" and not await real(
                lambda c: c.execute("SELECT 1 FROM legal_hold").fetchall()
            ):
                await hold(upkeep, "ses_1")
            return result

        at.store._read = slow  # type: ignore[method-assign]
        before = await at.store.page(sid="ses_1", after=None, before=None, limit=1_000)
        await at.tend(60)
        assert await at.store.page(sid="ses_1", after=None, before=None, limit=1_000) == before


async def hold(upkeep: Upkeep, sid: str) -> None:
    await upkeep.answer(RetentionHold(sid=sid, reason="case 7"), ADMIN, None)


async def release(upkeep: Upkeep, sid: str) -> None:
    await upkeep.answer(RetentionRelease(sid=sid, reason="case closed"), ADMIN, None)


async def test_a_live_session_keeps_its_context_and_what_waits_for_it(tmp_path: Path) -> None:
    """An agent that sleeps for two months goes on with what it knew."""
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(3), text="x" * 90_000, turns=3)
        suspended = story.gate(UserSuspend(by="uid:0", reason="holiday"))
        await at.store.submit(story.tell(suspended, at_ms=day(4)))
        waiting = story.envelope("do not lose me")
        await at.store.submit(story.tell(waiting, at_ms=day(4)))
        await at.tend(90)
        events = await at.store.page(sid="ses_1", after=None, before=None, limit=1_000)
        steps = [e for e in events if e.kind == "turn.step"]
        assert next(e.reduced for e in steps) is True
        kept = [e for e in steps if not e.reduced]
        assert sum(len(e.body) for e in kept) >= 200_000  # the default context of a session
        assert not any(e.reduced for e in events[events.index(kept[0]) :])
        assert any(b"do not lose me" in e.body for e in events)
        for event in kept:
            if event.blob:
                assert await at.store.blob(event.blob) is not None
        await verified(at.store)
        await end(at.store, story, 91)
        await at.tend(130)
        events = await at.store.page(sid="ses_1", after=None, before=None, limit=1_000)
        assert all(e.reduced for e in events if e.kind == "turn.step")
        await verified(at.store)


@pytest.mark.parametrize("beside", [False, True])
async def test_a_live_session_keeps_the_summary_that_stands_in_front_of_its_context(
    tmp_path: Path, beside: bool
) -> None:
    """Its messages since then may fill the context many times; the summary is still what it begins with."""
    summary = b"what was decided in January"
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(2))
        told = ev.ContextCompacted(
            n=2,
            reason="window",
            before_sha256=sha(b"before"),
            after_sha256=sha(b"after"),
            upto_ss=3,
            summary="" if beside else summary.decode(),
            summary_blob=sha(summary) if beside else None,
        )
        await at.store.submit(story.tell(told, at_ms=day(2), blobs=[summary] if beside else []))
        shorter = msgspec.structs.replace(told, upto_ss=0, result_chars=100, summary="", summary_blob=None)
        await at.store.submit(story.tell(shorter, at_ms=day(2)))
        await live_through(at.store, story, range(3, 6), text="x" * 90_000, turns=3)
        await at.tend(90)
        kinds = ("context.compacted",)
        first, _ = await at.store.page(sid="ses_1", after=None, before=None, limit=9, kinds=kinds)
        assert not first.reduced
        if beside:
            assert await at.store.blob(sha(summary)) == summary
        await verified(at.store)
        await end(at.store, story, 91)
        await at.tend(130, Policy(content_days=30, metadata_days=0))
        first, _ = await at.store.page(sid="ses_1", after=None, before=None, limit=9, kinds=kinds)
        assert first.reduced
        await verified(at.store)


async def test_blobs_go_when_nobody_used_them_and_stay_while_somebody_does(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        shared, alone = b"a system prompt that comes again" * 20, b"a prompt of one day" * 20
        for when in range(0, 60, 2):
            blobs = [shared] if when else [shared, alone]
            told = [ev.AgentReported(phase="p") for _ in blobs]
            await at.store.submit(story.tell(*told, at_ms=day(when), blobs=blobs))
        names = {content: sha(content) for content in (shared, alone)}
        await end(at.store, story, 60)
        done = await at.tend(61)
        assert done["blobs"] == 1
        assert await at.store.blob(names[alone]) is None
        assert await at.store.blob(names[shared]) == shared
        again = Story(2, at_ms=START)
        await at.store.submit(again.created())
        await at.store.submit(again.tell(ev.AgentReported(phase="p"), at_ms=day(62), blobs=[alone]))
        assert await at.store.blob(names[alone]) == alone  # who hands it in again stores it again
        await verified(at.store)


def sha(content: bytes) -> str:
    return sha256(content).hexdigest()


# -- months ---------------------------------------------------------------------------------------


async def test_months_are_sealed_when_they_end_and_deleted_whole(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        old, living = Story(1, at_ms=START), Story(2, at_ms=START)
        for story in (old, living):
            await at.store.submit(story.created())
        await live_through(at.store, old, range(0, 30, 3))
        await end(at.store, old, 31)
        await live_through(at.store, living, range(32, 200, 2))
        head = at.store.head
        done = await at.tend(200)
        sealed = await at.store.segments()
        assert [s.month for s in sealed] == ["2026-01", "2026-02", "2026-03", "2026-04", "2026-05", "2026-06"]
        assert sealed[0].first_seq == 1
        assert all(a.last_seq + 1 == b.first_seq for a, b in itertools.pairwise(sealed))
        gone = [s.month for s in sealed if s.deleted_ms is not None]
        assert gone == done["months"] == ["2026-01", "2026-02", "2026-03"]
        assert [row.sid for row in await at.store.directory()] == ["ses_2"]
        left = await at.store.page(sid=None, after=None, before=None, limit=10_000)
        assert left[0].seq == sealed[2].last_seq + 1
        assert at.store.head > head
        proof = await verified(at.store)
        assert [n["what"].split(" ")[1] for n in proof["notes"] if n["check"] == "retention"] == gone
        # The session that lives on goes on, and so does its chain.
        await live_through(at.store, living, range(201, 203))
        await verified(at.store)
    async with house(tmp_path / "j.db", day(300)) as at:
        assert (await at.store.load_session("ses_2")) == living.state
        await live_through(at.store, living, range(301, 303))
        await verified(at.store)


async def test_a_session_of_which_every_event_is_gone_goes_on_where_it_was(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        sleeper, other = Story(1, at_ms=START), Story(2, at_ms=START)
        await at.store.submit(sleeper.created())
        await at.store.submit(other.created())
        await live_through(at.store, other, range(0, 300, 20))
        await at.tend(300, Policy(content_days=1, metadata_days=100))
        assert await at.store.page(sid="ses_1", after=None, before=None, limit=10) == []
        await live_through(at.store, sleeper, range(301, 303))
        page = await at.store.page(sid="ses_1", after=None, before=None, limit=10)
        assert page[0].ss == 2
        await verified(at.store)


async def test_numbers_of_forgotten_sessions_are_never_given_again(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        first, second = Story(1, at_ms=START), Story(2, at_ms=START)
        await at.store.submit(first.created())
        await at.store.submit(second.created())
        await end(at.store, second, 1)
        await live_through(at.store, first, range(0, 300, 20))
        done = await at.tend(300)
        assert done["sessions"] == 1
        assert await at.store.last_number() == 2


async def test_deletion_goes_on_after_a_crash_at_any_step(tmp_path: Path) -> None:
    """The process dies after every single chore in turn; the end is the same as without."""
    path = tmp_path / "j.db"
    async with house(path) as at:
        stories = [Story(1, at_ms=START), Story(2, at_ms=START)]
        for story in stories:
            await at.store.submit(story.created())
            await live_through(at.store, story, range(0, 120, 2))
        await end(at.store, stories[0], 120)
    image = path.read_bytes()

    async def finish() -> tuple[list[Any], dict[str, Any]]:
        async with house(path, day(150)) as at:
            await at.tend(150)
            await at.tend(150)
            page = await at.store.page(sid="ses_2", after=None, before=None, limit=10_000)
            proof = await verified(at.store)
            return [(e.seq, e.ss, e.body, e.reduced) for e in page], proof

    path.write_bytes(image)
    expected, _ = await finish()
    chores = 0
    while True:
        path.write_bytes(image)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        async with house(path, day(150)) as at:
            real, left = at.store._tend, chores

            async def dying(chore: Any, size: int, real: Any = real) -> Any:
                nonlocal left
                if left == 0:
                    raise Refused("storage_full", "the process died here")
                left -= 1
                return await real(chore, size)

            at.store._tend = dying  # type: ignore[method-assign]
            died = False
            try:
                await at.tend(150)
            except Refused:
                died = True
            proof = await at.store.verify()
            assert proof["findings"] == []
        found, _ = await finish()
        assert [row[1:] for row in found] == [row[1:] for row in expected]
        if not died:
            break
        chores += 1
    assert chores > 8


# -- forgery --------------------------------------------------------------------------------------

TAMPERED = {
    "what is left of content is changed": (
        "UPDATE journal SET body = CAST(replace(CAST(body AS TEXT), 'human', 'agent') AS BLOB) WHERE seq = "
        "(SELECT min(seq) FROM journal WHERE kind = 'envelope.accepted' AND body_sha IS NOT NULL)"
    ),
    "content is taken away and called retention": (
        'UPDATE journal SET body = CAST(\'{"k":"envelope.accepted","id":"x","source":"human","text":""}\' AS BLOB), '
        "body_sha = zeroblob(32) WHERE seq = (SELECT max(seq) FROM journal WHERE kind = 'envelope.accepted')"
    ),
    "a month is taken away and called deleted": (
        "UPDATE segment SET deleted_ms = 5 WHERE deleted_ms IS NULL",
        (
            "DELETE FROM journal WHERE seq BETWEEN (SELECT first_seq FROM segment ORDER BY n DESC LIMIT 1) "
            "AND (SELECT last_seq FROM segment ORDER BY n DESC LIMIT 1)"
        ),
    ),
    "the link of a session is changed": (
        "UPDATE session_link SET sh = zeroblob(32) WHERE sid = 2 AND segment = (SELECT max(n) FROM segment "
        "WHERE deleted_ms IS NOT NULL)"
    ),
    "the link of the log is changed": (
        "UPDATE segment SET head_h = zeroblob(32) WHERE n = (SELECT max(n) FROM segment WHERE deleted_ms IS NOT NULL)"
    ),
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("swept") / "j.db"

    async def fill() -> None:
        async with house(path) as at:
            stories = [Story(1, at_ms=START), Story(2, at_ms=START)]
            for story in stories:
                await at.store.submit(story.created())
                await live_through(at.store, story, range(0, 170, 2))
            for story in stories:
                await end(at.store, story, 170)
            await at.tend(170)
            assert [s.deleted_ms is None for s in await at.store.segments()].count(False) == 2
            await verified(at.store)

    anyio.run(fill)
    return path.read_bytes()


@pytest.mark.parametrize("how", TAMPERED, ids=str)
async def test_a_forgery_that_calls_itself_retention_is_found(how: str, swept: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    await anyio.Path(path).write_bytes(swept)
    statements = TAMPERED[how]
    with sql(path) as connection:
        for statement in (statements,) if isinstance(statements, str) else statements:
            assert connection.execute(statement).rowcount >= 1
    async with await SqliteStore.open(path, boot="b", readonly=True) as store:
        proof = await store.verify()
        assert not proof["ok"]
        assert proof["findings"]


# -- what the table of content says ------------------------------------------------------------------


def test_every_event_with_room_for_what_somebody_said_is_in_the_table_of_content() -> None:
    """A new kind with a long text must be judged: is it content?"""
    judged = 0
    for kind, cls in ev.EVENT_TYPES.items():
        for field in msgspec.structs.fields(cls):
            written = str(field.type)
            if field.name == "given" or "max_length=1000000" not in written:
                continue
            judged += 1
            assert field.name in CONTENT.get(kind, {}), f"{kind}.{field.name} is said by somebody"
    assert judged >= 5


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(min_size=3, max_size=50), kind=st.sampled_from(sorted(set(CONTENT) - KEPT)))
def test_deleting_content_twice_is_deleting_it_once(text: str, kind: str) -> None:
    body = msgspec.json.encode({"k": kind, **{name: text for name in CONTENT[kind] if name != "calls"}})
    once = after_retention(kind, body)
    assert after_retention(kind, once) == once
    left = msgspec.json.decode(once)
    assert all(left[name] == blank for name, blank in CONTENT[kind].items() if name != "calls")


# -- size -----------------------------------------------------------------------------------------


async def test_a_file_gives_back_the_room_of_what_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    async with house(path) as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        await live_through(at.store, story, range(30), text="y" * 3_000, turns=60)
        await end(at.store, story, 30)
        full = (await at.store.measures())["pages"]
        done = await at.tend(80)
        small = (await at.store.measures())["pages"]
        assert done["slowest_step_ms"] < 1_000
    assert small < full / 2
    assert path.stat().st_size < full * 4_096 / 2


async def test_old_idempotency_keys_are_forgotten(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story = Story(1, at_ms=START)
        await at.store.submit(story.created())
        for number in range(1_200):
            key = Idempotency(principal="p", key=str(number), command_sha256="00", result=b"{}")
            append: Append = story.tell(story.envelope(), at_ms=day(number / 100), idempotency=key)
            await at.store.submit(append)
        await at.tend(12)
        keys = (await at.store.measures())["keys"]
        assert 690 <= keys <= 710
        assert await at.store.idempotent("p", "1199") is not None
        assert await at.store.idempotent("p", "1") is None


async def test_writers_go_on_while_upkeep_runs(tmp_path: Path) -> None:
    async with house(tmp_path / "j.db") as at:
        story, writer = Story(1, at_ms=START), Story(2, at_ms=START)
        await at.store.submit(story.created())
        await at.store.submit(writer.created())
        await live_through(at.store, story, range(30), turns=30)
        await end(at.store, story, 30)
        waits: list[float] = []
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                loop = anyio.current_time
                while True:
                    begun = loop()
                    await at.store.submit(writer.tell(writer.envelope(), at_ms=day(80)))
                    waits.append(loop() - begun)
                    await anyio.lowlevel.checkpoint()

            tasks.start_soon(write)
            done = await at.tend(80)
            tasks.cancel_scope.cancel()
        assert done["content"] > 1_000
        assert len(waits) > 20
        assert sorted(waits)[len(waits) // 2] < 0.1


# -- clocks that jump -----------------------------------------------------------------------------


def test_a_clock_that_jumps_forward_is_not_believed_before_a_day_has_passed() -> None:
    clock = ManualClock()
    time = Trusted(clock)
    clock.advance(3 * DAY_MS)
    assert time.ahead_ms() == 0
    clock.jump(700 * DAY_MS)
    assert time.ahead_ms() == 700 * DAY_MS
    clock.advance(DAY_MS // 2)
    assert time.ahead_ms() == 700 * DAY_MS
    clock.jump(-700 * DAY_MS)  # it was a mistake
    assert time.ahead_ms() == 0
    clock.jump(40 * DAY_MS)
    assert time.ahead_ms() == 40 * DAY_MS
    clock.advance(DAY_MS)
    assert time.ahead_ms() == 0, "it has gone on steadily for a day"
    clock.jump(-DAY_MS)
    assert time.ahead_ms() == 0
    clock.jump(2 * DAY_MS)
    assert time.ahead_ms() == 2 * DAY_MS
