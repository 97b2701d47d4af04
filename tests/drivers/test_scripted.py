"""The scripted driver: turns, places, ends."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.core.conversation import AgentReply, Directive, TurnEnd
from loopd.drivers import make_driver
from loopd.drivers.script import KEEP_BYTES, SCRIPT_BYTES, Script, load, stamp_of
from loopd.drivers.scripted import ScriptedDriver
from loopd.testing.driver_suite import RecordingHost, turn
from loopd_protocol.commands import ScriptedSpec
from loopd_protocol.errors import Refused
from tests.drivers.stages import HEAD, write_script

pytestmark = pytest.mark.anyio


async def play(driver: ScriptedDriver, seen: int, **more: Any) -> tuple[list[str], TurnEnd, RecordingHost]:
    host = RecordingHost(**more)
    with anyio.fail_after(20):
        end = await driver.take_turn(turn(n=seen + 1, seen=seen), host)
    return [step.text for step in host.steps], end, host


def driver_of(path: str, **more: Any) -> ScriptedDriver:
    return ScriptedDriver(ScriptedSpec(script=path, **more))


async def test_a_step_with_a_trigger_begins_a_turn_and_the_last_turn_repeats(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "a.jsonl",
        {"text": "a", "trigger": "human"},
        {"text": "b"},
        {"text": "c", "trigger": "continuation"},
        {"text": "d", "trigger": "cron"},
        {"text": "e"},
    )
    driver = driver_of(path)
    assert driver.turns == 3
    played = [(await play(driver, seen))[0] for seen in range(6)]
    assert played == [["a", "b"], ["c"], ["d", "e"], ["d", "e"], ["d", "e"], ["d", "e"]]


async def test_a_file_without_triggers_is_one_turn(tmp_path: Path) -> None:
    driver = driver_of(write_script(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b"}, {"text": "c"}))
    assert driver.turns == 1
    texts, end, _ = await play(driver, 0)
    assert (texts, end.outcome, end.goal_complete) == (["a", "b", "c"], "completed", False)


async def test_each_trajectory_of_a_file_begins_a_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [HEAD, {"t": "step", "text": "a"}, HEAD, {"t": "step", "text": "b"}, {"t": "step", "text": "c"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    driver = driver_of(str(path))
    assert [(await play(driver, seen))[0] for seen in range(2)] == [["a"], ["b", "c"]]


async def test_once_completes_the_goal_with_the_last_turn_and_plays_nothing_after_it(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "a.jsonl", {"text": "a", "trigger": "human"}, {"text": "b", "trigger": "continuation"}
    )
    driver = driver_of(path, once=True)
    ends = [await play(driver, seen) for seen in range(4)]
    assert [(texts, end.goal_complete) for texts, end, _ in ends] == [
        (["a"], False),
        (["b"], True),
        ([], True),
        ([], True),
    ]


async def test_the_place_follows_from_the_turns_seen_so_a_new_driver_goes_on(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "a.jsonl", *({"text": str(n), "trigger": "continuation"} for n in range(50))
    )
    for seen in (0, 49, 17, 3):
        assert (await play(driver_of(path), seen))[0] == [str(seen)]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
async def test_a_large_file_is_played_from_the_disk_like_a_small_one(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "big.jsonl"
    filler = "x" * 10_000
    write_script(
        path, *({"text": f"{n} {filler}", "trigger": "continuation"} for n in range(KEEP_BYTES // 5_000))
    )
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    driver = driver_of(str(path))
    assert not load(str(path)).kept
    for seen in (0, driver.turns - 1, 5):
        texts, end, _ = await play(driver, seen)
        assert ([text.split()[0] for text in texts], end.outcome) == ([str(seen)], "completed")


async def test_a_small_script_is_indexed_once_for_all_sessions(tmp_path: Path) -> None:
    path = write_script(tmp_path / "a.jsonl", {"text": "a"})
    assert load(path) is load(path)
    first = load(path)
    write_script(tmp_path / "a.jsonl", {"text": "other"})
    assert load(path) is not first
    assert Script(path, stamp_of(path)).cuts[0].steps == 1


async def test_own_tools_are_really_asked_and_the_rest_is_reported_as_written(tmp_path: Path) -> None:
    calls = [
        {"id": "1", "name": "bash", "args": {"command": "make test"}, "ok": False, "result": "boom"},
        {"id": "2", "name": "wake_me", "args": {"after_secs": 60, "note": "look"}},
        {
            "id": "3",
            "name": "request_idle",
            "args": {"max_idle_duration_secs": 60, "reason": "r"},
            "ok": True,
            "result": "old",
        },
    ]
    driver = driver_of(write_script(tmp_path / "a.jsonl", {"text": "t", "calls": calls}, {"text": "never"}))
    idle = AgentReply(ok=True, text="Idle for 60 s.", ends_turn=True)
    texts, end, host = await play(driver, 0, replies={"request_idle": idle})
    assert (texts, end.outcome) == (["t"], "idle")
    assert [request.name for request in host.asked] == ["wake_me", "request_idle"]
    bash, wake, last = host.steps[0].calls
    assert (bash.result, bash.ok, bash.tool_class) == ("boom", False, "test")
    assert (wake.ok, wake.result) == (True, "noted")
    assert (last.ok, last.result) == (True, "Idle for 60 s.")


async def test_tools_withheld_by_a_directive_deny_the_calls_of_the_next_step_only(tmp_path: Path) -> None:
    step = {"text": "t", "calls": [{"name": "bash", "args": {}, "ok": True, "result": "fine"}]}
    driver = driver_of(write_script(tmp_path / "a.jsonl", step, step, step))
    _, _, host = await play(driver, 0, directives=[Directive(tools_withheld=True), Directive(), Directive()])
    assert [s.tools_withheld for s in host.steps] == [False, True, False]
    assert [s.calls[0].error_class for s in host.steps] == [None, "denied", None]
    assert [s.calls[0].ok for s in host.steps] == [True, False, True]


async def test_an_empty_turn_says_so(tmp_path: Path) -> None:
    driver = driver_of(write_script(tmp_path / "a.jsonl", {"text": " "}))
    assert (await play(driver, 0))[1].outcome == "empty"


async def test_a_delay_spreads_the_text_and_lasts_as_long(tmp_path: Path) -> None:
    driver = driver_of(write_script(tmp_path / "a.jsonl", {"text": "one two three four"}), delay_ms=50)
    started = anyio.current_time()
    _, _, host = await play(driver, 0)
    assert anyio.current_time() - started >= 0.045
    assert len(host.deltas) > 5
    assert "".join(host.deltas) == "one two three four"


def test_a_script_that_unpacks_to_more_than_the_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    step = json.dumps({"t": "step", "text": "x" * 900_000}).encode() + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(json.dumps(HEAD).encode() + b"\n")
        for _ in range(SCRIPT_BYTES // len(step) + 2):
            stream.write(step)
    with pytest.raises(Refused, match=f"more than {SCRIPT_BYTES} bytes"):
        make_driver("ses_x", {"kind": "scripted", "script": str(path)}, None)


def test_a_script_without_steps_is_refused(tmp_path: Path) -> None:
    path = write_script(tmp_path / "a.jsonl")
    with pytest.raises(Refused, match="without steps"):
        make_driver("ses_x", {"kind": "scripted", "script": path}, None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "missing required field `kind`"),
        ({"kind": "magic"}, "Invalid value 'magic'"),
        ({"kind": "scripted", "script": "/nowhere/at/all"}, "cannot be read"),
        ({"kind": "scripted", "script": "x", "delay": 5}, "unknown field `delay`"),
        ({"kind": "chat", "base_url": "ftp://x", "model": "m"}, "base_url"),
        ({"kind": "chat", "base_url": "http://", "model": "m"}, "expected something like"),
        ({"kind": "chat", "base_url": "http://[", "model": "m"}, "base_url"),
        ({"kind": "chat", "base_url": "http://u:p@h/v1", "model": "m"}, "credentials"),
        (
            {"kind": "chat", "base_url": "http://h/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"},
            "'NO_SUCH_KEY' is not set",
        ),
    ],
)
def test_a_spec_that_cannot_work_is_refused_early(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as caught:
        make_driver("ses_x", spec, None)
    assert caught.value.code == "invalid"
    assert words in caught.value.message


@pytest.mark.parametrize("workspace", ["relative/path", "/nowhere/at/all"])
def test_a_workspace_that_is_no_directory_is_refused(workspace: str) -> None:
    with pytest.raises(Refused, match="workspace"):
        make_driver("ses_x", {"kind": "chat", "base_url": "http://h/v1", "model": "m"}, workspace)
