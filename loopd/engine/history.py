"""What a session's model has been told, kept from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from loopd.core.conversation import Message, StepDone
from loopd.engine.manifest import sha256
from loopd_protocol import events as ev
from loopd_protocol.events import Event
from loopd_protocol.sources import Source

INLINE_CHARS = 4_096
"""Longer texts and results go into blobs; the event keeps an excerpt."""

EXCERPT_CHARS = 1_024
CONTEXT_BYTES = 200_000
"""Context of sessions whose driver names none."""

INTERRUPTED = "[loopd] The previous turn was interrupted ({cause}); its last step may be incomplete."
KINDS = (
    "envelope.accepted",
    "envelope.delivered",
    "turn.started",
    "turn.step",
    "turn.completed",
    "turn.interrupted",
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
    return replace(done, text=text, calls=tuple(calls)), text_blob, blobs


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


class History:
    """Messages of one session, turn by turn, oldest first. Fed with its events in order."""

    def __init__(self, *, context_bytes: int) -> None:
        self._context_bytes = context_bytes
        self._turns: list[list[Message]] = []
        self._sizes: list[int] = []
        self._waiting: dict[str, Message] = {}

    def feed(self, event: Event, ss: int, blobs: Blobs) -> tuple[Message, ...]:
        """Follow one event; returns the messages that it added to the running turn."""
        added: tuple[Message, ...] = ()
        match event:
            case ev.EnvelopeAccepted():
                self._waiting[event.id] = Message(
                    ss=ss,
                    role="user",
                    source=event.source.value,
                    text=event.text,
                    ephemeral=event.ephemeral_in_history,
                )
            case ev.EnvelopeDropped() | ev.EnvelopeCoalesced():
                self._waiting.pop(event.id, None)
            case ev.EnvelopeDelivered():
                added = self._taken((event.id,))
            case ev.TurnStarted():
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
            case ev.TurnStep():
                added = step_messages(event, ss, blobs)
            case ev.TurnInterrupted():
                partial = _whole(event.partial, event.partial_blob, blobs)
                if partial:
                    added = (Message(ss=ss, role="assistant", source="model", text=partial),)
                notice = INTERRUPTED.format(cause=event.cause)
                added = (*added, Message(ss=ss, role="user", source="session", text=notice))
                self._add(added)
                self._close_turn()
                return added
            case ev.TurnCompleted():
                self._close_turn()
            case _:
                pass
        self._add(added)
        return added

    def _taken(self, envelopes: Iterable[str]) -> tuple[Message, ...]:
        return tuple(m for m in (self._waiting.pop(e, None) for e in envelopes) if m is not None)

    def _add(self, messages: tuple[Message, ...]) -> None:
        if messages and not self._turns:
            self._turns.append([])
            self._sizes.append(0)
        if messages:
            self._turns[-1].extend(messages)
            self._sizes[-1] += sum(_size(m) for m in messages)

    def _close_turn(self) -> None:
        if not self._turns:
            return
        kept = [m for m in self._turns[-1] if not m.ephemeral]
        self._turns[-1] = kept
        self._sizes[-1] = sum(_size(m) for m in kept)
        total = sum(self._sizes)
        while total > self._context_bytes and len(self._turns) > 1:
            total -= self._sizes.pop(0)
            self._turns.pop(0)

    @property
    def newest(self) -> int:
        """How many messages the newest turn has."""
        return len(self._turns[-1]) if self._turns else 0

    def request(self, system: str) -> tuple[Message, ...]:
        """The whole context: the system prompt, then as many whole turns as fit, newest last."""
        total, first = 0, len(self._turns)
        while first > 0 and (
            first == len(self._turns) or total + self._sizes[first - 1] <= self._context_bytes
        ):
            first -= 1
            total += self._sizes[first]
        messages = [m for turn in self._turns[first:] for m in turn]
        if system:
            messages.insert(0, Message(ss=0, role="system", source="session", text=system))
        return tuple(messages)

    def size_bytes(self) -> int:
        """Approximate memory of what is kept."""
        return sum(self._sizes)


def _size(message: Message) -> int:
    return len(message.text) + 32 + sum(64 + len(str(c.args)) for c in message.calls)


def messages_of(event: Event, ss: int, blobs: Blobs) -> tuple[Message, ...]:
    """All messages that one stored event can stand for, to rebuild a prompt from its manifest."""
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
    return scratch.feed(event, ss, blobs)
