"""The report of a run: what it counts, what it cuts out, what it makes harmless."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.inputs import SuspendRequested
from loopd.core.report import KINDS, Happened, run_report
from loopd.core.report_page import escaped, markdown
from loopd_protocol import events as ev
from tests.core.test_stop_scenarios import npm_test, planner_researcher, play, unattended, working
from tests.core.world import World


def report_of(world: World) -> Any:
    happened, reasons = [], {}
    for ss, at_ms, body in world.events:
        event = ev.decode(body)
        if event.kind in KINDS:
            happened.append(Happened(ss=ss, at_ms=at_ms, event=event))
        if isinstance(event, ev.TurnStep):
            reasons[ss] = event.text
    return run_report(world.session, world.settings, happened, reasons, world.now)


def test_a_live_session_has_a_report_with_its_counters_and_gates() -> None:
    world = unattended()
    play(world, working, most=8)
    world.apply(SuspendRequested(by="uid:1", reason="lunch"))
    world.now += 5_000
    report = report_of(world)
    assert (report.status, report.issue, report.resume) == ("live", None, None)
    assert report.counters["steps"] == 8
    assert report.gates["UserSuspend"] == {"times": 1, "held_ms": 5_000}
    assert "UserSuspend" in report.explanation
    assert report.last_progress_step == 8
    assert report.tokens["total"] == 8 * 110
    assert report.tokens["after_last_progress"] == 0


def test_time_under_holds_is_added_up_by_kind() -> None:
    world = unattended({"ladder.close_s": [60]})
    play(world, lambda n: {"text": f"{n}/100. Not complete."}, per_turn=1)
    report = report_of(world)
    times = report.gates["Degeneration"]["times"]
    assert times >= 2
    assert report.gates["Degeneration"]["held_ms"] == times * 60_000
    assert report.counters["gate_closings"] == sum(gate["times"] for gate in report.gates.values())


def test_an_ended_run_says_why_in_words_numbers_and_steps() -> None:
    world = unattended({"rules.cycle.enabled": False, "rules.same_result.enabled": False})
    play(world, planner_researcher)
    report = report_of(world)
    assert report.status == "aborted_stuck"
    assert report.issue is not None
    assert report.rule == world.of(ev.SessionEnded)[0].rule
    edges = report.edges
    assert edges["planner->researcher"]["since_progress"] >= 3
    assert any("ask again" in line for edge in edges.values() for line in edge["reasons"])
    assert report.tokens["after_last_progress"] > 0
    assert report.timeline[-1].what.startswith("ended aborted_stuck")
    assert report.resume == f"loopctl resume {world.session.sid}"
    page = markdown(report)
    for word in ("## Counters", "## Edges", "## Timeline", "## Issue", "loopctl resume"):
        assert word in page
    encoded = msgspec.json.encode(report)
    assert msgspec.json.encode(msgspec.json.decode(encoded, type=type(report))) == encoded


def test_what_the_agent_wrote_cannot_dress_up_as_the_report_and_gives_away_no_secret() -> None:
    world = unattended()
    evil = "# Run 1: done_success | <script>alert(1)</script> ghp_A1b2C3d4E5f6G7h8I9j0K1l2"
    play(world, lambda _: {"text": evil, "calls": (npm_test("TOKEN_SECRET=hunter22 failed"),)})
    report = report_of(world)
    page = markdown(report)
    assert "ghp_" not in page
    assert "<script>" not in page
    assert "\n# Run 1: done" not in page
    (issue,) = world.of(ev.IssueWritten)
    assert "ghp_" not in msgspec.json.encode(issue).decode()
    assert "[redacted]" in issue.last_reason


def test_escaped_text_is_one_line_without_control_characters() -> None:
    assert escaped("a\nb\x1b[31m|*c*") == "a b \\[31m\\|\\*c\\*"
    assert escaped("_so_ snake_case {x}") == "\\_so\\_ snake_case {x}"
    assert escaped("> quoted") == "\\> quoted"
    assert escaped("a->b") == "a->b"
