"""What a new daemon does about a session that the last one died in. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopd.core import effects
from loopd.core.inputs import Recovered
from loopd_protocol.holds import CrashLoop

if TYPE_CHECKING:
    from loopd.core.decision import Decision

HOUR_MS = 3_600_000


def recovered(decision: Decision, given: Recovered) -> None:
    """Mark the turn that the last daemon died in; hold a session that it always dies in.

    What its tools were doing is settled first: `uncertain` where nobody knows.
    """
    turn = decision.session.turn
    effects.lost(decision)
    if turn is None:
        return
    decision.interrupt("crash", by="daemon", boot=given.boot)
    recent = [b for b in decision.session.crash_boots if b > given.boot - 10]
    if 0 < given.crash_loop_boots <= len(recent):
        until = decision.now + HOUR_MS * 2 ** (len(recent) - given.crash_loop_boots)
        reason = f"the daemon died in a turn of this session in {len(recent)} of its last 10 boots"
        decision.close(
            CrashLoop(by="daemon", reason=reason, until_ms=until, boots=len(recent)), cause="crash_loop"
        )
    decision.after_turn(turn.stopping)  # behind the hold: what waits must not start the next crash
