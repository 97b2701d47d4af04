"""One real daemon for all tests of the command line; each test makes sessions of its own."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from loopd.cli.operator import main
from tests.e2e.harness import FILLER, Daemon, House

NUMBERS = itertools.count(1)


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


def run(*words: str) -> Said:
    """`loopctl` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


class Stage:
    """A daemon and what tests do with it again and again."""

    def __init__(self, house: House, daemon: Daemon) -> None:
        self.house = house
        self.daemon = daemon

    def ctl(self, *words: str) -> Said:
        """`loopctl` against this daemon."""
        return run(*words, "--socket", self.daemon.socket)

    def ok(self, *words: str) -> Any:
        """`loopctl -o json`, which must succeed; its object."""
        said = self.ctl(*words, "-o", "json")
        assert (said.code, said.err) == (0, ""), said
        return said.json

    def session(self, *words: str, texts: tuple[str, ...] = (FILLER,), goal: str | None = None) -> str:
        """A new scripted session without gaps between continuations; its unique name."""
        name = f"unit{next(NUMBERS)}"  # the daemon itself names sessions s1, s2, …
        script = self.house.script(texts, f"{name}.jsonl")
        more = ["--goal", goal] if goal is not None else []
        made = self.ok(
            "new", "--preset", "published", "--driver", "scripted", "--script", str(script), "--name", name,
            "--set", "continuation.min_gap_ms=0", *more, *words,
        )  # fmt: skip
        assert set(made) >= {"sid"}
        return name

    def degenerated(self) -> str:
        """A session that has been caught."""
        name = self.session(goal="finish")
        self.ok("wait", name, "--until", "closed", "--timeout", "20s")
        return name


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    house = House()
    try:
        yield Stage(house, house.daemon().start())
    finally:
        house.close()
