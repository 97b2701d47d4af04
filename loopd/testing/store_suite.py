"""What every store must do: one conformance suite, run against each implementation.

`CHECKS` are coroutines that take a `Stage` and raise `AssertionError`. A stage opens a store again and
again on the same data, as restarts do. `Story` makes valid appends from events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from loopd.core.evolution import evolve
from loopd.core.passive import passive_row
from loopd.core.state import Session
from loopd.core.writes import Append, Fact, Idempotency, StoredEvent
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.holds import Degeneration, UserSuspend
from loopd_protocol.sources import Source, Trigger

DAY_MS = 86_400_000


class Stage(Protocol):
    """Where stores of one kind live. The one before must be closed before the next is opened."""

    def open(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Open a store on this stage's data. `options` as in `SqliteStore.open`."""


class Story:
    """One session, told event by event: keeps the state and makes the appends.

    Attributes:
        state: after the last append that was made, whether or not it was stored.
    """

    def __init__(self, num: int = 1, *, at_ms: int = 1_000) -> None:
        self.sid = f"ses_{num}"
        self.num = num
        self.at_ms = at_ms
        self.state: Session | None = None
        self._envelopes = 0

    def tell(
        self,
        *events: ev.Event,
        blobs: Iterable[bytes] = (),
        idempotency: Idempotency | None = None,
        at_ms: int | None = None,
        principal: str = "uid:1000",
    ) -> Append:
        """The append of these events; each blob belongs to the event at its place."""
        self.at_ms = self.at_ms + 10 if at_ms is None else at_ms
        before, facts = self.state, []
        contents = {sha256(content).hexdigest(): content for content in blobs}
        names = list(contents)
        for index, event in enumerate(events):
            ss = 1 if self.state is None else self.state.ss + 1
            self.state = evolve(self.state, event, ss=ss, at_ms=self.at_ms)
            facts.append(
                Fact(
                    event=event,
                    ss=ss,
                    turn=getattr(event, "n", None) or None,
                    blob=names[index] if index < len(names) else None,
                )
            )
        return Append(
            sid=self.sid,
            at_ms=self.at_ms,
            facts=tuple(facts),
            before=before,
            after=self.state,
            principal=principal,
            blobs=contents,
            idempotency=idempotency,
        )

    def created(self, name: str | None = None) -> Append:
        """The session's first append."""
        return self.tell(
            ev.SessionCreated(
                sid=self.sid,
                num=self.num,
                name=name or f"s{self.num}",
                driver={"kind": "scripted", "script": "x.jsonl"},
                preset="published",
                labels={"team": "night"},
            )
        )

    def envelope(self, text: str = "hello", *, source: Source = Source.HUMAN) -> ev.EnvelopeAccepted:
        """An accepted envelope; its id is unique in the story."""
        self._envelopes += 1
        return ev.EnvelopeAccepted(
            id=f"{self.sid}.{0 if self.state is None else self.state.ss}.{self._envelopes}",
            source=source,
            text=text,
            ephemeral_in_history=source is not Source.HUMAN,
        )

    def gate(self, *holds: Any, cause: str = "suspend") -> ev.GateChanged:
        """The change of the gate to these holds."""
        assert self.state is not None
        old = {hold.kind for hold in self.state.gate.holds}
        new = {hold.kind: hold for hold in holds}
        added = next((hold for kind, hold in new.items() if kind not in old), None)
        return ev.GateChanged(
            gate="closed" if holds else "open",
            cause=cause,
            by="uid:1000",
            gen=self.state.gate.gen + 1,
            holds=tuple(holds),
            added=added,
            removed=tuple(sorted(old - set(new))),
        )

    def turn(self, text: str = "done", *, envelopes: tuple[str, ...] = ()) -> list[ev.Event]:
        """A whole turn of one step."""
        assert self.state is not None
        n = self.state.turns + 1
        return [
            ev.TurnStarted(
                n=n, trigger=Trigger.HUMAN if envelopes else Trigger.CONTINUATION, envelopes=envelopes
            ),
            ev.TurnStep(
                n=n,
                step=1,
                total=self.state.steps + 1,
                text=text,
                usage=ev.Usage(input_tokens=100, output_tokens=20),
            ),
            ev.TurnCompleted(n=n, outcome="completed", steps=1),
        ]


async def refused(asked: Awaitable[Any]) -> str:
    """Code of the refusal that this must fail with."""
    try:
        done = await asked
    except Refused as error:
        return error.code
    raise AssertionError(f"answered {done}; expected a refusal")


async def verified(store: Any, **asked: Any) -> dict[str, Any]:
    """The proof object, which must be free of findings."""
    proof: dict[str, Any] = await store.verify(**asked)
    assert proof["ok"], proof["findings"]
    return proof


async def batches_get_contiguous_numbers_in_order_of_submission(stage: Stage) -> None:
    """Sequence numbers have no holes, whatever was submitted together."""
    async with stage.open() as store:
        stories = [Story(num) for num in range(1, 6)]
        futures = [store.submit(story.created()) for story in stories]
        futures += [store.submit(story.tell(story.envelope(), *story.turn())) for story in stories]
        done = [await future for future in futures]
        expected = 1
        for appended in done:
            assert appended.first == expected
            expected = appended.last + 1
        assert store.head == expected - 1 == 25
        page = await store.page(sid=None, after=None, before=None, limit=100)
        assert [event.seq for event in page] == list(range(1, 26))
        assert [event.ss for event in page if event.sid == "ses_3"] == [1, 2, 3, 4, 5]
        await verified(store)


async def events_are_published_in_order_before_anybody_hears_of_success(stage: Stage) -> None:
    """`on_commit` has run when an awaiter of the future goes on, and sees each event once."""
    async with stage.open() as store:
        heard: list[StoredEvent] = []
        store.on_commit = heard.extend
        story = Story()
        for _ in range(3):
            appended = await store.submit(
                story.created() if story.state is None else story.tell(story.envelope())
            )
            assert heard[-1].seq == appended.last == store.head
        assert [event.seq for event in heard] == [1, 2, 3]
        assert heard == await store.page(sid=None, after=0, before=None, limit=10)
        assert heard[0].principal == "uid:1000"
        assert msgspec.json.decode(heard[1].body)["k"] == "envelope.accepted"


async def nothing_refused_is_published(stage: Stage) -> None:
    """Events of a batch that failed are heard of by nobody."""
    async with stage.open() as store:
        heard: list[StoredEvent] = []
        store.on_commit = heard.extend
        story, twin = Story(1), Story(2)
        good = store.submit(story.created("same"))
        bad = store.submit(twin.created("same"))
        await good
        assert await refused(bad) == "already_exists"
        assert [event.sid for event in heard] == ["ses_1"]


async def state_and_row_are_those_after_the_last_event(stage: Stage) -> None:
    """The stored state equals the state that was handed in; the directory row is its reduction."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        hold = Degeneration(until_ms=9_000, rule="repeated_text", by="rule:repeated_text")
        await store.submit(
            story.tell(
                ev.GoalChanged(status="active", origin="user", text="tidy up"),
                story.gate(hold, cause="detection"),
                story.envelope(source=Source.CRON),
            )
        )
        assert await store.load_session("ses_1") == story.state
        assert await store.directory() == [passive_row(story.state)]  # type: ignore[arg-type]
        assert await store.load_session("ses_9") is None
        await verified(store)


async def a_restart_finds_everything_as_it_was(stage: Stage) -> None:
    """Log id, head, states, freeze and numbering go on; boot and epoch count up."""
    story = Story()
    async with stage.open(boot="one", now_ms=5) as store:
        log_id, epoch = store.log_id, store.epoch
        assert (store.boots, store.head, store.frozen) == (1, 0, None)
        await store.submit(story.created())
        frozen = ev.DaemonFrozen(by="uid:0", reason="audit")
        await store.submit(Append(sid=None, at_ms=7, facts=(Fact(event=frozen, ss=0),)))
        assert msgspec.json.decode(store.frozen)["reason"] == "audit"
    async with stage.open(boot="two", now_ms=9) as store:
        assert (store.log_id, store.head, store.boots) == (log_id, 2, 2)
        assert store.epoch > epoch
        assert msgspec.json.decode(store.frozen)["reason"] == "audit"
        assert [(boot.n, boot.id, boot.at_ms) for boot in await store.last_boots()] == [
            (2, "two", 9),
            (1, "one", 5),
        ]
        appended = await store.submit(story.tell(story.envelope()))
        assert appended.first == 3
        thawed = ev.DaemonUnfrozen(by="uid:0")
        await store.submit(Append(sid=None, at_ms=11, facts=(Fact(event=thawed, ss=0),)))
        assert store.frozen is None
        await verified(store)


async def a_batch_that_does_not_follow_is_refused(stage: Stage) -> None:
    """A gap or a repetition in `ss` is a conflict; nothing of it is stored."""
    async with stage.open() as store:
        story = Story()
        first = story.created()
        await store.submit(first)
        story.tell(story.envelope())  # never submitted
        assert await refused(store.submit(story.tell(story.envelope()))) == "conflict"
        assert await refused(store.submit(first)) == "conflict"
        other = Story(2)
        await store.submit(other.created())
        before = other.state
        append = other.tell(other.envelope())
        for wrong in (
            msgspec.structs.replace(append, before=append.after),
            msgspec.structs.replace(append, before=None),
            msgspec.structs.replace(append, after=before),
            msgspec.structs.replace(append, facts=(*append.facts, *append.facts)),
        ):
            assert await refused(store.submit(wrong)) == "conflict"
        assert store.head == 2
        await verified(store)


async def what_builds_on_a_failed_batch_fails_too(stage: Stage) -> None:
    """After a failure, later queued batches of that session are conflicts; others are not touched."""
    async with stage.open() as store:
        story, other = Story(1), Story(2)
        await store.submit(story.created())
        await store.submit(other.created())
        stored = story.state
        broken = story.tell(story.envelope())
        broken = msgspec.structs.replace(broken, blobs={"00" * 32: b"something else"})
        futures = [
            store.submit(broken),
            store.submit(other.tell(other.envelope())),
            store.submit(story.tell(story.envelope())),
            store.submit(other.tell(*other.turn())),
        ]
        assert await refused(futures[0]) == "invalid"
        assert (await futures[1]).first == 3
        assert await refused(futures[2]) == "conflict"
        assert (await futures[3]).last == 6
        story.state = stored
        assert (await store.submit(story.tell(story.envelope()))).first == 7
        await verified(store)


async def a_poisoned_row_fails_alone(stage: Stage) -> None:
    """A value that cannot be stored takes nobody with it."""
    async with stage.open() as store:
        stories = [Story(num) for num in range(1, 8)]
        futures = []
        for story in stories:
            append = story.created()
            if story.num == 3:
                append = msgspec.structs.replace(append, at_ms=-1)
            elif story.num == 4:
                fact = Fact(event=ev.CommandDenied(principal="p", cmd=object(), code="x"), ss=1)  # type: ignore[arg-type]
                append = msgspec.structs.replace(append, facts=(fact,))
            elif story.num == 5:
                append = msgspec.structs.replace(append, principal="\udc80")
            elif story.num == 6:
                append = msgspec.structs.replace(append, facts=())
            futures.append(store.submit(append))
        results = await asyncio.gather(*futures, return_exceptions=True)
        codes = [r.code if isinstance(r, Refused) else "" for r in results]
        assert codes == ["", "", "invalid", "invalid", "invalid", "invalid", ""]
        assert [row.sid for row in await store.directory()] == ["ses_1", "ses_2", "ses_7"]
        assert store.head == 3
        await verified(store)


async def a_live_name_is_unique_and_is_free_again_after_the_end(stage: Stage) -> None:
    """Two live sessions never share a name; references prefer the live one."""
    async with stage.open() as store:
        old, new, third = Story(1), Story(2), Story(3)
        await store.submit(old.created("night"))
        assert await refused(store.submit(new.created("night"))) == "already_exists"
        end = ev.SessionEnded(status="aborted_constraint", stop_reason="operator")
        await store.submit(old.tell(end))
        assert await store.find_session("night") == "ses_1"
        new.state = None
        await store.submit(new.created("night"))
        assert await store.find_session("night") == "ses_2"
        assert await store.find_session("ses_1") == "ses_1"
        assert await store.find_session("nobody") is None
        assert await refused(store.submit(third.created("night"))) == "already_exists"
        await verified(store)


async def a_key_is_remembered_with_its_result_for_seven_days(stage: Stage) -> None:
    """The same key is found with hash, result and seq; a second use stores nothing."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        key = Idempotency(principal="uid:1000", key="k1", command_sha256="ab", result=b'{"seq":3}')
        appended = await store.submit(story.tell(story.envelope(), story.envelope(), idempotency=key))
        assert await store.idempotent("uid:1000", "k1") == ("ab", b'{"seq":3}', appended.last)
        assert await store.idempotent("uid:1000", "k2") is None
        assert await store.idempotent("uid:1", "k1") is None
        after, kept_ms = story.state, story.at_ms
        again = story.tell(story.envelope(), idempotency=key)
        assert await refused(store.submit(again)) == "idempotency_conflict"
        assert store.head == 3
        story.state = after
        await store.submit(story.tell(story.envelope(), at_ms=kept_ms + 7 * DAY_MS))
        assert await store.idempotent("uid:1000", "k1") is not None
        await store.submit(story.tell(story.envelope(), at_ms=story.at_ms + 1))
        assert await store.idempotent("uid:1000", "k1") is None


async def content_is_stored_once_by_its_digest(stage: Stage) -> None:
    """Blobs come back whole, compressible or not, and equal ones are one."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        contents = [b"a" * 100_000, bytes(range(256)) * 3, sha256(b"x").digest() * 40, b"short"]
        await store.submit(story.tell(*[story.envelope(str(i)) for i in range(4)], blobs=contents))
        await store.submit(story.tell(story.envelope("again"), blobs=contents[:1]))
        for content in contents:
            assert await store.blob(sha256(content).hexdigest()) == content
        assert await store.blob("00" * 32) is None
        assert await store.blob("nonsense") is None
        proof = await verified(store)
        assert proof["checked"]["blobs"] == 4
        last = (await store.page(sid="ses_1", after=None, before=None, limit=1, newest=True))[0]
        assert last.blob == sha256(contents[0]).hexdigest()


async def pages_are_slices_of_the_log(stage: Stage) -> None:
    """after, before, limit, newest and kinds select like slices of a list do."""
    async with stage.open() as store:
        stories = [Story(num) for num in (1, 2)]
        for story in stories:
            await store.submit(story.created())
        for index in range(12):
            story = stories[index % 2]
            await store.submit(story.tell(story.envelope(), *story.turn(f"step {index}")))
        everything = await store.page(sid=None, after=None, before=None, limit=1_000)
        assert len(everything) == store.head == 50
        for sid in (None, "ses_2"):
            mine = [e for e in everything if sid is None or e.sid == sid]
            for after, before in ((None, None), (0, 20), (7, None), (49, None), (50, None), (9, 11), (30, 5)):
                for kinds in ((), ("turn.step",), ("turn.*", "session.created"), ("*",), ("gate.*",)):
                    expected = [
                        e
                        for e in mine
                        if e.seq > (after or 0)
                        and (before is None or e.seq < before)
                        and (
                            not kinds
                            or any(e.kind == k or (k[-1] == "*" and e.kind.startswith(k[:-1])) for k in kinds)
                        )
                    ]
                    for limit in (1, 3, 1_000):
                        asked: dict[str, Any] = {"sid": sid, "after": after, "before": before, "kinds": kinds}
                        assert await store.page(limit=limit, **asked) == expected[:limit]
                        assert await store.page(limit=limit, newest=True, **asked) == expected[-limit:]
        steps = [e for e in everything if e.sid == "ses_1" and e.kind == "turn.step"]
        assert await store.session_tail("ses_1", kinds=["turn.step"], limit=2) == steps[-2:]
        assert await store.page(sid="ses_9", after=None, before=None, limit=5) == []
        assert [e.seq for e in await store.page(sid=None, after=0, before=None, limit=9, max_bytes=1)] == [1]
        assert [e.ss for e in await store.events_at("ses_1", [5, 2, 99, 2])] == [2, 5]


async def a_turn_is_found_with_what_it_consumed(stage: Stage) -> None:
    """A turn's events include the accepted envelopes, and no other turn's."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        first = story.envelope("one")
        await store.submit(story.tell(first))
        await store.submit(story.tell(*story.turn("a")))
        second = story.envelope("two")
        append = story.tell(second, *story.turn("b", envelopes=(first.id, second.id)))
        done = await store.submit(append)
        await store.submit(story.tell(*story.turn("c")))
        found = await store.turn_events("ses_1", 2)
        assert [(e.ss, e.kind) for e in found] == [
            (2, "envelope.accepted"),
            (6, "envelope.accepted"),
            (7, "turn.started"),
            (8, "turn.step"),
            (9, "turn.completed"),
        ]
        assert [e.kind for e in await store.turn_events("ses_1", 1)] == [
            "turn.started",
            "turn.step",
            "turn.completed",
        ]
        assert await store.turn_events("ses_1", 9) == []
        assert await store.last_turn_before("ses_1", done.first + 1) == 1
        assert await store.last_turn_before("ses_1", done.first + 2) == 2
        assert await store.last_turn_before("ses_1", 1) is None
        await verified(store)


async def occurrences_are_accounted_newest_first(stage: Stage) -> None:
    """A held occurrence becomes final in place; a manual run of the same moment is another one."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        put = ev.CronChanged(
            job="hourly", change="put", expr="0 * * * *", text="look", next_ms=60_000, catchup_ms=5
        )
        await store.submit(story.tell(put))

        def occurred(due_ms: int, result: str, *, manual: bool = False) -> ev.CronOccurrence:
            return ev.CronOccurrence(job="hourly", due_ms=due_ms, result=result, manual=manual)

        await store.submit(story.tell(occurred(60_000, "held"), occurred(120_000, "missed")))
        await store.submit(story.tell(occurred(60_000, "coalesced"), occurred(60_000, "fired", manual=True)))
        found = await store.occurrences("ses_1", "hourly", 10)
        assert [(o["due_ms"], o["manual"], o["result"]) for o in found] == [
            (120_000, False, "missed"),
            (60_000, True, "fired"),
            (60_000, False, "coalesced"),
        ]
        assert len(await store.occurrences("ses_1", None, 2)) == 2
        assert await store.occurrences("ses_1", "daily", 10) == []
        jobs = await store.cron_jobs()
        assert [(job["sid"], job["job"], job["next_ms"], job["paused"]) for job in jobs] == [
            ("ses_1", "hourly", 60_000, False)
        ]
        await verified(store)


async def a_suspension_is_proved(stage: Stage) -> None:
    """The proof names the suspending event, its hash, and that no turn began since."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        await store.submit(story.tell(*story.turn()))
        hold = UserSuspend(by="uid:1000", reason="review")
        done = await store.submit(story.tell(story.gate(hold)))
        await store.submit(story.tell(story.envelope(source=Source.CRON)))
        proof = (await verified(store, sid="ses_1", suspended_since=done.last))["proof"]
        assert proof["suspend_seq"] == done.last
        assert proof["turns_after"] == 0
        assert proof["lifted_seq"] is None
        assert len(proof["hash"]) == 64
        lifted = await store.submit(story.tell(story.gate(cause="unsuspend"), *story.turn()))
        proof = (await verified(store, sid="ses_1", suspended_since=done.last))["proof"]
        assert proof["lifted_seq"] == lifted.first
        broken = await store.verify(sid="ses_1", suspended_since=2)
        assert not broken["ok"]
        assert await refused(store.verify(sid="ses_9")) == "not_found"
        assert await refused(store.verify(suspended_since=1)) == "invalid"


async def a_turn_that_began_in_spite_of_a_suspension_is_found(stage: Stage) -> None:
    """The proof fails where contract 3 is broken."""
    async with stage.open() as store:
        story = Story()
        await store.submit(story.created())
        done = await store.submit(story.tell(story.gate(UserSuspend(by="uid:1000"))))
        await store.submit(story.tell(*story.turn()))
        proof = await store.verify(sid="ses_1", suspended_since=done.last)
        assert not proof["ok"]
        assert proof["proof"]["turns_after"] == 1
        assert {finding["check"] for finding in proof["findings"]} == {"contract 3", "I2"}


async def a_full_store_refuses_and_keeps_what_it_has(stage: Stage) -> None:
    """At the limit writes answer `storage_full`; all that was acknowledged stays and verifies."""
    async with stage.open(max_bytes=2 << 20) as store:
        story, acknowledged = Story(), 1
        await store.submit(story.created())
        before, code = story.state, None
        while code is None:
            before = story.state
            future = store.submit(story.tell(story.envelope("x" * 50_000), *story.turn()))
            await asyncio.wait([future])
            if future.exception() is None:
                acknowledged = future.result().last
                assert acknowledged < 1_000, "the limit was never met"
            else:
                code = await refused(future)
        assert code == "storage_full"
        story.state = before
        assert store.head == acknowledged
        assert len(await store.page(sid=None, after=None, before=None, limit=1_000)) == acknowledged
        assert await store.load_session("ses_1") == story.state
        await verified(store)
    async with stage.open(max_bytes=8 << 20) as store:
        assert store.head == acknowledged
        done = await store.submit(story.tell(story.envelope("x" * 50_000)))
        assert done.first == acknowledged + 1
        await verified(store)


async def a_closed_store_refuses(stage: Stage) -> None:
    """After `aclose` nothing is accepted; what was queued before is stored."""
    story = Story()
    async with stage.open() as store:
        queued = store.submit(story.created())
        await store.aclose()
        assert (await queued).last == 1
        assert await refused(store.submit(story.tell(story.envelope()))) == "draining"
        assert await refused(store.directory()) == "draining"
    async with stage.open() as store:
        assert store.head == 1


CHECKS: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    batches_get_contiguous_numbers_in_order_of_submission,
    events_are_published_in_order_before_anybody_hears_of_success,
    nothing_refused_is_published,
    state_and_row_are_those_after_the_last_event,
    a_restart_finds_everything_as_it_was,
    a_batch_that_does_not_follow_is_refused,
    what_builds_on_a_failed_batch_fails_too,
    a_poisoned_row_fails_alone,
    a_live_name_is_unique_and_is_free_again_after_the_end,
    a_key_is_remembered_with_its_result_for_seven_days,
    content_is_stored_once_by_its_digest,
    pages_are_slices_of_the_log,
    a_turn_is_found_with_what_it_consumed,
    occurrences_are_accounted_newest_first,
    a_suspension_is_proved,
    a_turn_that_began_in_spite_of_a_suspension_is_found,
    a_full_store_refuses_and_keeps_what_it_has,
    a_closed_store_refuses,
)
"""All checks; each needs a fresh stage."""
