"""The watch over rules: one that runs for too long is interrupted, and the session goes on without it.

The core cannot read clocks. While it decides, an interval timer of the process ticks; a rule that the
ticks meet long enough is stopped by an exception inside it, which is what the core makes of any rule that
raises: `detector.failed`, and its name in the event of the step (`skipped_rules`), so that replay agrees.

Works in the main thread only, where Python runs signal handlers; elsewhere it watches nothing. A rule that
is stuck in C code that never looks for signals is beyond it.
"""

from __future__ import annotations

import atexit
import signal
import threading
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from loopd.core.rules import framework, lanes, rungs

LIMIT_S = 0.25
"""A rule may run for so long; it is stopped within one and a half times this."""

TICK_S = LIMIT_S / 2
_TICKS = 3
"""Ticks that meet one and the same call of a rule: between the first and the last lie `LIMIT_S`."""

_AT_ONCE_S = 0.001
_MAIN = threading.main_thread().ident

_WALLS: frozenset[CodeType] = frozenset(
    # the walls that catch what rules raise
    {framework._observe.__code__, lanes._observe.__code__, rungs.climb.__code__}  # noqa: SLF001
)


class RuleTooSlow(Exception):
    """A rule ran for longer than it may."""


class RuleWatch:
    """Watches over the rules while the core decides; one for each process. Not reentrant.

    Arming a timer for each decision costs more than most rules do, so it goes on ticking from one decision to
    the next, and stops at the first tick that meets none. Whoever used the signal before (a test's time limit)
    has it back then, or when its own time has come.
    """

    def __init__(self) -> None:
        self._met: FrameType | None = None
        self._ticks = 0
        self._deciding = False
        self._others: Any = signal.SIG_DFL
        self._others_due: float | None = None
        # Behind it Python takes its handlers back, and a tick would kill the process.
        atexit.register(self.rest)

    def rest(self) -> None:
        """Stop ticking; the next decision begins again."""
        if signal.getitimer(signal.ITIMER_REAL)[1] == TICK_S:
            self._disarm()

    def __enter__(self) -> None:
        """Interrupt rules that take too long in the block."""
        if threading.get_ident() != _MAIN:
            return
        self._met, self._ticks, self._deciding = None, 0, True
        if signal.getitimer(signal.ITIMER_REAL)[1] != TICK_S:  # it stopped, or somebody took the timer
            self._arm()

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == _MAIN:
            self._deciding, self._met = False, None

    def _arm(self) -> None:
        self._others = signal.signal(signal.SIGALRM, self._tick) or signal.SIG_DFL
        left, _ = signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        self._others_due = monotonic() + left if left else None

    def _disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._others)
        if self._others_due is not None:
            signal.setitimer(signal.ITIMER_REAL, max(_AT_ONCE_S, self._others_due - monotonic()))

    def _tick(self, _signum: int, frame: FrameType | None) -> None:
        overdue = self._others_due is not None and monotonic() >= self._others_due
        if not self._deciding or overdue:
            self._disarm()
            return
        running = rule_call(frame)
        if running is None or running is not self._met:
            self._met, self._ticks = running, 1
            return
        self._ticks += 1
        if self._ticks >= _TICKS:
            self._met, self._ticks = None, 0
            raise RuleTooSlow(f"ran for over {LIMIT_S * 1_000:.0f} ms")


def rule_call(frame: FrameType | None) -> FrameType | None:
    """The frame of the rule that runs, seen from the innermost frame; None when none does."""
    inner: FrameType | None = None
    while frame is not None:
        if frame.f_code in _WALLS:
            return inner
        inner, frame = frame, frame.f_back
    return None
