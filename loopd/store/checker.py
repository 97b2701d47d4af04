"""A process of `loopd.store.crew`: verifies the parts that it is given, until its input ends."""

from __future__ import annotations

import os
import select
import sqlite3
import sys
from pathlib import Path
from time import monotonic

import msgspec

from loopd.store import opening
from loopd.store.crew import Answer, Setting
from loopd.store.faults import refusal
from loopd.store.parts import Part, carry_out
from loopd.store.refold import Scratch
from loopd.store.request import Findings, Request
from loopd_protocol.errors import Refused

TOLD_S = 0.2


class Checker:
    """Answers one part after the other."""

    def __init__(self, setting: Setting) -> None:
        self._connection = opening.connect_reader(Path(setting.path), alone=setting.alone)
        self._scratch = Scratch()
        self._request = Request(log_id=setting.log_id, stopped=_is_over, looked=self._looked)
        self._rows = 0
        self._told = monotonic()

    def carry_out(self, part: Part) -> Answer:
        """Check one part."""
        findings = Findings()
        try:
            count = carry_out(self._connection, self._request, part, findings, self._scratch)
        except Refused as refused:
            return Answer(code=refused.code, message=refused.message)
        except (sqlite3.Error, OSError) as error:
            found = refusal(error)
            return Answer(code=found.code, message=found.message)
        rows, self._rows = self._rows, 0
        return Answer(rows=rows, done=True, count=count, findings=findings)

    def _looked(self, rows: int) -> None:
        self._rows += rows
        if monotonic() - self._told >= TOLD_S:
            self._told = monotonic()
            rows, self._rows = self._rows, 0
            _say(Answer(rows=rows))


def _is_over() -> bool:
    """Nobody waits any more: while a part is under way, only the end of the input can come."""
    return bool(select.select([0], [], [], 0)[0])


def _say(answer: Answer) -> None:
    line = msgspec.json.encode(answer) + b"\n"
    while line:
        line = line[os.write(1, line) :]


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # never a byte more: what is behind it must stay to be seen by `_is_over`
        if not byte:
            sys.exit(0)
        line += byte
    return line


def main() -> None:
    """Serve standard input."""
    setting = msgspec.json.decode(_line(), type=Setting)
    if setting.niceness:
        os.nice(setting.niceness)
    try:
        checker = Checker(setting)
        while True:
            _say(checker.carry_out(msgspec.json.decode(_line(), type=Part)))
    except BrokenPipeError:
        sys.exit(0)  # who asked is gone


if __name__ == "__main__":
    main()
