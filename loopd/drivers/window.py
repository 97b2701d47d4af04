"""The model's context window: when it is full, and what goes then.

First, old tool results are shortened, which costs nothing. When that is not enough, the model is asked
to sum up the oldest part of the conversation. `loopd.core.compaction` carries a plan out; the host
makes it durable first, so that what the model saw can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from loopd.core.compaction import KEEP_SHARE, Plan, applied, cut_point, shortening, size_bytes
from loopd.core.conversation import Message
from loopd.drivers.asking import Asker
from loopd.drivers.model import CallFailed
from loopd_protocol.commands import ChatSpec
from loopd_protocol.events import Usage

RESULT_CHARS = 1_000
ENOUGH_PERCENT = 60
"""Shortening results is enough when the conversation then takes at most this share of the limit."""
SUMMARY_TOKENS = 1_500
SUMMARY_CHARS = 16_000
BYTES_PER_TOKEN = 4.0
OVERFLOW_PERCENT = 60
"""A request that was refused as too long is followed by one of at most this share of it."""

PROMPT = (
    "[loopd] The context is full. Sum up the conversation so far for yourself: you will go on with this "
    "summary in place of it. Keep, word for word, what people asked for and what they forbade. Keep what was "
    "done and what came of it, which files were changed and how, what failed and why, decisions and their "
    "reasons, and what is to be done next. Leave out everything else. Do not call tools. Answer with the "
    "summary only."
)

Render = Callable[[ChatSpec, Sequence[Message]], bytes]


class Window:
    """Watches the size of the requests of one session.

    Args:
        spec: its window, in bytes or tokens.
        percent: share of it from which on the context is compacted; 0 for never.
    """

    def __init__(self, spec: ChatSpec, percent: int) -> None:
        self._spec = spec
        self._percent = percent
        self._ratio = BYTES_PER_TOKEN

    @property
    def limit_bytes(self) -> int:
        """How large a request may be."""
        if self._spec.context_tokens is None:
            return self._spec.context_bytes
        room = self._spec.context_tokens - min(self._spec.max_tokens or 0, self._spec.context_tokens // 2)
        return max(1_024, int(room * self._ratio))

    def measured(self, body_bytes: int, usage: Usage) -> None:
        """An answer came: how many bytes of a request make a token is known better now."""
        if usage.measured and usage.input_tokens >= 64:
            self._ratio = min(16.0, max(1.0, body_bytes / usage.input_tokens))

    def is_full(self, body_bytes: int) -> bool:
        """Whether a request of this size asks for compaction first."""
        return self._percent > 0 and body_bytes * 100 > self.limit_bytes * self._percent


async def plan_for(
    messages: Sequence[Message],
    *,
    reason: str,
    limit_bytes: int,
    asker: Asker,
    spec: ChatSpec,
    render: Render,
) -> Plan | None:
    """What should go so that the conversation fits again; None when nothing can.

    Asks the model for a summary when shortening is not enough. If that fails, the oldest part goes
    without one: a context that is full helps nobody.
    """
    plan = shortening(messages, limit_bytes=limit_bytes, chars=RESULT_CHARS, reason=reason)
    shorter = applied(messages, plan, 0)
    if size_bytes(shorter) * 100 <= limit_bytes * ENOUGH_PERCENT and shorter != tuple(messages):
        return plan
    upto = cut_point(shorter, limit_bytes // KEEP_SHARE)
    if not upto:
        return plan if shorter != tuple(messages) else None
    rest = applied(shorter, Plan(reason=reason, upto_ss=upto), 0)
    kept = {id(message) for message in rest}
    older = [message for message in shorter if id(message) not in kept]
    summary, usage = await _summary(older, limit_bytes // 2, asker, spec, render)
    return msgspec.structs.replace(plan, upto_ss=upto, summary=summary, usage=usage)


async def _summary(
    older: Sequence[Message], room_bytes: int, asker: Asker, spec: ChatSpec, render: Render
) -> tuple[str, Usage | None]:
    total, first = 0, len(older)
    while first and total + size_bytes((older[first - 1],)) <= room_bytes:
        first -= 1
        total += size_bytes((older[first],))
    asked = Message(ss=0, role="user", source="session", text=PROMPT)
    tokens = min(spec.max_tokens or SUMMARY_TOKENS, SUMMARY_TOKENS)
    body = render(msgspec.structs.replace(spec, max_tokens=tokens), (*older[first:], asked))
    try:
        answer = await asker.ask(body, shown=False)
    except CallFailed:
        return "", None
    return answer.text.strip()[:SUMMARY_CHARS], answer.usage(len(body))
