"""MCP servers as tools, with real servers: one from the registry and a small one of our own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from loopd.drivers import mcp_server
from loopd.drivers.chat import ChatDriver
from loopd.drivers.fittings import Fittings
from loopd.drivers.marks import marked
from loopd.drivers.mcp_tools import McpTools
from loopd.drivers.tools import Toolbox
from loopd.testing.driver_suite import RecordingHost, turn
from loopd.testing.endpoint import Call, Endpoint, ask, say
from loopd_protocol.commands import ChatSpec, McpServer
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

pytest.importorskip("mcp", reason="the extra loopd[mcp] is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.process]

DEMO = str(Path(__file__).with_name("mcp_demo_server.py"))
WITHIN_S = 40.0


def demo(**more: Any) -> McpServer:
    return McpServer(**{"name": "demo", "command": sys.executable, "args": (DEMO,), **more})


@asynccontextmanager
async def tools(*servers: McpServer, sid: str = "ses_mcp") -> AsyncIterator[McpTools]:
    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks:
            made = McpTools(sid, servers, None, tasks)
            try:
                await made.ready()
                yield made
            finally:
                with anyio.CancelScope(shield=True):
                    await made.aclose()


def of_session(sid: str) -> list[int]:
    return marked(lambda variables: f"LOOPD_SESSION={sid}".encode() in variables)


async def gone(pid: int) -> None:
    while _runs(pid):  # noqa: ASYNC110  # another process: no event tells
        await anyio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_tools_are_named_after_their_server_and_called_with_their_arguments() -> None:
    async with tools(demo()) as made:
        names = [schema["function"]["name"] for schema in made.schemas]
        assert names[:2] == ["demo__add", "demo__fail"]
        assert made.schemas[0]["function"]["parameters"]["required"] == ["a", "b"]
        result = await made.call("demo__add", {"a": 2, "b": 3})
        assert (result.ok, result.text, result.error_class) == (True, "5", None)
        wrong = await made.call("demo__fail", {"why": "no luck"})
        assert (wrong.ok, wrong.error_class) == (False, "tool")
        assert "no luck" in wrong.text
        odd = await made.call("demo__add", {"a": "two"})
        assert odd.ok is False


async def test_a_server_from_the_registry_tells_the_time() -> None:
    time_server = McpServer(name="time", command=sys.executable, args=("-m", "mcp_server_time"))
    async with tools(time_server) as made:
        result = await made.call("time__get_current_time", {"timezone": "UTC"})
        assert result.ok, result
        assert '"timezone": "UTC"' in result.text


async def test_only_allowed_tools_are_offered() -> None:
    async with tools(demo(allow=("add",))) as made:
        assert [schema["function"]["name"] for schema in made.schemas] == ["demo__add"]
        assert not made.has("demo__die")


async def test_a_server_that_dies_is_reported_and_started_again() -> None:
    async with tools(demo()) as made:
        (server,) = made._servers
        died = await made.call("demo__die", {})
        assert (died.ok, died.error_class) == (False, "infra")
        assert server.starts == 1
        while server.state != "up" or server.starts < 2:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert (await made.call("demo__add", {"a": 1, "b": 1})).text == "2"


async def test_a_server_that_was_killed_from_outside_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tools(demo(), sid="ses_killed") as made:
        (server,) = made._servers
        (pid,) = of_session("ses_killed")
        os.kill(pid, signal.SIGKILL)
        while server.state == "up":  # noqa: ASYNC110
            await anyio.sleep(0.01)
        said = await made.call("demo__add", {"a": 1, "b": 1})
        assert "is being started again" in said.text


async def test_a_server_that_is_silent_is_found_by_a_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "PING_EVERY_S", 0.2)
    monkeypatch.setattr(mcp_server, "PING_S", 0.3)
    async with tools(demo(), sid="ses_silent") as made:
        (server,) = made._servers
        (pid,) = of_session("ses_silent")
        os.kill(pid, signal.SIGSTOP)
        while "ping" not in server.why:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        await gone(pid)


async def test_a_server_that_always_dies_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "RESTART_AFTER_S", 0.001)
    async with tools(McpServer(name="bad", command="/bin/false")) as made:
        (server,) = made._servers
        while server.state != "given up":  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert server.starts == mcp_server.RESTARTS + 1
        await made.ready()
        assert server.starts == mcp_server.RESTARTS + 1
        assert made.schemas == ()


async def test_one_that_is_not_there_or_lacks_its_variable_says_so() -> None:
    missing = McpServer(name="missing", command="/no/such/program")
    async with tools(missing, demo(env=("NO_SUCH_VARIABLE_HERE",))) as made:
        absent, unset = made._servers
        assert "FileNotFoundError" in absent.why
        assert unset.why == "environment variable 'NO_SUCH_VARIABLE_HERE' is not set in the daemon"


async def test_a_call_that_takes_too_long_ends_and_the_server_lives_on() -> None:
    async with tools(demo(timeout_s=1)) as made:
        late = await made.call("demo__wait", {"seconds": 1.5})
        assert (late.ok, late.error_class) == (False, "infra")
        assert late.text == "error: no result within 1 s; nobody knows whether it was carried out"
        assert (await made.call("demo__add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.parametrize(
    ("tool", "args", "outcome"),
    [
        ("add", {"a": 1, "b": 2}, "ok"),
        ("fail", {"why": "no"}, "error"),
        ("die", {}, "uncertain"),
        ("wait", {"seconds": 600}, "uncertain"),
        ("cut", {"seconds": 600}, "uncertain"),
    ],
)
async def test_what_a_server_did_is_uncertain_when_it_gave_no_answer(
    tmp_path: Path, tool: str, args: dict[str, Any], outcome: str
) -> None:
    host = RecordingHost()
    name = "demo__wait" if tool == "cut" else f"demo__{tool}"
    async with tools(demo(timeout_s=1 if tool == "wait" else 30)) as made:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def cuts() -> None:
                    await host.intended.wait()
                    scope.cancel()

                if tool == "cut":
                    tasks.start_soon(cuts)
                call = ToolCall(id="c", name=name, args=args)
                done, _ = await Toolbox("ses_mcp", str(tmp_path), mcp=made).run(call, host)
                assert ("nobody knows" in str(done.result)) is (outcome == "uncertain")
    assert scope.cancelled_caught is (tool == "cut")
    assert host.effects == [("c", "intent"), ("c", outcome)]


async def test_a_call_that_a_server_was_never_asked_for_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "RESTART_AFTER_S", 60)
    host = RecordingHost()
    async with tools(demo()) as made:
        (server,) = made._servers
        await made.call("demo__die", {})
        while server.state == "up":  # noqa: ASYNC110
            await anyio.sleep(0.01)
        call = ToolCall(id="c", name="demo__add", args={"a": 1, "b": 1})
        await Toolbox("ses_mcp", str(tmp_path), mcp=made).run(call, host)
    assert host.effects == [("c", "intent"), ("c", "error")]


async def test_nothing_is_left_of_a_server_and_what_it_started() -> None:
    async with tools(demo(), sid="ses_left") as made:
        child = int((await made.call("demo__leave_behind", {})).text)
        assert child in of_session("ses_left")
        assert len(of_session("ses_left")) == 2
    with anyio.fail_after(10):
        await gone(child)
    assert of_session("ses_left") == []


async def test_only_named_variables_reach_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-1")
    monkeypatch.setenv("OTHER_API_KEY", "sk-2")
    async with tools(demo(env=("MY_API_KEY",))) as made:
        assert (await made.call("demo__secrets", {"name": "MY_API_KEY"})).text == "sk-1"
        assert (await made.call("demo__secrets", {"name": "OTHER_API_KEY"})).text == "(not set)"


async def test_a_turn_calls_two_of_them_at_once_and_long_results_are_cut_behind_their_digest() -> None:
    script = [
        ask(Call("demo__wait", {"seconds": 0.6}), Call("demo__flood", {"characters": 100_000})),
        say("done"),
    ]
    host = RecordingHost()
    with anyio.fail_after(WITHIN_S):
        async with Endpoint(script) as endpoint, anyio.create_task_group() as tasks:
            spec = ChatSpec(base_url=endpoint.base_url, model="test", mcp_servers=(demo(),))
            driver = ChatDriver("ses_turn", spec, None, fittings=Fittings(tasks=tasks))
            end = await driver.take_turn(turn(), host)
            await driver.aclose()
    assert end.outcome == "completed"
    waited, flooded = host.steps[0].calls
    assert (waited.result, waited.ok) == ("waited 0.6", True)
    assert flooded.result_bytes == 100_000
    assert flooded.result is not None
    assert len(flooded.result) < 40_000
    assert [e for e in host.effects if e[1] == "intent"] == host.effects[:2], "both began before one ended"
    offered = [tool["function"]["name"] for tool in endpoint.requests[0].json["tools"]]
    assert "demo__add" in offered
    assert of_session("ses_turn") == []


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ((McpServer(name="a"),), "expected either command or url"),
        ((McpServer(name="a", command="x", url="http://127.0.0.1/"),), "expected either command or url"),
        ((demo(), demo()), "is named twice"),
    ],
)
async def test_servers_that_cannot_work_are_refused_at_creation(
    servers: tuple[McpServer, ...], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        McpTools("ses_x", servers, None, None)


async def test_without_the_package_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=r"loopd\[mcp\]"):
        McpTools("ses_x", (demo(),), None, None)


@pytest.mark.long
async def test_a_server_behind_http_is_called_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is the SDK's own, in a process; it is asked over a real socket."""
    monkeypatch.setenv("WIKI_TOKEN", "t-1")
    program = (
        "import sys\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('wiki')\n"
        "@server.tool()\n"
        "def add(a: int, b: int) -> int:\n"
        "    'Add.'\n"
        "    return a + b\n"
        "server.run('streamable-http', host='127.0.0.1', port=int(sys.argv[1]))\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = await anyio.open_process(
        [sys.executable, "-c", program, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with anyio.fail_after(WITHIN_S):
            while not await reachable(port):  # noqa: ASYNC110  # another process
                await anyio.sleep(0.05)
        wiki = McpServer(name="wiki", url=f"http://127.0.0.1:{port}/mcp", token_env="WIKI_TOKEN")
        async with tools(wiki) as made:
            assert (await made.call("wiki__add", {"a": 20, "b": 22})).text == "42"
    finally:
        process.kill()
        await process.wait()
        await process.aclose()


async def reachable(port: int) -> bool:
    try:
        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
    except OSError:
        return False
    return True
