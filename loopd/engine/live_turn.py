"""A turn that runs now: the host that its driver talks to, and the scope that ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec.structs import replace

from loopd import failpoints
from loopd.core import compaction
from loopd.core.compaction import Plan, applied, size_bytes
from loopd.core.conversation import AgentReply, AgentRequest, Directive, Message, StepDone, TurnRequest
from loopd.core.inputs import (
    AgentAsked,
    ContextShrunk,
    EffectEnded,
    EffectIntended,
    Remembered,
    RetryReported,
    StepReported,
    StreamJudged,
)
from loopd.core.policy import judge
from loopd.core.policy_inputs import AffordAsked, PermitAsked
from loopd.core.prices import Cost
from loopd.core.rules.chanting import Chanting
from loopd.engine import intake
from loopd.engine.frames import Frames
from loopd.engine.history import EXCERPT_CHARS, INLINE_CHARS, inline
from loopd.engine.manifest import sha256
from loopd.engine.questions import Questions
from loopd_protocol.errors import Refused
from loopd_protocol.events import Event, ToolCall, TurnCompleted, TurnInterrupted, TurnStep, Usage

if TYPE_CHECKING:
    from loopd.engine.session_loop import SessionLoop

PARTIAL_CHARS = 1_000_000
"""Streamed text of a step that is kept for the case of an interruption; the rest is not."""


class LiveTurn:
    """Implements the port `TurnHost` for one turn.

    Attributes:
        scope: cancel it to stop the driver at once.
        finished: set when the driver has really stopped and nothing of the turn runs any more.
        partial: text streamed so far in the running step.
        phase: `model` or `tool`.
        told_to_stop: a directive said so; nothing more of this turn is taken.
    """

    def __init__(self, loop: SessionLoop, request: TurnRequest) -> None:
        self._loop = loop
        self.request = request
        self.n = request.n
        self.scope = anyio.CancelScope()
        self.finished = anyio.Event()
        self.phase = "model"
        self.cut = False
        self.told_to_stop = False
        self._tools = 0
        self.calls: set[Callable[[], None]] = set()
        self.after: anyio.Event | None = None
        self.questions = Questions()
        self._permits: set[tuple[str, str]] = set()
        self._chanting = Chanting(loop.settings.rules.chanting)
        self.frames = Frames()
        self._chunks: list[str] = []
        self._chars = 0

    @property
    def partial(self) -> str:
        """Text streamed so far in the running step."""
        if len(self._chunks) > 1:
            self._chunks = ["".join(self._chunks)]
        return self._chunks[0] if self._chunks else ""

    def delta(self, text: str) -> bool:
        """See the port."""
        if self.cut or not text:
            return True
        text = intake.readable(text)
        if self._chars < PARTIAL_CHARS:
            self._chunks.append(text[: PARTIAL_CHARS - self._chars])
            self._chars += len(text)
        self._loop.told(self.n, text)
        found = self._chanting.feed(text)
        if found is None:
            return True
        self._loop.apply(StreamJudged(n=self.n, finding=found))
        return found.shadow

    def frame(self, line: bytes) -> None:
        """See the port."""
        self.frames.keep(line)

    def framed(self, event: Event, blobs: dict[str, bytes]) -> Event:
        """An event of the turn with what passed between driver and agent since the last step."""
        if not isinstance(event, TurnStep | TurnCompleted | TurnInterrupted) or not (
            data := self.frames.take()
        ):
            return event
        digest = sha256(data)
        blobs[digest] = data
        return replace(event, frames=digest)

    async def remember(self, key: str, value: str) -> None:
        """See the port."""
        await self._loop.apply(Remembered(n=self.n, key=key, value=value)).committed()

    async def retrying(self, *, attempt: int, cause: str, delay_ms: int) -> None:
        """See the port."""
        self._forget_partial()
        given = RetryReported(n=self.n, attempt=attempt, cause=intake.label(cause), delay_ms=max(0, delay_ms))
        await self._loop.apply(given).committed()

    async def intent(self, call: ToolCall) -> None:
        """See the port."""
        self._refuse_after_stop()
        key, call = intake.effect_key(call), intake.tool_call(call)
        args = msgspec.json.encode(call.args, order="sorted")
        digest = sha256(args)
        await self._permitted(key, call, digest)
        long = len(args) > INLINE_CHARS
        given = EffectIntended(
            n=self.n,
            call=key,
            tool=call.name,
            args_sha256=digest,
            tool_class=call.tool_class,
            args=None if long else call.args,
            args_blob=digest if long else None,
            repeatable=call.repeatable,
        )
        done = await self._loop.apply(given, blobs={digest: args} if long else None).committed()
        if done.stop:
            raise Refused("gate_closed", "the turn is over; the tool must not run")
        self._tools += 1
        self.phase = "tool"
        if failpoints.armed:
            failpoints.hit("tool.before", (call.name,))

    async def afford(self) -> None:
        """See the port."""
        self._refuse_after_stop()
        done = await self._loop.apply(AffordAsked(n=self.n)).committed()
        if done.stop:
            self.told_to_stop = True
            raise Refused("gate_closed", done.denied or f"turn {self.n} is over; no model may be called")

    async def permit(self, call: ToolCall) -> None:
        """See the port."""
        self._refuse_after_stop()
        key, call = intake.effect_key(call), intake.tool_call(call)
        await self._permitted(key, call, sha256(msgspec.json.encode(call.args, order="sorted")))

    async def _permitted(self, key: str, call: ToolCall, digest: str) -> None:
        """Let policy decide about a call, once; wait for a person where it asks."""
        loop = self._loop
        if (key, digest) in self._permits:
            return
        verdict = judge(
            loop.session.permits.all_rules,
            loop.settings.approvals.default,
            tool=call.name,
            tool_class=call.tool_class,
            args=call.args,
            workspace=loop.session.workspace,
        )
        if verdict is not None and verdict.effect != "allow":
            given = PermitAsked(
                n=self.n,
                call=key,
                tool=call.name,
                tool_class=call.tool_class,
                args_sha256=digest,
                verdict=verdict,
            )
            pending = loop.apply(given)
            asked = pending.advanced.asked
            if asked is not None:
                self.questions.expect(asked)
            done = await pending.committed()
            if done.denied is not None:
                raise Refused("forbidden", done.denied)
            if done.stop:
                raise Refused("gate_closed", "the turn is over; the tool must not run")
            if asked is not None:
                answer = await self.questions.wait(asked)
                if not answer.allowed:
                    raise Refused("forbidden", answer.said)
                self._refuse_after_stop()
        self._permits.add((key, digest))

    async def outcome(self, call: ToolCall, outcome: str) -> None:
        """See the port."""
        self._tools -= 1
        self.phase = "tool" if self._tools else "model"
        if failpoints.armed:
            failpoints.hit("tool.after", (call.name,))
        await self._loop.apply(
            EffectEnded(n=self.n, call=intake.effect_key(call), outcome=outcome)
        ).committed()

    async def ask(self, request: AgentRequest) -> AgentReply:
        """See the port."""
        given = AgentAsked(n=self.n, request=intake.agent_request(request))
        pending = self._loop.apply(given, principal=f"agent:{self._loop.session.sid}")
        done = await pending.committed()
        if done.reply is None:
            return AgentReply(ok=False, text=f"turn {self.n} is over; nothing was changed")
        return done.reply

    async def compacted(self, plan: Plan, before: Sequence[Message]) -> tuple[Message, ...]:
        """See the port."""
        self._refuse_after_stop()
        plan = replace(plan, summary=intake.readable(plan.summary), usage=intake.usage(plan.usage))
        summary = plan.summary.encode()
        blob = sha256(summary) if len(plan.summary) > INLINE_CHARS else None
        ss = self._loop.session.ss + 1
        after = applied(before, plan, ss)
        model, cost = self._cost("", plan.usage)
        given = ContextShrunk(
            n=self.n,
            reason=intake.label(plan.reason),
            before_sha256=compaction.digest(before),
            after_sha256=compaction.digest(after),
            before_messages=len(before),
            after_messages=len(after),
            before_bytes=size_bytes(before),
            after_bytes=size_bytes(after),
            results_before_ss=plan.results_before_ss,
            result_chars=plan.result_chars,
            upto_ss=plan.upto_ss,
            summary=plan.summary[:EXCERPT_CHARS] if blob else plan.summary,
            summary_blob=blob,
            usage=plan.usage,
            cost_micro=cost.micro,
            model=model,
            priced=cost.priced,
        )
        advanced = await self._loop.apply(given, blobs={blob: summary} if blob else None).committed()
        if advanced.stop:
            raise Refused("gate_closed", f"turn {self.n} is over; its context stays as it is")
        return after

    async def step(self, done: StepDone) -> Directive:
        """See the port."""
        self._refuse_after_stop()
        done, text_blob, blobs = inline(intake.step(done))
        self._permits.clear()
        model, cost = self._cost(done.model, done.usage)
        given = StepReported(
            n=self.n, done=done, text_blob=text_blob, cost_micro=cost.micro, model=model, priced=cost.priced
        )
        pending = self._loop.apply(given, blobs=blobs, keeps_messages=True)
        self._forget_partial()
        advanced = await pending.committed()
        self.told_to_stop = advanced.stop
        if self.questions.place is not None:
            await self.questions.place.breathe()
        return Directive(
            stop=advanced.stop,
            messages=pending.messages,
            tools_withheld=self._loop.session.withhold_tools,
            idle=self._loop.session.idled,
        )

    def _cost(self, model: str, usage: Usage | None) -> tuple[str, Cost]:
        """Name of the model that answered, and what it cost."""
        model = intake.label(model or str(self._loop.session.driver.get("model") or "")) or "unnamed"
        return model, self._loop.prices.cost(model, usage)

    def cut_calls(self) -> None:
        """Break off model calls of a hosted agent that go on although the turn is over."""
        calls, self.calls = self.calls, set()
        for cut in calls:
            cut()

    def _refuse_after_stop(self) -> None:
        if self.told_to_stop and not self.cut:
            raise Refused("gate_closed", f"turn {self.n} was told to stop; it may not go on")

    def _forget_partial(self) -> None:
        self._chanting = Chanting(self._loop.settings.rules.chanting)  # a new stream is judged anew
        self._chunks.clear()
        self._chars = 0
