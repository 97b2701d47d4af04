"""Effects of a hosted agent's tools: permitted, intended and recorded, though the agent runs them itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anyio
import anyio.abc

from loopd.drivers.acp.calls import PURE, Call
from loopd.drivers.acp.connection import Asked, Connection
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.host import TurnHost
from loopd_protocol.errors import Refused

GIVE_UP_S = 10.0
CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}


class Effects:
    """The effects of one turn.

    Args:
        host: the turn's host.
        kind: what is known of the agent.
    """

    def __init__(self, host: TurnHost, kind: AgentKind) -> None:
        self._host = host
        self._kind = kind
        self._asking: dict[Any, anyio.CancelScope] = {}
        self._answered = anyio.Event()

    @property
    def asking(self) -> bool:
        """The agent waits for an answer."""
        return bool(self._asking)

    async def begin(self, call: Call) -> None:
        """Make the intention durable, for a tool that runs already unless it asked before.

        Raises:
            Refused: it should not run; the call says why.
        """
        if call.effect or call.denied or call.own or not call.runs or call.tool_class in PURE:
            return
        call.effect = "intended"
        try:
            await self._intend(call)
        except Refused as refusal:
            call.effect, call.denied = "refused", f"denied: {refusal.message}"
            raise

    async def end(self, call: Call, outcome: str = "") -> None:
        """Record how an intended tool ended; by its own status if `outcome` is empty."""
        if call.effect != "intended":
            return
        call.effect = "done"
        record = call.record(self._kind)
        with anyio.CancelScope(shield=True):  # it has ended, and that must be known
            await self._host.outcome(record, outcome or ("ok" if record.ok else "error"))

    async def end_all(self, calls: Iterable[Call], outcome: str) -> None:
        """Record the end of tools of which none was told; nobody is asked about any of them any more."""
        await self.give_up()
        for call in calls:
            await self.end(call, outcome)

    def answer(
        self,
        tasks: anyio.abc.TaskGroup,
        connection: Connection,
        asked: Asked,
        call: Call | None,
        *,
        allow: bool,
    ) -> None:
        """Answer a permission request, by policy and perhaps a person, while the turn goes on."""
        self._asking[asked.id] = scope = anyio.CancelScope()
        tasks.start_soon(self._decide, connection, asked, call, allow, scope)

    async def _decide(
        self,
        connection: Connection,
        asked: Asked,
        call: Call | None,
        allow: bool,  # noqa: FBT001
        scope: anyio.CancelScope,
    ) -> None:
        outcome = CANCELLED
        try:
            with scope:
                if allow and call is not None:
                    allow = await self._permitted(call)
                option = option_for(asked.params.get("options"), allow=allow)
                if option is not None:
                    outcome = {"outcome": {"outcome": "selected", "optionId": option}}
        finally:
            connection.answer(asked.id, outcome)
            self._asking.pop(asked.id, None)
            self._answered.set()

    async def _permitted(self, call: Call) -> bool:
        """Whether the tool may run; asked once, also when the agent asks twice at the same time."""
        if call.effect == "asking":
            await call.decided.wait()
        if call.effect or call.denied:
            return not call.denied
        call.effect, after = "asking", ""
        try:
            if call.tool_class in PURE:
                await self._host.permit(call.record(self._kind))
            else:
                await self._intend(call)
                after = "intended"
        except Refused as refusal:
            call.denied = f"denied: {refusal.message}"
        finally:
            call.effect = after
            call.decided.set()
        return not call.denied

    async def _intend(self, call: Call) -> None:
        """Ask, which may take hours and may be given up; then make the intent durable, which may not."""
        record = call.record(self._kind)
        await self._host.permit(record)
        with anyio.CancelScope(shield=True):
            await self._host.intent(record)

    async def give_up(self) -> None:
        """Nobody waits for an answer any more; returns when nothing of the questions is under way."""
        for scope in list(self._asking.values()):
            scope.cancel()
        with anyio.move_on_after(GIVE_UP_S, shield=True):  # a write to the journal may be under way
            while self._asking:
                self._answered = anyio.Event()
                await self._answered.wait()


def option_for(options: Any, *, allow: bool) -> str | None:
    """The id of the option that allows or rejects once; by kind, because ids and names mean nothing."""
    offered = [each for each in options if isinstance(each, dict)] if isinstance(options, list) else []
    for kind in ("allow_once", "allow_always") if allow else ("reject_once", "reject_always"):
        for each in offered:
            if each.get("kind") == kind and isinstance(each.get("optionId"), str):
                return str(each["optionId"])
    return None
