"""The ladder: what findings lead to, first in the judge, then in a live session in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from loopd.core.inputs import Recovered
from loopd.core.rules.findings import EXITS, Finding, loop_identity
from loopd.core.rules.rungs import (
    CLOSED,
    NUDGE,
    OK,
    TEXT_ONLY,
    LadderSettings,
    Loop,
    Rungs,
    climb,
    climb_down,
    forgive,
)
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall, Usage
from tests.core.world import World
from tests.rules.agents import call, judged, log, read, sh

FILLER = "16/100. Not complete. No action."
MINUTE = 60_000
LADDER = LadderSettings()


def found(score: int, onset: int, level: str = "soft", loop: str = "L", **more: Any) -> Finding:
    values: dict[str, Any] = {"rule": "r", "verdict": "nudge", "level": level, "score": score, "threshold": 4}
    values |= {"loop_id": loop, "laddered": True, "onset": onset, "say": lambda: (("evidence",), "note")}
    return Finding(**values | more)


def up(
    rungs: Rungs, n: int, *findings: Finding, attended: bool = False, **settings: Any
) -> tuple[Rungs, list[str]]:
    made = climb(rungs, findings, n, LadderSettings(**settings), attended=attended)
    return made.rungs, [finding.verdict for finding in made.findings]


def test_the_first_soft_finding_nudges_and_the_count_must_double_before_more_is_said() -> None:
    rungs, said = up(Rungs(), 4, found(4, 1))
    assert said == ["nudge"]
    for n in (5, 6, 7):
        rungs, said = up(rungs, n, found(n, 1))
        assert said == []
    assert up(rungs, 8, found(8, 1))[1] == ["close"]


def test_the_same_loop_skips_a_rung_within_fifty_steps_of_a_correction_and_not_later() -> None:
    rungs, _ = up(Rungs(), 100, found(4, 97))
    assert up(rungs, 150, found(4, 147))[1] == ["close"]
    assert up(rungs, 151, found(4, 148))[1] == ["text_only"]


def test_another_loop_gets_a_nudge_of_its_own() -> None:
    rungs, _ = up(Rungs(), 4, found(4, 1))
    assert up(rungs, 9, found(4, 6, loop="M"))[1] == ["nudge"]


def test_evidence_from_before_a_correction_is_not_judged_again() -> None:
    rungs, _ = up(Rungs(), 10, found(4, 7))
    assert up(rungs, 12, found(4, 8))[1] == []
    assert up(rungs, 12, found(4, 10))[1] == []
    assert up(rungs, 15, found(4, 11))[1] == ["close"]


def test_a_hard_finding_closes_unattended_and_asks_attended() -> None:
    assert up(Rungs(), 9, found(8, 1, "hard"))[1] == ["close"]
    made = climb(Rungs(), (found(8, 1, "hard"),), 9, LADDER, attended=True)
    assert made.findings[0].verdict == "nudge"
    assert "ask before you go on" in (made.findings[0].note or "")
    rungs, _ = up(Rungs(), 4, found(4, 1), attended=True)
    assert up(rungs, 9, found(4, 6), attended=True)[1] == ["text_only"]


def test_the_gate_stays_closed_longer_each_time_and_then_the_session_ends() -> None:
    rungs, said, closed = Rungs(), [], []
    for n in range(10, 120, 20):
        made = climb(rungs, (found(9, n - 8, "hard"),), n, LADDER, attended=False)
        rungs = made.rungs
        said.append(made.findings[0].verdict)
        closed.append((made.findings[0].close_ms // 1_000, made.findings[0].relapse))
        if said[-1] == "terminate":
            break
    assert said == ["close"] * 4 + ["terminate"]
    assert closed[:4] == [(60, 0), (300, 1), (900, 2), (3_600, 3)]
    patient = LadderSettings(max_relapses=6)
    rungs, times = Rungs(), []
    for n in range(10, 150, 20):
        made = climb(rungs, (found(9, n - 8, "hard"),), n, patient, attended=False)
        rungs, times = made.rungs, [*times, made.findings[0].close_ms // 1_000]
    assert times == [60, 300, 900, 3_600, 86_400, 86_400, 86_400]


def test_progress_lowers_each_loop_by_one_rung_and_human_input_to_ok_but_closings_are_remembered() -> None:
    rungs = Rungs(loops=(Loop("A", CLOSED, 5, 4, True, 2), Loop("B", NUDGE, 6, 4), Loop("C", OK, 7, 4)))
    assert [loop.rung for loop in climb_down(rungs).loops] == [TEXT_ONLY, OK, OK]
    assert forgive(rungs).loops == (Loop("A", closings=2),)
    assert rungs.highest == CLOSED
    assert climb_down(Rungs()) == Rungs()


def test_two_findings_of_one_step_lead_to_one_action() -> None:
    rungs, said = up(Rungs(), 9, found(4, 1, loop="A"), found(8, 1, "hard", loop="B"))
    assert said == ["close", "warn"]
    assert up(rungs, 10, found(5, 1, loop="A"))[1] == []


def test_shadow_tells_and_changes_nothing() -> None:
    rungs, said = up(Rungs(), 4, found(4, 1, shadow=True))
    assert said == ["nudge"]
    assert rungs.highest == OK
    assert up(rungs, 5, found(5, 1, shadow=True))[1] == []
    watched = judged(log(*[sh("ls", "a b c")] * 20), only="exact_repeat", exact_repeat__mode="shadow")
    assert (watched.verdict, watched.first_soft, watched.first_hard) == ("ok", None, None)
    assert [f.step for f in watched.findings] == [3, 6, 8, 16]


def test_evidence_that_cannot_be_told_is_a_failure_of_the_rule_and_no_more() -> None:
    def broken() -> Any:
        raise ZeroDivisionError("oops")

    made = climb(Rungs(), (found(4, 1, say=broken), found(4, 1, loop="M")), 5, LADDER, attended=False)
    assert [f.loop_id for f in made.findings] == ["M"]
    assert [f.rule for f in made.failures] == ["r"]


def test_at_most_64_loops_are_remembered() -> None:
    rungs = Rungs()
    for n in range(1, 200):
        rungs, _ = up(rungs, n, found(4, n, loop=f"L{n}"))
    assert len(rungs.loops) == 64
    assert rungs.loops[-1].id == "L199"


def test_identities_do_not_depend_on_where_a_loop_is_met() -> None:
    lap = [call(f"t{k}", {"k": k}, f"result {k}") for k in range(3)]
    ids = {
        judged(log(*(lap[shift:] + lap[:shift]) * 4), only="cycle").findings[0].loop_id for shift in range(3)
    }
    assert len(ids) == 1
    assert loop_identity("r", ["a", "b"]) == loop_identity("r", ["b", "a"]) != loop_identity("q", ["a", "b"])


# -- a live session ------------------------------------------------------------------------------------


def hardened(goal: str | None = "win", **overrides: Any) -> World:
    settings = {"continuation.min_gap_ms": 0, "continuation.backoff_s": []} | {
        key.replace("__", "."): value for key, value in overrides.items()
    }
    return World(settings, goal=goal, preset="hardened")


def same_call(world: World, **more: Any) -> Any:
    made = ToolCall(
        id="c", name="bash", args={"command": "make lint"}, ok=True, result="3 problems in a.py", **more
    )
    return world.step(calls=(made,), usage=Usage(input_tokens=90, output_tokens=10))


def detections(world: World) -> list[tuple[str, str, str]]:
    return [(d.rule, d.level, d.verdict) for d in world.of(ev.DegenerationDetected)]


def next_turn(world: World) -> None:
    if world.session.turn is not None:
        world.finish()
    world.tick_through(world.now + 1)
    assert world.session.turn is not None


def test_a_nudge_names_call_count_and_result_and_offers_three_exits_on_the_next_step() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(3):
        same_call(world)
    assert detections(world) == [("exact_repeat", "soft", "nudge")]
    (note,) = [e for e in world.of(ev.EnvelopeAccepted) if e.source == "system"]
    assert "make lint" in note.text
    assert "3 times in a row" in note.text
    assert EXITS in note.text
    assert [e.id for e in world.of(ev.EnvelopeDelivered)] == [note.id]
    assert world.session.turn is not None
    assert world.kinds == []
    (event,) = world.of(ev.DegenerationDetected)
    assert event.tokens_since_onset == 300
    assert event.config_revision


def test_going_on_after_the_nudge_closes_the_gate_for_a_minute_and_ends_the_turn() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(6):
        done = same_call(world)
    assert done.stop
    assert world.session.turn is not None
    assert world.kinds == ["Degeneration"]
    world.finish()
    assert world.of(ev.TurnCompleted)[-1].outcome == "stopped_by_rule"
    (hold,) = world.session.gate.holds
    assert (hold.until_ms - world.now, hold.by) == (MINUTE, "rule:exact_repeat")  # type: ignore[operator]
    opened = world.tick_through(world.now + MINUTE)
    assert [e.cause for e in opened if isinstance(e, ev.GateChanged)] == ["deadline"]
    assert world.session.turn is not None


def test_a_loop_that_goes_on_after_each_closing_ends_the_session_stuck_with_the_rule() -> None:
    world = hardened()
    closed: list[int] = []
    for _ in range(200):
        if world.session.status != "live":
            break
        if world.session.turn is None:
            world.tick_through(world.now + 25 * 60 * MINUTE)
        if world.session.turn is None:
            break
        if same_call(world).stop and world.session.turn is not None:
            held = [hold for hold in world.session.gate.holds if hold.kind == "Degeneration"]
            closed += [(hold.until_ms or 0) - world.now for hold in held]
            world.finish()
    assert closed == [MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE]
    assert (world.session.status, world.session.stop_reason) == ("aborted_stuck", "exact_repeat")
    assert world.of(ev.SessionEnded)[-1].rule == "exact_repeat"


def test_text_only_withholds_the_tools_of_exactly_one_step() -> None:
    world = hardened(ladder__skip_within_steps=0)
    next_turn(world)
    for _ in range(6):
        same_call(world)
    assert detections(world)[-1] == ("exact_repeat", "soft", "text_only")
    assert world.session.withhold_tools
    world.step(text="I know that there are 3 problems.", tools_withheld=True)
    assert not world.session.withhold_tools


def test_a_restart_of_the_daemon_launders_nothing() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(5):
        same_call(world)
    world.apply(Recovered(boot=2))
    assert world.session.turn is None
    next_turn(world)
    same_call(world)
    assert detections(world)[-1] == ("exact_repeat", "soft", "close")


def test_text_only_continuations_are_told_at_three_and_stopped_soon_after() -> None:
    world = hardened()
    for _ in range(40):
        if not world.session.gate.is_open:
            break
        next_turn(world)
        world.step(text=FILLER, usage=Usage(input_tokens=50, output_tokens=10))
    assert world.session.turns <= 7
    assert detections(world)[0] == ("near_duplicate_text", "soft", "nudge")
    assert detections(world)[-1][2] == "close"


def test_the_fifth_toolless_continuation_makes_the_next_ones_rarer_and_progress_takes_that_back() -> None:
    world = World(goal="win", preset="hardened")
    waits = []
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    for word in words[:7]:
        world.tick_through(world.now + 10 * 60 * MINUTE if waits else world.now + MINUTE)
        assert world.session.turn is not None, waits
        world.whole_turn(word)
        until = [hold.until_ms for hold in world.session.gate.holds if hold.kind == "ContinuationBackoff"]
        waits.append((until[0] or 0) - world.now if until else 0)
        world.now = (until[0] or 0) if until else world.now
    assert waits == [0, 0, 0, 0, MINUTE, 5 * MINUTE, 15 * MINUTE]


@pytest.mark.parametrize("source", ["cron", "rewake", "agent", "channel"])
def test_an_automatic_envelope_passes_a_closed_gate_once_a_minute_and_a_relapse_is_counted(
    source: str,
) -> None:
    world = hardened()
    next_turn(world)
    for _ in range(6):
        same_call(world)
    world.finish()
    assert world.kinds == ["Degeneration"]
    world.send(source)
    assert world.session.turn is not None
    assert world.session.turn.passing
    assert world.kinds == ["Degeneration"]
    for _ in range(3):
        same_call(world)
    world.finish()
    assert [d.relapse for d in world.of(ev.DegenerationDetected) if d.verdict == "close"] == [0, 1]
    (hold,) = world.session.gate.holds
    assert hold.relapse == 1  # type: ignore[union-attr]
    assert (hold.until_ms or 0) - world.now == 5 * MINUTE


def test_a_passing_turn_with_progress_opens_the_gate() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(6):
        same_call(world)
    world.finish()
    world.send("cron")
    world.step(calls=(read("b.py", "something that was never seen before"),))
    done = world.finish()
    changed = [e for e in done.events if isinstance(e, ev.GateChanged)]
    assert [(e.cause, e.removed) for e in changed] == [("progress", ("Degeneration",))]


def test_a_passing_turn_without_progress_leaves_the_gate_closed() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(6):
        same_call(world)
    world.finish()
    world.send("cron")
    same_call(world)
    world.finish()
    assert world.kinds == ["Degeneration"]


def test_a_person_is_asked_instead_of_being_shut_out() -> None:
    world = hardened(goal=None)
    world.send("human")
    for _ in range(20):
        assert not same_call(world).stop
    verdicts = [verdict for _, _, verdict in detections(world)]
    assert "close" not in verdicts
    assert ("exact_repeat", "hard", "nudge") in detections(world)
    assert any(
        "ask before you go on" in e.text for e in world.of(ev.EnvelopeAccepted) if e.source == "system"
    )


def test_a_person_who_left_is_not_there_any_more() -> None:
    world = hardened(goal=None)
    world.send("human")
    world.now += 15 * MINUTE
    for _ in range(6):
        done = same_call(world)
    assert done.stop
    assert world.kinds == ["Degeneration"]


def test_a_person_is_there_for_a_quarter_of_an_hour() -> None:
    world = hardened(goal=None)
    world.send("human")
    world.now += 15 * MINUTE - 1
    for _ in range(6):
        done = same_call(world)
    assert not done.stop


def test_human_input_begins_anew_but_the_loop_is_remembered_for_relapse() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(6):
        same_call(world)
    world.finish()
    world.send("human")
    assert world.kinds == []
    assert world.session.rules.rungs.highest == OK
    world.finish()
    world.now += 16 * MINUTE
    next_turn(world)
    for _ in range(3):
        same_call(world)
    assert detections(world)[-1] == ("exact_repeat", "soft", "nudge")
    for _ in range(3):
        same_call(world)
    assert world.of(ev.DegenerationDetected)[-1].relapse == 1


def test_an_agent_that_flips_its_own_goal_wipes_no_evidence() -> None:
    world = hardened()
    next_turn(world)
    for _ in range(2):
        same_call(world)
    world.ask("update_goal", status="blocked", note="cannot")
    same_call(world)
    assert detections(world) == [("exact_repeat", "soft", "nudge")]


def test_near_misses_are_counted_with_the_turn() -> None:
    world = hardened()
    next_turn(world)
    for n in range(3):
        world.step(calls=(sh("pytest", f"at 10:00:0{n} nothing ran"),))
    world.finish()
    assert world.of(ev.TurnCompleted)[-1].near_misses == {"exact_repeat": 1, "interleaved_repeat": 1}


def test_a_better_metric_is_progress_and_a_repeated_one_is_not() -> None:
    world = hardened()
    next_turn(world)
    world.ask("report_progress", metric="passing", value=3)
    for _ in range(2):
        same_call(world)
    barren = world.session.spent.barren
    assert barren == 100
    world.ask("report_progress", metric="passing", value=3)
    assert world.session.spent.barren == 100
    world.ask("report_progress", metric="passing", value=4)
    assert world.session.spent.barren == 0
    assert world.session.turn is not None
    assert world.session.turn.progressed
    for _ in range(2):
        same_call(world)
    assert detections(world) == []
