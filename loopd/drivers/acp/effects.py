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
            await self._host.intent(call.record(self._kind))
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
        """Record the end of tools of which none was told."""
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
        with scope:
            if allow and call is not None:
                allow = await self._permitted(call)
            option = option_for(asked.params.get("options"), allow=allow)
            chosen = {"outcome": {"outcome": "selected", "optionId": option}}
            connection.answer(asked.id, CANCELLED if option is None else chosen)
        if scope.cancelled_caught:
            connection.answer(asked.id, CANCELLED)
        self._asking.pop(asked.id, None)

    async def _permitted(self, call: Call) -> bool:
        try:
            if call.effect:
                return True
            if call.tool_class in PURE:
                await self._host.permit(call.record(self._kind))
            else:
                await self._host.intent(call.record(self._kind))
                call.effect = "intended"
        except Refused as refusal:
            call.denied = f"denied: {refusal.message}"
            return False
        return True

    def give_up(self) -> None:
        """Nobody waits for an answer any more."""
        for scope in list(self._asking.values()):
            scope.cancel()


def option_for(options: Any, *, allow: bool) -> str | None:
    """The id of the option that allows or rejects once; by kind, because ids and names mean nothing."""
    offered = [each for each in options if isinstance(each, dict)] if isinstance(options, list) else []
    for kind in ("allow_once", "allow_always") if allow else ("reject_once", "reject_always"):
        for each in offered:
            if each.get("kind") == kind and isinstance(each.get("optionId"), str):
                return str(each["optionId"])
    return None
