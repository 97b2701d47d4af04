"""A scripted agent that speaks the Agent Client Protocol, with all the bad habits of real ones.

    python -m loopd.testing.acp_agent --state DIR --script SCRIPT.json
    python -m loopd.testing.acp_agent --state DIR --quirk ignored_cancel

A script is a JSON list of turns, the last one repeating; a turn is a list of actions, each an object with
one key of `ACTIONS`. A quirk is a script that ships here, or a way to behave (`HABITS`). What it was
told is appended to `prompts.jsonl` in the state folder, so that a test can see it, and its sessions
are kept there too: it remembers them when it is started again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from loopd.testing.acp_mcp import Answer, use_server
from loopd.testing.acp_model import call_model
from loopd.testing.acp_quirks import HABITS, QUIRKS, STUBBORN, Json


class Agent:
    """The agent on its stdin and stdout.

    Args:
        state: folder for sessions and the log of prompts.
        turns: the script.
        habits: names of `HABITS` and quirks.
    """

    def __init__(self, state: Path, turns: list[list[Json]], habits: frozenset[str]) -> None:
        self.state = state
        self.turns = turns
        self.habits = habits
        self.next_id = 1
        self.calls = 0
        self.waiting: dict[int, asyncio.Future[Json]] = {}
        self.running: dict[str, asyncio.Task[Json]] = {}
        self.servers: list[Json] = []
        self.reads_on = asyncio.Event()
        self.reads_on.set()

    # -- lines ------------------------------------------------------------------------------------

    def put(self, message: Json) -> None:
        """Write one message."""
        self.raw(json.dumps({"jsonrpc": "2.0", **message}))

    def raw(self, line: str) -> None:
        """Write one line, whatever it is."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def update(self, session: str, body: Json) -> None:
        """Tell what happens."""
        self.put({"method": "session/update", "params": {"sessionId": session, "update": body}})

    async def ask(self, method: str, params: Json) -> Json:
        """Ask the client; its answer as it came."""
        number, self.next_id = self.next_id, self.next_id + 1
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.waiting[number] = future
        self.put({"id": number, "method": method, "params": params})
        return await future

    async def serve(self) -> None:
        """Answer until stdin ends."""
        if "exits_at_once" in self.habits:
            sys.stderr.write("fatal: no such model\n")
            raise SystemExit(7)
        if "endless_line_first" in self.habits:
            sys.stdout.write("x" * 10_000_000)
            sys.stdout.flush()
        if "garbage_only" in self.habits:
            for _ in range(50):
                self.raw("Hello! I am an agent, and I talk a lot.")
        if "closes_stdout" in self.habits:
            os.close(1)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            message = json.loads(line)
            if "method" not in message:
                future = self.waiting.pop(message.get("id"), None)
                if future is not None and not future.done():
                    future.set_result(message)
                continue
            task = loop.create_task(self.handle(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    # -- requests -----------------------------------------------------------------------------------

    async def handle(self, message: Json) -> None:
        """One request or notification of the client."""
        method, params, number = message["method"], message.get("params") or {}, message.get("id")
        if method == "session/cancel":
            self.cancel(params["sessionId"])
            return
        if method == "initialize" and self.habits & {
            "never_initializes",
            "garbage_only",
            "endless_line_first",
        }:
            return
        handlers: dict[str, Callable[[Json], Awaitable[Json]]] = {
            "initialize": self.initialize,
            "session/new": self.new,
            "session/load": self.load,
            "session/resume": self.resume,
            "session/set_mode": self.set_mode,
            "session/prompt": self.prompt,
        }
        handler = handlers.get(method)
        try:
            if handler is None:
                raise Answer({"code": -32601, "message": f"no method {method}"})
            answer: Json = {"result": await handler(params)}
        except Answer as error:
            answer = {"error": error.args[0]}
        if number is not None:
            self.put({"id": str(number) if "ids_as_text" in self.habits else number, **answer})
        after = answer.get("result", {}).pop("_after", None) if "result" in answer else None
        for action in after or ():
            await self.act(params["sessionId"], action, {})

    async def initialize(self, params: Json) -> Json:
        """`initialize`."""
        self.log({"initialize": params})
        back: Json = {"loadSession": "cannot_resume" not in self.habits}
        if not self.habits & {"cannot_resume", "loads_only"}:
            back["sessionCapabilities"] = {"resume": {}}
        return {"protocolVersion": 2 if "wrong_version" in self.habits else 1, "agentCapabilities": back}

    async def new(self, params: Json) -> Json:
        """`session/new`."""
        if "refuses_session" in self.habits:
            raise Answer({"code": -32603, "message": "cannot open a session"})
        if "auth_required" in self.habits:
            raise Answer({"code": -32000, "message": "Authentication required"})
        if "no_session_id" in self.habits:
            return {}
        self.servers = params.get("mcpServers", [])
        names = [path.stem for path in self.state.glob("s*.json")]
        session = f"s{len(names) + 1}"
        self.save(session, [])
        self.log({"new": params})
        return {"sessionId": session, **self.modes()}

    def modes(self) -> Json:
        """Its modes, if it has any."""
        if "wants_mode" not in self.habits:
            return {}
        modes = [{"id": "default", "name": "Default"}, {"id": "yolo", "name": "YOLO"}]
        return {"modes": {"currentModeId": "default", "availableModes": modes}}

    async def load(self, params: Json) -> Json:
        """`session/load`: tells everything again before it answers."""
        session = params["sessionId"]
        self.servers = params.get("mcpServers", [])
        for told in self.known(session):
            self.update(session, chunk("user_message_chunk", told))
            self.update(session, chunk("agent_message_chunk", "old answer"))
            self.update(session, {"sessionUpdate": "tool_call", "toolCallId": "old", "title": "shell",
                                  "status": "completed"})  # fmt: skip
        self.log({"load": session})
        return {**self.modes()}

    async def resume(self, params: Json) -> Json:
        """`session/resume`."""
        if "loads_only" in self.habits:
            raise Answer({"code": -32601, "message": "no method session/resume"})
        self.servers = params.get("mcpServers", [])
        self.known(params["sessionId"])
        self.log({"resume": params["sessionId"]})
        return {**self.modes()}

    async def set_mode(self, params: Json) -> Json:
        """`session/set_mode`."""
        self.log({"mode": params["modeId"]})
        return {}

    def known(self, session: str) -> list[str]:
        """Prompts of a session so far."""
        path = self.state / f"{session}.json"
        if "resume_fails" in self.habits or not path.exists():
            raise Answer({"code": -32002, "message": f"no session {session}"})
        told: list[str] = json.loads(path.read_text())
        return told

    def save(self, session: str, told: list[str]) -> None:
        """Keep a session."""
        path = self.state / f"{session}.json"
        fresh = path.with_suffix(".tmp")
        fresh.write_text(json.dumps(told))
        fresh.replace(path)

    def log(self, entry: Json) -> None:
        """Append to the log."""
        with open(self.state / "prompts.jsonl", "a") as file:
            file.write(json.dumps({"pid": os.getpid(), **entry}) + "\n")

    # -- turns ----------------------------------------------------------------------------------------

    def cancel(self, session: str) -> None:
        """`session/cancel`."""
        self.log({"cancel": session})
        task = self.running.get(session)
        if task is not None and not self.habits & STUBBORN:
            task.cancel()

    async def prompt(self, params: Json) -> Json:
        """`session/prompt`: play the next turn."""
        session = params["sessionId"]
        text = "".join(part.get("text", "") for part in params["prompt"])
        told = json.loads((self.state / f"{session}.json").read_text())
        self.save(session, [*told, text])
        self.log({"prompt": text, "n": len(told)})
        turn = self.turns[min(len(told), len(self.turns) - 1)]
        task = asyncio.get_running_loop().create_task(self.play(session, turn, told))
        self.running[session] = task
        try:
            return await task
        except asyncio.CancelledError:
            return {"stopReason": "cancelled"}
        finally:
            self.running.pop(session, None)

    async def play(self, session: str, turn: list[Json], told: list[str]) -> Json:
        """Carry out the actions of a turn."""
        result: Json = {"stopReason": "end_turn"}
        for action in turn:
            if "recall" in action:
                self.update(session, chunk("agent_message_chunk", f"before: {' | '.join(told)}"))
            else:
                await self.act(session, action, result)
        return result

    async def act(self, session: str, action: Json, result: Json) -> None:
        """Carry out one action."""
        match action:
            case {"say": text}:
                size = max(1, -(-len(text) // action.get("pieces", 2)))
                for start in range(0, len(text), size):
                    self.update(session, chunk("agent_message_chunk", text[start : start + size]))
                    await asyncio.sleep(0)
            case {"think": text}:
                self.update(session, chunk("agent_thought_chunk", text))
            case {"tool": spec}:
                await self._tool(session, spec)
            case {"own": spec}:
                await self._own(session, spec)
            case {"call": spec}:
                self.log({"called": await asyncio.to_thread(call_model, spec)})
            case {"update": body}:
                self.update(session, body)
            case {"usage": usage}:
                result["usage"] = usage
            case {"usage_update": usage}:
                self.update(
                    session,
                    {"sessionUpdate": "usage_update", "used": 1, "size": 9, "_meta": {"usage": usage}},
                )
            case {"sleep": seconds}:
                await asyncio.sleep(seconds)
            case {"hang": _}:
                await asyncio.Event().wait()
            case {"stderr": count}:
                sys.stderr.write(("e" * 99 + "\n") * (count // 100))
                sys.stderr.flush()
            case {"long": count}:
                self.update(session, {"sessionUpdate": "plan", "entries": [], "_meta": {"x": "y" * count}})
            case {"raw": line}:
                self.raw(line)
            case {"raw_bytes": count}:
                sys.stdout.write("z" * count)
                sys.stdout.flush()
            case {"notify": message}:
                self.put(message)
            case {"request": message}:
                self.log({"answered": await self.ask(message["method"], message["params"])})
            case {"permission": call}:
                options = [{"optionId": "y", "name": "Yes", "kind": "allow_once"}]
                asked = {"sessionId": session, "toolCall": call, "options": options}
                self.log({"permission": (await self.ask("session/request_permission", asked)).get("result")})
            case {"die": code}:
                os.write(2, b"panic: out of cheese\n")
                os._exit(code)
            case {"kill": _}:
                os.kill(os.getpid(), signal.SIGKILL)
            case {"stop": reason}:
                result["stopReason"] = reason
            case {"error": error}:
                raise Answer(error)
            case {"after": actions}:
                result["_after"] = actions
            case _:
                raise ValueError(f"action {action!r}; expected one that is known")

    async def _tool(self, session: str, spec: Json) -> None:
        """A tool call: announced, asked for, run and ended.

        Keys: `name`, `id`, `kind`, `input`, `output`, `exit`, `status` (stays there, with no end unless
        it is a terminal one), `ask` (permission first), `run` (a real command line), `setsid` (the command
        leaves the process group), `sleep`.
        """
        self.calls += 1
        call = spec.get("id") or f"call_{self.calls}"
        body: Json = {"toolCallId": call, "title": spec["name"], "kind": spec.get("kind", "execute")}
        body |= {"status": "pending", "rawInput": spec.get("input", {})}
        self.update(session, {"sessionUpdate": "tool_call", **body})
        if spec.get("ask"):
            options = [
                {"optionId": "x1", "name": "Yes", "kind": "allow_always"},
                {"optionId": "x2", "name": "No", "kind": "reject_once"},
                {"optionId": "x3", "name": "Once", "kind": "allow_once"},
            ]
            answer = await self.ask(
                "session/request_permission",
                {
                    "sessionId": session,
                    "toolCall": {"toolCallId": call, "title": "May I?"},
                    "options": options,
                },
            )
            self.log({"permission": answer.get("result")})
            chosen = answer.get("result", {}).get("outcome", {}).get("optionId")
            if chosen not in {"x1", "x3"}:
                self._tell(session, call, status="failed", rawOutput={"error": "the user said no"})
                return
        self._tell(session, call, status="in_progress")
        if spec.get("status") == "in_progress":
            return
        if "sleep" in spec:
            await asyncio.sleep(spec["sleep"])
        if "run" in spec:
            process = await asyncio.create_subprocess_shell(
                spec["run"], stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                start_new_session=bool(spec.get("setsid")),
            )  # fmt: skip
            self.log({"tool_pid": process.pid})
            await process.wait()  # cancelled, it leaves the process alone, like goose does
        status = spec.get("status") or ("failed" if spec.get("exit") else "completed")
        output = {"output": spec.get("output", ""), "exit_code": spec.get("exit", 0)}
        self._tell(session, call, status=status, rawOutput=output)
        await asyncio.sleep(0)

    async def _own(self, session: str, spec: Json) -> None:
        """Use a tool of the `loopd` MCP server that the client named."""
        self.calls += 1
        call, name = f"call_{self.calls}", spec["name"]
        body: Json = {"toolCallId": call, "title": f"mcp__loopd__{name}", "name": f"mcp__loopd__{name}"}
        self.update(session, {"sessionUpdate": "tool_call", **body, "status": "in_progress",
                              "rawInput": spec.get("args", {})})  # fmt: skip
        server = next(each for each in self.servers if each["name"] == "loopd")
        result = await use_server(server, name, spec.get("args", {}))
        self.log({"own": result})
        self._tell(session, call, status="failed" if result.get("isError") else "completed",
                   content=[{"type": "content", "content": part} for part in result["content"]])  # fmt: skip

    def _tell(self, session: str, call: str, **fields: Any) -> None:
        self.update(session, {"sessionUpdate": "tool_call_update", "toolCallId": call, **fields})


def chunk(kind: str, text: str) -> Json:
    """A piece of text."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description="A scripted ACP agent.")
    parser.add_argument(
        "--state", required=True, type=Path, help="folder for sessions and the log of prompts"
    )
    parser.add_argument("--script", type=Path, help="JSON file with the turns")
    parser.add_argument("--quirk", action="append", default=[], choices=(*QUIRKS, *HABITS), help="repeatable")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    turns = QUIRKS["plain"]
    for name in args.quirk:
        turns = QUIRKS.get(name, turns)
    if args.script is not None:
        turns = json.loads(args.script.read_text())
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(Agent(args.state, turns, frozenset(args.quirk)).serve())


if __name__ == "__main__":
    main()
