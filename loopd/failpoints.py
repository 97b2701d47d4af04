"""Named points at which a test lets the daemon die, stand still or fail; nothing at all otherwise.

    testing.enabled = true
    testing.failpoints = "commit.written/effect.intent:kill@3, checkpoint.after:stop"

A point is `name` or `name/detail` (`commit.*` points have the kinds of the events in the group as
details), an action, and `@n` for the n-th time it is reached (default: the first). Unarmed, which is
always outside of tests, a point costs the truth test of an empty dictionary.

Points: `boot.opened`, `boot.recovered`, `boot.ready`, `commit.begin`, `commit.written` (all rows are in
the transaction, nothing is durable), `commit.done` (durable, nobody knows), `commit.told` (answered and
published), `checkpoint.before`, `checkpoint.after`, `turn.driver` (the turn is durable, its driver is
about to be asked), `tool.before` (the intent is durable, the tool has not run), `tool.after` (it ran,
nobody knows), `maintenance.entered`, `drain.begun`.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterable

from loopd_protocol.errors import Refused

logger = logging.getLogger("loopd")

POINTS: tuple[str, ...] = (
    "boot.opened",
    "boot.recovered",
    "boot.ready",
    "commit.begin",
    "commit.written",
    "commit.done",
    "commit.told",
    "checkpoint.before",
    "checkpoint.after",
    "turn.driver",
    "tool.before",
    "tool.after",
    "maintenance.entered",
    "drain.begun",
)
"""Every point that the daemon passes."""

ACTIONS = ("kill", "stop", "full", "eio", "slow")
"""`kill -9`, `kill -STOP`, an error "disk full" or "I/O error of fsync", 200 ms of standing still."""

SLOW_S = 0.2

_SPEC = re.compile(
    r"(?P<name>[a-z]+\.[a-z]+)(?:/(?P<detail>[a-z_.]+))?:(?P<action>[a-z]+)(?:@(?P<nth>[1-9]\d{0,6}))?"
)

armed: dict[str, list[_Point]] = {}
"""What is armed, by name; empty in every daemon but those of tests."""

_lock = threading.Lock()


class _Point:
    __slots__ = ("action", "detail", "left")

    def __init__(self, detail: str | None, action: str, left: int) -> None:
        self.detail = detail
        self.action = action
        self.left = left


def parse(spec: str) -> dict[str, list[_Point]]:
    """Read a specification: points separated by commas.

    Raises:
        Refused: `invalid`, naming what is not a point or an action.
    """
    found: dict[str, list[_Point]] = {}
    for part in filter(None, (part.strip() for part in spec.split(","))):
        match = _SPEC.fullmatch(part)
        if match is None or match["name"] not in POINTS or match["action"] not in ACTIONS:
            raise Refused(
                "invalid",
                f"fail-point {part!r}; expected NAME[/DETAIL]:ACTION[@N] with a name of {', '.join(POINTS)} "
                f"and an action of {', '.join(ACTIONS)}",
                path="$.testing.failpoints",
            )
        point = _Point(match["detail"], match["action"], int(match["nth"] or 1))
        found.setdefault(match["name"], []).append(point)
    return found


def arm(spec: str) -> None:
    """Replace what is armed.

    Raises:
        Refused: `invalid`, see `parse`.
    """
    found = parse(spec)
    armed.clear()
    armed.update(found)


def hit(name: str, details: Iterable[str] = ()) -> None:
    """A point is reached. Callers ask `if failpoints.armed:` first.

    Raises:
        sqlite3.OperationalError: the point was told to fail.
    """
    points = armed.get(name)
    if points is None:
        return
    known = set(details)
    for point in points:
        with _lock:
            if point.left <= 0 or (point.detail is not None and point.detail not in known):
                continue
            point.left -= 1
            if point.left:
                continue
        _carry_out(name, point.action)


def _carry_out(name: str, action: str) -> None:
    if action != "kill":
        logger.warning("fail-point %s: %s", name, action)
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(SLOW_S)  # the thread itself stands still: that is the fault
        case "full":
            raise _failure(sqlite3.SQLITE_FULL, f"database or disk is full (fail-point {name})")
        case _:
            raise _failure(sqlite3.SQLITE_IOERR_FSYNC, f"disk I/O error (fail-point {name})")


def _failure(code: int, message: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error
