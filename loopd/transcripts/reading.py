"""Any file to logs: which format it has, line by line, in memory that does not grow with the file.

A fault ends the log that it is in; reading goes on with the next one, so that one bad trajectory
does not hide the others. Logs that agents append to (Claude Code, Codex, loopd's events) lose only
the line that cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from loopd.transcripts import swe_agent
from loopd.transcripts.claude_code import Sessions
from loopd.transcripts.claude_code import recognises as is_claude_code
from loopd.transcripts.codex import Rollouts
from loopd.transcripts.codex import recognises as is_codex
from loopd.transcripts.documents import Members, NoDocument
from loopd.transcripts.files import CannotRead, Line, Progress, Source, too_long
from loopd.transcripts.logs import Fault, Importer, Items
from loopd.transcripts.loopd_events import Events
from loopd.transcripts.loopd_events import recognises as is_event
from loopd.transcripts.swe_agent import Trajectory
from loopd.transcripts.trajectories import Trajectories

SNIFF_LINES = 100
SNIFF_BYTES = 1024 * 1024
"""How far is looked for a line that tells the format."""

_IMPORTERS: dict[str, Callable[[str], Importer]] = {
    "events": Events,
    "codex": Rollouts,
    "claude_code": Sessions,
}
EXPECTED = "loopd.trajectory, Claude Code, Codex, SWE-agent, mini-swe-agent or loopd's own events"
_OBJECT_START = re.compile(rb"\s*\{")
_STEPS_AHEAD = re.compile(rb'"(?:trajectory|messages|history)"\s*:\s*\[|^\s*\{\s*(?:"\w+"\s*:\s*[\{\[])?\s*$', re.DOTALL)  # fmt: skip


def read(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Items:
    """All logs of a file, or of standard input (`-`): `Begin`, its steps, the next `Begin`; faults in place."""
    try:
        source = Source(path, progress)
    except (CannotRead, OSError) as error:
        yield Fault(where=os.fspath(path), message=str(error), fatal=True)
        return
    try:
        yield from _read(source)
    except Exception as error:  # noqa: BLE001  (a wall: one file must not hide the others)
        message = f"cannot be read further: {type(error).__name__}: {error}"
        yield Fault(where=source.name, message=message, fatal=True)
    finally:
        source.close()


def _read(source: Source) -> Items:
    lines = source.lines()
    head: list[Line] = []
    size = 0
    document = False
    for line in lines:
        number, data = line
        head.append(line)
        if isinstance(data, Fault):
            break
        if not data.strip():
            continue
        first, size = not size, size + len(data)
        fault = _fault_of(source.name, number, data)
        if fault is not None:
            if first and _STEPS_AHEAD.search(data[:65_536]):
                yield from _documents(source, head)
                return
            head[-1] = (number, fault)
            size = max(1, size - len(data))
        else:
            kind = _kind_of(data)
            if kind == "document":
                yield from _documents_by_line(source.name, _chain(head, lines))
                return
            if kind is not None:
                yield from _by_line(source.name, kind, _chain(head, lines))
                return
        if first:
            document = _OBJECT_START.match(data) is not None
        if len(head) >= SNIFF_LINES or size > SNIFF_BYTES:
            break
    if document and not any(isinstance(data, Fault) for _, data in head):
        yield from _documents(source, head)
        return
    faults = [data for _, data in head if isinstance(data, Fault)]
    if faults:
        yield from faults
        return
    if not size:
        yield Fault(where=source.name, message=f"empty; expected {EXPECTED}", fatal=True)
        return
    yield Fault(where=f"{source.name}, line 1", message=f"no known format; expected {EXPECTED}", fatal=True)


def _chain(head: list[Line], lines: Iterator[Line]) -> Iterator[Line]:
    while head:
        yield head.pop(0)
    yield from lines


def _object_of(data: bytes) -> dict[str, Any] | str:
    """The object on a line, or what is wrong with it."""
    try:
        line = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        return str(error)
    except RecursionError:
        return "nested too deeply"
    return line if isinstance(line, dict) else f"{type(line).__name__}; expected an object"


def _kind_of(data: bytes) -> str | None:
    line = _object_of(data)
    if isinstance(line, str):
        return None
    if line.get("t") in ("trajectory", "step"):
        return "trajectory"
    if is_event(line):
        return "events"
    if is_codex(line):
        return "codex"
    if is_claude_code(line):
        return "claude_code"
    if swe_agent.recognises(line):
        return "document"
    return None


def _by_line(name: str, kind: str, lines: Iterator[Line]) -> Items:
    if kind == "trajectory":
        yield from _trajectories(name, lines)
        return
    importer = _IMPORTERS[kind](name)
    for number, data in lines:
        fault = _fault_of(name, number, data)
        if fault is not None:
            yield fault
            continue
        assert isinstance(data, bytes)
        if not data.strip():
            continue
        line = _object_of(data)
        if isinstance(line, str):
            yield Fault(where=f"{name}, line {number}", message=line)
        else:
            yield from importer.line(number, line)
    yield from importer.end()


def _fault_of(name: str, number: int, data: bytes | Fault) -> Fault | None:
    if isinstance(data, Fault):
        return data
    if too_long(data):
        return Fault(where=f"{name}, line {number}", message=f"longer than {len(data) - 1} bytes")
    return None


def _trajectories(name: str, lines: Iterator[Line]) -> Items:
    importer = Trajectories(name)
    for number, data in lines:
        fault = _fault_of(name, number, data)
        if fault is not None:
            yield from importer.broken(fault)
        else:
            assert isinstance(data, bytes)
            yield from importer.line(number, data)
    yield from importer.end()


def _documents_by_line(name: str, lines: Iterator[Line]) -> Items:
    """One document a line; the first line is one."""
    for number, data in lines:
        where = f"{name}, line {number}"
        fault = _fault_of(name, number, data)
        if fault is not None:
            yield fault
            continue
        assert isinstance(data, bytes)
        if not data.strip():
            continue
        document = _object_of(data)
        if isinstance(document, str) or not swe_agent.recognises(document):
            message = document if isinstance(document, str) else "no trajectory"
            yield Fault(where=where, message=message)
            continue
        importer = Trajectory(name if number == 1 else f"{name}:{number}")
        for key, value in document.items():
            if key in swe_agent.LISTS and isinstance(value, list):
                for element in value:
                    yield from importer.element(key, element)
            elif key in swe_agent.MEMBERS:
                yield from importer.member(key, value)
        yield from importer.end()


def _documents(source: Source, head: list[Line]) -> Items:
    """Documents over many lines, or too long for one."""
    members = Members(wanted=swe_agent.MEMBERS, lists=swe_agent.LISTS)
    importer = Trajectory(source.name)
    steps = any_document = False

    def pieces() -> Iterator[bytes | Fault]:
        for _, data in head:
            yield data
        head.clear()
        yield from source.pieces()

    def where() -> str:
        return f"{source.name}, line {members.line + 1}"

    for piece in pieces():
        if isinstance(piece, Fault):
            yield Fault(where=where(), message=piece.message, fatal=True)
            return
        try:
            for key, raw, listed in members.feed(piece):
                if key is None:
                    yield from importer.end()
                    any_document = any_document or steps
                    importer, steps = Trajectory(f"{source.name}:{members.line + 1}"), False
                    continue
                value = msgspec.json.decode(raw)
                if listed:
                    steps = True
                    yield from importer.element(key, value)
                else:
                    yield from importer.member(key, value)
        except (NoDocument, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            message = str(error) or "nested too deeply"
            yield Fault(where=where(), message=f"no JSON document: {message}", fatal=True)
            return
    if members.inside:
        yield Fault(where=where(), message="the document ends too early; expected '}'", fatal=True)
    elif not any_document:
        message = f"a JSON document of no known format; expected {EXPECTED}"
        yield Fault(where=source.name, message=message, fatal=True)
