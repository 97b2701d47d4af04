"""One turn on a hosted agent: prompts, what comes back as steps, and exactly one end.

A prompt of the protocol can hold many model calls. Each step is handed to the host as soon as its tools
have ended; what the host says then is carried out at once: a stop cancels the prompt, a note cancels it
and is prompted with its marker, so that it reaches the model in the middle of a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from loopd.core.conversation import Directive, StepDone, TurnEnd
from loopd.drivers.acp import faults, prompts
from loopd.drivers.acp.agent import Agent
from loopd.drivers.acp.calls import PURE, Call
from loopd.drivers.acp.connection import AgentGone, Answered, Asked, Ended, Message, Update
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.acp.steps import StepDraft, text_of
from loopd.drivers.acp.usage import UsageMeter, estimated, reports_in
from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.host import TurnHost
from loopd_protocol.errors import Refused
from loopd_protocol.events import Usage

SETTLE_S = 0.03
"""A step whose tools have ended waits so long for late fields before it is handed in."""
WITHHELD = "denied: no tools were allowed in this step"
UNSTEPPED = frozenset({"usage_update", "plan", "available_commands_update", "current_mode_update",
                       "config_option_update", "session_info_update", "user_message_chunk"})  # fmt: skip


class _Over(Exception):
    """The turn has its end."""

    def __init__(self, end: TurnEnd) -> None:
        super().__init__(end.outcome)
        self.end = end


class _Again(Exception):
    """The prompt was cut; another one follows in the same turn."""

    def __init__(self, text: str, *, withheld: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.withheld = withheld


class HostedTurn:
    """Takes one turn.

    Args:
        agent: gives the agent, opened if it has to be, and says whether it is new to the conversation.
        retire: ends the agent's process at once.
        host: the turn's host.
        kind: what is known of the agent.
        sensor: looks at the workspace, or None.
        meter: counts tokens over the whole session.
        silence_s: longest silence of the model.
        preface: what has to be said before the next prompt; `agent` fills it.
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
        self._sensor = sensor
        self._meter = meter
        self._silence_s = silence_s
        self._preface = preface
        self._agent: Agent | None = None
        self._prompt: int | None = None
        self._draft = StepDraft()
        self._past: set[str] = set()
        self._asking: dict[Any, anyio.CancelScope] = {}
        self._withheld = False
        self._chanted = False
        self._steps = 0
        self._told_chars = 0
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self, text: str, *, withheld: bool) -> TurnEnd:
        """Prompt, and go on until the turn has its end.

        When it is cancelled the prompt is cancelled, and the agent is ended with all its tools.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                end = await self._prompts(text, withheld=withheld)
                tasks.cancel_scope.cancel()
            return end
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _prompts(self, text: str, *, withheld: bool) -> TurnEnd:
        try:
            while True:
                try:
                    return await self._one(text, withheld=withheld)
                except _Again as again:
                    text, withheld = again.text, again.withheld
        except _Over as over:
            return over.end
        except AgentGone as error:
            await self._settle_open("uncertain")
            await self._retire()
            return faults.gone(error)
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
        connection = agent.connection
        connection.clear()
        connection.listening = True
        self._meter.begin()
        self._draft = StepDraft()
        self._told_chars += len(text)
        self._prompt = connection.begin(
            "session/prompt",
            {"sessionId": agent.session, "prompt": [{"type": "text", "text": text}]},
        )
        while True:
            message = await self._next()
            if message is None:
                await self._hand_in(final=False)
                continue
            match message:
                case Update():
                    await self._updated(message.body)
                case Asked():
                    await self._asked(message)
                case Answered():
                    if message.id == self._prompt:
                        self._prompt = None
                        return await self._answered(message)
                case Ended():
                    raise message.error

    async def _next(self) -> Message | None:
        """The next message; None when the step has settled and nothing more came of it.

        Raises:
            _Over: the agent was silent for too long.
        """
        assert self._agent is not None
        connection = self._agent.connection
        if self._draft.settled:
            with anyio.move_on_after(SETTLE_S):
                return await connection.take()
            return None
        if self._asking:
            return await connection.take()
        limit = self._kind.patience.tool_silence_s if self._draft.waits else self._silence_s
        with anyio.move_on_after(limit):
            return await connection.take()
        what = "while a tool ran" if self._draft.waits else "while the model was to answer"
        await self._cut_prompt()
        await self._settle_open("cancelled")
        raise _Over(faults.model_error("silence", f"the agent said nothing for {limit:g} s {what}"))

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
        # whatever else there is stands in the record of frames

    async def _tool(self, body: dict[str, Any], *, gaps_only: bool = False) -> Call | None:
        call_id = body.get("toolCallId")
        if not isinstance(call_id, str) or not call_id or call_id in self._past:
            return None  # of a step that was handed in: it cannot be changed any more
        call = self._draft.calls.get(call_id)
        if call is None:
            await self._boundary()
            call = self._draft.calls[call_id] = Call(call_id)
        ended = call.ended
        call.take(body, gaps_only=gaps_only)
        if self._withheld:
            await self._defied()
        if not gaps_only:
            await self._intend(call)
        if call.ended and not ended:
            await self._outcome(call, "ok" if call.record(self._kind).ok else "error")
        return call

    async def _boundary(self) -> None:
        """Something new begins: if all tools have ended, the step before it is over."""
        if self._draft.settled:
            await self._hand_in(final=False)

    async def _intend(self, call: Call) -> None:
        """Make the intention durable, for a tool that runs already unless it asked before."""
        if call.effect or call.denied or call.own or call.status == "pending":
            return
        if call.tool_class in PURE:
            return
        call.effect = "intended"
        try:
            await self._host.intent(call.record(self._kind))
        except Refused as refusal:
            call.denied = f"denied: {refusal.message}"
            call.effect = "refused"
            if refusal.code == "gate_closed":
                raise
            note = f"{call.name} was refused: {refusal.message}. Do without it."
            await self._cut_prompt()
            directive = await self._step(Usage(measured=False))
            await self._carry_out(directive, feedback=f"[loopd: feedback]\n{note}")

    async def _outcome(self, call: Call, outcome: str) -> None:
        if call.effect == "intended":
            call.effect = "done"
            with anyio.CancelScope(shield=True):
                await self._host.outcome(call.record(self._kind), outcome)

    async def _settle_open(self, outcome: str) -> None:
        """Say of the tools of which no end is known how they ended."""
        for call in self._draft.calls.values():
            with contextlib.suppress(Refused):
                await self._outcome(call, outcome)

    # -- permissions ----------------------------------------------------------------------------

    async def _asked(self, asked: Asked) -> None:
        """Answer a permission request, by the kinds of its options, while the turn goes on."""
        body = asked.params.get("toolCall")
        call = await self._tool(body, gaps_only=True) if isinstance(body, dict) else None
        assert self._tasks is not None
        self._asking[asked.id] = scope = anyio.CancelScope()
        self._tasks.start_soon(self._decide, asked, call, scope)

    async def _decide(self, asked: Asked, call: Call | None, scope: anyio.CancelScope) -> None:
        assert self._agent is not None
        connection = self._agent.connection
        allowed = True
        with scope:
            if call is not None and not call.effect and not self._withheld:
                pure = call.tool_class in PURE
                try:
                    if pure:
                        await self._host.permit(call.record(self._kind))
                    else:
                        await self._host.intent(call.record(self._kind))
                        call.effect = "intended"
                except Refused as refusal:
                    call.denied = f"denied: {refusal.message}"
                    allowed = False
            allowed = allowed and not self._withheld
            option = option_for(asked.params.get("options"), allow=allowed)
            if option is None:
                connection.answer(asked.id, {"outcome": {"outcome": "cancelled"}})
            else:
                connection.answer(asked.id, {"outcome": {"outcome": "selected", "optionId": option}})
        if scope.cancelled_caught:
            connection.answer(asked.id, {"outcome": {"outcome": "cancelled"}})
        self._asking.pop(asked.id, None)

    # -- steps ----------------------------------------------------------------------------------------

    async def _hand_in(self, *, final: bool) -> None:
        """The step is over: hand it to the host and carry out what it says."""
        directive = await self._step(None if not final else self._meter.settle())
        if final:
            return
        await self._carry_out(directive)

    async def _step(self, usage: Usage | None, *, finish: str = "stop") -> Directive:
        draft, self._draft = self._draft, StepDraft()
        self._past.update(draft.calls)
        calls = tuple(call.record(self._kind) for call in draft.calls.values())
        self._look(draft)
        if usage is None:
            usage = estimated(self._told_chars, draft.size)
        self._told_chars += draft.size + sum(call.result_bytes or 0 for call in calls)
        self._steps += 1
        return await self._host.step(
            StepDone(
                text=draft.text,
                calls=calls,
                usage=usage,
                finish=finish,
                tools_withheld=self._withheld,
                state_fingerprint=await self._sensor.read() if self._sensor is not None else None,
            )
        )

    def _look(self, draft: StepDraft) -> None:
        if self._sensor is None:
            return
        for call in draft.calls.values():
            if call.tool_class in {"edit", "exec", "test", "other"}:
                self._sensor.ran_shell()
            if call.tool_class == "edit":
                for path in call.paths:
                    self._sensor.wrote(Path(path))

    async def _carry_out(self, directive: Directive, *, feedback: str = "") -> None:
        """Stop, idle, or say in between what is to be said; returns when nothing of that is due."""
        if directive.stop or directive.idle:
            await self._cut_prompt()
            raise _Over(TurnEnd(outcome="stopped_by_rule" if directive.stop else "idle"))
        notes = [message for message in directive.messages if message.role == "user"]
        told = "\n\n".join(part for part in (prompts.said(notes), feedback) if part)
        if told or directive.tools_withheld:
            await self._cut_prompt()
            raise _Again(told, withheld=directive.tools_withheld)
        await self._host.afford()  # the agent calls its model again by itself; refused, the turn is cut

    async def _defied(self) -> None:
        """It called a tool although it was told not to."""
        await self._cut_prompt()
        for call in self._draft.calls.values():
            call.denied = WITHHELD
            await self._outcome(call, "cancelled")
        await self._step(self._meter.settle())
        raise _Over(TurnEnd(outcome="stopped_by_rule"))

    async def _chant(self) -> None:
        """The stream goes in circles: cut it and ask once more; a second time the turn is given up."""
        await self._cut_prompt()
        if self._chanted:
            raise _Over(faults.model_error("chanting", "the answer says the same over and over"))
        self._chanted = True
        await self._settle_open("cancelled")
        await self._host.retrying(attempt=1, cause="chanting", delay_ms=0)
        raise _Again(prompts.CHANTED, withheld=self._withheld)

    # -- the end ------------------------------------------------------------------------------------

    async def _answered(self, answer: Answered) -> TurnEnd:
        if answer.error is not None:
            await self._settle_open("uncertain")
            if self._draft.calls:
                await self._step(self._meter.settle(), finish="error")
            return faults.refused(answer.error)
        result = answer.result if isinstance(answer.result, dict) else {}
        self._meter.take(reports_in(result))
        await self._late()
        draft = self._draft
        reason = str(result.get("stopReason") or "")
        await self._settle_open("uncertain")
        if not draft.begun and self._steps:
            # The last step was handed in with its tools' end, and nothing was said about them.
            return TurnEnd(outcome="completed")
        if not draft.calls and faults.is_error_prose(draft.text, self._kind):
            return faults.prose(draft.text)
        usage = self._meter.settle()
        if not draft.text.strip() and not draft.calls:
            if usage is None or not usage.output_tokens:
                return faults.model_error(
                    "empty_answer", "the agent ended its turn without a word or a tool call"
                )
            await self._step(usage, finish=reason or "stop")
            return TurnEnd(outcome="empty")
        directive = await self._step(usage, finish=reason or "stop")
        if directive.stop:
            return TurnEnd(outcome="stopped_by_rule")
        if directive.idle:
            return TurnEnd(outcome="idle")
        if draft.calls:
            await self._carry_out(directive)
        if reason == "cancelled":
            return TurnEnd(
                outcome="failed", cause="cancelled", error="the agent cancelled its turn by itself"
            )
        return TurnEnd(outcome="completed")

    async def _late(self) -> None:
        """Some agents report usage, or the end of a tool, a moment after their answer."""
        assert self._agent is not None
        wait_ms = self._kind.capabilities.late_ms
        if self._draft.waits:
            wait_ms = max(wait_ms, 200)
        with anyio.move_on_after(wait_ms / 1_000):
            while True:
                message = await self._agent.connection.take()
                if isinstance(message, Update):
                    self._meter.take(reports_in(message.body))
                    if message.body.get("sessionUpdate") == "tool_call_update":
                        known = self._draft.calls.get(str(message.body.get("toolCallId")))
                        if known is not None:
                            ended = known.ended
                            known.take(message.body)
                            if known.ended and not ended:
                                await self._outcome(known, "ok" if known.record(self._kind).ok else "error")
                elif isinstance(message, Asked):
                    self._agent.connection.answer(message.id, {"outcome": {"outcome": "cancelled"}})
                elif isinstance(message, Ended):
                    self._agent.connection.clear()  # the next turn learns of it
                    return

    async def _cut_prompt(self) -> None:
        """Cancel the prompt that runs; an agent that does not listen, or whose tools may run on, is ended.

        Updates that still come fill in the step that runs, and nothing more.
        """
        agent, number = self._agent, self._prompt
        self._prompt = None
        for scope in list(self._asking.values()):
            scope.cancel()
        if agent is None or number is None:
            return
        connection = agent.connection
        with anyio.CancelScope(shield=True):
            connection.notify("session/cancel", {"sessionId": agent.session})
            ended = False
            with anyio.move_on_after(self._kind.patience.grace_s):
                while not ended:
                    message = await connection.take()
                    match message:
                        case Update():
                            call = self._draft.calls.get(str(message.body.get("toolCallId")))
                            if call is not None:
                                call.take(message.body)
                            self._meter.take(reports_in(message.body))
                        case Asked():
                            connection.answer(message.id, {"outcome": {"outcome": "cancelled"}})
                        case Answered():
                            ended = message.id == number
                            if ended and message.error is None:
                                self._meter.take(reports_in(message.result))
                        case Ended():
                            break
            used = bool(self._draft.calls) and (
                self._draft.waits or not self._kind.capabilities.cancel_reliable
            )
            if not ended or used:
                await self._retire()

    async def _abandon(self) -> None:
        """The turn is taken away: cancel what runs, then end the agent with everything that it started."""
        await self._cut_prompt()
        await self._retire()
        await self._settle_open("cancelled")


def option_for(options: Any, *, allow: bool) -> str | None:
    """The id of the option that allows or rejects once; by kind, because ids and names mean nothing."""
    offered = [each for each in options if isinstance(each, dict)] if isinstance(options, list) else []
    for kind in ("allow_once", "allow_always") if allow else ("reject_once", "reject_always"):
        for each in offered:
            if each.get("kind") == kind and isinstance(each.get("optionId"), str):
                return str(each["optionId"])
    return None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a group of one holds: the task group adds nothing that the caller should see."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
