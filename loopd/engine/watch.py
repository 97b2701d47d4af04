"""The watch over rules: one that runs for too long is interrupted, and the session goes on without it.

The core cannot read clocks. While it decides, an interval timer of the process ticks; a rule that the
ticks meet long enough is stopped by an exception inside it, which is what the core makes of any rule that
raises: `detector.failed`, and its name in the event of the step (`skipped_rules`), so that replay agrees.

Works in the main thread only, where Python runs signal handlers; elsewhere it watches nothing. A rule that
is stuck in C code that never looks for signals is beyond it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

from loopd.core.rules import framework, lanes, rungs

LIMIT_S = 0.25
"""A rule may run for so long; it is stopped within one and a half times this."""

TICK_S = LIMIT_S / 2
_TICKS = 3
"""Ticks that meet one and the same call of a rule: between the first and the last lie `LIMIT_S`."""

_WALLS: frozenset[CodeType] = frozenset(
    # the walls that catch what rules raise
    {framework._observe.__code__, lanes._observe.__code__, rungs.climb.__code__}  # noqa: SLF001
)


class RuleTooSlow(Exception):
    """A rule ran for longer than it may."""


class RuleWatch:
    """Watches over the rules while the core decides; one for each process."""

    def __init__(self) -> None:
        self._met: FrameType | None = None
        self._ticks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Interrupt rules that take too long in the block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._met, self._ticks = None, 0
        handler = signal.signal(signal.SIGALRM, self._tick)
        timer = signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler if handler is not None else signal.SIG_DFL)
            if timer[0]:  # somebody else's, for example a test's: it goes on where it was
                signal.setitimer(signal.ITIMER_REAL, *timer)
            self._met = None

    def _tick(self, _signum: int, frame: FrameType | None) -> None:
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
