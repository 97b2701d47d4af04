"""Single stories of one session in virtual time: what the contracts look like when nothing is random."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd
from loopd.core.evolution import evolve
from loopd.core.inputs import (
    AgentAsked,
    CronChangeRequested,
    CronPutRequested,
    CutRequested,
    DropRequested,
    EffectEnded,
    EffectIntended,
    EndRequested,
    GateExtendRequested,
    GateOpenRequested,
    GoalChangeRequested,
    HoldRequested,
    InterruptRequested,
    Reconsidered,
    Recovered,
    StepReported,
    SuspendRequested,
    TurnEnded,
    UnsuspendRequested,
)
from loopd.core.session import next_deadline
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from tests.core.table import a_hold
from tests.core.world import START_MS, World

MINUTE = 60_000
HOUR = 60 * MINUTE
FILLER = "16/100. Not complete. No action."
BY = "uid:1"


def suspend(**given: object) -> SuspendRequested:
    return SuspendRequested(by=BY, **given)  # type: ignore[arg-type]


def put(expr: str = "* * * * *", **given: object) -> CronPutRequested:
    return CronPutRequested(**({"by": BY, "job": "poll", "expr": expr, "text": "look"} | given))  # type: ignore[arg-type]


def change(how: str) -> CronChangeRequested:
    return CronChangeRequested(by=BY, job="poll", change=how)  # type: ignore[arg-type]


def a_run(world: World, turns: int, text: str = FILLER) -> int:
    """Play a degenerating agent until no continuation comes; returns the turns that ran."""
    ran = 0
    for _ in range(turns):
        if world.session.turn is None:
            due = next_deadline(world.session, world.house())
            if due is None or not world.session.gate.is_open:
                return ran
            world.tick(max(due, world.now))
        world.whole_turn(text)
        ran += 1
    return ran


# -- detection -----------------------------------------------------------------------------------


def test_the_same_text_five_times_closes_the_gate_for_an_hour_and_no_turn_follows() -> None:
    world = World(goal="win")
    assert a_run(world, 1_395) == 5
    (hold,) = world.session.gate.holds
    assert (hold.kind, hold.until_ms) == ("Degeneration", world.now + HOUR)
    assert world.tick_through(world.now + HOUR - 1) == []
    assert world.session.goal is not None
    assert world.session.goal.status == "active"
    (opened, started) = world.tick_through(world.now + 1)
    assert isinstance(opened, ev.GateChanged)
    assert (opened.cause, opened.removed, opened.late_ms) == ("deadline", ("Degeneration",), 0)
    assert isinstance(started, ev.TurnStarted)
    assert started.trigger == "continuation"


def test_fifty_turns_without_a_tool_call_close_the_gate_though_each_says_something_else() -> None:
    world = World({"continuation.min_gap_ms": 0}, goal="win")
    for n in range(50):
        world.tick()
        world.whole_turn(f"thought number {n}")
    assert world.kinds == ["Degeneration"]
    assert world.of(ev.DegenerationDetected)[0].rule == "barren_streak"


@pytest.mark.parametrize("source", ["human", "cron", "rewake", "agent", "channel"])
def test_an_envelope_reopens_a_degenerated_session_and_a_relapse_is_counted(source: str) -> None:
    world = World(goal="win")
    a_run(world, 10)
    world.now += MINUTE
    done = world.send(source)
    changed, started = (
        next(e for e in done.events if isinstance(e, t)) for t in (ev.GateChanged, ev.TurnStarted)
    )
    assert (changed.cause, changed.removed) == ("envelope", ("Degeneration",))
    notes = [e.id for e in world.of(ev.EnvelopeAccepted) if e.source == "system"]
    assert set(notes) <= set(started.envelopes), "the model is told what was found"
    world.whole_turn(FILLER)
    a_run(world, 10)
    assert [d.relapse for d in world.of(ev.DegenerationDetected)] == [0, 1]
    assert world.session.gate.holds[0].relapse == 1  # type: ignore[union-attr]


def test_a_degenerated_session_that_is_unsuspended_stays_closed_until_its_own_deadline() -> None:
    world = World(goal="win")
    a_run(world, 10)
    world.apply(suspend())
    world.apply(UnsuspendRequested(by=BY))
    assert world.kinds == ["Degeneration"]
    assert world.session.turn is None
    world.tick_through(world.now + HOUR)
    assert world.session.turn is not None


# -- suspend -------------------------------------------------------------------------------------


def test_a_suspended_session_holds_cron_until_unsuspended() -> None:
    """48 fires during a suspension: one delivery afterwards, 48 accounted."""
    world = World(goal="win")
    world.apply(put("*/30 * * * *"))
    world.apply(suspend())
    world.tick_through(START_MS + 24 * HOUR)
    assert len(world.session.inbox) == 1
    assert world.session.inbox[0].count == 48
    assert not world.of(ev.TurnStarted)
    done = world.apply(UnsuspendRequested(by=BY))
    (started,) = [e for e in done.events if isinstance(e, ev.TurnStarted)]
    assert (started.trigger, len(started.envelopes)) == ("cron", 1)
    results = list(world.audit.occurrences.values())
    assert len(results) == 48
    assert results.count("coalesced") == 47
    assert results.count("late") == 1
    assert [due for _, due, _ in world.audit.occurrences] == [START_MS + i * HOUR // 2 for i in range(1, 49)]


@pytest.mark.parametrize("how", ["removed", "paused", "dropped", "ended"])
def test_runs_by_hand_are_accounted_apart_from_the_schedule_whatever_becomes_of_the_job(how: str) -> None:
    world = World()
    world.apply(put("* * * * *"))
    world.apply(suspend())
    world.tick_through(START_MS + MINUTE)  # due at the very moment of the run by hand
    for _ in range(3):
        world.apply(change("run"))
    assert [w.count for w in world.session.inbox] == [4]
    if how == "dropped":
        world.apply(DropRequested(by=BY, id=world.session.inbox[0].id))
    elif how == "ended":
        world.apply(EndRequested(by=BY))
    else:
        world.apply(change(how))
        world.apply(UnsuspendRequested(by=BY))
    by_hand = [r for (_, _, manual), r in world.audit.occurrences.items() if manual]
    scheduled = [r for (_, _, manual), r in world.audit.occurrences.items() if not manual]
    last = "late" if how in {"removed", "paused"} else "skipped"
    assert by_hand == ["coalesced", "coalesced", last]
    assert scheduled == ["coalesced"]


@pytest.mark.parametrize(("mode", "cause"), [("interrupt", "suspend"), ("kill", "kill")])
def test_suspend_cuts_the_running_turn_when_asked_and_keeps_what_was_said(mode: str, cause: str) -> None:
    world = World()
    world.send()
    world.partial = "half"
    world.apply(suspend(mode=mode))
    (cut,) = world.of(ev.TurnInterrupted)
    assert (cut.cause, cut.partial) == (cause, "half")
    assert world.kinds == ["UserSuspend"], "no Interrupted hold is added"


def test_after_turn_lets_the_turn_in_flight_finish_and_nothing_follows() -> None:
    world = World(goal="win")
    world.send()
    world.send("cron")
    world.apply(suspend())
    assert world.session.turn is not None
    world.whole_turn()
    assert world.session.turn is None
    assert world.tick_through(world.now + 24 * HOUR) == []
    assert [w.source for w in world.session.inbox] == ["cron"]


def test_a_suspension_with_an_end_ends_by_itself_and_what_waited_is_one_batch() -> None:
    world = World()
    world.apply(suspend(until_ms=START_MS + HOUR))
    for source in ("cron", "agent", "channel"):
        world.send(source)
    events = world.tick_through(START_MS + HOUR)
    (started,) = [e for e in events if isinstance(e, ev.TurnStarted)]
    assert len(started.envelopes) == 3
    assert started.trigger == "agent"


@pytest.mark.parametrize("until", [START_MS, START_MS - 1, 0])
def test_a_suspension_that_has_ended_already_is_refused(until: int) -> None:
    world = World()
    with pytest.raises(Refused) as refused:
        world.apply(suspend(until_ms=until))
    assert refused.value.code == "invalid"
    assert world.kinds == []


def test_a_human_message_lifts_a_suspension_and_takes_all_that_waits_with_it() -> None:
    world = World()
    world.apply(suspend())
    held = [world.send(source).envelope for source in ("channel", "agent", "rewake")]
    done = world.send("human")
    (started,) = [e for e in done.events if isinstance(e, ev.TurnStarted)]
    assert list(started.envelopes) == [*held, done.envelope]
    assert started.trigger == "human"


def test_a_quarantine_makes_a_human_message_wait_until_unsuspend() -> None:
    world = World()
    world.apply(suspend(quarantine=True))
    done = world.send("human")
    (held,) = [e for e in done.events if isinstance(e, ev.EnvelopeHeld)]
    assert held.by == ("UserSuspend",)
    world.apply(UnsuspendRequested(by=BY))
    assert world.session.turn is not None


def test_interrupt_with_suspend_does_not_end_a_quarantine() -> None:
    world = World()
    world.apply(suspend(quarantine=True, until_ms=START_MS + HOUR))
    world.apply(InterruptRequested(by=BY, suspend=True))
    world.send("human")
    assert world.kinds == ["UserSuspend", "Interrupted"]
    assert world.session.turn is None


def test_a_message_that_came_before_the_suspension_does_not_lift_it() -> None:
    world = World()
    world.send()
    world.send("human")
    world.apply(suspend())
    world.whole_turn()
    assert world.session.turn is None
    assert world.kinds == ["UserSuspend"]


def test_a_message_in_a_turn_that_is_suspended_behind_it_is_queued_and_then_lifts() -> None:
    world = World()
    world.send()
    world.apply(suspend())
    done = world.send("human")
    assert not [e for e in done.events if isinstance(e, ev.EnvelopeHeld)]
    done = world.finish()
    assert [e.trigger for e in done.events if isinstance(e, ev.TurnStarted)] == ["human"]


# -- interrupt -----------------------------------------------------------------------------------


def test_an_interrupted_session_waits_five_minutes_unless_a_human_speaks() -> None:
    world = World(goal="win")
    world.send()
    world.partial = "half a sentence"
    done = world.apply(InterruptRequested(by=BY))
    (cut,) = [e for e in done.events if isinstance(e, ev.TurnInterrupted)]
    assert (cut.cause, cut.partial, cut.phase) == ("interrupt", "half a sentence", "model")
    world.send("cron")
    world.send("agent")
    assert world.session.turn is None
    assert world.tick_through(world.now + 5 * MINUTE - 1) == []
    events = world.tick_through(world.now + 1)
    assert [e.trigger for e in events if isinstance(e, ev.TurnStarted)] == ["agent"]


def test_gate_open_ends_an_interruption_and_names_what_it_cannot_open() -> None:
    world = World(goal="win")
    world.send()
    world.apply(InterruptRequested(by=BY, for_ms=HOUR))
    with pytest.raises(Refused) as refused:
        world.apply(GateOpenRequested(by=BY, kind="UserSuspend"))
    assert refused.value.code == "conflict"
    world.apply(GateOpenRequested(by=BY))
    assert world.kinds == []
    world.tick_through(world.now + 2_000)
    assert world.session.turn is not None


# -- crash ---------------------------------------------------------------------------------------


def test_the_third_crash_in_a_turn_holds_the_session_before_what_waits_runs_again() -> None:
    world = World()
    world.send()
    for boot in (2, 3):
        world.send()
        world.crash()
        world.apply(Recovered(boot=boot))
        assert world.session.turn is not None, "the message that waited goes on"
    world.send()
    world.crash()
    done = world.apply(Recovered(boot=4))
    assert world.kinds == ["CrashLoop"]
    assert not [e for e in done.events if isinstance(e, ev.TurnStarted)]
    hold = world.session.gate.holds[0]
    assert hold.until_ms == world.now + HOUR
    world.tick_through(world.now + HOUR)
    assert world.session.turn is not None


def test_crashes_far_apart_or_switched_off_hold_nothing() -> None:
    for boots, limit in (((2, 13, 24), 3), ((2, 3, 4, 5, 6), 0)):
        world = World()
        world.send()
        for boot in boots:
            world.send()
            world.crash()
            world.apply(Recovered(boot=boot, crash_loop_boots=limit))
        assert world.kinds == []


def test_each_further_crash_doubles_the_hold() -> None:
    world = World()
    waits = []
    for boot in range(2, 8):
        world.send()
        world.apply(GateOpenRequested(by=BY))
        world.crash()
        world.apply(Recovered(boot=boot))
        waits += [(h.until_ms or 0) - world.now for h in world.session.gate.holds]
    assert waits == [HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR]


def test_one_boot_counts_as_one_crash_however_often_the_session_is_read_again_in_it() -> None:
    world = World()
    for _ in range(5):
        world.send()
        world.crash()
        world.apply(Recovered(boot=2))
    assert world.session.crash_boots == (2,)
    assert world.kinds == []


def test_a_crash_launders_nothing() -> None:
    world = World(goal="win")
    a_run(world, 4)
    world.tick(world.now + 2_000)
    world.step(text=FILLER)
    world.crash()
    world.apply(Recovered(boot=2))
    assert world.session.repeat_streak == 4
    assert a_run(world, 10) == 1
    assert world.kinds == ["Degeneration"]


# -- turns -----------------------------------------------------------------------------------------


def test_what_arrives_during_a_turn_is_one_batch_before_any_continuation() -> None:
    world = World(goal="win")
    world.send()
    queued = [world.send(source).envelope for source in ("cron", "human", "channel")]
    done = world.whole_turn()
    (started,) = [e for e in done.events if isinstance(e, ev.TurnStarted)]
    assert list(started.envelopes) == queued


def test_the_inbox_drops_its_oldest_with_an_event_and_notes_never_crowd_out_messages() -> None:
    world = World({"gate.inbox_cap": 3})
    world.apply(suspend(quarantine=True))
    ids = [world.send("human").envelope for _ in range(5)]
    assert [(d.id, d.reason) for d in world.of(ev.EnvelopeDropped)] == [(i, "inbox_full") for i in ids[:2]]
    notes = [world.send("system").envelope for _ in range(5)]
    assert [w.id for w in world.session.inbox] == [*ids[2:], *notes[2:]]


def test_a_note_alone_starts_nothing_and_rides_on_the_next_turn() -> None:
    world = World()
    note = world.send("system").envelope
    assert world.session.turn is None
    assert not world.of(ev.EnvelopeHeld)
    sent = world.send("channel")
    (started,) = [e for e in sent.events if isinstance(e, ev.TurnStarted)]
    assert started.envelopes == (note, sent.envelope)
    assert started.trigger == "channel"


def test_a_note_is_shown_between_two_steps_but_not_when_the_turn_is_to_end() -> None:
    world = World({"turn.max_steps": 2})
    world.send()
    first = world.send("system").envelope
    call = ToolCall(id="c1", name="shell", ok=True)
    done = world.step(text="a", calls=(call,))
    assert [e.id for e in done.events if isinstance(e, ev.EnvelopeDelivered)] == [first]
    second = world.send("system").envelope
    done = world.step(text="b", calls=(call,))
    assert done.stop
    assert [w.id for w in world.session.inbox] == [second]
    done = world.finish("completed")
    assert [e.outcome for e in done.events if isinstance(e, ev.TurnCompleted)] == ["step_limit"]


def test_calls_with_the_same_id_in_two_steps_are_two_effects() -> None:
    world = World()
    world.send()
    for _ in range(2):
        call = {"n": 1, "call": "call_1"}
        world.apply(EffectIntended(**call, tool="shell", args_sha256="0" * 64, tool_class="other"))  # type: ignore[arg-type]
        world.apply(EffectEnded(**call, outcome="ok"))  # type: ignore[arg-type]
        world.step(calls=(ToolCall(id="call_1", name="shell", ok=True),))
    assert len(world.audit.effects) == 2
    assert set(world.audit.effects.values()) == {"ok"}


def test_a_cut_turn_gives_way_to_what_waits_but_not_to_a_continuation_at_once() -> None:
    world = World(goal="win")
    world.send()
    world.send("agent")
    done = world.apply(CutRequested(cause="deadline", n=1))
    assert [e.trigger for e in done.events if isinstance(e, ev.TurnStarted)] == ["agent"]
    done = world.apply(CutRequested(cause="deadline", n=1))
    assert not done.events, "turn 1 is over; turn 2 is not meant"
    world.apply(CutRequested(cause="deadline"))
    assert world.session.turn is None
    assert next_deadline(world.session, world.house()) == world.now + 2_000


@pytest.mark.parametrize("outcome", ["model_error", "failed"])
def test_a_failing_provider_is_asked_again_later_and_later_and_the_message_is_not_forgotten(
    outcome: str,
) -> None:
    world = World()
    world.send()
    waits = []
    for _ in range(9):
        world.finish(outcome)
        (hold,) = world.session.gate.holds
        assert hold.kind == "ProviderBackoff"
        assert hold.until_ms is not None
        waits.append((hold.until_ms - world.now) // 1_000)
        world.tick_through(hold.until_ms)
        assert world.session.turn is not None
    assert waits == [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600]
    world.whole_turn()
    world.send()
    world.finish(outcome)
    assert world.session.gate.holds[0].until_ms == world.now + 30_000


def test_retry_after_is_honoured_up_to_a_day() -> None:
    for asked, wait in ((90_000, 90_000), (1_000, 30_000), (10**16, 24 * HOUR), (None, 30_000)):
        world = World()
        world.send()
        world.finish("model_error", retry_after_ms=asked)
        assert world.session.gate.holds[0].until_ms == world.now + wait


def test_extending_a_hold_is_neither_a_failure_of_the_provider_nor_another_idle() -> None:
    world = World()
    world.send()
    world.finish("model_error")
    world.apply(GateExtendRequested(by=BY, kind="ProviderBackoff", until_ms=world.now + HOUR))
    assert world.session.provider_failures == 1
    world = World()
    world.send()
    world.ask("request_idle", max_idle_duration_secs=60)
    world.apply(GateExtendRequested(by=BY, kind="RequestIdle", until_ms=world.now + HOUR))
    assert world.session.idle_ms == MINUTE


def test_a_session_that_a_rule_terminates_ends_even_when_its_turn_is_cut() -> None:
    call = ToolCall(id="c", name="shell", args={"cmd": "ls"}, ok=True, result="same")
    for ending in ("finish", "suspend", "crash"):
        world = World({"rules.tool_repetition.max_corrections": 0})
        world.send()
        for _ in range(6):
            if world.step(calls=(call,)).stop:
                break
        assert world.session.turn is not None
        assert world.session.turn.stopping == "terminate:tool_repetition"
        if ending == "finish":
            world.finish()
        elif ending == "suspend":
            world.apply(suspend(mode="kill"))
        else:
            world.crash()
            world.apply(Recovered(boot=2))
        assert (world.session.status, world.session.stop_reason) == ("aborted_stuck", "tool_repetition")
        assert next_deadline(world.session, world.house()) is None
        with pytest.raises(Refused) as refused:
            world.send()
        assert refused.value.code == "session_terminal"


def test_a_verdict_to_terminate_is_not_taken_back_by_a_later_one() -> None:
    world = World()
    world.send()
    common = {"level": "hard", "score": 1, "threshold": 1}
    session = world.session
    for verdict, rule in (("terminate", "tool_repetition"), ("close", "other")):
        found = ev.DegenerationDetected(verdict=verdict, rule=rule, **common)  # type: ignore[arg-type]
        session = evolve(session, found, ss=session.ss + 1, at_ms=world.now)
    assert session.turn is not None
    assert session.turn.stopping == "terminate:tool_repetition"


# -- the agent's own tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [59, 86_401, 0, -1, "60", None, True, 60.5, 10**30])
def test_request_idle_out_of_bounds_is_refused_with_the_bounds(seconds: object) -> None:
    world = World()
    world.send()
    done = world.ask("request_idle", max_idle_duration_secs=seconds)
    assert done.reply is not None
    assert not done.reply.ok
    assert "60" in done.reply.text
    assert "86400" in done.reply.text
    assert not done.events


def test_request_idle_leaves_the_goal_alone_and_chained_idles_are_summed() -> None:
    world = World(goal="win")
    for n in range(3):
        world.tick_through(world.now + 2 * MINUTE)
        done = world.ask("request_idle", max_idle_duration_secs=60)
        assert done.reply is not None
        assert done.reply.ends_turn
        assert f"{60 * (n + 1)} s" in done.reply.text
        world.step(calls=(ToolCall(id="i", name="request_idle", ok=True),))
        world.finish("idle")
    assert world.session.goal is not None
    assert world.session.goal.status == "active"
    world.tick_through(world.now + 2 * MINUTE)
    world.whole_turn("no idle this time")
    assert world.session.idle_ms == 0


def test_two_idles_in_one_turn_are_one_idle_with_the_later_end() -> None:
    world = World()
    world.send()
    world.ask("request_idle", max_idle_duration_secs=600)
    world.now += 1_000
    world.ask("request_idle", max_idle_duration_secs=60)
    assert world.session.gate.holds[0].until_ms == START_MS + 600_000
    assert world.session.idle_ms == 600_000
    world.ask("request_idle", max_idle_duration_secs=700)
    assert world.session.idle_ms == 701_000


def test_at_most_eight_wake_ups_are_pending_and_each_comes_once() -> None:
    world = World()
    world.send()
    for i in range(8):
        done = world.ask("wake_me", after_secs=60 + i)
        assert done.reply is not None
        assert done.reply.ok
    done = world.ask("wake_me", after_secs=60)
    assert done.reply is not None
    assert not done.reply.ok
    world.whole_turn()
    for i in range(8):
        world.tick_through(START_MS + (60 + i) * 1_000)
        assert world.session.turn is not None
        assert world.session.turn.trigger == "rewake"
        world.whole_turn(f"woken {i}")
    assert world.session.wakes == ()
    assert next_deadline(world.session, world.house()) is None


def test_a_recurring_wake_goes_on_and_its_missed_moments_are_one() -> None:
    world = World()
    world.send()
    world.ask("wake_me", cron="0 * * * *", note="hourly")
    world.whole_turn()
    world.tick(START_MS + 5 * HOUR + 1)
    assert world.session.turn is not None
    (started,) = [e for e in world.of(ev.TurnStarted) if e.trigger == "rewake"]
    assert len(started.envelopes) == 1
    assert [w.due_ms for w in world.session.wakes] == [START_MS + 6 * HOUR]


@pytest.mark.parametrize("status", ["active", "cleared", "", None, 5])
def test_an_agent_cannot_make_its_goal_active_or_forget_it(status: object) -> None:
    world = World(goal="win")
    world.send()
    done = world.ask("update_goal", status=status)
    assert done.reply is not None
    assert not done.reply.ok
    assert not done.events


def test_a_goal_that_has_ended_is_reopened_by_a_person_only() -> None:
    world = World(goal="win")
    world.send()
    world.ask("update_goal", status="complete", note="done")
    done = world.ask("update_goal", status="blocked")
    assert done.reply is not None
    assert not done.reply.ok
    world.whole_turn()
    assert world.tick_through(world.now + HOUR) == []
    world.apply(GoalChangeRequested(by=BY, status="active"))
    assert world.session.goal is not None
    assert world.session.goal.text == "win"
    world.tick_through(world.now + 2_000)
    assert world.session.turn is not None


def test_a_script_at_its_end_completes_an_active_goal_and_no_other() -> None:
    world = World(goal="win")
    world.send()
    world.apply(GoalChangeRequested(by=BY, status="paused"))
    world.finish(goal_complete=True)
    assert world.session.goal is not None
    assert world.session.goal.status == "paused"


# -- house and end -----------------------------------------------------------------------------------


def test_a_frozen_house_admits_nothing_not_even_people_and_lifts_nothing() -> None:
    world = World(goal="win")
    world.closed_by = "freeze"
    world.apply(suspend(until_ms=START_MS + MINUTE))
    done = world.send("human")
    assert [e.by for e in done.events if isinstance(e, ev.EnvelopeHeld)] == [("freeze",)]
    assert world.kinds == ["UserSuspend"]
    world.tick_through(START_MS + HOUR)
    assert world.kinds == [], "deadlines pass all the same"
    assert not world.of(ev.TurnStarted)
    world.closed_by = None
    world.apply(Reconsidered())
    assert world.session.turn is not None


def test_an_ended_session_keeps_nothing_that_could_ever_wake_it() -> None:
    world = World(goal="win")
    world.apply(put())
    world.send()
    world.ask("wake_me", after_secs=60)
    world.send("agent")
    world.apply(suspend())
    world.partial = "so far"
    done = world.apply(EndRequested(by=BY, reason="enough"))
    assert isinstance(done.events[-1], ev.SessionEnded), "the last event of a session is its end"
    assert (done.events[-1].status, done.events[-1].stop_reason) == ("aborted_constraint", "operator")
    assert [(e.cause, e.partial) for e in done.events if isinstance(e, ev.TurnInterrupted)] == [
        ("ended", "so far")
    ]
    session = world.session
    assert (session.inbox, session.wakes, session.crons, session.gate.holds, session.turn) == (
        (),
        (),
        (),
        (),
        None,
    )
    for late in (
        TurnEnded(n=1, end=TurnEnd(outcome="completed")),
        StepReported(n=1, done=StepDone(text="late")),
        AgentAsked(n=1, request=AgentRequest(name="update_goal", args={"status": "complete"})),
        CutRequested(cause="drain"),
        Recovered(boot=9),
        Reconsidered(),
    ):
        assert not world.apply(late).events
    for refused_input in (UnsuspendRequested(by=BY), EndRequested(by=BY), put(), suspend()):
        with pytest.raises(Refused, match="session_terminal"):
            world.apply(refused_input)


def test_a_hold_of_the_house_keeps_what_already_waits() -> None:
    world = World()
    world.send()
    world.send("human")
    done = world.apply(HoldRequested(hold=a_hold("Maintenance", world.now + HOUR), cause="maintenance"))
    assert [e.by for e in done.events if isinstance(e, ev.EnvelopeHeld)] == [("Maintenance",)]
    world.whole_turn()
    assert world.session.turn is None
    assert world.tick_through(world.now + HOUR)
    assert world.session.turn is not None


def test_tokens_are_summed_and_those_without_progress_apart() -> None:
    world = World()
    world.send("agent")
    usage = Usage(input_tokens=10, output_tokens=5)
    world.step(usage=usage, state_fingerprint="a")
    world.step(usage=usage, state_fingerprint="a")
    assert (world.session.spent.input, world.session.spent.output, world.session.spent.barren) == (20, 10, 30)
    world.step(usage=usage, state_fingerprint="b")
    assert world.session.spent.barren == 0


# -- continuation backoff ------------------------------------------------------------------------------


def test_continuations_without_a_tool_call_become_rarer_and_a_person_resets_that() -> None:
    world = World({"continuation.backoff_s": [60, 300], "continuation.backoff_after": 2}, goal="win")
    gaps = []
    for n in range(4):
        due = next_deadline(world.session, world.house())
        assert due is not None
        gaps.append(due - world.now)
        world.tick_through(due)
        if world.session.turn is None:
            world.tick_through(next_deadline(world.session, world.house()) or 0)
        world.whole_turn(f"thinking {n}")
    assert gaps == [2_000, 2_000, 60_000, 300_000]
    world.send("human")
    world.whole_turn("hello")
    assert world.kinds == []
    assert world.session.toolless_continuations == 0


# -- preset hardened -----------------------------------------------------------------------------------


def degenerated() -> World:
    world = World(preset="hardened", goal="win")
    world.apply(HoldRequested(hold=a_hold("Degeneration", world.now + 2 * HOUR), cause="detection"))
    return world


def passes(events: Iterable[ev.Event]) -> list[bool]:
    return [e.passing for e in events if isinstance(e, ev.TurnStarted)]


@pytest.mark.parametrize("source", ["cron", "rewake", "agent", "channel"])
def test_hardened_an_automatic_source_passes_once_a_minute_and_the_hold_stands(source: str) -> None:
    world = degenerated()
    assert passes(world.send(source).events) == [True]
    world.whole_turn("no progress at all")
    assert world.session.gate.holds[0].until_ms == START_MS + 2 * HOUR
    world.now += 10_000
    second = world.send(source)
    assert [e.by for e in second.events if isinstance(e, ev.EnvelopeHeld)] == [("Degeneration",)]
    assert next_deadline(world.session, world.house()) == START_MS + MINUTE
    assert passes(world.tick_through(START_MS + MINUTE - 1)) == []
    assert passes(world.tick_through(START_MS + MINUTE)) == [True]


def test_hardened_what_waits_behind_a_pass_is_one_batch_and_nothing_passes_a_second_hold() -> None:
    world = degenerated()
    world.send("cron")
    waiting = [world.send(source).envelope for source in ("agent", "channel", "system")]
    world.whole_turn("no progress at all")
    world.apply(suspend(until_ms=START_MS + 10 * MINUTE))
    assert passes(world.tick_through(START_MS + 10 * MINUTE - 1)) == []
    assert passes(world.tick_through(START_MS + 10 * MINUTE)) == [True]
    assert list(world.of(ev.TurnStarted)[-1].envelopes) == waiting


def test_hardened_a_human_message_still_removes_the_hold() -> None:
    world = degenerated()
    assert passes(world.send("human").events) == [False]
    assert "Degeneration" not in world.kinds


def test_hardened_no_continuation_starts_while_others_pass() -> None:
    world = degenerated()
    world.send("cron")
    world.whole_turn("no progress at all")
    assert passes(world.tick_through(START_MS + 2 * HOUR - 1)) == []
    assert passes(world.tick_through(START_MS + 2 * HOUR)) == [False]


def test_a_job_with_the_name_of_a_wake_up_does_not_swallow_it() -> None:
    world = World()
    world.send()
    world.ask("wake_me", after_secs=60)
    wake = world.session.wakes[0].id
    world.whole_turn()
    world.apply(put("* * * * *", job=wake))
    world.apply(suspend())
    world.tick_through(START_MS + 3 * MINUTE)
    assert sorted((w.source.value, w.count) for w in world.session.inbox) == [("cron", 3), ("rewake", 1)]


def test_an_agent_that_flips_its_goal_does_not_wipe_the_evidence_and_a_person_does() -> None:
    call = ToolCall(id="c", name="shell", args={"cmd": "ls"}, ok=True, result="same")
    for who, fired in (("agent", True), ("person", False)):
        world = World(goal="win")
        world.send("agent")
        world.step(calls=(call,))
        if who == "agent":
            world.ask("update_goal", status="paused")
        else:
            world.apply(GoalChangeRequested(by=BY, status="paused"))
        world.step(calls=(call,))
        world.step(calls=(call,))
        assert [d.rule for d in world.of(ev.DegenerationDetected)] == (["tool_repetition"] if fired else [])
