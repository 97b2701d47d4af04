"""Random lives of a session under tight stop rules: every contract holds after each input, and every end is whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loopd.core.ending import ABORTED, TERMINAL
from loopd.core.inputs import EndRequested, Recovered, ResumeRequested
from loopd.core.session import next_deadline
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from tests.core.test_stop_scenarios import call, edit, npm_test
from tests.core.world import World

TIGHT: dict[str, Any] = {
    "continuation.min_gap_ms": 0,
    "stop.max_steps": 8,
    "stop.extension_steps": 3,
    "stop.max_extensions": 1,
    "stop.no_progress": 6,
    "stop.no_progress_correction": 3,
    "stop.edge_loop": 3,
    "stop.end_on_complete": True,
}
WHAT = st.sampled_from(
    [
        "red",
        "green",
        "edit",
        "same",
        "new",
        "missing",
        "text",
        "plan",
        "build",
        "claim",
        "crash",
        "resume",
        "resume",
        "human",
        "cron",
        "deadline",
        "deadline",
        "finish",
        "end",
    ]
)


def happens(world: World, what: str, n: int) -> None:
    """One thing happens, if it can."""
    session = world.session
    match what:
        case "resume":
            world.attempt(ResumeRequested(by="uid:1"))
        case "deadline":
            due = next_deadline(session, world.house())
            if due is not None:
                world.tick(max(due, world.now))
        case "human" | "cron" if session.status == "live":
            world.send(what)
        case "end" if session.status == "live" and n % 5 == 0:
            world.apply(EndRequested(by="uid:1"))
        case _ if session.turn is None:
            pass
        case "crash":
            world.crash()
            world.apply(Recovered(boot=n + 2, crash_loop_boots=0))
        case "finish":
            world.finish()
        case "plan" | "build":
            world.ask("report_phase", name=what)
        case "claim":
            world.ask("update_goal", status="complete")
        case _:
            missing = call("frob", {"n": n}, "no such tool: frob", ok=False, error_class="schema")
            calls = {
                "red": (npm_test(),),
                "green": (npm_test("ok", 0),),
                "edit": (edit(f"v{n}"),),
                "same": (edit("v"),),
                "new": (call("read_file", {"path": f"f{n}"}, f"content {n}"),),
                "missing": (missing,),
            }.get(what, ())
            fingerprint = f"{n if what == 'edit' else 0:064x}" if what in {"edit", "same"} else None
            done = world.step(text=f"{what} {n}", calls=calls, state_fingerprint=fingerprint)
            if done.stop:
                world.finish("stopped_by_rule")


@given(st.sampled_from(["strict", "yolo"]), st.lists(WHAT, min_size=10, max_size=80))
def test_every_run_has_one_end_and_every_abort_one_issue(profile: str, played: list[str]) -> None:
    world = World(TIGHT | {"stop.profile": profile}, goal="win", preset="hardened")
    for n, what in enumerate(played):
        world.now += 500
        happens(world, what, n)
    ends, issues = world.of(ev.SessionEnded), world.of(ev.IssueWritten)
    assert [end.run for end in ends] == list(range(1, len(ends) + 1))
    assert [issue.run for issue in issues] == [end.run for end in ends if end.status in ABORTED]
    assert world.session.run == len(world.of(ev.SessionResumed)) + 1
    for end in ends:
        assert end.status in TERMINAL
        assert bool(end.remaining) == (end.status == "done_partial")
        assert end.rule not in end.secondary
        assert end.rule is not None or end.status != "aborted_stuck"
    assert (world.session.status == "live") == (len(ends) < world.session.run)
    world.refold_everything()


def test_an_ended_run_takes_nothing_but_a_person_who_resumes_it() -> None:
    world = World(TIGHT, goal="win", preset="hardened")
    world.apply(EndRequested(by="uid:1"))
    refused = world.attempt(EndRequested(by="uid:1"))
    assert isinstance(refused, Refused)
    assert refused.code == "session_terminal"
    world.apply(ResumeRequested(by="uid:1"))
    assert world.session.status == "live"
