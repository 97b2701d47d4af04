"""Verification finds what was tampered with, dropped or moved, and names it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.core.evolution import evolve
from loopd.core.writes import Append, Fact
from loopd.store import SqliteStore
from loopd.store.chain import HEADER, link, row_bytes, session_genesis
from loopd.testing.store_suite import Story
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.errors import Refused
from loopd_protocol.holds import Degeneration, Interrupted
from loopd_protocol.sources import Source, Trigger

pytestmark = pytest.mark.anyio


async def fill(path: Path, count: int = 200) -> None:
    """Two interleaved sessions with turns, holds, a cron job, effects and blobs; verified."""
    async with await SqliteStore.open(path, boot="b") as store:
        stories = [Story(1), Story(2)]
        futures = [store.submit(story.created()) for story in stories]
        for index in range(count):
            story = stories[index % 2]
            envelope = story.envelope(f"look at {index}", source=Source.CRON)
            blob = f"manifest {index}".encode() * 100
            futures.append(store.submit(story.tell(envelope, blobs=[blob])))
            futures.append(store.submit(story.tell(*story.turn(envelopes=(envelope.id,)))))
        story = stories[0]
        last = story.tell(
            ev.CronChanged(job="j", change="put", expr="* * * * *", text="t", next_ms=99_999_999),
            ev.CronOccurrence(job="j", due_ms=7, result="fired"),
            ev.EffectIntent(id="f1", n=1, call="c", tool="bash", args_sha256="00", tool_class="exec"),
            ev.EffectOutcome(id="f1", outcome="ok"),
            story.envelope(),
            story.gate(Degeneration(until_ms=99_999_999, rule="repeated_text", by="rule")),
        )
        await asyncio.gather(*futures, store.submit(last))
        proof = await store.verify()
        assert proof["ok"], proof["findings"]
        assert proof["checked"] == {"events": store.head, "sessions": 2, "blobs": count}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("verify") / "journal.db"
    anyio.run(fill, path)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, image: bytes) -> Path:
    path = tmp_path / "journal.db"
    path.write_bytes(image)
    return path


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


async def checked(path: Path, **asked: Any) -> dict[str, Any]:
    async with await SqliteStore.open(path, boot="forensic", readonly=True) as store:
        with anyio.fail_after(20):
            return await store.verify(**asked)


def named(proof: dict[str, Any]) -> set[tuple[str, Any]]:
    return {(f["check"], f.get("seq") or f.get("table")) for f in proof["findings"]}


TAMPERINGS: dict[str, tuple[tuple[str, ...], set[tuple[str, Any]]]] = {
    "a body": (
        ("UPDATE journal SET body = CAST(replace(CAST(body AS TEXT), 'look', 'peek') AS BLOB) WHERE seq = 11",),
        {("chain", 11), ("session chain", 11)},
    ),
    "a moment": (
        ("UPDATE journal SET at_ms = at_ms + 1 WHERE seq = 11",),
        {("chain", 11), ("session chain", 11)},
    ),
    "a principal": (
        ("UPDATE journal SET principal = 'uid:0' WHERE seq = 40",),
        {("chain", 40), ("session chain", 40)},
    ),
    "a dropped row": (
        ("DELETE FROM journal WHERE seq = 30",),
        {("I8", 30), ("chain", 31), ("I8", 35), ("session chain", 35)},
    ),
    "swapped bodies": (
        (
            "CREATE TEMP TABLE t AS SELECT body FROM journal WHERE seq = 11",
            "UPDATE journal SET body = (SELECT body FROM journal WHERE seq = 19) WHERE seq = 11",
            "UPDATE journal SET body = (SELECT body FROM t) WHERE seq = 19",
        ),
        {("chain", 11), ("chain", 19), ("session chain", 11), ("session chain", 19)},
    ),
    "reordered rows": (
        (
            "UPDATE journal SET seq = 100000 WHERE seq = 11",
            "UPDATE journal SET seq = 11 WHERE seq = 12",
            "UPDATE journal SET seq = 12 WHERE seq = 100000",
        ),
        {("chain", 11), ("chain", 12), ("session chain", 11), ("session chain", 12)},
    ),
    "a rewritten tail": (
        ("DELETE FROM journal WHERE seq > 500",),
        {("I9", "session"), ("I9", "turn")},
    ),
    "an earlier epoch": (
        ("UPDATE journal SET epoch = 0 WHERE seq = 50",),
        {("I7", 50), ("chain", 50), ("session chain", 50)},
    ),
    "the state": (("UPDATE session SET state = (SELECT state FROM session WHERE num = 2) WHERE num = 1",), {("I9", "session")}),
    "a counter": (("UPDATE session SET turns = turns - 1 WHERE num = 2",), {("I9", "session")}),
    "a hold removed": (("DELETE FROM hold",), {("I9", "hold")}),
    "a deadline": (("UPDATE hold SET until_ms = 1",), {("I9", "hold")}),
    "a turn removed": (("DELETE FROM turn WHERE n = 5",), {("I9", "turn")}),
    "an invented turn": (
        (
            """INSERT INTO turn SELECT NULL, sid, 999, trigger, outcome, first_seq, last_seq, first_ss,
            last_ss, started_ms, ended_ms, steps, tokens, manifest, consumed FROM turn
            WHERE sid = 1 AND n = 1""",
        ),
        {("I9", "turn")},
    ),
    "an occurrence": (("UPDATE cron_occurrence SET result = 'missed'",), {("I9", "cron_occurrence")}),
    "an effect": (("UPDATE effect SET outcome = 'uncertain'",), {("I9", "effect")}),
    "a cron job": (("UPDATE cron SET next_ms = 3",), {("I9", "cron")}),
    "a waiting envelope": (("DELETE FROM inbox",), {("I9", "inbox")}),
    "a blob": (("UPDATE blob SET data = zeroblob(9), codec = 'raw' WHERE id = 7",), {("blob", None)}),
    "a lost blob": (("DELETE FROM blob WHERE id = 1",), {("blob", 3)}),
    "the freeze": (("UPDATE meta SET frozen = '{}'",), {("I9", "meta")}),
    "a lost session row": (
        ("DELETE FROM session WHERE num = 2",),
        {("I9", 2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERINGS)
async def test_tampering_is_found_and_named(what: str, path: Path) -> None:
    statements, expected = TAMPERINGS[what]
    tamper(path, *statements)
    proof = await checked(path)
    assert not proof["ok"]
    found = named(proof)
    assert expected <= found, proof["findings"]


async def test_one_session_verifies_alone(path: Path) -> None:
    tamper(path, "UPDATE journal SET principal = 'uid:0' WHERE seq = 40")
    connection = sqlite3.connect(path)
    (num,) = connection.execute("SELECT sid FROM journal WHERE seq = 40").fetchone()
    connection.close()
    assert not (await checked(path, sid=f"ses_{num}"))["ok"]
    assert (await checked(path, sid=f"ses_{3 - num}"))["ok"]


async def test_deleted_content_still_verifies(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for seq, body in connection.execute("SELECT seq, body FROM journal WHERE seq < 20").fetchall():
        digest = sha256(body).digest()
        connection.execute("UPDATE journal SET body = NULL, body_sha = ? WHERE seq = ?", (digest, seq))
    connection.close()
    proof = await checked(path)
    assert {f["check"] for f in proof["findings"]} <= {"I1", "I4"}, proof["findings"]


async def test_a_damaged_tail_is_refused_at_the_start_and_left_alone(path: Path) -> None:
    tamper(path, "UPDATE journal SET kind = 'x.y' WHERE seq = (SELECT max(seq) - 3 FROM journal)")
    before = await anyio.Path(path).read_bytes()
    with pytest.raises(Refused, match="does not match its hash") as refused:
        await SqliteStore.open(path, boot="b")
    assert refused.value.code == "corrupt"
    assert await anyio.Path(path).read_bytes() == before


async def test_a_refold_that_differs_is_a_finding(path: Path) -> None:
    def wrong(session: Any, event: ev.Event, *, ss: int, at_ms: int) -> Any:
        raise ValueError("not today")

    async with await SqliteStore.open(path, boot="b", readonly=True) as store:
        proof = await store.verify(evolve=wrong)
    assert [f["what"] for f in proof["findings"]] == ["'session.created' cannot be refolded: not today"] * 2


async def test_verification_runs_beside_a_working_writer(path: Path) -> None:
    async with await SqliteStore.open(path, boot="b2") as store, anyio.create_task_group() as tasks:
        story = Story(3)
        await store.submit(story.created())
        proofs: list[dict[str, Any]] = []

        async def verify() -> None:
            proofs.append(await store.verify())

        for _ in range(2):
            tasks.start_soon(verify)
        while len(proofs) < 2:
            await store.submit(story.tell(story.envelope(source=Source.CRON), *story.turn()))
    assert [proof["findings"] for proof in proofs] == [[], []]


def asked() -> ev.Event:
    return pe.ApprovalRequested(
        id="apr_1_2", n=1, call="c", tool="shell", tool_class="exec", args_sha256="x", until_ms=9_000_000
    )


INVARIANTS: dict[str, tuple[Callable[[Story], list[ev.Event]], str]] = {
    "an overlapping turn": (lambda s: [*s.turn()[:1], *s.turn()[:1]], "I1"),
    "a skipped turn number": (
        lambda s: [
            ev.TurnStarted(n=3, trigger=s.turn()[0].trigger),
            ev.TurnCompleted(n=3, outcome="completed"),
        ],  # type: ignore[attr-defined]
        "I1",
    ),
    "a turn under a hold": (
        lambda s: [s.gate(Degeneration(until_ms=9_000_000, rule="r", by="rule")), *s.turn()],
        "I2",
    ),
    "an overdue hold": (
        lambda s: [s.gate(Degeneration(until_ms=1, rule="r", by="rule")), s.envelope()],
        "I3",
    ),
    "an open gate with a hold": (
        lambda s: [
            ev.GateChanged(
                gate="open",
                cause="x",
                by="y",
                gen=1,
                holds=(Degeneration(until_ms=9_000_000, rule="r", by="r"),),
            )
        ],
        "I3",
    ),
    "an envelope consumed twice": (
        lambda s: [
            e := s.envelope(),
            *s.turn(envelopes=(e.id,)),
            ev.EnvelopeDropped(id=e.id, reason="operator"),
        ],
        "I4",
    ),
    "an outcome without intent": (lambda s: [ev.EffectOutcome(id="f", outcome="ok")], "I5"),
    "an answer without a question": (lambda s: [pe.ApprovalAnswered(id="apr_1_9", answer="allow")], "I10"),
    "a second answer": (
        lambda s: [asked(), *(pe.ApprovalAnswered(id="apr_1_2", answer=a) for a in ("allow", "deny"))],
        "I10",
    ),
    "a question that outlives its turn": (lambda s: [*s.turn()[:1], asked(), *s.turn()[-1:]], "I10"),
    "a second final state": (
        lambda s: [
            ev.CronOccurrence(job="j", due_ms=5, result="fired"),
            ev.CronOccurrence(job="j", due_ms=5, result="missed"),
        ],
        "I6",
    ),
}


@pytest.mark.parametrize("what", INVARIANTS)
async def test_a_broken_invariant_is_named(what: str, tmp_path: Path) -> None:
    events, check = INVARIANTS[what]
    async with await SqliteStore.open(tmp_path / "j.db", boot="b") as store:
        story = Story()
        await store.submit(story.created())
        await store.submit(story.tell(*events(story), at_ms=100_000))
        proof = await store.verify()
    assert check in {f["check"] for f in proof["findings"]}, proof["findings"]


def test_the_header_is_the_documented_one() -> None:
    row = row_bytes(
        seq=1, sid=2, ss=3, epoch=4, boot=5, at_ms=6, kv=7, turn=8, cause_seq=9,
        kind="k", principal="pp", body_sha=b"B" * 32, blob=None,
    )  # fmt: skip
    numbers = b"".join(
        value.to_bytes(width, "big")
        for value, width in zip(range(1, 10), (8, 8, 8, 4, 4, 8, 4, 8, 8), strict=True)
    )
    assert HEADER.size == len(numbers) == 60
    assert row == numbers + b"\x00\x01k" + b"\x00\x02pp" + b"B" * 32
    genesis = sha256(b"loopd session 1\nlg_1\n7").digest()
    assert session_genesis("lg_1", 7) == genesis
    assert link(genesis, row) == sha256(genesis + row).digest()


def test_the_documented_snippet_verifies_and_finds_a_change(path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "journal-format.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippet is not None
    name = re.search(r"file:([a-z.]+)\?mode=ro", snippet[1])
    assert name is not None
    path = path.rename(path.with_name(name[1]))

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", snippet[1]], cwd=path.parent, capture_output=True, text=True, check=False
        )

    assert run().stdout.startswith("head ")
    tamper(path, "UPDATE journal SET principal = 'uid:0' WHERE seq = 40")
    assert "seq 40 does not verify" in run().stderr


async def test_content_that_an_event_names_must_be_there(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "j.db", boot="b") as store:
        story = Story()
        await store.submit(story.created())
        begun = ev.TurnStarted(n=1, trigger=Trigger.CONTINUATION, manifest="ab" * 32)
        step = ev.TurnStep(
            n=1,
            step=1,
            total=1,
            text_blob="cd" * 32,
            calls=(ev.ToolCall(id="c", name="x", result_blob="ef" * 32),),
        )
        await store.submit(
            story.tell(begun, step, ev.TurnInterrupted(n=1, cause="crash", partial_blob="01" * 32))
        )
        proof = await store.verify()
    assert sorted(f["what"][5:9] for f in proof["findings"]) == ["01" * 2, "ab" * 2, "cd" * 2, "ef" * 2]


async def test_a_verification_that_nobody_waits_for_ends(path: Path) -> None:
    folded = 0

    def slow(session: Any, event: ev.Event, *, ss: int, at_ms: int) -> Any:
        nonlocal folded
        folded += 1
        time.sleep(0.002)
        return evolve(session, event, ss=ss, at_ms=at_ms)

    async with await SqliteStore.open(path, boot="b") as store:
        with anyio.move_on_after(0.05) as scope:
            await store.verify(evolve=slow)
        assert scope.cancelled_caught
        with anyio.fail_after(20):
            assert (await store.verify(sid="ses_2"))["ok"], "the next one is not held up"
    assert folded < 2 * 500


async def test_a_state_that_an_older_version_derived_is_a_note_and_a_table_is_not(path: Path) -> None:
    counter = "UPDATE session SET repeat_streak = repeat_streak + 1 WHERE num = 2"
    tamper(path, "UPDATE boot SET derivation = derivation - 1", counter)
    proof = await checked(path)
    assert proof["ok"], proof["findings"]
    assert [(note["check"], note["sid"]) for note in proof["notes"]] == [("I9", "ses_2")]
    tamper(path, "UPDATE hold SET until_ms = 1")
    assert named(await checked(path)) == {("I9", "hold")}
    tamper(path, "UPDATE hold SET until_ms = 99999999", "UPDATE boot SET derivation = derivation + 1")
    assert named(await checked(path)) == {("I9", "session")}


async def findings_after(path: Path, at_ms: int, *events: tuple[int, ev.Event]) -> list[str]:
    """Checks that fail after a boot at `at_ms` in which these events of the daemon came."""
    async with await SqliteStore.open(path, boot="again", now_ms=at_ms) as store:
        for moment, event in events:
            await store.submit(Append(sid=None, at_ms=moment, facts=(Fact(event=event, ss=0),)))
    async with await SqliteStore.open(path, boot="look", readonly=True) as store:
        return [finding["check"] for finding in (await store.verify())["findings"]]


async def test_what_a_boot_had_no_time_for_is_no_finding(tmp_path: Path) -> None:
    """Found by the crash matrix: who died while taking sessions over seemed to have broken promises."""
    path = tmp_path / "journal.db"
    async with await SqliteStore.open(path, boot="one", now_ms=1_000) as store:
        story = Story()
        await store.submit(story.created())
        await store.submit(story.tell(ev.TurnStarted(n=1, trigger=Trigger.HUMAN)))
        await store.submit(story.tell(story.gate(Interrupted(by="uid:1", until_ms=2_000), cause="interrupt")))
        taken = ev.DaemonRecovered(boot=1, clean=True)
        await store.submit(Append(sid=None, at_ms=1_000, facts=(Fact(event=taken, ss=0),)))
    frozen = ev.DaemonFrozen(by="uid:1")
    assert await findings_after(path, 60_000, (66_000, frozen)) == [], "it died before it took over"
    taken = ev.DaemonRecovered(boot=3, clean=False, overdue=1, spread_ms=5_000)
    assert await findings_after(path, 70_000, (70_100, taken), (79_000, frozen)) == ["I1"], "within its 5 s"
    taken = ev.DaemonRecovered(boot=4, clean=False, overdue=1, spread_ms=5_000)
    late = await findings_after(path, 90_000, (90_100, taken), (100_001, frozen))
    assert late == ["I1", "I3"], "nobody carried it out"
