"""Turns that are cut while a tool is about to begin: it does not begin, or nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from loopd.drivers import end_leftovers
from loopd.drivers.acp.launch import Premises
from loopd.drivers.marks import marked
from loopd.drivers.mcp_process import server_process
from loopd.drivers.shell import BOOT, run_shell
from loopd.drivers.tools import Toolbox
from loopd.testing.driver_suite import RecordingHost, turn
from loopd_protocol.events import ToolCall
from tests.drivers.acp.stage import AcpStage, living
from tests.drivers.processes import Pipe, Watched

pytestmark = [pytest.mark.anyio, pytest.mark.process]


class Interrupting(RecordingHost):
    """The interruption of the turn becomes durable together with the intent."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        super().__init__()
        self._scope = scope

    async def intent(self, call: ToolCall) -> None:
        await super().intent(call)
        self._scope.cancel()


@pytest.mark.parametrize("name", ["shell", "write_file", "edit_file"])
async def test_a_tool_whose_turn_was_cut_while_its_intent_was_written_does_not_begin(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "a").write_text("old")
    args = {
        "shell": {"command": "echo new > a"},
        "write_file": {"path": "a", "content": "new"},
        "edit_file": {"path": "a", "old": "old", "new": "new"},
    }[name]
    with anyio.fail_after(20), anyio.CancelScope() as scope:
        host = Interrupting(scope)
        await Toolbox("ses_cut", str(tmp_path)).run(ToolCall(id="c", name=name, args=args), host)
    assert scope.cancelled_caught
    assert host.effects == [("c", "intent"), ("c", "cancelled")]
    assert (tmp_path / "a").read_text() == "old"
    began = [
        pid for pid in marked(lambda variables: b"LOOPD_SESSION=ses_cut" in variables) if pid != os.getpid()
    ]
    assert began == []


Start = Callable[[str], Awaitable[object]]


async def as_a_command(command: str) -> None:
    await run_shell(command, cwd="/", env={"PATH": os.environ["PATH"]}, timeout_s=30)


async def as_a_server(command: str) -> None:
    argv = ["/bin/sh", "-c", command]
    async with server_process(argv, cwd=None, env={"PATH": os.environ["PATH"]}, run_as=None):
        await anyio.sleep_forever()


@pytest.mark.parametrize("start", [as_a_command, as_a_server])
async def test_nothing_is_left_of_a_process_that_is_cut_while_it_is_being_started(
    tmp_path: Path, start: Start
) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    found: list[Watched] = []
    with anyio.fail_after(20), anyio.CancelScope() as scope:

        def cut() -> None:
            found.append(Watched(int(pipe.read_text())))  # it has begun before its start is known here
            scope.cancel()

        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, cut)  # behind the checkpoint with which a start begins
        await start(f"setsid sh -c 'echo $$ > {pipe}; exec sleep 600' & wait")
    (background,) = found
    await background.gone()


class Cutting(RecordingHost):
    """Cuts the turn a moment after the frame that `at` names."""

    def __init__(self, scope: anyio.CancelScope, at: bytes) -> None:
        super().__init__()
        self._scope = scope
        self._at = at

    def frame(self, line: bytes) -> None:
        super().frame(line)
        if self._at in line:
            asyncio.get_running_loop().call_later(0.02, self._scope.cancel)


@pytest.mark.parametrize("at", [b"initialize", b"protocolVersion", b"session/new", b'"sessionId"'])
async def test_nothing_is_left_of_an_agent_whose_turn_is_cut_while_it_is_being_opened(
    tmp_path: Path, at: bytes
) -> None:
    stage = AcpStage(tmp_path)
    driver = stage.driver(script=[[{"hang": True}]])
    try:
        with anyio.fail_after(20), anyio.CancelScope() as scope:
            await driver.take_turn(turn(), Cutting(scope, at))
        assert scope.cancelled_caught
        assert living(stage.premises) == []
    finally:
        await stage.aclose()


# -- whose leftovers -----------------------------------------------------------------------------------


@asynccontextmanager
async def left_over(folder: Path, premises: Premises) -> AsyncIterator[Watched]:
    """A command that outlived its daemon, which was killed."""
    pipe = Pipe(folder / "pid")
    code = f"""
import anyio
from loopd.drivers.fittings import Fittings
from loopd.drivers.acp.launch import Premises
from loopd.drivers.tools import Toolbox
from loopd.testing.driver_suite import RecordingHost
from loopd_protocol.events import ToolCall
from pathlib import Path
mark = Fittings(agents=Premises(data=Path({str(premises.data)!r}), boot={premises.boot!r})).boot_mark
box = Toolbox("ses_left", {str(folder)!r}, boot_mark=mark)
call = ToolCall(id="c", name="shell", args={{"command": "echo $$ > pid; exec sleep 600"}})
anyio.run(box.run, call, RecordingHost())
"""
    daemon = await anyio.open_process([sys.executable, "-c", code], stdin=None, stdout=None, stderr=None)
    tool = await pipe.process()
    daemon.kill()
    await daemon.wait()
    try:
        yield tool
    finally:
        end_leftovers([], Premises(data=premises.data, boot="last"))


async def test_a_copy_of_the_data_folder_ends_nothing_of_the_original(tmp_path: Path) -> None:
    original = Premises(data=tmp_path / "original", boot="boot_1")
    async with left_over(tmp_path, original) as tool:
        copy = Premises(data=tmp_path / "copy", boot="boot_2")
        assert end_leftovers(["ses_left"], copy) == 0
        assert end_leftovers([], Premises(data=tmp_path / "original", boot="boot_2")) == 1
        await tool.gone()


async def test_a_command_of_the_running_boot_is_no_leftover(tmp_path: Path) -> None:
    here = Premises(data=tmp_path / "data", boot="boot_1")
    async with left_over(tmp_path, here):
        assert end_leftovers(["ses_left"], here) == 0
        found = f"{BOOT}={here.house}.boot_1".encode()
        assert len(marked(lambda variables: found in variables)) == 1
