"""Making a conversation smaller in a way that can be done again from the journal. Pure.

A `Plan` says what goes; `applied` carries it out and is the only code that does, in the running turn,
when a session is loaded again, and when a prompt is rebuilt. First long texts of old tool results and
of their calls' arguments are cut in the middle; then the oldest messages give way to a summary.

Places are named by the sequence number of a step, never by position: an envelope may have been accepted
long before the turn that shows it, so only the numbers of steps rise along a conversation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from loopd.core.conversation import Message
from loopd_protocol.events import ContextCompacted, Usage

SUMMARY = "[loopd] The conversation up to here was replaced by this summary of it:\n\n"
LEFT_OUT = "[loopd] The conversation up to here was left out because the context is full."
MARK = "characters left out by loopd ...]"
KEEP_SHARE = 4
"""One part in so many of the context is kept as it is: its end."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes. Fields as in `context.compacted`; `upto_ss` 0: nothing is replaced."""

    reason: str
    results_before_ss: int = 0
    result_chars: int = 0
    upto_ss: int = 0
    summary: str = ""
    usage: Usage | None = None


def applied(messages: Sequence[Message], plan: Plan, ss: int) -> tuple[Message, ...]:
    """The messages after `plan`; `ss` is the number of its event, which the summary is named by."""
    out = [_shortened_before(message, plan) for message in messages]
    if not plan.upto_ss:
        return tuple(out)
    system = [message for message in out if message.ss == 0]
    rest = [message for message in out if message.ss != 0]
    last = max((place for place, m in enumerate(rest) if is_of(m, plan.upto_ss)), default=-1)
    return (*system, summary_message(plan.summary, ss), *rest[last + 1 :])


def is_of(message: Message, ss: int) -> bool:
    """Whether a message is of the step with this number."""
    return message.ss == ss and message.role in {"assistant", "tool"}


def summary_message(summary: str, ss: int) -> Message:
    """What stands for the messages that went."""
    text = f"{SUMMARY}{summary}" if summary else LEFT_OUT
    return Message(ss=ss, role="user", source="summary", text=text)


def _shortened_before(message: Message, plan: Plan) -> Message:
    if not plan.result_chars or message.role not in {"tool", "assistant"}:
        return message
    return shortened(message, plan.result_chars) if message.ss < plan.results_before_ss else message


def shortened(message: Message, chars: int) -> Message:
    """A step's message with long texts of results and arguments cut in the middle; what the model said stays."""
    if message.role == "tool":
        cut = _cut(message.text, chars)
        return message if cut is message.text else replace(message, text=cut)
    if not any(_long(call.args, chars) for call in message.calls):
        return message
    return replace(
        message, calls=tuple(replace(call, args=_cut_args(call.args, chars)) for call in message.calls)
    )


def _long(args: Any, chars: int) -> bool:
    return isinstance(args, dict) and any(isinstance(v, str) and len(v) > 2 * chars for v in args.values())


def _cut_args(args: Any, chars: int) -> Any:
    if not isinstance(args, dict):
        return args
    return {key: _cut(value, chars) if isinstance(value, str) else value for key, value in args.items()}


def _cut(text: str, chars: int) -> str:
    """What was cut once is never cut again, so that the original and one number are enough to do it again."""
    if len(text) <= 2 * chars or MARK in text:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} {MARK}\n{text[-half:]}"


def size_bytes(messages: Sequence[Message]) -> int:
    """About how much of a request they take."""
    return sum(len(m.text) + 64 + sum(96 + len(c.name) + len(str(c.args)) for c in m.calls) for m in messages)


def digest(messages: Sequence[Message]) -> str:
    """Digest of everything in these messages that reaches the model, in order."""
    found = hashlib.sha256()
    for m in messages:
        row = [m.ss, m.role, m.text, [(c.id, c.name, c.args) for c in m.calls], m.call_id]
        found.update(msgspec.json.encode(row, order="sorted") + b"\n")
    return found.hexdigest()


def shortening(messages: Sequence[Message], *, limit_bytes: int, chars: int, reason: str) -> Plan:
    """Cut old results; the newest part of the conversation stays as it is."""
    return Plan(
        reason=reason, results_before_ss=_kept_from(messages, limit_bytes // KEEP_SHARE), result_chars=chars
    )


def cut_point(messages: Sequence[Message], keep_bytes: int) -> int:
    """Number of the last step that goes when about `keep_bytes` stay; 0 when no step can go.

    A step goes or stays with the results of its calls, and the last step stays.
    """
    kept = _kept_from(messages, keep_bytes)
    steps = [m.ss for m in messages if m.role == "assistant"]
    return max((ss for ss in steps[:-1] if ss < kept), default=0)


def _kept_from(messages: Sequence[Message], keep_bytes: int) -> int:
    """Number of the oldest step that fits into `keep_bytes` together with all that is newer."""
    total, kept = 0, 0
    for message in reversed(messages):
        total += size_bytes((message,))
        if message.role == "assistant":
            if total > keep_bytes and kept:
                break
            kept = message.ss
    return kept


def plan_of(event: ContextCompacted, summary: str) -> Plan:
    """The plan that a stored event carried out; `summary` is its whole text."""
    return Plan(
        reason=event.reason,
        results_before_ss=event.results_before_ss,
        result_chars=event.result_chars,
        upto_ss=event.upto_ss,
        summary=summary,
        usage=event.usage,
    )
