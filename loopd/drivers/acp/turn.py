"""One turn on a hosted agent: prompts, what comes back as steps, and exactly one end.

A prompt of the protocol can hold many model calls. Each step is handed to the host as soon as its tools
have ended; what the host says then is carried out at once: a stop cancels the prompt, a note cancels it
and is prompted with its marker, so that it reaches the model in the middle of a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import anyio
import anyio.abc

from loopd.core.conversation import Directive, TurnEnd
from loopd.core.turn_fold import DEFIED
from loopd.drivers.acp import faults, prompts
from loopd.drivers.acp.agent import Agent
from loopd.drivers.acp.calls import Call
from loopd.drivers.acp.connection import AgentGone, Answered, Asked, Ended, Message, Update
from loopd.drivers.acp.effects import CANCELLED, Effects
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.acp.steps import PromptAgain, StepDraft, StepWriter, TurnOver, first_of, text_of
from loopd.drivers.acp.traffic import FAULT_PATIENCE_S, LOOK_S, Traffic
from loopd.drivers.acp.usage import UsageMeter, reports_in
from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.host import TurnHost
from loopd_protocol.errors import Refused
from loopd_protocol.events import Usage

SETTLE_S = 0.03
"""A step whose tools have ended waits so long for late fields before it is handed in."""
TOOL_SETTLE_S = 0.2
WITHHELD = "denied: no tools were allowed in this step"


class HostedTurn:
    """Takes one turn.

    Args:
        agent: gives the agent, opened if it has to be; `retire` ends its process at once.
        host, kind, sensor: the turn's host, what is known of the agent, what looks at the workspace.
        meter: counts tokens over the whole session.
        silence_s: longest silence of the model.
        preface: what has to be said before the next prompt; `agent` fills it.

    Attributes:
        reached: the agent has reacted to a prompt of this turn.
    """

    def __init__(
        self,
        *,
        agent: Callable[[], Awaitable[Agent]],
        retire: Callable[[], Awaitable[None]],
        host: TurnHost,
        kind: AgentKind,
        sensor: WorkspaceSensor | None,
        meter: UsageMeter,
        silence_s: float,
        preface: list[str],
    ) -> None:
        self._open = agent
        self._retire = retire
        self._host = host
        self._kind = kind
        self._writer = StepWriter(host, kind, sensor)
        self._meter = meter
        self._silence_s = silence_s
        self._preface = preface
        self._effects = Effects(host, kind)
        self._traffic = Traffic()
        self._agent: Agent | None = None
        self._prompt: int | None = None
        self._draft = StepDraft()
        self.reached = False
        self._withheld = False
        self._chanted = False
        self._strayed = False
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self, text: str, *, withheld: bool) -> TurnEnd:
        """Prompt, and go on until the turn has its end.

        When it is cancelled the prompt is cancelled, and the agent is ended with all its tools.
        """
        end: TurnEnd | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                end = await self._prompts(text, withheld=withheld)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        assert end is not None
        return end

    async def _prompts(self, text: str, *, withheld: bool) -> TurnEnd:
        try:
            while True:
                try:
                    return await self._one(text, withheld=withheld)
                except PromptAgain as again:
                    text, withheld = again.text, again.withheld
        except TurnOver as over:
            return over.end
        except AgentGone as error:
            await self._settle("uncertain")
            await self._retire()
            return self._traffic.ended() or faults.gone(error)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._abandon()
            raise

    # -- one prompt -------------------------------------------------------------------------------

    async def _one(self, text: str, *, withheld: bool) -> TurnEnd:
        self._withheld = withheld
        if withheld:
            text = f"{text}\n\n{prompts.TEXT_ONLY}" if text else prompts.TEXT_ONLY
        await self._host.afford()
        agent = self._agent = await self._open()
        text = "\n\n".join(part for part in (*self._preface, text) if part)
        self._meter.begin()
        self._traffic.begin(agent.passage)
        self._draft = StepDraft()
        self._writer.told_chars += len(text)
        connection = agent.connection
        connection.clear()
        connection.listening = True
        content = [{"type": "text", "text": text}]
        self._prompt = connection.begin("session/prompt", {"sessionId": agent.session, "prompt": content})
        while True:
            message = await self._next()
            if (runaway := self._traffic.runaway()) is not None:
                await self._over(runaway)
            self.reached = True
            match message:
                case None:
                    await self._hand_in()
                case Update():
                    await self._updated(message.body)
                case Asked():
                    await self._asked(message)
                case Answered() if message.id == self._prompt:
                    self._prompt = None
                    return await self._answered(message)
                case Answered():
                    pass  # of a prompt that was cut
                case Ended():
                    raise message.error

    async def _next(self) -> Message | None:
        """The next message; None when the step has settled and nothing more came of it.

        Raises:
            TurnOver: the agent was silent for too long.
        """
        assert self._agent is not None
        connection = self._agent.connection
        if self._draft.settled:
            self._traffic.seal()
            with anyio.move_on_after(SETTLE_S):
                return await connection.take()
            return None
        waited = 0.0
        limit = self._kind.patience.tool_silence_s if self._draft.waits else self._silence_s
        while waited < limit:
            with anyio.move_on_after(min(LOOK_S, limit - waited)):
                return await connection.take()
            # While a person is asked, who may take hours, it is not the agent that is silent.
            waited = 0.0 if self._effects.asking else waited + LOOK_S
            self._traffic.look()
            if self._traffic.fault is not None and waited >= FAULT_PATIENCE_S and not self._draft.waits:
                break
        if not self._draft.begun and await self._traffic.answered_nothing():
            # Some agents ask again and again, without a word, when an answer is empty.
            await self._cut_prompt()
            raise TurnOver(await self._wordless(None, "cancelled"))
        what = "while a tool ran" if self._draft.waits else "while the model was to answer"
        silent = faults.model_error("silence", f"the agent said nothing for {waited:g} s {what}")
        return await self._over(self._traffic.ended() or silent)

    # -- updates ------------------------------------------------------------------------------------

    async def _updated(self, body: dict[str, Any]) -> None:
        kind = body.get("sessionUpdate")
        self._meter.take(reports_in(body))
        if kind in {"agent_message_chunk", "agent_thought_chunk"}:
            text = text_of(body)
            if not text:
                return
            await self._boundary()
            if kind == "agent_thought_chunk":
                self._draft.thought += len(text)
                return
            self._draft.say(text)
            if not self._host.delta(text):
                await self._chant()
        elif kind in {"tool_call", "tool_call_update"}:
            await self._tool(body)

    async def _tool(self, body: dict[str, Any], *, asks: bool = False) -> Call | None:
        call_id = body.get("toolCallId")
        if not isinstance(call_id, str) or not call_id or call_id in self._writer.past:
            return None  # of a step that was handed in: it cannot be changed any more
        call = self._draft.calls.get(call_id)
        if call is None:
            await self._boundary()
            call = self._draft.calls[call_id] = Call(call_id)
        call.take(body, gaps_only=asks)
        if self._withheld:
            await self._defied()
        if not asks:
            await self._begin(call)
            if call.ended:
                await self._effects.end(call)
        return call

    async def _boundary(self) -> None:
        """Something new begins: if all tools have ended, the step before it is over."""
        if self._draft.settled:
            await self._hand_in()

    async def _begin(self, call: Call) -> None:
        try:
            await self._effects.begin(call)
        except Refused as refusal:
            if refusal.code == "gate_closed":
                raise
            await self._cut_prompt()
            await self._settle("cancelled")
            note = f"[loopd: feedback]\n{call.name} was refused: {refusal.message}. Do without it."
            await self._carry_out(await self._step(None), feedback=note)

    async def _asked(self, asked: Asked) -> None:
        body = asked.params.get("toolCall")
        call = await self._tool(body, asks=True) if isinstance(body, dict) else None
        assert self._tasks is not None and self._agent is not None  # noqa: PT018
        self._effects.answer(self._tasks, self._agent.connection, asked, call, allow=not self._withheld)

    async def _settle(self, outcome: str) -> None:
        """Say of the tools of which no end is known how they ended."""
        with contextlib.suppress(Refused):
            await self._effects.end_all(self._draft.calls.values(), outcome)

    # -- steps ----------------------------------------------------------------------------------------

    async def _hand_in(self) -> None:
        """A step inside of the prompt is over: hand it to the host and carry out what it says."""
        await self._carry_out(await self._step(None))

    async def _step(self, reported: Usage | None, *, finish: str = "stop") -> Directive:
        draft, self._draft = self._draft, StepDraft()
        usage = self._traffic.usage() or reported
        return await self._writer.write(draft, usage, finish=finish, withheld=self._withheld)

    async def _carry_out(self, directive: Directive, *, feedback: str = "") -> None:
        """Stop, idle, or say in between what is to be said; returns when the agent may go on."""
        if directive.stop or directive.idle:
            await self._over(TurnEnd(outcome="stopped_by_rule" if directive.stop else "idle"))
        notes = [message for message in directive.messages if message.role == "user"]
        told = "\n\n".join(part for part in (prompts.said(notes), feedback) if part)
        if told or directive.tools_withheld:
            await self._cut_prompt()
            raise PromptAgain(told, withheld=directive.tools_withheld)
        if self._prompt is not None:
            await self._host.afford()  # the agent calls its model again by itself; refused, the turn is cut

    async def _defied(self) -> None:
        """It called a tool although it was told not to: that ends the turn."""
        await self._cut_prompt()
        for call in self._draft.calls.values():
            call.denied = WITHHELD
        await self._settle("cancelled")
        await self._step(self._meter.settle(), finish=DEFIED)
        raise TurnOver(TurnEnd(outcome="stopped_by_rule"))

    async def _chant(self) -> None:
        """The stream goes in circles: cut it and ask once more; a second time the turn is given up."""
        if self._chanted:
            await self._over(faults.model_error("chanting", "the answer says the same over and over"))
        await self._cut_prompt()
        await self._settle("cancelled")
        self._chanted = True
        await self._host.retrying(attempt=1, cause="chanting", delay_ms=0)
        raise PromptAgain(prompts.CHANTED, withheld=self._withheld)

    # -- the end ------------------------------------------------------------------------------------

    async def _answered(self, answer: Answered) -> TurnEnd:
        if answer.error is None:
            self._meter.take(reports_in(answer.result))
            await self._late()
        await self._traffic.settled()
        await self._settle("uncertain")
        draft, usage = self._draft, self._meter.settle()
        if answer.error is not None:
            if draft.calls:
                await self._step(usage, finish="error")
            return self._traffic.ended() or faults.refused(answer.error)
        result = answer.result if isinstance(answer.result, dict) else {}
        reason = str(result.get("stopReason") or "")
        if not draft.calls and faults.is_empty_prose(draft.text, self._kind):
            self._draft = StepDraft()  # the agent's own words about an answer that had none
            return await self._wordless(usage, reason)
        if not draft.calls and faults.is_error_prose(draft.text, self._kind):
            return self._traffic.ended() or faults.prose(draft.text)
        if not draft.calls and not draft.text.strip():
            return await self._wordless(usage, reason)
        directive = await self._step(usage, finish=reason or "stop")
        if draft.calls or directive.stop or directive.idle:
            await self._carry_out(directive)
        if reason == "cancelled":
            return TurnEnd(outcome="failed", cause="cancelled", error="the agent cancelled its own turn")
        return TurnEnd(outcome="completed")

    async def _wordless(self, usage: Usage | None, reason: str) -> TurnEnd:
        """The end of a prompt whose last answer was nothing: what that means depends on what else is known."""
        failed, calls, steps = self._traffic.ended(), self._traffic.calls, self._writer.count
        billed = self._traffic.usage() or usage
        said = billed is not None and billed.output_tokens > 0 and (calls > 0 or not steps)
        if failed is None and self._traffic.paused is None and said:
            await self._step(billed, finish=reason or "stop")
            return TurnEnd(outcome="completed" if steps else "empty")
        return failed or faults.wordless(paused=self._traffic.paused is not None, steps=steps)

    async def _late(self) -> None:
        """Some agents report usage, or the end of a tool, a moment after their answer."""
        assert self._agent is not None
        wait_s = self._kind.capabilities.late_ms / 1_000
        with anyio.move_on_after(max(wait_s, TOOL_SETTLE_S) if self._draft.waits else wait_s):
            while not await self._trailing(await self._agent.connection.take()):
                pass

    async def _trailing(self, message: Message) -> bool:
        """Take a message behind the answer, or behind a cancellation; true when no more can come."""
        assert self._agent is not None
        if isinstance(message, Update):
            self._meter.take(reports_in(message.body))
            name = message.body.get("toolCallId")
            call = self._draft.calls.get(str(name))
            self._strayed = self._strayed or (
                name is not None and call is None and name not in self._writer.past
            )
            if call is not None:
                call.take(message.body)
                if call.ended:
                    await self._effects.end(call)
        elif isinstance(message, Asked):
            self._agent.connection.answer(message.id, CANCELLED)
        elif isinstance(message, Ended):
            self._agent.connection.clear()  # whoever asks next learns of it
            return True
        return False

    async def _over(self, end: TurnEnd) -> NoReturn:
        """Cut the prompt and end the turn like this."""
        await self._cut_prompt()
        await self._settle("cancelled")
        raise TurnOver(end)

    async def _cut_prompt(self) -> None:
        """Cancel the prompt that runs; an agent that does not listen, or whose tools may run on, is ended.

        Updates that still come fill in the step that runs, and nothing more.
        """
        agent, number = self._agent, self._prompt
        self._prompt = None
        await self._effects.give_up()
        if agent is None or number is None:
            return
        connection, self._strayed = agent.connection, False
        used = bool(self._draft.calls) and not self._kind.capabilities.cancel_reliable
        with anyio.CancelScope(shield=True):
            connection.notify("session/cancel", {"sessionId": agent.session})
            ended = False
            with anyio.move_on_after(self._kind.patience.grace_s):
                while not ended:
                    message = await connection.take()
                    if isinstance(message, Answered):
                        ended = message.id == number
                        self._meter.take(reports_in(message.result))
                    elif await self._trailing(message):
                        break
            if not ended:
                self._traffic.cut()
            if not ended or used or self._strayed or self._draft.waits:
                await self._retire()

    async def _abandon(self) -> None:
        """The turn is taken away: cancel what runs, then end the agent with everything that it started."""
        try:
            await self._cut_prompt()
        finally:
            await self._retire()
        await self._settle("cancelled")
