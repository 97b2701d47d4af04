"""Any file to logs: which format it has, line by line, in memory that does not grow with the file.

A fault ends the log that it is in; reading goes on with the next one, so that one bad trajectory
does not hide the others.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec

from loopd.core.judge import LoggedStep
from loopd.trajectory import MAX_LINE_BYTES, Head, Lines, Step, open_script
from loopd.transcripts import claude_code, codex, loopd_events, swe_agent
from loopd.transcripts.logs import Begin, Fault, Item, Items, moment_ms
from loopd_protocol.errors import Refused

DOCUMENT_BYTES = 256 * 1024 * 1024
"""A `.traj` is one JSON document and has to be read whole; a larger one is refused."""

SNIFF_LINES = 50
Line = tuple[int, bytes | Fault]
Progress = Callable[[int], None]
"""Told how many bytes of the (packed) file were read."""


def read(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Items:
    """All logs of a file: `Begin`, then its steps, then the next `Begin`; faults where they are."""
    name = os.fspath(path)
    try:
        stream = open_script(path)
    except Refused as refusal:
        message = refusal.message.replace("script ", "", 1)
        yield Fault(where=name, message=message, fatal=True)
        return
    with stream:
        yield from _read(stream, name, progress)


def _read(stream: IO[bytes], name: str, progress: Progress | None) -> Items:
    lines = _lines(stream, name, progress)
    head: list[Line] = []
    for line in lines:
        head.append(line)
        data = line[1]
        if isinstance(data, Fault):
            break
        if not data.strip():
            continue
        found = _reader_of(data)
        if found is not None:
            yield from found(_chain(head, lines), name)
            return
        if data.lstrip()[:1] == b"{" and not _is_json(data):
            yield from _document(_chain(head, lines), name)
            return
        if len(head) >= SNIFF_LINES:
            break
    fault = head[-1][1] if head else None
    if isinstance(fault, Fault):
        yield fault
        return
    expected = "loopd.trajectory, Claude Code, Codex, SWE-agent, mini-swe-agent or loopd's own events"
    yield Fault(where=f"{name}, line 1", message=f"no known format; expected {expected}", fatal=True)


def _chain(head: list[Line], lines: Iterator[Line]) -> Iterator[Line]:
    yield from head
    yield from lines


def _lines(stream: IO[bytes], name: str, progress: Progress | None) -> Iterator[Line]:
    number = 0
    while True:
        number += 1
        where = f"{name}, line {number}"
        try:
            data = stream.readline(MAX_LINE_BYTES + 1)
            if len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                if number == 1 and _whole_document(data):
                    yield number, data
                    continue
                _skip_line(stream)
                yield number, Fault(where=where, message=f"longer than {MAX_LINE_BYTES} bytes")
                continue
        except (OSError, EOFError, zlib.error) as error:
            yield number, Fault(where=where, message=f"cannot be unpacked: {error}", fatal=True)
            return
        if not data:
            return
        if progress is not None and number % 64 == 1:
            progress(_position(stream))
        yield number, data


def _position(stream: IO[bytes]) -> int:
    raw = getattr(getattr(stream, "raw", None), "myfileobj", None)
    return int((raw or stream).tell())


def _whole_document(data: bytes) -> bool:
    return b'"trajectory"' in data[:65_536] or b'"messages"' in data[:65_536]


def _skip_line(stream: IO[bytes]) -> None:
    while True:
        data = stream.readline(MAX_LINE_BYTES)
        if not data or data.endswith(b"\n"):
            return


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _reader_of(data: bytes) -> Callable[[Iterator[Line], str], Items] | None:
    try:
        line = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    if line.get("t") in {"trajectory", "step"}:
        return _trajectories
    if loopd_events.recognises(line):
        return _objects(loopd_events.steps)
    if codex.recognises(line):
        return _objects(codex.steps)
    if claude_code.recognises(line):
        return _objects(claude_code.steps)
    if swe_agent.recognises(line):
        return _document
    return None


def _trajectories(lines: Iterator[Line], name: str) -> Items:
    decoder = Lines(name)
    seen = False
    last = 0
    skipping = False
    for number, data in lines:
        if isinstance(data, Fault):
            yield data
            decoder.headed, skipping = False, True
            continue
        try:
            item = decoder.decode(data, number)
        except Refused as refusal:
            if not (skipping and '"t":"step"' in data[:200].decode("utf-8", "replace").replace(" ", "")):
                yield Fault(where=f"{name}, line {number}", message=_message(refusal, name, number))
            decoder.headed, skipping = False, True
            continue
        if isinstance(item, Head):
            seen, skipping, last = True, False, 0
            yield Begin(
                id=item.id or f"{name}:{number}",
                source=item.source,
                task=item.task,
                outcome=item.outcome,
                label=item.label,
            )
        elif isinstance(item, Step):
            if item.n <= last:
                message = f"step {item.n} after step {last}; expected rising numbers"
                yield Fault(where=f"{name}, line {number}", message=message)
                decoder.headed, skipping = False, True
                continue
            last = item.n
            yield _logged(item)
    if not seen and not skipping:
        yield Fault(where=name, message="holds no trajectory", fatal=True)


def _message(refusal: Refused, name: str, number: int) -> str:
    return refusal.message.removeprefix(f"{name!r}, line {number}: ")


def _logged(step: Step) -> LoggedStep:
    return LoggedStep(
        n=step.n,
        text=step.text,
        calls=step.calls,
        usage=step.usage,
        trigger=step.trigger,
        at_ms=moment_ms(step.at),
        state_fingerprint=step.state_fingerprint,
    )


def _objects(
    steps: Callable[[Iterator[tuple[int, dict[str, Any]]], str], Items],
) -> Callable[[Iterator[Line], str], Items]:
    def read_objects(lines: Iterator[Line], name: str) -> Items:
        faults: list[Fault] = []

        def objects() -> Iterator[tuple[int, dict[str, Any]]]:
            for number, data in lines:
                if isinstance(data, Fault):
                    faults.append(data)
                    continue
                if not data.strip():
                    continue
                try:
                    line = msgspec.json.decode(data)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    message = str(error) or "nested too deeply"
                    faults.append(Fault(where=f"{name}, line {number}", message=message))
                    continue
                if isinstance(line, dict):
                    yield number, line

        yield from steps(objects(), name)
        # a line that an agent left half-written costs that line, not the log
        for fault in faults:
            yield msgspec.structs.replace(fault, broke_log=fault.fatal)

    return read_objects


def _document(lines: Iterator[Line], name: str) -> Items:
    parts: list[bytes] = []
    size = 0
    for _, data in lines:
        if isinstance(data, Fault):
            yield data
            return
        size += len(data)
        if size > DOCUMENT_BYTES:
            yield Fault(where=name, message=f"one document of over {DOCUMENT_BYTES} bytes", fatal=True)
            return
        parts.append(data)
    try:
        document = msgspec.json.decode(b"".join(parts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield Fault(where=name, message=f"no JSON: {error or 'nested too deeply'}", fatal=True)
        return
    if not isinstance(document, dict) or not swe_agent.recognises(document):
        yield Fault(where=name, message="a JSON document of no known format", fatal=True)
        return
    yield from swe_agent.steps(document, name)


__all__ = ["Item", "read"]
