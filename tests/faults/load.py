"""Load for a daemon that is about to die: hands that command, and a model that asks for tools."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import anyio
import msgspec

from loopd.client_async import AsyncClient, Disconnected, connect
from loopd.testing.endpoint import Call, Recorded, Reply, ask, say
from loopd_protocol import commands as cm
from loopd_protocol.errors import Refused
from tests.faults.examination import Acknowledged, command_digest

RULES = ("repeated_text", "barren_streak", "tool_repetition", "progress_stall")
BUSY: dict[str, Any] = {
    "continuation.min_gap_ms": 0,
    "gate.inbox_cap": 10_000,
    **{f"rules.{rule}.enabled": False for rule in RULES},
}
UNDER_FAULT = frozenset(
    {
        "storage_full",
        "storage_readonly",
        "overloaded",
        "draining",
        "conflict",
        "corrupt",
        "gate_closed",
        "timeout",
    }
)
"""Codes with which a daemon in trouble may refuse; nothing of such a command may have happened."""


class Model:
    """Answers requests: a tool call with a token of its own, then a text, and so on.

    Attributes:
        commands: digest of each command that was asked for → its token.
    """

    def __init__(self, name: str, dice: random.Random) -> None:
        self._name = name
        self._dice = dice
        self._count = 0
        self.commands: dict[str, str] = {}

    def reply(self, recorded: Recorded) -> Reply:
        """The next answer."""
        messages = recorded.json["messages"]
        self._count += 1
        if messages[-1]["role"] == "tool" and self._dice.random() < 0.8:
            return say(f"Request {self._count}: that is done, next comes another part.")
        calls = []
        for place in range(self._dice.choice((1, 1, 2))):
            token = f"{self._name}.{self._count}.{place}"
            if self._dice.random() < 0.15:
                args: dict[str, Any] = {"path": f"{token}.md", "content": f"part {token}"}
                calls.append(Call("write_file", args))
                continue
            pause = self._dice.choice(("", "", "sleep 0.02; "))
            command = f"{pause}echo {token} >> effects.log"
            self.commands[command_digest(command)] = token
            calls.append(Call("shell", {"command": command}))
        return ask(*calls, text=f"Request {self._count}: I begin.")


class Hand:
    """One client that makes its session, then commands it until the connection is lost.

    The command whose answer was lost is asked again with its key, by the same hand, after the next start.
    """

    def __init__(
        self, number: int, dice: random.Random, driver: dict[str, Any], workspace: Path | None, **given: Any
    ) -> None:
        self.number = number
        self.dice = dice
        self.sid = ""
        self.count = 0
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[str] = []
        self.strange: list[str] = []
        self.fat = False
        self.pause_s = 0.0
        self.pending: tuple[str, cm.Command] | None = None
        self._create = cm.SessionCreate(
            driver=msgspec.convert(driver, cm.DriverSpec),
            workspace=None if workspace is None else str(workspace),
            preset="published",
            set=BUSY | given.pop("set", {}),
            **given,
        )

    def _next(self) -> cm.Command:
        self.count += 1
        if not self.sid:
            return self._create
        sid, dice = self.sid, self.dice.random()
        if dice < 0.50:
            more = " x" * 12_000 if self.fat else ""
            return cm.Send(sid=sid, text=f"note {self.number}.{self.count}{more}")
        if dice < 0.58:
            return cm.Suspend(sid=sid, quarantine=True, mode=self.dice.choice(("after_turn", "interrupt")))
        if dice < 0.70:
            return cm.Unsuspend(sid=sid)
        if dice < 0.74:
            return cm.GoalSet(sid=sid, text=f"goal {self.number}.{self.count}")
        if dice < 0.80:
            return cm.CronPut(
                sid=sid, job="job", expr=self.dice.choice(("0 0 1 1 *", "* * * * *")), text="look"
            )
        if dice < 0.86:
            return cm.CronRun(sid=sid, job="job")
        if dice < 0.88:
            return cm.CronRemove(sid=sid, job="job")
        if dice < 0.92:
            return cm.Interrupt(sid=sid, for_ms=1_000)
        if dice < 0.97:
            return cm.GateOpen(sid=sid)
        return cm.Send(
            sid=sid, text=f"note {self.number}.{self.count}", dedupe=f"d{self.number}.{self.count}"
        )

    async def work(self, path: str, tick: anyio.abc.ObjectSendStream[int]) -> None:
        """Go on until the connection is lost; each acknowledgement is a tick."""
        try:
            async with connect(path, name=f"hand{self.number}") as client:
                while True:
                    await self._one(client)
                    await tick.send(1)
                    if self.pause_s:
                        await anyio.sleep(self.pause_s)
        except* (Disconnected, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass

    async def _one(self, client: AsyncClient) -> None:
        if self.pending is None:
            command = self._next()
            self.pending = (f"h{self.number}.{self.count}", command)
        key, command = self.pending
        try:
            answer = await client.call(command, key=key)
        except Refused as refused:
            self.pending = None
            self.refused.append(refused.code)
            if refused.code in UNDER_FAULT:
                await anyio.sleep(0.02)
            elif refused.code not in {"not_found", "precondition_failed"}:
                self.strange.append(f"{command.type}: {refused}")
            return
        self.pending = None
        result = dict(answer.r or {})
        if isinstance(command, cm.SessionCreate):
            self.sid = str(result["sid"])
        told = Acknowledged(seq=int(result.get("seq", answer.seq)), kind=command.type, sid=self.sid)
        if isinstance(command, cm.Send):
            told.envelope, told.text = str(result["id"]), command.text
        self.acknowledged.append(told)
