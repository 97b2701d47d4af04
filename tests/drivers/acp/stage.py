"""Scripted agents on the stage: real processes with the quirks of real agents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.drivers.acp.driver import AcpDriver
from loopd.drivers.acp.launch import Premises
from loopd.drivers.marks import environments
from loopd.drivers.shell import BOOT
from loopd.testing.driver_suite import RecordingHost, turn
from loopd_protocol.commands import AcpSpec

KIND = """
name = "scripted"
command = [{command}]
error_prose = ["^Ran into this error:"]
[capabilities]
usage_scope = "{scope}"
late_ms = 60
cancel_reliable = {reliable}
[patience]
start_s = {start_s}
silence_s = 1
grace_s = 1
{more}
"""


class AcpStage:
    """Makes drivers of scripted agents, each with a state folder of its own; see `Stage`."""

    sends, asks = False, False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.premises = Premises(data=folder / "data", boot="test")
        self.drivers: list[AcpDriver] = []
        self.count = 0

    def kind(self, state: Path, *words: str, scope: str = "turn", reliable: bool = True, **more: Any) -> Path:
        """The TOML file of a scripted agent."""
        command = [sys.executable, "-m", "loopd.testing.acp_agent", "--state", str(state), *words]
        path = state.with_suffix(".toml")
        text = KIND.format(
            command=", ".join(json.dumps(word) for word in command),
            scope=scope,
            reliable=str(reliable).lower(),
            start_s=more.pop("start_s", 20),
            more="",
        )
        if mode := more.pop("mode", None):
            text = text.replace('name = "scripted"', f'name = "scripted"\nmode = "{mode}"')
        path.write_text(text)
        return path

    def driver(
        self, *quirks: str, script: list[Any] | None = None, state: Path | None = None, **more: Any
    ) -> AcpDriver:
        """A driver of an agent with these quirks, or with a script."""
        self.count += 1
        state = state or self.folder / f"agent{self.count}"
        words = [word for quirk in quirks for word in ("--quirk", quirk)]
        if script is not None:
            path = self.folder / f"script{self.count}.json"
            path.write_text(json.dumps(script))
            words += ["--script", str(path)]
        fields = more.pop("spec", {})
        path = self.kind(state, *words, **more)
        driver = AcpDriver("ses_stage", AcpSpec(agent=str(path), **fields), None, self.premises)
        driver.state = state  # type: ignore[attr-defined]
        self.drivers.append(driver)
        return driver

    async def aclose(self) -> None:
        """Close all drivers."""
        for driver in self.drivers:
            await driver.aclose()

    # -- the stage of the conformance suite -------------------------------------------------------

    async def speaking(self, text: str) -> AcpDriver:
        return self.driver(script=[[{"say": text}]])

    async def calling(self, name: str, args: dict[str, Any]) -> AcpDriver:
        return self.driver(
            script=[[{"tool": {"name": name, "input": args, "output": "ok"}}, {"say": "done"}]]
        )

    async def hanging(self, text: str) -> AcpDriver:
        return self.driver(script=[[{"say": text[:9]}, {"hang": True}]])

    async def failing(self) -> list[AcpDriver]:
        quirks = [
            "exits_at_once", "never_initializes", "garbage_only", "endless_line_first", "refuses_session",
            "auth_required", "wrong_version", "no_session_id", "closes_stdout", "rpc_error", "silence",
            "endless_line", "death_in_turn", "killed_in_turn", "error_prose", "empty",
        ]  # fmt: skip
        mute = {"never_initializes", "garbage_only", "closes_stdout"}  # these take all of their time
        return [self.driver(quirk, start_s=1 if quirk in mute else 20) for quirk in quirks]

    def received(self) -> list[bytes]:
        return []

    def left_over(self) -> list[str]:
        return [f"process {pid}" for pid in living(self.premises)] if not self._open() else []

    def _open(self) -> bool:
        # An open agent is meant to stay until its driver is closed.
        return any(driver._agent is not None for driver in self.drivers)


def living(premises: Premises) -> list[int]:
    """Pids of everything that agents of these premises started and that lives."""
    wanted = f"{BOOT}={premises.house}.".encode()
    return [pid for pid, variables in environments() if any(each.startswith(wanted) for each in variables)]


def told(driver: AcpDriver) -> list[dict[str, Any]]:
    """The agent's own log: prompts, cancels, answers to permissions."""
    path = driver.state / "prompts.jsonl"  # type: ignore[attr-defined]
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def take(
    driver: AcpDriver, host: RecordingHost | None = None, request: TurnRequest | None = None, **more: Any
) -> tuple[TurnEnd, RecordingHost]:
    """Take a turn, bounded."""
    host = host or RecordingHost()
    with anyio.fail_after(30):
        end = await driver.take_turn(request or turn(**more), host)
    return end, host


__all__ = ["AcpStage", "living", "take", "told"]
