"""Recorded decisions, decided again: the same bytes, or the first difference with its reason.

Random histories are replayed by `World.replay` at the end of each run of the stateful tests.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from loopd.core import recorded
from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd.core.evolution import evolve
from loopd.core.inputs import (
    AgentAsked,
    CronPutRequested,
    EnvelopeArrived,
    House,
    Recovered,
    StepReported,
    StreamJudged,
    SuspendRequested,
    TurnEnded,
)
from loopd.core.recorded import fact, founding, marked, recalled
from loopd.core.replay import Replay, Row, replay
from loopd.core.rules import Finding, framework
from loopd.core.session import advance
from loopd.core.settings import settings_for
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.forensic_events import SessionForked
from loopd_protocol.sources import Source
from tests.core.world import World

SAME = {"continuation.min_gap_ms": 0, "rules.repeated_text.threshold": 3}


def rows_of(world: World) -> list[Row]:
    return [Row(ss, ss, at_ms, ev.decode(body).kind, body) for ss, at_ms, body in world.events]


def chanting(overrides: dict[str, Any] | None = None) -> World:
    """Three turns with the same text, and the detection that follows."""
    world = World(overrides or SAME, goal="win")
    for _ in range(3):
        world.tick()
        world.whole_turn("16/100. Not complete. No action.")
        world.now += 1
    return world


def test_a_session_that_went_in_circles_replays_byte_for_byte() -> None:
    outcome = replay(rows_of(chanting()))
    assert (outcome.status, outcome.verdicts, outcome.facts) == ("same", 1, 1)
    assert outcome.events == len(chanting().events)


def test_another_threshold_is_the_first_difference_and_its_rule_is_named() -> None:
    outcome = replay(rows_of(chanting()), {"rules.repeated_text.threshold": 2})
    assert outcome.status == "different"
    found = outcome.difference
    assert found is not None
    assert (found.rule, found.given, found.replayed) == (
        "repeated_text",
        "TurnEnded",
        "degeneration.detected",
    )
    assert found.what.startswith("'degeneration.detected' is decided now")
    later = replay(rows_of(chanting()), {"rules.repeated_text.threshold": 4}).difference
    assert later is not None
    assert (later.recorded, later.replayed, later.rule) == ("degeneration.detected", None, "repeated_text")


def test_a_rule_whose_code_changed_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(chanting())
    rules = tuple(
        changed(rule, on_turn=None) if rule.id == "repeated_text" else rule for rule in framework.RULES
    )
    monkeypatch.setattr(framework, "RULES", rules)
    found = replay(rows).difference
    assert found is not None
    assert (found.recorded, found.replayed, found.rule) == ("degeneration.detected", None, "repeated_text")


@pytest.mark.parametrize("field", ["score", "evidence", "threshold", "loop_id", "verdict"])
def test_a_changed_field_of_a_verdict_is_named_with_both_values(field: str) -> None:
    rows = rows_of(chanting())
    place = next(i for i, row in enumerate(rows) if row.kind == "degeneration.detected")
    body = msgspec.json.decode(rows[place].body or b"")
    body[field] = (
        ["another"]
        if field == "evidence"
        else "warn"
        if field == "verdict"
        else 99
        if field != "loop_id"
        else "ff"
    )
    rows[place] = rows[place]._replace(body=msgspec.json.encode(body))
    found = replay(rows).difference
    assert found is not None
    assert found.seq == rows[place].seq
    assert found.fields[0].path.partition("[")[0] == field
    assert found.fields[0].recorded != found.fields[0].replayed


@given(st.data())
def test_any_changed_dropped_or_moved_row_is_a_difference(data: st.DataObject) -> None:
    rows = rows_of(chanting())
    place = data.draw(st.integers(1, len(rows) - 1))
    how = data.draw(st.sampled_from(["drop", "at_ms", "swap"]))
    if how == "drop" and place == len(rows) - 1:
        return  # what is missing at the end is for chains and anchors to find
    if how == "drop":
        del rows[place]
    elif how == "swap":
        if place == len(rows) - 1:
            return
        rows[place], rows[place + 1] = rows[place + 1], rows[place]
    else:
        return
    assert replay(rows).status != "same", (how, place)


def test_a_moment_that_changed_is_found_where_it_decides() -> None:
    world = World(SAME, goal="win")
    world.tick()
    world.step(text="x")
    world.now += 5_000
    world.finish()
    rows = rows_of(world)
    rows[-1] = rows[-1]._replace(at_ms=rows[-1].at_ms + 1)
    found = replay(rows).difference
    assert found is not None
    assert found.fields[0].path == "duration_ms"


def test_rules_that_failed_then_are_left_out_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that raised (or took too long) is named in the event; the replay does not ask it."""

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of order")

    rules = tuple(
        changed(rule, on_turn=fails) if rule.id == "repeated_text" else rule for rule in framework.RULES
    )
    with monkeypatch.context() as patch:
        patch.setattr(framework, "RULES", rules)
        world = chanting()
    assert world.of(ev.DetectorFailed)
    assert not world.of(ev.DegenerationDetected)
    world.replay()


def test_deleted_content_ends_the_replay_and_says_where() -> None:
    rows = rows_of(chanting())
    rows[6] = rows[6]._replace(body=None)
    outcome = replay(rows)
    assert (outcome.status, outcome.last_seq) == ("ended", rows[5].seq)
    assert f"seq {rows[6].seq}" in outcome.why


def test_a_journal_of_before_inputs_were_recorded_says_so() -> None:
    rows = []
    for row in rows_of(chanting()):
        body = msgspec.json.decode(row.body or b"")
        body.pop("given", None)
        rows.append(row._replace(body=msgspec.json.encode(body)))
    outcome = replay(rows)
    assert outcome.status == "ended"
    assert "before loopd recorded inputs" in outcome.why


def test_a_fork_is_a_fact_and_what_follows_is_decided() -> None:
    world = World(SAME)
    forked = fact(SessionForked(parent="ses_9", n=4, seq=77, turns=4, steps=9), recorded.FORKED)
    created = ev.decode(world.events[0][2])
    assert isinstance(created, ev.SessionCreated)
    rows = [
        Row(1, 1, world.now, created.kind, world.events[0][2]),
        Row(2, 2, world.now, forked.kind, msgspec.json.encode(forked)),
    ]
    state = evolve(evolve(None, created, ss=1, at_ms=world.now), forked, ss=2, at_ms=world.now)
    house = House(settings=settings_for(state.preset, state.overrides))
    asked = EnvelopeArrived(source=Source.HUMAN, text="go on", by="uid:1")
    done = advance(state, asked, world.now, house)
    for place, event in enumerate(marked(asked, house, done.events), 3):
        rows.append(Row(place, place, world.now, event.kind, msgspec.json.encode(event)))
    outcome = replay(rows)
    assert (outcome.status, outcome.facts, outcome.decisions) == ("same", 2, 1)
    assert done.session.turn is not None
    assert done.session.turn.n == 5, "it goes on counting"


# -- what is kept of an input ---------------------------------------------------------------------

INPUTS = (
    EnvelopeArrived(source=Source.HUMAN, text="x" * 5_000, by="uid:1"),
    SuspendRequested(by="uid:1", reason="night", until_ms=4_102_444_800_000, quarantine=True),
    CronPutRequested(by="uid:1", job="j", expr="0 * * * *", text="y" * 5_000),
)


@pytest.mark.parametrize("given_", INPUTS, ids=lambda given: type(given).__name__)
def test_an_input_comes_back_as_it_was_and_its_content_is_not_stored_twice(given_: Any) -> None:
    world = World()
    house = changed(world.house(), closed_by="freeze")
    events = marked(given_, house, advance(world.session, given_, world.now, house).events)
    stored = [ev.decode(msgspec.json.encode(event)) for event in events]
    assert stored[0].given is not None
    assert len(msgspec.json.encode(stored[0].given)) < 300
    known = recalled(stored, house.settings)
    assert known is not None
    assert known[0] == given_
    assert known[1].closed_by == "freeze"


@given(
    text=st.text(max_size=40),
    finish=st.sampled_from(["stop", "length"]),
    tokens=st.integers(0, 10**9),
    args=st.dictionaries(
        st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=3
    ),
    withheld=st.booleans(),
)
def test_a_step_comes_back_from_its_own_event(
    text: str, finish: str, tokens: int, args: Any, withheld: bool
) -> None:
    world = World(goal="win")
    world.tick(world.now + 2_000)
    done = StepDone(
        text=text,
        finish=finish,
        usage=Usage(input_tokens=tokens),
        calls=(ToolCall(id="c", name="shell", args=args, ok=True, result="r"),),
        tools_withheld=withheld,
        request_sha256="ab" * 32,
    )
    asked = StepReported(n=1, done=done)
    events = marked(asked, world.house(), advance(world.session, asked, world.now, world.house()).events)
    assert events[0].given == {"t": "StepReported"}, "all of it stands in the event"
    known = recalled([ev.decode(msgspec.json.encode(event)) for event in events], world.settings)
    assert known is not None
    assert known[0] == asked


@pytest.mark.parametrize(
    ("asked", "event"),
    [
        (TurnEnded(n=3, end=TurnEnd(outcome="model_error", cause="auth", retry_after_ms=7)), ev.TurnCompleted(n=3, outcome="model_error")),
        (AgentAsked(n=1, request=AgentRequest(name="wake_me", args={"after_secs": 60, "junk": "z" * 20_000})), ev.WakeSet(id="w", due_ms=1)),
        (Recovered(boot=4, crash_loop_boots=0), ev.TurnInterrupted(n=1, cause="crash", boot=4)),
        (StreamJudged(n=1, finding=Finding(rule="chanting", verdict="nudge", level="soft", score=1, threshold=1, say=lambda: ((), ""))), ev.DegenerationDetected(rule="chanting", verdict="nudge", level="soft", score=1, threshold=1)),
    ],
)  # fmt: skip
def test_what_an_event_does_not_say_is_kept(asked: Any, event: ev.Event) -> None:
    house = House(settings=settings_for("published", {}))
    stored = marked(asked, house, (event,))
    known = recalled([ev.decode(msgspec.json.encode(each)) for each in stored], house.settings)
    assert known is not None
    again = known[0]
    if isinstance(asked, AgentAsked):
        assert again == AgentAsked(n=1, request=AgentRequest(name="wake_me", args={"after_secs": 60})), (
            "junk is left out"
        )
    elif isinstance(asked, StreamJudged):
        assert again == StreamJudged(n=1, finding=changed(asked.finding, say=None))
    else:
        assert again == asked


def test_an_unreadable_record_is_a_difference_and_no_crash() -> None:
    rows = rows_of(chanting())
    body = msgspec.json.decode(rows[1].body or b"")
    body["given"]["in"] = {"by": 7}
    rows[1] = rows[1]._replace(body=msgspec.json.encode(body))
    found = replay(rows).difference
    assert found is not None
    assert "cannot be read" in found.what


def test_a_replay_can_be_fed_row_by_row_and_stops_by_itself() -> None:
    work = Replay({"rules.repeated_text.threshold": 2})
    taken = 0
    for row in rows_of(chanting()):
        taken += 1
        if not work.feed((row,)):
            break
    assert work.done
    assert taken < len(chanting().events)


def test_a_creation_is_marked() -> None:
    created = ev.SessionCreated(sid="s", num=1, name="n", driver={}, preset="published")
    assert founding(created).given == {"t": "SessionCreated"}
