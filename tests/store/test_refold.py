"""Whatever happens to sessions, their projections are what the journal says."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.evolution import evolve
from loopd.core.passive import passive_row
from loopd.core.state import Session
from loopd.core.writes import Append
from loopd.store import MemoryStore
from loopd.store.projection import FOLDED, Placed, _used
from loopd.testing.store_suite import Story
from loopd_protocol import events as ev
from loopd_protocol.holds import (
    AwaitingApproval,
    Budget,
    ContinuationBackoff,
    Degeneration,
    Interrupted,
    ProviderBackoff,
    RequestIdle,
    UserSuspend,
)
from loopd_protocol.sources import Source, Trigger

FAR_MS = 10**15
HOLDS = (
    UserSuspend(by="u"),
    UserSuspend(by="u", until_ms=FAR_MS, quarantine=True),
    Degeneration(by="r", until_ms=FAR_MS, rule="barren_streak", relapse=2),
    RequestIdle(by="agent", until_ms=FAR_MS + 1),
    ContinuationBackoff(by="g", until_ms=FAR_MS + 2),
    Interrupted(by="u", until_ms=FAR_MS + 3),
    ProviderBackoff(by="d", until_ms=FAR_MS + 4, cause="429"),
    AwaitingApproval(by="d", until_ms=FAR_MS + 5, request="q"),
    Budget(by="d", until_ms=FAR_MS + 6, which="tokens"),
)
USAGES = (None, ev.Usage(input_tokens=10, output_tokens=3), ev.Usage(input_tokens=900, cached_tokens=9))


class Plot:
    """Draws events that may follow, and keeps no invariant by accident: it looks at the state."""

    def __init__(self, story: Story, draw: Any) -> None:
        self.story = story
        self.draw = draw
        self.count = 0

    def scene(self) -> list[ev.Event]:
        """Events of one append; each is drawn from what is possible after those before it."""
        state = self.story.state
        assert state is not None
        events: list[ev.Event] = []
        for _ in range(self.draw(st.integers(1, 5))):
            assert state is not None
            event = self.draw(st.sampled_from(self.possible(state)))
            state = evolve(state, event, ss=state.ss + 1, at_ms=self.story.at_ms + 10)
            events.append(event)
        return events

    def possible(self, state: Session) -> list[ev.Event]:
        self.count += 1
        c = self.count
        tail: list[ev.Event] = [
            ev.ProviderRetrying(n=state.turns, attempt=1, cause="429", delay_ms=5),
            ev.DetectorFailed(rule="r", cause="raised"),
        ]
        if state.status != "live":
            return tail
        found: list[ev.Event] = [
            ev.EnvelopeAccepted(
                id=f"e{c}",
                source=self.draw(st.sampled_from(list(Source))),
                text="é" * (c % 50),
                ephemeral_in_history=bool(c % 2),
                job="j1" if c % 3 else None,
            ),
            ev.GoalChanged(
                status=self.draw(st.sampled_from(["active", "paused", "cleared"])), origin="user", text="g"
            ),
            ev.CronChanged(
                job=f"j{c % 3}",
                change=self.draw(st.sampled_from(["put", "paused", "removed"])),
                next_ms=c,
                expr="* * * * *",
            ),
            ev.WakeSet(id=f"w{c % 4}", due_ms=c),
            ev.WakeCancelled(id=f"w{c % 4}"),
            ev.AgentReported(phase=f"p{c}"),
            ev.CronOccurrence(
                job=f"j{c % 3}",
                due_ms=c,
                result=self.draw(st.sampled_from(["held", "fired", "missed"])),
                next_ms=c + 1,
            ),
            *tail,
        ]
        holds = tuple({h.kind: h for h in self.draw(st.lists(st.sampled_from(HOLDS), max_size=3))}.values())
        old, new = {h.kind for h in state.gate.holds}, {h.kind for h in holds}
        added = next((h for h in holds if h.kind not in old), None)
        found.append(
            ev.GateChanged(
                gate="closed" if holds else "open",
                cause="x",
                by="u",
                gen=state.gate.gen + 1,
                holds=holds,
                added=added,
                removed=tuple(sorted(old - new)),
            )
        )
        if state.inbox:
            waiting = self.draw(st.sampled_from(state.inbox))
            found += [
                ev.EnvelopeHeld(id=waiting.id, by=("UserSuspend",)),
                ev.EnvelopeDropped(id=waiting.id, reason="operator"),
            ]
            if len(state.inbox) > 1:
                into = state.inbox[-1]
                found += [
                    ev.EnvelopeCoalesced(id=w.id, into=into.id, job="j1", count=into.count + w.count)
                    for w in state.inbox[:1]
                ]
        if state.turn is None:
            ids = tuple(w.id for w in state.inbox)
            if state.gate.is_open:
                found.append(
                    ev.TurnStarted(
                        n=state.turns + 1,
                        trigger=Trigger.HUMAN if ids else Trigger.CONTINUATION,
                        envelopes=ids,
                    )
                )
            found.append(ev.SessionEnded(status="done_partial", stop_reason="operator"))
            return found
        n = state.turn.n
        step = ev.TurnStep(
            n=n,
            step=state.turn.steps + 1,
            total=state.steps + 1,
            text=f"t{c}",
            usage=self.draw(st.sampled_from(USAGES)),
            calls=(ev.ToolCall(id=f"c{c}", name="bash", args={"x": c % 2}, ok=True, result="r"),) * (c % 3),
        )
        effect = ev.EffectIntent(id=f"f{c}", n=n, call="c", tool="t", args_sha256="0", tool_class="exec")
        return [
            *found,
            step,
            step,
            step,
            effect,
            ev.TurnCompleted(n=n, outcome="completed", steps=state.turn.steps),
            ev.TurnInterrupted(n=n, cause="crash", steps=state.turn.steps),
        ]


async def tables(store: MemoryStore) -> dict[str, int]:
    return {
        table: await store._read(lambda c, t=table: c.execute(f"SELECT count(*) FROM {t}").fetchone()[0])
        for table, _, _ in FOLDED
    }


@given(data=st.data())
def test_projections_are_the_refold_of_the_journal(data: st.DataObject) -> None:
    async def play() -> None:
        async with MemoryStore() as store:
            stories = [Story(num) for num in (1, 2)]
            await asyncio.gather(*(store.submit(story.created()) for story in stories))
            plots = [Plot(story, data.draw) for story in stories]
            for _ in range(data.draw(st.integers(1, 6))):
                batches: list[Append] = []
                for _ in range(data.draw(st.integers(1, 5))):  # several of one session in one group
                    plot = plots[data.draw(st.integers(0, 1))]
                    batches.append(plot.story.tell(*plot.scene()))
                await asyncio.gather(*(store.submit(batch) for batch in batches))
            proof = await store.verify()
            assert proof["findings"] == []
            for story in stories:
                assert await store.load_session(story.sid) == story.state
            assert await store.directory() == [passive_row(s.state) for s in stories if s.state]
            holds = sum(len(s.state.gate.holds) for s in stories if s.state)
            waiting = sum(len(s.state.inbox) for s in stories if s.state)
            counts = await tables(store)
            assert (counts["hold"], counts["inbox"]) == (holds, waiting)

    anyio.run(play)


@pytest.mark.anyio
async def test_a_turn_over_many_groups_has_its_steps_and_tokens() -> None:
    async with MemoryStore() as store:
        story = Story()
        await store.submit(story.created())
        first = ev.TurnStarted(n=1, trigger=Trigger.CONTINUATION)
        usage = ev.Usage(input_tokens=7, output_tokens=1)
        await store.submit(story.tell(first, ev.TurnStep(n=1, step=1, total=1, usage=usage)))
        await store.submit(story.tell(ev.TurnStep(n=1, step=2, total=2, usage=usage)))
        last = ev.TurnStep(n=1, step=3, total=3, usage=usage)
        await store.submit(story.tell(last, ev.TurnCompleted(n=1, outcome="completed", steps=3)))
        row = await store._read(
            lambda c: c.execute("SELECT steps, tokens, outcome, first_ss, last_ss FROM turn").fetchone()
        )
        assert row == (3, 24, "completed", 2, 6)
        proof: dict[str, Any] = await store.verify()
        assert proof["ok"], proof["findings"]


def test_tokens_of_a_turn_count_its_compactions_however_the_journal_is_paged() -> None:
    """Found by the crash matrix: what a page of the refold held was counted without them."""
    usage = ev.Usage(input_tokens=100, output_tokens=20)
    events = [
        ev.TurnStarted(n=1, trigger=Trigger.HUMAN),
        ev.ContextCompacted(
            n=1, reason="window", before_sha256="0" * 64, after_sha256="1" * 64, summary="short", usage=usage
        ),
        ev.TurnStep(n=1, step=1, total=1, text="x", usage=usage),
        ev.TurnCompleted(n=1, outcome="completed", steps=1),
    ]
    placed = [Placed(i, i, 1, event, b"{}") for i, event in enumerate(events, 1)]
    assert _used(1, None, placed, placed[-1]) == (1, 240)
