"""The door of hosted agents: five verbs of the session's own token, and nothing else for anybody."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from loopd.bus import Bus
from loopd.cli.mcp import VERSIONS
from loopd.core import agent_tools
from loopd.core.agent_schemas import AGENT_TOOLS
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd.server.agent_door import AgentDoor, AgentServer, AgentTokens
from loopd.server.limits import SocketLimits
from loopd_protocol.access_commands import AGENT_VERBS, AgentAsk
from loopd_protocol.commands import COMMAND_TYPES, IDLE_MAX_S, IDLE_MIN_S
from loopd_protocol.errors import Refused
from tests.control_stage import NOW_MS, Wire, dialled
from tests.e2e.harness import gone
from tests.engine.stage import Gate, Stage, say, stage
from tests.golden.examples import examples

pytestmark = pytest.mark.anyio
ARGUMENTS: dict[str, dict[str, Any]] = {
    "request_idle": {"max_idle_duration_secs": 600, "reason": "the build runs"},
    "update_goal": {"status": "complete", "note": "all parts are there"},
    "wake_me": {"after_secs": 90, "note": "look again"},
    "report_phase": {"name": "review"},
    "report_progress": {"metric": "tests_passing", "value": 12.5},
}


class Here:
    """An engine with the door of its agents, and one session in the middle of a turn."""

    def __init__(self, engine: Stage, door: AgentDoor, server: AgentServer, sid: str, gate: Gate) -> None:
        self.engine, self.door, self.server, self.sid, self.gate = engine, door, server, sid, gate
        self.token = door.tokens.issue(sid)

    async def kinds(self) -> list[str]:
        return [event.kind for event in await self.engine.events(self.sid)]


@asynccontextmanager
async def here(*, goal: str = "finish the report", limits: SocketLimits | None = None) -> AsyncIterator[Here]:
    gate = Gate()

    async def waits(request: TurnRequest, host: TurnHost) -> TurnEnd:
        await gate.wait()
        await say(host)
        return TurnEnd(outcome="completed")

    with tempfile.TemporaryDirectory(prefix="lp") as folder:
        async with stage() as engine, anyio.create_task_group() as group:
            bus = Bus(log_id=engine.store.log_id, head=engine.store.head, pages=engine.store)
            engine.store.on_commit = bus.publish
            door = AgentDoor(f"{folder}/agent.sock")
            more = {} if limits is None else {"limits": limits}
            server = AgentServer(
                door, engine.dispatcher, bus, now_ms=lambda: NOW_MS, version="0.1.0", boot="b_1", **more
            )
            await group.start(server.serve)
            sid = await engine.new("waits", run=waits, goal=goal)
            await engine.send(sid)
            await gate.reached.wait()
            yield Here(engine, door, server, sid, gate)
            gate.open()
            await engine.until(lambda: not engine.router.running())
            group.cancel_scope.cancel()


def cmd(body: dict[str, Any]) -> dict[str, Any]:
    return {"t": "cmd", "id": "1", "c": body}


async def greeted(wire: Wire, token: str) -> dict[str, Any]:
    return await wire.hello(auth=token)


# -- what it opens -----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", AGENT_VERBS)
async def test_each_verb_reaches_the_running_turn_of_its_own_session(verb: str):
    async with here() as at, dialled(at.door.path) as wire:
        welcome = await greeted(wire, at.token)
        assert welcome["auth"] == {"principal": f"agent:{at.sid}", "scopes": ["agent"]}
        answer = await wire.ask("1", {"t": "agent.ask", "name": verb, "args": ARGUMENTS[verb]})
        assert answer["r"]["ok"] is True, answer
        events = await at.engine.events(at.sid)
        kinds = {"request_idle": "gate.changed", "update_goal": "goal.changed", "wake_me": "wake.set"}
        last = next(e for e in reversed(events) if e.kind == kinds.get(verb, "agent.reported"))
        assert last.principal == f"agent:{at.sid}"


async def test_bad_arguments_change_nothing_and_say_what_was_expected():
    async with here() as at, dialled(at.door.path) as wire:
        await greeted(wire, at.token)
        before = await at.kinds()
        answer = await wire.ask(
            "1",
            {"t": "agent.ask", "name": "request_idle", "args": {"max_idle_duration_secs": 1, "reason": ""}},
        )
        assert (answer["r"]["ok"], "60 to 86400" in answer["r"]["text"]) == (False, True)
        answer = await wire.ask("2", {"t": "agent.ask", "name": "become_root", "args": {}})
        assert answer["code"] == "invalid"
        assert await at.kinds() == before


async def test_outside_of_a_turn_the_agent_is_told_so():
    async with here() as at, dialled(at.door.path) as wire:
        await greeted(wire, at.token)
        await at.engine.call(COMMAND_TYPES["suspend"](sid=at.sid, mode="interrupt"))
        await at.engine.until(lambda: not at.engine.router.running())
        before = await at.kinds()
        answer = await wire.ask(
            "1", {"t": "agent.ask", "name": "update_goal", "args": {"status": "complete"}}
        )
        assert (answer["t"], answer["r"]["ok"]) == ("ok", False)
        assert "No turn of this session runs now" in answer["r"]["text"]
        assert await at.kinds() == before


async def test_a_token_speaks_for_one_session_only():
    async with here() as at, dialled(at.door.path) as wire:
        other = await at.engine.new("plain")
        await greeted(wire, at.door.tokens.issue(other))
        answer = await wire.ask(
            "1", {"t": "agent.ask", "name": "update_goal", "args": {"status": "complete"}}
        )
        assert answer["r"]["ok"] is False
        assert "goal.changed" not in (await at.kinds())[(await at.kinds()).index("turn.started") :]


# -- what it does not open -----------------------------------------------------------------------


async def test_no_other_command_is_open_to_a_sessions_token():
    tried = 0
    async with here() as at, dialled(at.door.path) as wire:
        await greeted(wire, at.token)
        before = await at.engine.events()
        for kind, cls in COMMAND_TYPES.items():
            if kind == "agent.ask":
                continue
            for body in examples(cls):
                answer = await wire.ask(f"c{tried}", {**body, **({"sid": at.sid} if "sid" in body else {})})
                # some examples do not pass the strict decoder; what does is forbidden
                assert answer["code"] in {"forbidden", "invalid"}, (kind, answer)
                tried += answer["code"] == "forbidden"
        await wire.send({"t": "sub", "id": "s"})
        assert (await wire.until("err"))["code"] == "forbidden"
        after = await at.engine.events()
        assert {e.kind for e in after[len(before) :]} == {"command.denied"}
        assert len(after) - len(before) == 10  # of many attempts
    assert tried >= len(COMMAND_TYPES) - 1


async def test_without_a_good_token_nothing_is_taken():
    async with here() as at:
        good = at.token
        other_boot = AgentTokens().issue(at.sid)
        for bad in (
            None, "", "lpa_", good[:-1], good + "x", good[:-1] + ("A" if good[-1] != "A" else "B"),
            other_boot, good.replace(at.sid, "ses_x"), "lpd_abc_" + "x" * 43, "lpa_\u2028" + "x" * 60,
        ):  # fmt: skip
            async with dialled(at.door.path) as wire:
                hello = {"t": "hello", "v": [1, 1], **({} if bad is None else {"auth": bad})}
                await wire.send(hello, cmd({"t": "agent.ask", "name": "report_phase", "args": {"name": "x"}}))
                frames = await wire.rest()
                assert frames[0]["t"] == "err", frames
                assert frames[0]["code"] in {"unauthenticated", "invalid"}
                assert frames[-1]["t"] == "bye"
        assert "agent.reported" not in await at.kinds()


async def test_the_socket_belongs_to_the_daemons_user_alone():
    async with here() as at:
        assert stat.S_IMODE(os.stat(at.door.path).st_mode) == 0o600


async def test_an_operator_of_the_control_socket_speaks_for_no_session():
    async with here() as at:
        with pytest.raises(Refused) as refused:
            await at.engine.call(AgentAsk(name="update_goal", args={"status": "complete"}))
        assert refused.value.code == "forbidden"


async def test_a_frame_over_the_doors_limit_ends_the_connection():
    async with here() as at, dialled(at.door.path) as wire:
        await greeted(wire, at.token)
        await wire.send(b'{"t":"cmd","id":"1","c":{"t":"agent.ask","pad":"' + b"x" * 70_000 + b'"}}\n')
        frames = await wire.rest()
        assert [frames[0]["code"], frames[-1]["t"]] == ["frame_too_large", "bye"]


# -- the tools as agents see them ------------------------------------------------------------------


def test_the_described_tools_are_those_that_exist_with_their_bounds():
    assert tuple(tool["name"] for tool in AGENT_TOOLS) == AGENT_VERBS == tuple(agent_tools._TOOLS)
    by_name = {tool["name"]: tool["schema"]["properties"] for tool in AGENT_TOOLS}
    idle = by_name["request_idle"]["max_idle_duration_secs"]
    assert (idle["minimum"], idle["maximum"]) == (IDLE_MIN_S, IDLE_MAX_S)
    assert by_name["wake_me"]["after_secs"]["maximum"] == agent_tools.WAKE_MAX_S
    for tool in AGENT_TOOLS:
        assert set(tool["schema"]["required"]) <= set(tool["schema"]["properties"])


class Mcp:
    """The real `loopd mcp` process, spoken to as an MCP client does."""

    def __init__(self, door: AgentDoor, sid: str) -> None:
        spec = door.server_for(sid)
        self.process = subprocess.Popen(
            [spec["command"], *spec["args"]],
            env={"PATH": os.defpath, **spec["env"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.ids = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    async def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with anyio.fail_after(15):
            line = await anyio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
        return dict(json.loads(line))

    async def ask(self, method: str, params: Any = None) -> dict[str, Any]:
        self.ids += 1
        message = {"jsonrpc": "2.0", "id": self.ids, "method": method}
        self.send(json.dumps(message if params is None else {**message, "params": params}).encode())
        answer = await self.read()
        assert answer["id"] == self.ids
        return answer

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        result = (await self.ask("tools/call", {"name": name, "arguments": arguments}))["result"]
        return not result["isError"], result["content"][0]["text"]

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


@asynccontextmanager
async def mcp(at: Here) -> AsyncIterator[Mcp]:
    server = Mcp(at.door, at.sid)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            assert server.close() == 0


@pytest.mark.process
async def test_the_mcp_server_offers_the_five_tools_and_carries_them_out():
    async with here() as at, mcp(at) as server:
        asked = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        hello = (await server.ask("initialize", asked))["result"]
        assert (hello["protocolVersion"], hello["serverInfo"]["name"]) == ("2025-06-18", "loopd")
        server.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        tools = (await server.ask("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == list(AGENT_VERBS)
        for verb in ("report_phase", "report_progress", "wake_me", "update_goal", "request_idle"):
            assert (await server.call(verb, ARGUMENTS[verb]))[0] is True
        kinds = await at.kinds()
        assert kinds.count("agent.reported") == 2
        assert {"wake.set", "goal.changed"} <= set(kinds)
        assert (await server.call("update_goal", {"status": "open the gate"}))[0] is False


@pytest.mark.process
async def test_the_mcp_server_answers_nonsense_with_errors_and_goes_on():
    async with here() as at, mcp(at) as server:
        for line, code in (
            (b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
            (b'{"jsonrpc":"2.0","id":"a","method":"resources/list"}', -32601),
            (b'{"jsonrpc":"2.0","id":"a","method":["x"]}', -32601),
            (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"suspend"}}', -32602),
            (b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":[1]}', -32602),
            (b"[" * 100_000, -32700),
        ):  # fmt: skip
            server.send(line)
            assert (await server.read())["error"]["code"] == code, line[:80]
        server.send(b'{"jsonrpc":"2.0","id":9,"result":{}}')  # an answer to nothing
        newest = (await server.ask("initialize", {"protocolVersion": "1999-01-01"}))["result"]
        assert newest["protocolVersion"] == VERSIONS[0]
        assert (await server.ask("ping"))["result"] == {}


@pytest.mark.process
async def test_the_mcp_server_tells_the_agent_when_the_daemon_is_away_and_finds_it_again():
    async with here() as at, mcp(at) as server:
        assert (await server.call("report_phase", {"name": "one"}))[0] is True
        for connection in list(at.server._connections):
            connection.bye("draining")
        ok, text = await server.call("report_phase", {"name": "two"})
        if not ok:  # it was told in the middle
            assert "did not take this" in text
            assert (await server.call("report_phase", {"name": "three"}))[0] is True


@pytest.mark.process
async def test_the_mcp_server_ends_when_its_parent_is_killed():
    async with here() as at:
        spec = at.door.server_for(at.sid)
        # The pipe stays open in the orphan itself, so only the look at its parent can end it.
        code = (
            "import os, subprocess\nread, write = os.pipe()\n"
            f"p = subprocess.Popen({[spec['command'], *spec['args']]!r}, stdin=read, stdout=subprocess.PIPE,"
            " stderr=subprocess.DEVNULL, pass_fds=[write])\n"
            'os.write(write, b\'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n\')\n'
            "p.stdout.readline()\nprint(p.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
        )
        with anyio.fail_after(20):
            done = await anyio.run_process(
                [sys.executable, "-c", code], env={"PATH": os.defpath, **spec["env"]}, check=False
            )
            assert await anyio.to_thread.run_sync(gone, int(done.stdout), 10.0)


@pytest.mark.process
def test_the_mcp_server_says_what_it_lacks():
    done = subprocess.run(
        [sys.executable, "-m", "loopd.cli.daemon", "mcp"],
        env={"PATH": os.defpath},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, b"LOOPD_AGENT_TOKEN" in done.stderr) == (2, True)


@pytest.mark.process
async def test_the_official_client_gets_along_with_the_mcp_server():
    mcp_sdk = pytest.importorskip("mcp", reason="the official MCP SDK is not installed")
    stdio_client = pytest.importorskip("mcp.client.stdio").stdio_client

    async with here() as at:
        spec = at.door.server_for(at.sid)
        parameters = mcp_sdk.StdioServerParameters(
            command=spec["command"], args=spec["args"], env=spec["env"]
        )
        with anyio.fail_after(30):
            async with (
                stdio_client(parameters) as (read, write),
                mcp_sdk.ClientSession(read, write) as session,
            ):
                await session.initialize()
                tools = await session.list_tools()
                assert [tool.name for tool in tools.tools] == list(AGENT_VERBS)
                result = await session.call_tool("report_progress", ARGUMENTS["report_progress"])
                assert getattr(result, "isError", getattr(result, "is_error", None)) is False
        assert "agent.reported" in await at.kinds()
