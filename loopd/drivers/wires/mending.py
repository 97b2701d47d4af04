"""A conversation that strict chat templates accept, from one that has holes. Pure.

Chat templates of many models are strict: a user message first, then strict alternation, tool
results right behind their call. Where history does not offer that (ephemeral prompts were left
out, a turn was cut between a call and its result), `mended` mends it in a fixed way:
"(continued)" between two assistant messages, neighbouring user messages joined, a result
"interrupted; outcome unknown" for a call that has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loopd.core.conversation import Message
from loopd_protocol.events import ToolCall

CONTINUED = "(continued)"
UNKNOWN_RESULT = "interrupted; outcome unknown"


class Line(msgspec.Struct):
    """One message: `role` is system (first only), user, assistant or tool."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


def mended(messages: Sequence[Message]) -> list[Line]:
    """The messages without holes."""
    out: list[Line] = []
    open_calls: list[str] = []

    def settle() -> None:
        out.extend(Line("tool", UNKNOWN_RESULT, call_id=call_id) for call_id in open_calls)
        open_calls.clear()

    def say(text: str) -> None:
        settle()
        if out and out[-1].role == "user":
            out[-1].text += "\n\n" + text
        else:
            out.append(Line("user", text))

    for message in messages:
        if message.role == "tool":
            if message.call_id in open_calls:
                open_calls.remove(message.call_id)
                out.append(Line("tool", message.text, call_id=message.call_id))
            else:
                say(f"[result of an earlier tool call]\n{message.text}")
        elif message.role == "assistant":
            if not message.text and not message.calls:
                continue
            settle()
            if not out or out[-1].role in {"assistant", "system"}:
                say(CONTINUED)
            out.append(Line("assistant", message.text, message.calls))
            open_calls.extend(call.id for call in message.calls)
        elif message.role == "system" and not out:
            if message.text:
                out.append(Line("system", message.text))
        else:
            say(message.text)
    settle()
    if not out or out[-1].role in {"assistant", "system"}:
        say(CONTINUED)
    return out
