"""Hosted scripted agents under a real daemon: kinds in files, and what the agents left behind."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.harness import Daemon, House

KIND = """
name = "scripted"
command = {command}
error_prose = ["^Ran into this error:"]
{head}
[capabilities]
usage_scope = "turn"
cancel_reliable = {reliable}
{capabilities}
[patience]
start_s = {start_s}
silence_s = 3
grace_s = {grace_s}
idle_s = {idle_s}
"""
Json = dict[str, Any]
_numbers = itertools.count(1)


class Hosted:
    """A session on a scripted agent."""

    def __init__(self, daemon: Daemon, sid: str, state: Path) -> None:
        self.daemon = daemon
        self.sid = sid
        self.state = state

    def told(self, key: str = "") -> list[Json]:
        """Lines of the agent's own log that have a key."""
        path = self.state / "prompts.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if key in line or not key]

    def prompts(self) -> list[str]:
        """What it was prompted with."""
        return [line["prompt"] for line in self.told("prompt")]

    def processes(self) -> list[int]:
        """Pids of everything that carries the session's mark."""
        return marked(f"LOOPD_SESSION={self.sid}")


def kind_file(house: House, name: str, *words: str, **more: Any) -> tuple[Path, Path]:
    """A TOML file for a scripted agent, and its state folder."""
    state = house.folder / f"{name}-state"
    command = [sys.executable, "-m", "loopd.testing.acp_agent", "--state", str(state), *words]
    fields = {
        "start_s": 20,
        "reliable": "false",
        "head": "",
        "capabilities": "",
        "grace_s": 1,
        "idle_s": 600,
        **more,
    }
    if "PYTHONPATH" in os.environ:  # a run from another tree: its agents are of that tree too
        fields["head"] += f"\n[env]\nPYTHONPATH = {json.dumps(os.environ['PYTHONPATH'])}"
    path = house.folder / f"{name}.toml"
    path.write_text(KIND.format(command=json.dumps(command), **fields))
    return path, state


def hosted(
    house: House,
    daemon: Daemon,
    *quirks: str,
    name: str | None = None,
    turns: list[Any] | None = None,
    spec: Json | None = None,
    kind: Json | None = None,
    **fields: Any,
) -> Hosted:
    """Create a session on a scripted agent with quirks or a script."""
    name = name or f"hosted-{next(_numbers)}"
    words = [word for quirk in quirks for word in ("--quirk", quirk)]
    if turns is not None:
        script = house.folder / f"{name}.json"
        script.write_text(json.dumps(turns))
        words += ["--script", str(script)]
    path, state = kind_file(house, name, *words, **(kind or {}))
    driver = {"kind": "acp", "agent": str(path), **(spec or {})}
    sid = daemon.call("session.create", driver=driver, name=name, **fields)["sid"]
    return Hosted(daemon, str(sid), state)


def marked(*variables: str) -> list[int]:
    """Pids of processes whose environment has all of these variables (or a beginning that ends with `*`)."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            known = Path(f"/proc/{entry}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if all(any(_fits(each, wanted) for each in known) for wanted in variables):
            found.append(int(entry))
    return found


def _fits(variable: str, wanted: str) -> bool:
    return variable.startswith(wanted[:-1]) if wanted.endswith("*") else variable == wanted


def soon(test: Any, within_s: float = 20.0) -> Any:
    """Wait until something outside of the log is so; returns it."""
    deadline = time.monotonic() + within_s
    while not (result := test()):
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)
    return result
