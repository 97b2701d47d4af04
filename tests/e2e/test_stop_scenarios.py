"""The stop scenarios in real time: the scripted driver in a real daemon, through the socket.

Their twins in virtual time, with the details, are in `tests/core/test_stop_scenarios.py`.
"""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest

from tests.e2e.audit import Journal
from tests.e2e.harness import Daemon, House, write_script

pytestmark = pytest.mark.process

FAST = {"continuation.min_gap_ms": 0, "continuation.backoff_s": [], "ladder.close_s": [1]}
RED = "FAIL src/a.test.js\n  expected 1 to be 2\n"
NO_LADDER = [
    *("exact_repeat", "cycle", "interleaved_repeat", "same_result", "error_streak", "noop_calls"),
    *("near_duplicate_text", "toolless_streak", "barren_score", "edge_loop", "unresolved_tool"),
]
OFF = {f"rules.{rule}.enabled": False for rule in NO_LADDER}
Turns = list[Any]


def tool(name: str, args: dict[str, Any], result: str, *, ok: bool = True, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "name": name, "args": args, "ok": ok, "result": result, **more}


def step(*calls: dict[str, Any], text: str = "", **more: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), "usage": {"input_tokens": 50, "output_tokens": 5}, **more}


def npm(result: str = RED, code: int = 1) -> dict[str, Any]:
    return tool("bash", {"command": "npm test"}, result, ok=code == 0, exit_code=code)


def edit(what: str) -> dict[str, Any]:
    return tool("edit_file", {"path": "a.js", "new": what}, "replaced 1 occurrence")


def phase(name: str) -> dict[str, Any]:
    return tool("report_phase", {"name": name}, "Noted.")


def read(n: int) -> dict[str, Any]:
    return step(tool("read_file", {"path": f"f{n}"}, f"content number {n}"))


def mark(letter: str) -> dict[str, str]:
    return {"state_fingerprint": letter * 64}


class Played:
    """A scripted session that has been started."""

    def __init__(self, daemon: Daemon, house: House, name: str, turns: Turns, **settings: Any) -> None:
        self.daemon = daemon
        script = write_script(house.folder / f"{name}.jsonl", turns)
        once = settings.pop("once", False)
        self.sid = daemon.scripted(
            script, goal="win", preset="hardened", set=FAST | settings, name=name, once=once
        )

    def end(self) -> dict[str, Any]:
        """Wait for the end; checks what every end must have."""
        ended = self.daemon.until(self.sid, "session.ended")["b"]
        issues = self.daemon.events(self.sid, "issue.written")
        assert len(issues) == (1 if ended["status"].startswith("aborted") else 0)
        return dict(ended)

    def steps(self) -> int:
        """How many steps it took so far."""
        return int(self.daemon.call("session.get", self.sid)["steps"])

    def report(self) -> dict[str, Any]:
        """Its report through the socket."""
        return dict(self.daemon.call("report", self.sid)["report"])


@pytest.fixture(scope="module")
def home() -> Any:
    """A house that the module shares."""
    house = House()
    try:
        yield house
    finally:
        house.close()


@pytest.fixture(scope="module")
def running(home: House) -> Any:
    """Its daemon."""
    daemon = home.daemon("scenarios").start()
    yield daemon
    daemon.verified()
    Journal(daemon.data / "journal.sqlite").check()


def round_trip(_: int) -> Turns:
    turns: Turns = []
    for n in range(40):
        turns.append(step(phase("planner"), text=f"Plan {n}: ask the researcher again."))
        found = tool("search", {"q": f"page {n}"}, "the same three good sources")
        turns.append(step(phase("researcher"), found))
    return turns


def unknown_tool(n: int) -> dict[str, Any]:
    return tool("frobnicate", {"n": n}, "no such tool: frobnicate", ok=False, error_class="schema")


def chatter(n: int) -> str:
    return f"{n}/100. {('Not complete yet.', 'Still waiting.', 'No action for now.')[n % 3]}"


STOPPED: dict[str, tuple[Turns, dict[str, Any], str | None, int]] = {
    "1-planner-researcher": (round_trip(0), OFF, "edge_loop", 25),
    "2-red-test": ([step(npm())], {}, "same_error", 3),
    "3-same-edit-seen": ([step(edit("x"), **mark("f"))], {}, "noop_edit", 4),
    "3-same-edit-blind": ([step(edit("x"))], {}, "noop_edit", 4),
    "5-flip-flop": ([[step(edit("A"), **mark("a")), step(edit("B"), **mark("b"))] * 30], {}, None, 60),
    "6-chatter": ([chatter(n) for n in range(60)], {}, None, 40),
    "7-unknown-tool": ([step(unknown_tool(n)) for n in range(9)], {}, "unresolved_tools", 5),
    "8-three-tools": (
        [[step(tool(t, {"path": "s"}, f"what {t} says")) for t in ("read_file", "grep", "ls")] * 40],
        {},
        None,
        60,
    ),
    "12-yolo": ([step(npm())], {"stop.profile": "yolo"}, "same_error", 2),
}


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_goes_nowhere_is_ended(running: Daemon, home: House, name: str) -> None:
    turns, settings, rule, most = STOPPED[name]
    played = Played(running, home, name, turns, **settings)
    ended = played.end()
    assert ended["status"] == "aborted_stuck"
    assert rule in {None, ended["rule"]}
    assert played.steps() <= most
    if name.startswith("2"):
        assert "npm test" in ended["explanation"]
        assert played.report()["issue"]["error_signature"] in ended["explanation"]
    if name.startswith("1-"):
        assert "planner" in ended["explanation"]
        assert running.events(played.sid, "phase.clamped")
        reasons = [line for edge in played.report()["edges"].values() for line in edge["reasons"]]
        assert any("ask the researcher again" in line for line in reasons)


def cycles(soft: bool) -> Turns:
    turns: Turns = []
    for n in range(50):
        print_ = f"{n:064x}"
        red = RED if soft else f"FAIL src/a.test.js\n  expected {n} to be 200\n"
        turns.append(step(edit(f"variant {n}"), state_fingerprint=print_))
        turns.append(step(npm(red), state_fingerprint=print_))
    return turns


def test_real_edits_between_red_tests_only_reach_the_soft_level(running: Daemon, home: House) -> None:
    played = Played(running, home, "4-edited", cycles(soft=True)[:24], once=True)
    running.until(played.sid, "turn.completed", lambda b: b["n"] == 24)
    found = running.events(played.sid, "degeneration.detected")
    assert {e["b"]["verdict"] for e in found} <= {"nudge", "text_only", "warn"}
    assert [e["b"]["verdict"] for e in found if e["b"]["rule"] == "same_error"] == ["nudge"]


def test_fifty_cycles_of_edit_and_test_are_never_stopped(running: Daemon, home: House) -> None:
    played = Played(running, home, "15-healthy", cycles(soft=False), once=True)
    running.until(played.sid, "turn.completed", lambda b: b["n"] == 100)
    assert running.call("session.get", played.sid)["status"] == "live"
    verdicts = {e["b"]["verdict"] for e in running.events(played.sid, "degeneration.detected")}
    assert verdicts <= {"warn"}


def test_a_crash_behind_the_correction_gives_no_fresh_budget(home: House) -> None:
    daemon = home.daemon("crash").start()
    script = write_script(home.folder / "9.jsonl", ["thinking"])
    sid = daemon.scripted(script, goal="win", preset="hardened", set=FAST | OFF, delay_ms=20)
    nudge = daemon.until(sid, "degeneration.detected", lambda b: b["rule"] == "no_progress")
    assert nudge["b"]["verdict"] == "nudge"
    daemon.kill()
    daemon.start()
    ended = daemon.until(sid, "session.ended")["b"]
    assert ended["rule"] == "no_progress"
    assert daemon.call("session.get", sid)["steps"] == 40
    assert len(daemon.events(sid, "issue.written")) == 1
    daemon.verified()


INJECTION = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "loopd.engine.session_loop":
            sys.meta_path.remove(self)
            from loopd.core.rules import lanes
            def hangs(state, parameters, look):
                while True:
                    pass
            def raises(state, parameters, look):
                raise ValueError("broken")
            bad = {"cycle": raises, "sweep": hangs}
            lanes.STEP_JUDGES = tuple((r, bad.get(r, j)) for r, j in lanes.STEP_JUDGES)
        return None
sys.meta_path.insert(0, Finder())
"""


def test_detectors_that_raise_and_hang_cost_no_session(home: House) -> None:
    folder = home.folder / "inject"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INJECTION)
    daemon = home.daemon("broken", http=True, env={"PYTHONPATH": str(folder)}).start()
    script = write_script(home.folder / "10.jsonl", [[read(n) for n in range(4)]])
    sid = daemon.scripted(script, preset="hardened")
    daemon.call("send", sid, text="go")
    daemon.until(sid, "turn.completed")
    skipped = {tuple(sorted(e["b"]["skipped_rules"])) for e in daemon.events(sid, "turn.step")}
    assert skipped == {("cycle", "sweep")}
    failed = [(e["b"]["rule"], e["b"]["cause"]) for e in daemon.events(sid, "detector.failed")]
    assert sorted(failed) == [("cycle", "raised")] * 4 + [("sweep", "slow")] * 4
    with urllib.request.urlopen(f"{daemon.ready['http']}/metrics", timeout=10) as page:
        text = page.read().decode()
    for rule in ("cycle", "sweep"):
        assert re.search(rf'^loopd_detector_failures_total{{rule="{rule}"}} 4(\.0)?$', text, re.MULTILINE)
    daemon.terminate()
    daemon.env.pop("PYTHONPATH")
    daemon.start()  # whole again: the journal says that those rules saw nothing
    daemon.verified()


def test_two_reasons_in_one_step_give_one_status(running: Daemon, home: House) -> None:
    missing = tool("bash", {"command": "x"}, "no such tool: bash", ok=False, error_class="schema")
    ended = Played(running, home, "11-two", [step(missing)], **{"stop.same_error": 5}).end()
    assert ended["rule"] == "unresolved_tools"
    assert "same_error" in ended["secondary"]


CEILING = {"stop.max_steps": 6, "stop.extension_steps": 2, "stop.max_extensions": 1}


def test_a_parked_session_takes_no_steps_and_a_person_grants_more(running: Daemon, home: House) -> None:
    played = Played(running, home, "13-parked", [read(n) for n in range(100)], **CEILING)
    running.until(
        played.sid, "gate.changed", lambda b: (b.get("added") or {}).get("kind") == "AwaitingApproval"
    )
    running.until(played.sid, "turn.completed", lambda b: b["n"] == 8)
    assert played.steps() == 8
    (hold,) = running.call("why", played.sid)["holds"]
    assert hold["request"] == "more_steps"
    assert hold["until_ms"] - hold["since_ms"] == 86_400_000
    assert running.ctl("resume", played.sid)["run"] == 1
    running.until(played.sid, "turn.completed", lambda b: b["n"] == 14)
    running.call("suspend", played.sid)


def test_nobody_answers_and_the_run_is_over_at_the_deadline(running: Daemon, home: House) -> None:
    played = Played(
        running, home, "13-denied", [read(n) for n in range(100)], **CEILING, **{"stop.park_s": 1}
    )
    ended = played.end()
    assert (ended["status"], ended["stop_reason"]) == ("aborted_stuck", "more_steps_denied")
    assert played.steps() == 8


def test_the_ceiling_writes_an_issue_and_a_person_resumes_the_session_as_a_new_run(
    running: Daemon, home: House
) -> None:
    settings = OFF | {"stop.max_steps": 12, "stop.no_progress": 0, "stop.no_progress_correction": 0}
    played = Played(running, home, "14-ceiling", ["thinking"], **settings)
    assert played.end()["rule"] == "max_steps"
    page = running.loopctl("report", played.sid)
    assert page.returncode == 0, page.stderr
    assert "# Run 1 of 14-ceiling: aborted" in page.stdout.replace("\\", "")
    answer = running.ctl("report", played.sid, "--format", "json")
    assert answer["counters"]["steps"] == 12
    resumed = running.ctl("resume", played.sid, "--reason", "try once more")
    assert (resumed["status"], resumed["run"]) == ("live", 2)
    running.until(played.sid, "session.ended", count=2)
    assert len(running.events(played.sid, "issue.written")) == 2
    assert played.report()["run"] == 2


def test_a_name_that_was_taken_again_keeps_the_old_session_from_living(running: Daemon, home: House) -> None:
    played = Played(running, home, "taken", [step(npm())])
    played.end()
    again = Played(running, home, "taken", [read(1)])
    refused = running.refusal("session.resume", played.sid)
    assert refused.code == "already_exists"
    running.call("session.end", again.sid)
    assert running.call("session.resume", played.sid)["run"] == 2
    running.call("suspend", played.sid)
