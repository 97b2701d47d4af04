"""What every importer produces, and the pieces that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from loopd.core.judge import LoggedStep
from loopd.core.tools import tool_class
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT_CHARS = 65_536
"""Longest text or result that is kept of a step; digests are of the whole."""

TASK_CHARS = 200
LABEL_CHARS = 200


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A log begins: what its head says about it.

    Attributes:
        source: the program that wrote it.
        preset, settings: of a session of loopd: what it ran with.
        interleaved: more of it may follow after other logs have begun, behind a `Resume`.
        whole: the log is good for something only if all of it can be read.
    """

    id: str
    source: str
    task: str | None = None
    outcome: str | None = None
    label: str | None = None
    preset: str | None = None
    settings: dict[str, Any] | None = None
    interleaved: bool = False
    whole: bool = False


class Amend(msgspec.Struct, frozen=True, kw_only=True):
    """What a log says about itself further down; None for nothing new."""

    id: str | None = None
    task: str | None = None
    outcome: str | None = None


class Resume(msgspec.Struct, frozen=True):
    """What follows belongs to this log, which began earlier as `interleaved`."""

    id: str


class TurnEnd(msgspec.Struct, frozen=True):
    """The running turn is over."""

    outcome: str


class End(msgspec.Struct, frozen=True):
    """The log is complete, whatever comes now."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something could not be read.

    Attributes:
        where: file and line, for people.
        fatal: nothing after it in this file can be read.
    """

    where: str
    message: str
    fatal: bool = False


Item = Begin | Amend | Resume | TurnEnd | LoggedStep | End | Fault
Items = Iterator[Item]


class Importer(Protocol):
    """Makes items of the JSON objects of a log, one line after the other."""

    def line(self, number: int, line: dict[str, Any], /) -> Iterable[Item]:
        """Read the object on line `number`."""

    def end(self) -> Iterable[Item]:
        """No more lines."""


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
        self._chars = 0
        self._calls: dict[str, ToolCall] = {}

    def say(self, text: str) -> None:
        """Add visible text."""
        if text and self._chars < TEXT_CHARS:
            self._texts.append(text[:TEXT_CHARS])
            self._chars += len(text)

    def call(self, identity: str, name: str, args: Any) -> None:
        """Add a call; its result is unknown so far. A second one of the same id replaces the first."""
        name = name[:LABEL_CHARS] or "unknown"
        self._calls[identity] = ToolCall(
            id=identity[:LABEL_CHARS],
            name=name,
            args={} if args is None else args,
            tool_class=tool_class(name, args),
        )

    def result(
        self,
        identity: str,
        text: str | None,
        *,
        ok: bool | None,
        exit_code: int | None = None,
        whole: str | None = None,
    ) -> bool:
        """Fill in a result; false when the step has no such call.

        Args:
            identity: of the call.
            text: what the model was given; None for unknown.
            ok: None for unknown.
            exit_code: of a command.
            whole: the tool's output before it was cut; None: `text` is all of it.
        """
        call = self._calls.get(identity)
        if call is None:
            return False
        if text is None:
            self._calls[identity] = msgspec.structs.replace(call, ok=ok, exit_code=exit_code)
            return True
        data = (text if whole is None else whole).encode("utf-8", "surrogatepass")
        self._calls[identity] = msgspec.structs.replace(
            call,
            ok=ok,
            result=text[:TEXT_CHARS],
            result_sha256=hashlib.sha256(data).hexdigest(),
            result_bytes=len(data),
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
    """An ISO date-time, or seconds since the epoch, as milliseconds since it (UTC); 0 for anything else."""
    if isinstance(text, float) and 0 <= text < 1e11:
        return int(text * 1_000)
    if not isinstance(text, str) or len(text) > 64:
        return 0
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        return 0


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


def small(value: object) -> int | None:
    """An exit code from untrusted JSON; None for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def word(value: object) -> str:
    """A name or id from untrusted JSON, cut; empty for anything that is none."""
    return value[:LABEL_CHARS] if isinstance(value, str) else ""


def arguments(value: object) -> Any:
    """Arguments of a call: an object, or the text of one; `{"_raw": …}` for a text that is none."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"_raw": value[:TEXT_CHARS]}


def task_of(text: str) -> str:
    """The first words of what a person asked for, on one line."""
    return " ".join(text[: 4 * TASK_CHARS].split())[:TASK_CHARS]
