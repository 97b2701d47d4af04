"""Reader of `loopd.trajectory` v1: JSON lines, plain or gzip, several trajectories in a row.

Streams: one line is in memory at a time. Unknown fields are skipped (the format may grow), wrong
types are errors that name the file and the line. A `result` may be cut in the file; its digest and
size are then those of the whole. A missing result stays missing: unknown is never "the same".
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from typing import IO, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from loopd.core.tools import tool_class
from loopd_protocol.bounds import MAX_INT, MAX_TEXT_CHARS
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

VERSION = 1
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest line that is read; a longer one is an error, so memory stays bounded."""

_GZIP_MAGIC = b"\x1f\x8b"
_Natural = Annotated[int, Meta(ge=0, le=MAX_INT)]
_Sha256 = Annotated[str, Meta(pattern=r"^(sha256:)?[0-9a-f]{64}\Z")]
_Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]


class Head(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="trajectory"):
    """First line of a trajectory. `steps` is what the file claims; nothing relies on it."""

    v: int
    id: str = ""
    source: str = ""
    task: str | None = None
    outcome: str | None = None
    label: str | None = None
    steps: _Natural | None = None


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    id: Annotated[str, Meta(max_length=200)] | None = None
    args: Any = None
    ok: bool | None = None
    result: str | None = None
    result_sha256: _Sha256 | None = None
    result_bytes: _Natural | None = None
    exit_code: int | None = None
    error_class: Literal["infra", "schema", "denied", "tool", "none"] | None = None


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: _Natural = 0
    output_tokens: _Natural = 0
    cached_tokens: _Natural = 0


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="step"):
    n: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    at: str | None = None
    trigger: Trigger | None = None
    text: _Text | None = None
    calls: tuple[_Call, ...] | None = None
    usage: _Usage | None = None
    finish: Annotated[str, Meta(max_length=200)] | None = None
    state_fingerprint: Annotated[str, Meta(max_length=80)] | None = None
    compacted: bool = False


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a trajectory.

    Attributes:
        n: as written, or its place in the trajectory, from 1.
        at: ISO date-time as written, or None.
        trigger: begins a turn when given.
        calls: with results as far as the file has them; digests are those of the whole result.
        compacted: the context was compacted before this step (a field that may be missing).
    """

    n: int
    at: str | None = None
    trigger: Trigger | None = None
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish: str = "stop"
    state_fingerprint: str | None = None
    compacted: bool = False


class Record(msgspec.Struct, frozen=True):
    """One decoded line: where it stands (line from 1, byte offset in the unpacked file) and what it says."""

    line: int
    offset: int
    item: Head | Step


_decoder = msgspec.json.Decoder(Head | _Step)
_EXPECTED = 'expected {"t":"trajectory","v":1,…} or {"t":"step",…}'


def open_script(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a trajectory file for reading bytes, unpacking gzip whatever the file is called.

    Raises:
        Refused: `invalid` when it cannot be opened or is no regular file.
    """
    name = os.fspath(path)
    try:
        # Non-blocking, so that a FIFO is refused below instead of waiting for its writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused("invalid", f"script {name!r} cannot be read: {reason}; expected a file") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("invalid", f"script {name!r} is no regular file; expected a trajectory")
    raw = os.fdopen(descriptor, "rb")
    try:
        packed = raw.peek(2)[:2] == _GZIP_MAGIC
    except BaseException:
        raw.close()
        raise
    if not packed:
        return raw
    unpacked = gzip.GzipFile(fileobj=raw, mode="rb")
    unpacked.myfileobj = raw  # type: ignore[assignment]  # closed together with the reader
    return cast("IO[bytes]", io.BufferedReader(cast("io.RawIOBase", unpacked)))


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read a whole file, line by line.

    Raises:
        Refused: `invalid`, naming the file, the line and what was expected there.
    """
    name = os.fspath(path)
    with open_script(path) as stream:
        yield from read_from(stream, name)


def read_from(stream: IO[bytes], name: str, *, line: int = 0, headed: bool = False) -> Iterator[Record]:
    """Read on from where a stream stands.

    Args:
        stream: an open file; its position is taken as the start of a line.
        name: for error messages.
        line: lines before the position.
        headed: a trajectory has begun already.

    Raises:
        Refused: `invalid`, naming the file, the line and what was expected there.
    """
    offset = stream.tell()
    lines = Lines(name, headed=headed)
    while True:
        line += 1
        try:
            data = stream.readline(MAX_LINE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise Refused("invalid", f"{name!r}, line {line}: cannot be unpacked: {error}") from error
        if not data:
            break
        start, offset = offset, offset + len(data)
        item = lines.decode(data, line)
        if item is not None:
            yield Record(line, start, item)
    if not lines.headed:
        raise Refused("invalid", f"{name!r} holds no trajectory; {_EXPECTED}")


class Lines:
    """Decodes one line after the other; knows whether a trajectory has begun.

    Attributes:
        headed: a trajectory has begun. Set it to False to skip what follows up to the next head.
    """

    def __init__(self, name: str, *, headed: bool = False) -> None:
        self.headed = headed
        self._name = name
        self._place = 0

    def decode(self, data: bytes, line: int) -> Head | Step | None:
        """The head or step on line number `line`, None for an empty one.

        Raises:
            Refused: `invalid`, naming the file, the line and what was expected there.
        """
        if len(data) > MAX_LINE_BYTES:
            raise Refused(
                "invalid",
                f"{self._name!r}, line {line}: longer than {MAX_LINE_BYTES} bytes; expected shorter lines",
            )
        if not data.strip():
            return None
        item = _decode(data, self._name, line, headed=self.headed)
        if isinstance(item, Head):
            self.headed, self._place = True, 0
            return item
        self._place += 1
        return _step(item, self._place)


def _decode(data: bytes, name: str, line: int, *, headed: bool) -> Head | _Step:
    item: Head | _Step
    try:
        item = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(
            "invalid", f"{name!r}, line {line}: {error or 'nested too deeply'}; {_EXPECTED}"
        ) from error
    if isinstance(item, Head):
        if item.v != VERSION:
            raise Refused("invalid", f"{name!r}, line {line}: version {item.v}; expected {VERSION}")
    elif not headed:
        raise Refused(
            "invalid", f'{name!r}, line {line}: a step; expected {{"t":"trajectory","v":1,…}} first'
        )
    return item


def _step(item: _Step, place: int) -> Step:
    usage = None
    if item.usage is not None:
        usage = Usage(
            input_tokens=item.usage.input_tokens,
            output_tokens=item.usage.output_tokens,
            cached_tokens=item.usage.cached_tokens,
        )
    return Step(
        n=place if item.n is None else item.n,
        at=item.at,
        trigger=item.trigger,
        text=item.text or "",
        calls=tuple(_call(call, index) for index, call in enumerate(item.calls or (), 1)),
        usage=usage,
        finish=item.finish or ("tool_calls" if item.calls else "stop"),
        state_fingerprint=item.state_fingerprint,
        compacted=item.compacted,
    )


def _call(call: _Call, index: int) -> ToolCall:
    digest, size = call.result_sha256, call.result_bytes
    if call.result is not None and digest is None:
        whole = call.result.encode("utf-8", "surrogatepass")
        digest, size = hashlib.sha256(whole).hexdigest(), len(whole)
    return ToolCall(
        id=call.id or f"c{index}",
        name=call.name,
        tool_class=tool_class(call.name, call.args),
        args={} if call.args is None else call.args,
        ok=call.ok,
        result=call.result,
        result_sha256=digest.removeprefix("sha256:") if digest else None,
        result_bytes=size,
        exit_code=call.exit_code,
        error_class=None if call.error_class == "none" else call.error_class,
    )
