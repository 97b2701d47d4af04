"""What every importer produces, and the pieces that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from loopd.core.judge import LoggedStep
from loopd.core.tools import tool_class
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_CHARS = 1_000_000
"""Longest text or result that is kept of a step; digests are of the whole."""


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A log begins: what its head says about it."""

    id: str
    source: str
    task: str | None = None
    outcome: str | None = None
    label: str | None = None


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something could not be read.

    Attributes:
        where: file and line, for people.
        fatal: nothing after it in this file can be read.
        broke_log: the log that was being read is incomplete and must not be judged.
    """

    where: str
    message: str
    fatal: bool = False
    broke_log: bool = True


Item = Begin | LoggedStep | Fault
Items = Iterator[Item]


class Draft:
    """A step that is still growing: calls come first, their results later."""

    def __init__(
        self, n: int, *, trigger: Trigger | None = None, at_ms: int = 0, compacted: bool = False
    ) -> None:
        self.n = n
        self.trigger = trigger
        self.at_ms = at_ms
        self.compacted = compacted
        self.usage: Usage | None = None
        self._texts: list[str] = []
        self._calls: dict[str, ToolCall] = {}

    @property
    def empty(self) -> bool:
        """Nothing was said or called."""
        return not self._texts and not self._calls

    def say(self, text: str) -> None:
        """Add visible text."""
        if text:
            self._texts.append(text)

    def call(self, identity: str, name: str, args: Any) -> None:
        """Add a call; its result is unknown so far."""
        name = name[:200] or "unknown"
        self._calls[identity] = ToolCall(
            id=identity[:200], name=name, args={} if args is None else args, tool_class=tool_class(name, args)
        )

    def result(
        self, identity: str, text: str | None, *, ok: bool | None, exit_code: int | None = None
    ) -> bool:
        """Fill in a result; false when the step has no such call."""
        call = self._calls.get(identity)
        if call is None:
            return False
        if text is None:
            self._calls[identity] = msgspec.structs.replace(call, ok=ok, exit_code=exit_code)
            return True
        whole = text.encode("utf-8", "surrogatepass")
        self._calls[identity] = msgspec.structs.replace(
            call,
            ok=ok,
            result=text[:TEXT_CHARS],
            result_sha256=hashlib.sha256(whole).hexdigest(),
            result_bytes=len(whole),
            exit_code=exit_code,
        )
        return True

    def done(self) -> LoggedStep:
        """The finished step."""
        return LoggedStep(
            n=self.n,
            text="\n".join(self._texts)[:TEXT_CHARS],
            calls=tuple(self._calls.values()),
            usage=self.usage,
            trigger=self.trigger,
            at_ms=self.at_ms,
            compacted=self.compacted,
        )


def moment_ms(text: object) -> int:
    """An ISO date-time as milliseconds since the epoch (UTC); 0 for anything else."""
    if not isinstance(text, str):
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def text_of(content: object) -> str:
    """Visible text of a message's content: a text, or a list of blocks with texts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [block.get("text") for block in content if isinstance(block, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def natural(value: object) -> int:
    """A count from untrusted JSON; 0 for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
