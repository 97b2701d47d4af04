"""What a session's model has been told, kept from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from loopd.core.compaction import Plan, applied, is_of, plan_of, summary_message
from loopd.core.conversation import Message, StepDone
from loopd.engine.inheritance import Inherited, placed
from loopd.engine.manifest import sha256
from loopd_protocol import events as ev
from loopd_protocol.events import Event
from loopd_protocol.forensic_events import SessionForked
from loopd_protocol.sources import Source

INLINE_CHARS = 4_096
"""Longer texts and results go into blobs; the event keeps an excerpt."""

EXCERPT_CHARS = 1_024
CONTEXT_BYTES = 200_000
"""Context of sessions whose driver names none."""

UNKNOWN_RESULT = (
    "[loopd] interrupted, outcome unknown: it may or may not have happened. Look before you do it again."
)
UNKNOWN_RESULTS = {
    "ok": "[loopd] interrupted: it had ended well, but its output was lost.",
    "error": "[loopd] interrupted: it had ended with an error, and its output was lost.",
    "cancelled": "[loopd] interrupted: it was stopped before its end; what it did until then stands.",
    "interrupted": "[loopd] interrupted, outcome unknown. It does no harm to do it again.",
}
"""In place of the result of a tool whose step never ended, by its outcome."""

INTERRUPTED = "[loopd] The previous turn was interrupted ({cause}); its last step may be incomplete."
KINDS = (
    "envelope.accepted",
    "envelope.delivered",
    "turn.started",
    "turn.step",
    "turn.completed",
    "turn.interrupted",
    "effect.intent",
    "effect.outcome",
    "context.compacted",
    "session.forked",
)
"""Kinds of events that the history is made of."""

Blobs = Mapping[str, bytes]


def inline(done: StepDone) -> tuple[StepDone, str | None, dict[str, bytes]]:
    """Move long content of a step into blobs; returns the step, the blob of its text, all blobs."""
    blobs: dict[str, bytes] = {}

    def moved(text: str | None) -> str | None:
        if text is None or len(text) <= INLINE_CHARS:
            return None
        data = text.encode("utf-8", "surrogatepass")
        digest = sha256(data)
        blobs[digest] = data
        return digest

    calls = []
    for call in done.calls:
        blob = moved(call.result)
        if blob is not None and call.result is not None:
            call = replace(call, result=call.result[:EXCERPT_CHARS], result_blob=blob)  # noqa: PLW2901
        calls.append(call)
    text_blob = moved(done.text)
    text = done.text[:EXCERPT_CHARS] if text_blob else done.text
    tools_sha256 = None
    if done.tools is not None:
        tools_sha256 = sha256(done.tools)
        blobs[tools_sha256] = done.tools
    done = replace(done, text=text, calls=tuple(calls), tools=None, tools_sha256=tools_sha256)
    return done, text_blob, blobs


def beside(event: Event, blobs: dict[str, bytes]) -> Event:
    """The event with long streamed text moved into a blob: whoever follows the journal must be able to take it."""
    if not isinstance(event, ev.TurnInterrupted) or len(event.partial) <= INLINE_CHARS:
        return event
    data = event.partial.encode("utf-8", "surrogatepass")
    digest = sha256(data)
    blobs[digest] = data
    return replace(event, partial=event.partial[:EXCERPT_CHARS], partial_blob=digest)


def _whole(excerpt: str, blob: str | None, blobs: Blobs) -> str:
    if blob is None:
        return excerpt
    data = blobs.get(blob)
    if data is None:
        return f"{excerpt}\n[loopd: the rest of this text is no longer stored]"
    return data.decode("utf-8", "surrogatepass")


def step_messages(step: ev.TurnStep, ss: int, blobs: Blobs) -> tuple[Message, ...]:
    """The assistant message of a step and the results of its calls."""
    asked = tuple(ev.ToolCall(id=c.id, name=c.name, args=c.args) for c in step.calls)
    text = _whole(step.text, step.text_blob, blobs)
    said = Message(ss=ss, role="assistant", source="model", text=text, calls=asked)
    results = tuple(
        Message(
            ss=ss,
            role="tool",
            source="tool",
            text=_whole(c.result or "", c.result_blob, blobs),
            call_id=c.id,
        )
        for c in step.calls
    )
    return (said, *results)


class Begun:
    """A tool that was begun in a step that has not ended."""

    __slots__ = ("call", "outcome", "ss")

    def __init__(self, intent: ev.EffectIntent, ss: int, blobs: Blobs) -> None:
        data = None if intent.args_blob is None else blobs.get(intent.args_blob)
        args = intent.args if data is None else msgspec.json.decode(data)
        self.call = ev.ToolCall(id=intent.call, name=intent.tool, args=args)
        self.ss = ss
        self.outcome = ""

    def asked(self) -> Message:
        """The call, as if the model had asked for it alone."""
        return Message(ss=self.ss, role="assistant", source="model", text="", calls=(self.call,))

    def told(self, text: str) -> Message:
        """What stands in the place of its result."""
        return Message(ss=self.ss, role="tool", source="tool", text=text, call_id=self.call.id)


def dangling(begun: Iterable[Begun]) -> tuple[Message, ...]:
    """What a model is told of tools whose step never ended: each call, and in place of its result what is known.

    Without them the next turn would not know that anything was begun, and would do it again.
    """
    messages: list[Message] = []
    for each in begun:
        messages += (each.asked(), each.told(UNKNOWN_RESULTS.get(each.outcome, UNKNOWN_RESULT)))
    return tuple(messages)


class History:
    """Messages of one session, turn by turn, oldest first. Fed with its events in order."""

    def __init__(self, *, context_bytes: int) -> None:
        self.context_bytes = context_bytes
        self._turns: list[list[Message]] = []
        self._sizes: list[int] = []
        self._size_bytes = 0
        self._waiting: dict[str, Message] = {}
        self._begun: dict[str, Begun] = {}
        self._summary: Message | None = None
        self.shortened: tuple[int, ...] = ()

    def feed(self, event: Event, ss: int, blobs: Blobs) -> tuple[Message, ...]:
        """Follow one event; returns the messages that it added to the running turn."""
        added: tuple[Message, ...] = ()
        match event:
            case SessionForked():
                self._inherit(placed(blobs.get(event.history or ""), ss))
            case ev.EnvelopeAccepted():
                self._waiting[event.id] = Message(
                    ss=ss,
                    role="user",
                    source=event.source.value,
                    text=event.text,
                    ephemeral=event.ephemeral_in_history,
                )
                self._size_bytes += _size(self._waiting[event.id])
            case ev.EnvelopeDropped() | ev.EnvelopeCoalesced():
                self._taken((event.id,))
            case ev.EnvelopeDelivered():
                added = self._taken((event.id,))
            case ev.TurnStarted():
                self._begun.clear()
                self._turns.append([])
                self._sizes.append(0)
                added = self._taken(event.envelopes)
                if event.prompt is not None:
                    prompt = Message(
                        ss=ss,
                        role="user",
                        source="continuation",
                        text=event.prompt,
                        ephemeral=event.ephemeral_in_history,
                    )
                    added = (*added, prompt)
            case ev.EffectIntent():
                self._begun[event.id] = Begun(event, ss, blobs)
            case ev.EffectOutcome() if event.id in self._begun:
                self._begun[event.id].outcome = event.outcome
            case ev.TurnStep():
                self._begun.clear()
                added = step_messages(event, ss, blobs)
            case ev.TurnInterrupted():
                partial = _whole(event.partial, event.partial_blob, blobs)
                if partial:
                    added = (Message(ss=ss, role="assistant", source="model", text=partial),)
                added = (*added, *dangling(self._begun.values()))
                self._begun.clear()
                notice = INTERRUPTED.format(cause=event.cause)
                added = (*added, Message(ss=ss, role="user", source="session", text=notice))
                self._add(added)
                self._close_turn()
                return added
            case ev.TurnCompleted():
                self._close_turn()
            case ev.ContextCompacted():
                self._compact(plan_of(event, _whole(event.summary, event.summary_blob, blobs)), ss)
            case _:
                pass
        self._add(added)
        return added

    def _compact(self, plan: Plan, ss: int) -> None:
        """Do what the driver of the running turn did; the summary stays in front, whatever else goes."""
        if plan.result_chars and plan.result_chars not in self.shortened:
            self.shortened = (*self.shortened, plan.result_chars)
        turns = [list(applied(turn, replace(plan, upto_ss=0), ss)) for turn in self._turns]
        if plan.upto_ss:
            self._summary = summary_message(plan.summary, ss)
            while turns and not any(is_of(m, plan.upto_ss) for m in turns[0]):
                if not any(is_of(m, plan.upto_ss) for turn in turns for m in turn):
                    break  # older than what was read
                turns.pop(0)
            if turns:
                last = max((i for i, m in enumerate(turns[0]) if is_of(m, plan.upto_ss)), default=-1)
                turns[0] = turns[0][last + 1 :]
        self._replace(turns)

    def _inherit(self, given: Inherited) -> None:
        self._summary = given.summary
        self._replace([list(turn) for turn in given.turns])

    def _replace(self, turns: list[list[Message]]) -> None:
        self._size_bytes -= sum(self._sizes)
        self._turns = turns
        self._sizes = [sum(map(_size, turn)) for turn in turns]
        self._size_bytes += sum(self._sizes)

    def inheritance(self) -> Inherited:
        """What a fork would begin with now."""
        return Inherited(summary=self._summary, turns=tuple(tuple(turn) for turn in self._turns))

    def _taken(self, envelopes: Iterable[str]) -> tuple[Message, ...]:
        taken = tuple(m for m in (self._waiting.pop(e, None) for e in envelopes) if m is not None)
        self._size_bytes -= sum(map(_size, taken))
        return taken

    def _add(self, messages: tuple[Message, ...]) -> None:
        if messages and not self._turns:
            self._turns.append([])
            self._sizes.append(0)
        if messages:
            more = sum(map(_size, messages))
            self._turns[-1].extend(messages)
            self._sizes[-1] += more
            self._size_bytes += more

    def _close_turn(self) -> None:
        if not self._turns:
            return
        kept = [m for m in self._turns[-1] if not m.ephemeral]
        total = sum(self._sizes)
        if len(kept) < len(self._turns[-1]):
            self._turns[-1] = kept
            self._sizes[-1] = sum(map(_size, kept))
        left = sum(self._sizes)
        while left > self.context_bytes and len(self._turns) > 1:
            left -= self._sizes.pop(0)
            self._turns.pop(0)
        self._size_bytes -= total - left

    @property
    def newest(self) -> int:
        """How many messages the newest turn has."""
        return len(self._turns[-1]) if self._turns else 0

    def request(self, system: str) -> tuple[Message, ...]:
        """The whole context: the system prompt, then as many whole turns as fit, newest last."""
        total, first = 0, len(self._turns)
        while first > 0 and (
            first == len(self._turns) or total + self._sizes[first - 1] <= self.context_bytes
        ):
            first -= 1
            total += self._sizes[first]
        messages = [m for turn in self._turns[first:] for m in turn]
        if self._summary is not None:
            messages.insert(0, self._summary)
        if system:
            messages.insert(0, Message(ss=0, role="system", source="session", text=system))
        return tuple(messages)

    def size_bytes(self) -> int:
        """Approximate memory of what is kept."""
        return self._size_bytes + (0 if self._summary is None else _size(self._summary))


def _size(message: Message) -> int:
    return len(message.text) + 32 + sum(64 + len(str(c.args)) for c in message.calls)


def messages_of(event: Event, ss: int, blobs: Blobs) -> tuple[Message, ...]:
    """All messages that one stored event can stand for, to rebuild a prompt from its manifest."""
    if isinstance(event, SessionForked):
        return placed(blobs.get(event.history or ""), ss).messages()
    if isinstance(event, ev.ContextCompacted):
        if not event.upto_ss:
            return ()
        return (summary_message(_whole(event.summary, event.summary_blob, blobs), ss),)
    scratch = History(context_bytes=0)
    if isinstance(event, ev.EnvelopeAccepted):
        return (
            Message(
                ss=ss,
                role="user",
                source=Source(event.source).value,
                text=event.text,
                ephemeral=event.ephemeral_in_history,
            ),
        )
    if isinstance(event, ev.EffectIntent):
        begun = Begun(event, ss, blobs)
        return (begun.asked(), *(begun.told(text) for text in (UNKNOWN_RESULT, *UNKNOWN_RESULTS.values())))
    return scratch.feed(event, ss, blobs)
