"""A real agent under a real daemon, on a model endpoint that says what the test tells it to.

The endpoint counts every request that arrives, side calls of the agent (titles, summaries) included, so
that "no further request" is not loopd's word about itself.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from loopd.testing.endpoint import Call, Endpoint, Recorded, Reply, ask, say
from loopd.testing.realagents import bin_folder
from tests.e2e.harness import Daemon, Event, House, endpoint

MARK = "LOOPD_SESSION"
GRACE_S = 5.0
"""What loopd gives an agent to end its turn by itself."""
FIRST_TURN_S = 60.0
QUIET_S = 3.0
"""Fifteen continuation gaps, in which a request would have come."""
GAP_MS = 200


class Tools(msgspec.Struct, frozen=True):
    """How an agent's own tools are asked for by its model."""

    shell: Callable[[str], Call]
    write: Callable[[str, str], Call]
    read: Callable[[str], Call] | None = None


TOOLS: dict[str, Tools] = {
    "goose": Tools(
        lambda command: Call("shell", {"command": command}),
        lambda path, text: Call("write", {"path": path, "content": text}),
    ),
    "kimi-code": Tools(
        lambda command: Call("Bash", {"command": command, "description": "run it"}),
        lambda path, text: Call("Write", {"path": path, "content": text}),
        lambda path: Call("Read", {"path": path}),
    ),
    "opencode": Tools(
        lambda command: Call("bash", {"command": command, "description": "run it"}),
        lambda path, text: Call("write", {"filePath": path, "content": text}),
        lambda path: Call("read", {"filePath": path}),
    ),
    "pi": Tools(
        lambda command: Call("bash", {"command": command}),
        lambda path, text: Call("write", {"path": path, "content": text}),
        lambda path: Call("read", {"path": path}),
    ),
}


class Brain:
    """The model: answers what it was told to, in order, then `rest` for ever.

    Attributes:
        asked: requests that offered tools, i.e. steps of the agent's own loop.
        aside: side calls, which carry none; they always get the same harmless answer.
    """

    def __init__(self, rest: Reply | Callable[[int], Reply]) -> None:
        self.rest = rest
        self.queue: list[Reply] = []
        self.asked: list[Recorded] = []
        self.aside: list[Recorded] = []
        self.dead: Reply | None = None

    def __call__(self, request: Recorded) -> Reply:
        if self.dead is not None:
            return self.dead
        if not request.json.get("tools"):
            self.aside.append(request)
            return say("A title")
        self.asked.append(request)
        if self.queue:
            return self.queue.pop(0)
        return self.rest(len(self.asked)) if callable(self.rest) else self.rest


class Stage:
    """One agent kind, one daemon, one model.

    Attributes:
        workspace: folder that the agent works in.
    """

    def __init__(self, agent: str, house: House, brain: Brain, model: Endpoint) -> None:
        self.agent = agent
        self.tools = TOOLS[agent]
        self.brain = brain
        self.model = model
        self.workspace = house.folder / "work"
        self.workspace.mkdir()
        # A HOME of its own: what the agents of whoever runs the tests have saved is theirs.
        home = house.folder / "home"
        home.mkdir()
        self.daemon: Daemon = house.daemon(
            env={
                "HOME": str(home),
                "PATH": f"{bin_folder()}{os.pathsep}{os.environ['PATH']}",
                "TEST_KEY": "dummy",
                **{
                    f"XDG_{name}_HOME": str(home / name.lower())
                    for name in ("CONFIG", "DATA", "STATE", "CACHE")
                },
            }
        ).start()

    def session(self, *, driver: dict[str, Any] | None = None, **fields: Any) -> str:
        """Create a session of the agent; returns its sid."""
        spec = {
            "kind": "acp",
            "agent": self.agent,
            "base_url": self.model.base_url,
            "model": "test",
            "api_key_env": "TEST_KEY",
            "context_tokens": 131_072,
            **(driver or {}),
        }
        told = {"continuation.min_gap_ms": GAP_MS, **fields.pop("set", {})}
        created = self.daemon.call(
            "session.create", driver=spec, workspace=str(self.workspace), set=told, **fields
        )
        return str(created["sid"])

    def turn_of(self, sid: str, text: str, *, within_s: float = FIRST_TURN_S) -> Event:
        """Send a message and wait for the end of its turn."""
        after = self.daemon.head()
        self.daemon.call("send", sid, text=text)
        return self.daemon.until(sid, "turn.completed", after=after, within_s=within_s)

    def quiet(self, sid: str) -> int:
        """Requests that arrive once the session's turn has ended, while nothing should.

        An agent that is cut off between two steps of a turn may have sent its next request already.
        """
        wait_for(lambda: self.daemon.call("session.get", sid)["turn"] is None, 10, "the turn ends")
        before = len(self.model.requests)
        time.sleep(QUIET_S)
        return len(self.model.requests) - before


@contextmanager
def on_stage(agent: str, house: House, rest: Reply | Callable[[int], Reply] | None = None) -> Iterator[Stage]:
    """Serve the model and start the daemon; ends both."""
    brain = Brain(rest or say("Done with part {n}."))
    with endpoint(brain) as (model, _):
        stage = Stage(agent, house, brain, model)
        try:
            yield stage
        finally:
            stage.daemon.close()


def marked(sid: str) -> dict[int, str]:
    """Processes that carry the mark of a session in their environment: pid → command line."""
    found: dict[int, str] = {}
    wanted = re.compile(rb"(?:^|\0)" + f"{MARK}={sid}".encode() + rb"(?:\0|:|$)")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if not wanted.search((entry / "environ").read_bytes()):
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended while we looked
        if state != "Z":
            found[int(entry.name)] = words
    return found


def wait_for(what: Callable[[], Any], within_s: float, message: str) -> float:
    """Seconds until `what` is true.

    Raises:
        AssertionError: it was not, in time.
    """
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > within_s:
            raise AssertionError(f"{message}: not within {within_s:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


__all__ = ["GAP_MS", "GRACE_S", "TOOLS", "Brain", "Stage", "ask", "marked", "on_stage", "say", "wait_for"]
