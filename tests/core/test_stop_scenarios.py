"""The scenarios that every run must come through: a scripted agent, a whole session, virtual time.

The same ones are played through the socket of a real daemon in `tests/e2e/test_stop_scenarios.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loopd.core.inputs import EndRequested, Recovered, ResumeRequested
from loopd.core.rules import lanes
from loopd.core.session import next_deadline
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from tests.core.world import World

DAY_MS = 86_400_000
ABORT = ("aborted_stuck", "aborted_constraint")
Agent = Callable[[int], dict[str, Any]]
RED = "FAIL src/a.test.js\n  expected 1 to be 2\n"
USAGE = Usage(input_tokens=100, output_tokens=10)


def call(name: str, args: Any = None, result: str = "", **given: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, args=args or {}, result=result, **({"ok": True} | given))


def npm_test(result: str = RED, code: int = 1) -> ToolCall:
    return call("bash", {"command": "npm test"}, result, ok=code == 0, exit_code=code)


def edit(what: str, result: str = "replaced 1 occurrence") -> ToolCall:
    return call("edit_file", {"path": "a.js", "new": what}, result)


def unattended(overrides: dict[str, Any] | None = None, **given: Any) -> World:
    world = World({"continuation.min_gap_ms": 0, **(overrides or {})}, goal="win", preset="hardened", **given)
    assert world.settings.stop.enabled
    return world


def play(world: World, agent: Agent, *, most: int = 300, per_turn: int = 6, until: Any = None) -> int:
    """Play steps until the session ends, or `most`; returns how many steps ran. Time jumps to each deadline."""
    ran = 0
    while ran < most and world.session.status == "live" and not (until and until(world)):
        if world.session.turn is None:
            due = next_deadline(world.session, world.house())
            assert due is not None, "nothing will ever happen again"
            world.tick(max(due, world.now))
            continue
        world.now += 1_000
        step = agent(ran)
        phase = step.pop("phase", None)
        if phase is not None:
            world.ask("report_phase", name=phase)
        done = world.step(**({"usage": USAGE} | step))
        ran += 1
        if done.stop:
            world.finish("stopped_by_rule")
        elif ran % per_turn == 0:
            world.finish()
    return ran


def the_end(world: World) -> ev.SessionEnded:
    (ended,) = world.of(ev.SessionEnded)
    assert world.session.status == ended.status
    issues = world.of(ev.IssueWritten)
    assert len(issues) == (ended.status in ABORT), "exactly one issue for an abort, none otherwise"
    if issues:
        (issue,) = issues
        assert (issue.status, issue.stop_reason, issue.rule) == (
            ended.status,
            ended.stop_reason,
            ended.rule,
        )
    assert ended.explanation.count(". ") + ended.explanation.endswith(".") <= 3
    return ended  # type: ignore[no-any-return]


def verdicts(world: World, rule: str) -> list[str]:
    return [e.verdict for e in world.of(ev.DegenerationDetected) if e.rule == rule]


# -- 1 ----------------------------------------------------------------------------------------------


def planner_researcher(n: int) -> dict[str, Any]:
    if n % 2 == 0:
        return {"phase": "planner", "text": f"Plan {n}: the research may lack something; ask again."}
    found = call("search", {"q": "the topic", "page": n}, "the same three good sources as before")
    return {"phase": "researcher", "text": "", "calls": (found,)}


def test_1_a_planner_and_a_researcher_that_send_each_other_round_are_stopped_with_the_edge_named() -> None:
    world = unattended({f"rules.{rule}.enabled": False for rule in lanes.IDS})
    steps = play(world, planner_researcher)
    ended = the_end(world)
    assert (ended.status, ended.rule) == ("aborted_stuck", "edge_loop")
    assert steps < 25
    assert "planner->researcher" in ended.explanation or "researcher->planner" in ended.explanation
    (issue,) = world.of(ev.IssueWritten)
    assert issue.loop in {"planner->researcher", "researcher->planner"}
    assert "research" in issue.last_reason


def test_1_with_all_rules_on_it_does_not_end_later() -> None:
    world = unattended()
    assert play(world, planner_researcher) < 60
    assert the_end(world).status == "aborted_stuck"


def test_the_host_refuses_the_phase_by_which_an_edge_would_reach_its_limit_once_and_says_why() -> None:
    world = unattended({f"rules.{rule}.enabled": False for rule in lanes.IDS})
    play(world, planner_researcher, until=lambda w: w.of(ev.PhaseClamped))
    (clamped,) = world.of(ev.PhaseClamped)
    assert (clamped.count, clamped.limit) == (7, 8)
    assert world.session.phase == clamped.phase != clamped.proposed
    assert world.session.turn is not None
    reply = world.ask("report_phase", name="writer").reply
    assert reply is not None
    assert reply.ok, "any other phase may be taken"


# -- 2, 3, 4, 12 --------------------------------------------------------------------------------------


def test_2_the_same_red_test_run_is_stopped_at_the_third_with_command_and_signature() -> None:
    world = unattended()
    assert play(world, lambda _: {"calls": (npm_test(),)}) == 3
    ended = the_end(world)
    assert (ended.status, ended.rule) == ("aborted_stuck", "same_error")
    (issue,) = world.of(ev.IssueWritten)
    assert "npm test" in ended.explanation
    assert issue.error_signature
    assert issue.error_signature in ended.explanation
    assert "npm test" in issue.last_command


def test_2_two_failures_in_turn_do_not_hide_each_other() -> None:
    world = unattended()
    other = call("bash", {"command": "make lint"}, "lint: 3 problems", ok=False, exit_code=2)
    assert play(world, lambda n: {"calls": (npm_test() if n % 2 else other,)}) == 5
    assert the_end(world).rule == "same_error"


def test_2_a_pass_in_between_forgets_the_failures() -> None:
    world = unattended()
    green = npm_test("ok 12 tests", 0)
    play(world, lambda n: {"calls": (green if n % 3 == 2 else npm_test(),)}, most=9)
    assert world.session.status == "live"
    assert "same_error" not in {e.rule for e in world.of(ev.DegenerationDetected)}


@pytest.mark.parametrize("fingerprint", ["f" * 64, None])
def test_3_of_identical_edits_that_change_nothing_no_fourth_is_served(fingerprint: str | None) -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        return {"calls": (edit("x = 1", "file written"),), "state_fingerprint": fingerprint}

    steps = play(world, agent)
    assert steps <= 4
    ended = the_end(world)
    assert ended.rule == "noop_edit"
    first = 0 if fingerprint is None else 1  # the first edit is new; a sensor only knows from the second on
    assert steps == 3 + (fingerprint is None) * 1 or steps == 3 + first


def test_3_reading_in_between_does_not_touch_the_count() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        look = call("read_file", {"path": f"f{n}"}, f"content {n} of this file")
        calls = (look,) if n % 2 else (edit(f"variant {n}"),)
        return {"calls": calls, "state_fingerprint": "f" * 64}

    steps = play(world, agent)
    assert the_end(world).rule == "noop_edit"
    assert steps == 7  # edits at 0, 2, 4, 6; the first one has nothing to be compared with


def test_4_the_same_red_test_run_with_a_real_edit_each_time_only_reaches_the_soft_level() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        calls = (npm_test(),) if n % 2 else (edit(f"variant {n}"),)
        return {"calls": calls, "state_fingerprint": f"{n // 2:064x}"}

    play(world, agent, most=24)
    assert world.session.status == "live"
    assert verdicts(world, "same_error") == ["nudge"]
    assert not [e for e in world.of(ev.DegenerationDetected) if e.verdict in {"close", "terminate"}]


def test_12_under_yolo_scenario_2_ends_no_later() -> None:
    steps = {}
    for profile in ("strict", "yolo"):
        world = unattended({"stop.profile": profile})
        steps[profile] = play(world, lambda _: {"calls": (npm_test(),)})
        assert profile in the_end(world).explanation
    assert steps == {"strict": 3, "yolo": 2}


# -- 5 to 8 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sensor", [True, False])
def test_5_an_edit_that_flips_to_and_fro_is_stopped_and_is_no_progress(sensor: bool) -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        state = {"state_fingerprint": ("a" if n % 2 else "b") * 64} if sensor else {}
        return {"calls": (edit("A" if n % 2 else "B"),), **state}

    steps = play(world, agent, most=100)
    assert steps < 60
    assert the_end(world).status == "aborted_stuck"
    assert world.session.rules.progress.last <= 2


def test_6_chatter_without_tools_is_stopped() -> None:
    world = unattended()
    said = ("Not complete yet.", "Still waiting.", "No action for now.")
    steps = play(world, lambda n: {"text": f"{n}/100. {said[n % 3]}"}, per_turn=1)
    assert steps <= 40
    ended = the_end(world)
    assert ended.status == "aborted_stuck"
    assert world.session.goal is not None
    assert world.session.goal.status == "active", "detection never changes the goal"


def test_7_a_tool_that_does_not_exist_is_stopped_at_five_whatever_its_arguments() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        missing = call("frobnicate", {"n": n}, "no such tool: frobnicate", ok=False, error_class="schema")
        return {"calls": (missing,)}

    assert play(world, agent) == 5
    assert the_end(world).rule == "unresolved_tools"


def test_8_a_cycle_of_three_tools_is_stopped_at_default_settings() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        name = ("read_file", "grep", "list_files")[n % 3]
        return {"calls": (call(name, {"path": "src"}, f"what {name} always says here"),)}

    first = play(world, agent, until=lambda w: w.kinds, most=100)
    assert first <= 3 * 5 + 3, "the gate closes at the fifth lap"
    play(world, agent)
    assert the_end(world).status == "aborted_stuck"


# -- 9 to 15 ----------------------------------------------------------------------------------------


def barren(_: int) -> dict[str, Any]:
    return {"text": "thinking"}


def test_9_a_crash_behind_a_correction_gives_no_fresh_budget() -> None:
    off: dict[str, Any] = {f"rules.{rule}.enabled": False for rule in lanes.IDS}
    off |= {"continuation.backoff_s": []}
    world = unattended(off)
    play(world, barren, most=26)
    assert verdicts(world, "no_progress") == ["nudge"]
    assert world.session.turn is not None, "in the middle of a turn"
    world.crash()
    world.driving = None
    world.driving = world.session.turn.n
    world.apply(Recovered(boot=2))
    assert play(world, barren) == 40 - 26
    assert the_end(world).rule == "no_progress"


def test_9_a_verdict_that_was_journaled_before_the_crash_ends_the_run_after_it_with_one_issue() -> None:
    world = unattended()
    play(world, lambda _: {"calls": (npm_test(),)}, most=2)
    assert world.step(calls=(npm_test(),)).stop
    assert world.session.status == "live", "the turn is told to stop; its end is not there yet"
    world.crash()
    world.apply(Recovered(boot=2))
    assert the_end(world).rule == "same_error"


def test_11_two_rules_in_one_step_give_one_status_and_both_reasons() -> None:
    world = unattended({"stop.same_error": 5, "stop.unresolved_tools": 5})

    def agent(n: int) -> dict[str, Any]:
        missing = call("bash", {"command": "x"}, "no such tool: bash", ok=False, error_class="schema")
        return {"calls": (missing,)}

    assert play(world, agent) == 5
    ended = the_end(world)
    assert ended.rule == "unresolved_tools"
    assert "same_error" in ended.secondary
    assert "unresolved_tools" not in ended.secondary


def test_11_an_operator_is_stronger_than_a_rule_that_fired_in_the_same_turn() -> None:
    world = unattended()
    play(world, lambda _: {"calls": (npm_test(),)}, most=2)
    world.step(calls=(npm_test(),))
    world.apply(EndRequested(by="uid:1", reason="enough"))
    ended = the_end(world)
    assert (ended.status, ended.stop_reason) == ("aborted_constraint", "operator")
    assert "same_error" in ended.secondary


def working(n: int) -> dict[str, Any]:
    return {"calls": (call("read_file", {"path": f"f{n}"}, f"content number {n}"),)}


def parked(world: World) -> bool:
    return "AwaitingApproval" in world.kinds


def test_13_a_session_that_waits_for_an_answer_takes_no_steps_and_goes_on_with_one() -> None:
    world = unattended()
    assert play(world, working, until=parked, most=400) == 100 + 3 * 50
    assert verdicts(world, "max_steps") == ["warn", "warn", "warn", "close"]
    (hold,) = world.session.gate.holds
    assert (hold.kind, hold.until_ms) == ("AwaitingApproval", world.now + DAY_MS)
    steps = world.session.steps
    assert world.tick_through(world.now + 3_600_000) == []
    assert world.session.steps == steps
    assert world.session.stops.main.steps == 250
    world.apply(ResumeRequested(by="uid:1"))
    assert world.session.gate.is_open
    assert play(world, lambda n: working(n + 1_000), most=99) == 99
    assert world.session.status == "live"


def test_13_an_unanswered_question_ends_the_run_at_its_deadline_to_the_millisecond() -> None:
    world = unattended()
    play(world, working, until=parked, most=400)
    deadline = world.now + DAY_MS
    assert world.tick_through(deadline - 1) == []
    world.tick(deadline)
    ended = the_end(world)
    assert (ended.status, ended.stop_reason, ended.rule) == (
        "aborted_stuck",
        "more_steps_denied",
        "max_steps",
    )


def test_13_with_a_verified_milestone_it_is_partial_success_and_says_what_remains() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        return {"calls": (npm_test("ok 3 tests" if n else RED, 1 if n == 0 else 0),)} if n < 2 else working(n)

    play(world, agent, until=parked, most=400)
    world.tick_through(world.now + DAY_MS)
    ended = the_end(world)
    assert (ended.status, ended.stop_reason) == ("done_partial", "more_steps_denied")
    assert any("win" in line for line in ended.remaining)


def test_14_the_ceiling_of_steps_writes_the_issue_too() -> None:
    off = {f"rules.{rule}.enabled": False for rule in lanes.IDS}
    world = unattended(off | {"stop.no_progress": 0, "stop.no_progress_correction": 0})
    assert play(world, barren, most=200) == 100
    ended = the_end(world)
    assert (ended.status, ended.rule) == ("aborted_stuck", "max_steps")
    (issue,) = world.of(ev.IssueWritten)
    assert issue.counters["steps"] == 100
    assert issue.counters["tokens_after_last_progress"] > 0


def test_15_fifty_cycles_of_edit_and_test_with_new_states_are_never_stopped() -> None:
    world = unattended()

    def agent(n: int) -> dict[str, Any]:
        red = f"FAIL src/a.test.js\n  expected {n} to be 200\n"
        calls = (npm_test(red),) if n % 2 else (edit(f"variant {n}"),)
        return {"calls": calls, "state_fingerprint": f"{n // 2:064x}"}

    assert play(world, agent, most=100) == 100
    assert world.session.status == "live"
    assert world.session.gate.is_open
    assert {e.verdict for e in world.of(ev.DegenerationDetected)} <= {"warn"}


# -- rules that fail (10) --------------------------------------------------------------------------------


def broken(_state: Any, _parameters: Any, _look: Any) -> Any:
    raise ValueError("no way")


def test_10_a_detector_that_raises_on_every_step_is_named_skipped_and_the_session_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judges = tuple((rule, broken if rule == "cycle" else judge) for rule, judge in lanes.STEP_JUDGES)
    monkeypatch.setattr(lanes, "STEP_JUDGES", judges)
    world = unattended()
    assert play(world, working, most=12) == 12
    assert world.session.status == "live"
    assert [e.rule for e in world.of(ev.DetectorFailed)] == ["cycle"] * 12
    assert {e.skipped_rules for e in world.of(ev.TurnStep)} == {("cycle",)}
    monkeypatch.undo()
    world.refold_everything()  # also where the rule is whole again: the journal says that it saw nothing


# -- ends and new runs -------------------------------------------------------------------------------------


def test_a_person_resumes_an_ended_session_as_a_new_run_and_the_history_stays() -> None:
    world = unattended()
    play(world, lambda _: {"calls": (npm_test(),)})
    ss, steps = world.session.ss, world.session.steps
    done = world.apply(ResumeRequested(by="uid:1", reason="the test is fixed"))
    assert isinstance(done.events[0], ev.SessionResumed)
    assert (world.session.status, world.session.run) == ("live", 2)
    assert (world.session.ss, world.session.steps) == (ss + 1, steps)
    assert play(world, lambda _: {"calls": (npm_test(),)}) == 3, "a fresh budget, and not a bigger one"
    first, second = world.of(ev.SessionEnded)
    assert (first.run, second.run) == (1, 2)
    assert [issue.id for issue in world.of(ev.IssueWritten)] == ["iss_1_1", "iss_1_2"]


def test_a_live_session_that_waits_for_nothing_is_not_resumed() -> None:
    world = unattended()
    with pytest.raises(Refused, match="does not wait for more steps"):
        world.apply(ResumeRequested(by="uid:1"))


@pytest.mark.parametrize(
    ("profile", "runs", "status"),
    [
        ("strict", [("npm test", 0)], "done_success"),
        ("strict", [("npm test", 1), ("npm test", 0)], "done_success"),
        ("strict", [("make test", 1), ("npm test", 0)], "done_partial"),
        ("yolo", [("make test", 1), ("npm test", 0)], "done_success"),
        ("yolo", [("make test", 0), ("npm test", 1)], "done_partial"),
        ("strict", [], "done_partial"),
        ("yolo", [], "done_partial"),
    ],
)
def test_a_claim_of_success_counts_only_as_far_as_checks_passed_before_our_eyes(
    profile: str, runs: list[tuple[str, int]], status: str
) -> None:
    world = unattended({"stop.end_on_complete": True, "stop.profile": profile})
    world.tick()
    for command, code in runs:
        world.step(calls=(call("bash", {"command": command}, f"code {code}", ok=code == 0, exit_code=code),))
    world.ask("update_goal", status="complete")
    world.finish()
    ended = the_end(world)
    assert (ended.status, ended.stop_reason) == (status, "goal_complete")
    assert bool(ended.remaining) == (status == "done_partial")


def test_a_claim_of_success_ends_nothing_unless_that_is_asked_for() -> None:
    world = unattended()
    world.tick()
    world.step(calls=(npm_test("ok", 0),))
    world.ask("update_goal", status="complete")
    world.finish()
    assert world.session.status == "live"
    assert next_deadline(world.session, world.house()) is None


def test_a_cron_run_neither_restarts_the_ceiling_nor_counts_toward_it() -> None:
    world = unattended(
        {"stop.no_progress": 0, "stop.no_progress_correction": 0, "continuation.backoff_s": []}
    )
    play(world, barren, most=6)
    assert world.session.stops.main.steps == 6
    world.send("cron")
    assert world.session.turn is not None
    world.whole_turn("nothing new")
    assert world.session.stops.main.steps == 6
    assert world.session.stops.cron.steps == 1


@pytest.mark.parametrize("source", ["rewake", "agent", "channel"])
def test_automatic_envelopes_do_not_restart_the_ceiling_and_a_person_does(source: str) -> None:
    world = unattended()
    play(world, working, most=6)
    world.send(source)
    world.whole_turn()
    assert world.session.stops.main.steps == 7
    world.send("human")
    assert world.session.stops.main.steps == 0


def test_a_published_session_has_no_stop_rules_but_the_four_detectors() -> None:
    world = World({"continuation.min_gap_ms": 0}, goal="win")
    for n in range(150):
        if world.session.turn is None:
            world.tick(max(world.now, next_deadline(world.session, world.house()) or 0))
        world.step(**working(n))
        world.finish()
    assert world.session.status == "live"
    assert world.session.stops == msgspec.structs.replace(
        world.session.stops, main=type(world.session.stops.main)()
    )
