"""What is said to a hosted agent. It keeps its own history, so it gets only what is new to it."""

from __future__ import annotations

from collections.abc import Sequence

from loopd.core.conversation import Message, TurnRequest

MARKERS = {
    "continuation": "[loopd: continuation]",
    "cron": "[loopd: cron]",
    "rewake": "[loopd: wake-up]",
    "agent": "[loopd: message from another session]",
    "channel": "[loopd: channel]",
    "system": "[loopd: note]",
    "session": "[loopd: note]",
}
"""First line of a message, by its source; a human's has none."""
INSTRUCTIONS = "[loopd: instructions]"
EARLIER = "[loopd: earlier conversation]"
LOST = (
    "Your own record of this conversation was lost. This is what was said before, as far as it is kept; "
    "the files are as you left them."
)
TEXT_ONLY = "[loopd: text only]\nAnswer this in words alone and call no tool at all. If you call one, your turn is ended."
CHANTED = (
    "[loopd: note]\nYour last answer was cut off because it said the same over and over. "
    "Answer again, briefly, and say each thing once."
)
EARLIER_CHARS = 24_000
_RESULT_CHARS = 400


def fresh_prompt(request: TurnRequest, known_ss: int) -> str:
    """The turn's own input; before it, what earlier turns were to say and did not get to say.

    A turn that was cut before its prompt reached the agent leaves its messages behind, and a notice.

    Args:
        request: the turn.
        known_ss: messages up to this one have reached the agent, as far as is known.
    """
    count = _fresh(request)
    messages = request.messages
    trailing = _trailing(messages)
    behind = messages[len(messages) - max(trailing, count) : len(messages) - count]
    unsaid = [message for message in behind if message.ss > known_ss]
    return said((*unsaid, *messages[len(messages) - count :]))


def _fresh(request: TurnRequest) -> int:
    return min(request.fresh, len(request.messages)) or _trailing(request.messages)


def _trailing(messages: Sequence[Message]) -> int:
    count = 0
    while count < len(messages) and messages[-1 - count].role == "user":
        count += 1
    return count


def said(messages: Sequence[Message]) -> str:
    """Messages as one prompt, each with the marker of its source."""
    parts = []
    for message in messages:
        if message.role in {"assistant", "tool"} or not message.text:
            continue
        marker = MARKERS.get(message.source)
        text = message.text.removeprefix("[loopd] ") if message.source == "session" else message.text
        parts.append(text if marker is None else f"{marker}\n{text}")
    return "\n\n".join(parts)


def instructions(request: TurnRequest) -> str:
    """The system prompt, which a hosted agent is told in words."""
    text = "\n\n".join(m.text for m in request.messages if m.ss == 0 and m.role == "system" and m.text)
    return f"{INSTRUCTIONS}\n{text}" if text else ""


def earlier(request: TurnRequest) -> str:
    """The end of the conversation before this turn, for an agent that has lost it; empty for none."""
    # What is said in the prompt itself is not told twice.
    count = max(_fresh(request), _trailing(request.messages))
    before = [m for m in request.messages[: len(request.messages) - count] if m.ss]
    lines: list[str] = []
    left = EARLIER_CHARS
    for message in reversed(before):
        line = _line(message)
        if not line:
            continue
        left -= len(line)
        if left < 0:
            lines.append("[…]")
            break
        lines.append(line)
    if not lines:
        return ""
    return f"{EARLIER}\n{LOST}\n\n" + "\n".join(reversed(lines))


def _line(message: Message) -> str:
    if message.role == "assistant":
        used = "".join(f"\n  (called {call.name})" for call in message.calls)
        return f"You: {message.text}{used}" if message.text or used else ""
    if message.role == "tool":
        return f"  (result: {message.text[:_RESULT_CHARS]})" if message.text else ""
    marker = MARKERS.get(message.source)
    return f"{'User' if marker is None else marker}: {message.text}"
