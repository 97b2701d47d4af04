"""Processes that verify the parts of a large log side by side; a verification outside of the one that asked.

A daemon that checked millions of rows in a thread of its own would share the interpreter with it all the
while. Each process reads the file by itself, gets one part after the other on its standard input and
answers on its standard output (lines of JSON); it ends when its input does, so nobody outlives who asked.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loopd.core.evolution import evolve
from loopd.store.parts import Part, rows_of
from loopd.store.request import Findings, Request
from loopd_protocol.errors import Refused

PROCESSES_MAX = 8
NICENESS = 10
LOOK_S = 0.2
END_S = 5.0


class Setting(msgspec.Struct, frozen=True):
    """The first line that a process gets."""

    path: str
    alone: bool
    log_id: str
    niceness: int = 0


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line that a process answers: so many rows more, or a part that is done, or why it is not."""

    rows: int = 0
    done: bool = False
    count: int = 0
    findings: Findings | None = None
    code: str | None = None
    message: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a part."""

    count: int
    findings: Findings


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode


def is_worth_it(request: Request, rows: int) -> bool:
    """Whether a log of so many rows is verified by processes."""
    return (
        request.file is not None
        and rows >= request.file.rows_worth_it
        and request.evolve in (None, evolve)
        and bool(sys.executable)
    )


def processors() -> int:
    """How many processes run at the same time here."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class Crew:
    """Some processes, as long as one verification takes."""

    def __init__(self, request: Request, parts: Sequence[Part]) -> None:
        assert request.file is not None
        file = request.file
        self._request = request
        self._parts = parts
        self._outcomes: dict[int, Outcome] = {}
        # What cannot be cut goes first; then the larger pieces.
        order = {"log": 0, "pages": 1, "sessions": 2, "blobs": 3, "house": 4}
        self._waiting = sorted(range(len(parts)), key=lambda at: order[parts[at].what], reverse=True)
        self._setting = _encode(
            Setting(str(file.path), file.alone, request.log_id, NICENESS if file.gently else 0)
        )
        self._rows = 0
        self._total = rows_of(parts)

    def run(self) -> list[Outcome]:
        """Do all parts; their outcomes in the order of the parts.

        Raises:
            Refused: `cancelled`; `internal` when a process died; what one of them refused.
            OSError: no process can be started.
        """
        members: list[_Member] = []
        try:
            with selectors.DefaultSelector() as selector:
                for _ in range(min(PROCESSES_MAX, processors(), len(self._parts))):
                    member = _Member(self._setting)
                    members.append(member)
                    selector.register(member.output, selectors.EVENT_READ, member)
                    self._employ(member)
                while len(self._outcomes) < len(self._parts):
                    self._request.check()
                    for key, _ in selector.select(LOOK_S):
                        member = key.data
                        for line in member.lines():
                            self._take(member, _decode(line))
            return [self._outcomes[at] for at in range(len(self._parts))]
        finally:
            for member in members:
                member.dismiss()

    def _employ(self, member: _Member) -> None:
        member.at = self._waiting.pop() if self._waiting else None
        if member.at is not None:
            member.say(_encode(self._parts[member.at]))

    def _take(self, member: _Member, answer: Answer) -> None:
        if answer.code is not None:
            raise Refused(answer.code, answer.message)
        self._rows += answer.rows
        self._request.progress("rows", self._rows, self._total)
        if answer.done:
            assert member.at is not None
            assert answer.findings is not None
            self._outcomes[member.at] = Outcome(answer.count, answer.findings)
            self._employ(member)


class _Member:
    """One process and what it is at."""

    def __init__(self, setting: bytes) -> None:
        self.at: int | None = None
        self._rest = b""
        # -P and an explicit path: never a module that happens to lie in the working directory
        modules = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loopd.store.checker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": modules},
            start_new_session=True,  # an interrupt from a terminal is for who asked, who then ends it
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        self.say(setting)

    def say(self, line: bytes) -> None:
        """Hand it a line; one that died is found when it is read from."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def lines(self) -> list[bytes]:
        """What it has answered.

        Raises:
            Refused: `internal` when it died.
        """
        data = os.read(self.output.fileno(), 1 << 16)
        if not data:
            code = self._process.wait()
            raise Refused("internal", f"a process that verifies ended with {code}; nothing is proven")
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole

    def dismiss(self) -> None:
        """End it: at the end of its input, else by force."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()
