"""The scripted driver: plays a trajectory file, one script turn for each turn of the session.

What the script's agent asks of loopd (`request_idle`, `update_goal`, …) is really asked, so a
scripted session exercises the real gate. Everything else is reported as the file has it; no tool runs.

A step played while tools are withheld reports its calls as denied (`ok` false, `error_class`
`denied`): a model that is offered no tools cannot use them, and a denied call is recorded like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from loopd.core.conversation import AgentRequest, StepDone, TurnEnd, TurnRequest
from loopd.drivers.host import OWN_TOOLS, TurnHost
from loopd.drivers.script import load
from loopd.trajectory import Step
from loopd_protocol.commands import ScriptedSpec
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

_PIECES = 10
"""A delayed step shows its text in this many pieces, so that an interrupt finds a partial text."""
_WITHHELD = "denied: no tools were offered in this step"


class ScriptedDriver:
    """Plays `spec.script`; the position follows from `TurnRequest.turns_seen`, so it survives restarts.

    At the end the last turn repeats. With `once` the last turn, and any turn after it, ends with
    `goal_complete`.

    Raises:
        Refused: `invalid` when the file is no trajectory, with file and line.
    """

    def __init__(self, spec: ScriptedSpec) -> None:
        self._spec = spec
        self._script = load(spec.script)

    @property
    def turns(self) -> int:
        """How many turns the script has."""
        return len(self._script.cuts)

    def render(self, request: TurnRequest) -> bytes | None:
        """None: a script sends no request."""
        del request
        return None

    async def aclose(self) -> None:
        """Nothing is held open between turns."""

    async def take_turn(self, request: TurnRequest, host: TurnHost) -> TurnEnd:
        """Play the next turn of the script; faults become `TurnEnd` with outcome `failed`."""
        index = min(request.turns_seen, self.turns - 1)
        done = self._spec.once and request.turns_seen >= self.turns - 1
        if self._spec.once and request.turns_seen >= self.turns:
            # Played to its end before; the goal stayed open, so say again that it is done.
            await anyio.lowlevel.checkpoint()
            return TurnEnd(outcome="completed", goal_complete=True)
        steps = self._script.turn(index)
        withheld = request.tools_withheld
        said = False
        try:
            while True:
                step = await self._next(steps)
                if step is None:
                    break
                await host.afford()
                await self._speak(step.text, host)
                calls, ends = await _answer(step, host, withheld=withheld)
                said = said or bool(step.text.strip() or calls)
                directive = await host.step(
                    StepDone(
                        text=step.text,
                        calls=calls,
                        usage=step.usage,
                        finish=step.finish,
                        tools_withheld=withheld,
                        state_fingerprint=step.state_fingerprint,
                    )
                )
                if directive.stop:
                    return TurnEnd(outcome="stopped_by_rule")
                if ends:
                    return TurnEnd(outcome="idle")
                withheld = directive.tools_withheld
        except Refused as error:
            return TurnEnd(outcome="failed", cause="script", error=error.message)
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
        return TurnEnd(outcome="completed" if said else "empty", goal_complete=done)

    async def _next(self, steps: Iterator[Step]) -> Step | None:
        if self._script.kept:
            return next(steps, None)
        # A packed file has to be unpacked up to the turn first: too long for the event loop.
        return await anyio.to_thread.run_sync(next, steps, None)

    async def _speak(self, text: str, host: TurnHost) -> None:
        delay_ms = self._spec.delay_ms
        if not delay_ms:
            if text:
                host.delta(text)
            await anyio.lowlevel.checkpoint()
            return
        size = max(1, -(-len(text) // _PIECES))
        pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
        for piece in pieces:
            if piece:
                host.delta(piece)
            await anyio.sleep(delay_ms / len(pieces) / 1_000)


async def _answer(step: Step, host: TurnHost, *, withheld: bool) -> tuple[tuple[ToolCall, ...], bool]:
    """The step's calls with their results, and whether one of them ends the turn."""
    calls: list[ToolCall] = []
    ends = False
    for call in step.calls:
        if withheld:
            calls.append(_resolved(call, ok=False, text=_WITHHELD, error_class="denied"))
        elif call.name in OWN_TOOLS:
            args = call.args if isinstance(call.args, dict) else {"_raw": call.args}
            try:
                reply = await host.ask(AgentRequest(name=call.name, args=args))
            except Refused as error:
                calls.append(_resolved(call, ok=False, text=error.message, error_class="denied"))
                continue
            calls.append(
                _resolved(call, ok=reply.ok, text=reply.text, error_class=None if reply.ok else "tool")
            )
            ends = ends or reply.ends_turn
        else:
            calls.append(call)
    return tuple(calls), ends


def _resolved(call: ToolCall, *, ok: bool, text: str, error_class: str | None) -> ToolCall:
    data = text.encode("utf-8", "surrogatepass")
    return msgspec.structs.replace(
        call,
        ok=ok,
        result=text,
        result_sha256=hashlib.sha256(data).hexdigest(),
        result_bytes=len(data),
        error_class=error_class,
        exit_code=None,
    )
