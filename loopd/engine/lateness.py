"""What comes after a deadline is late, whether or not the timer has come yet.

The timer naps: a laptop that slept has deadlines behind it that nobody has carried out. Whoever speaks of a question,
a hold, a parked run or a job may not find it as it was only because of that.
"""

from __future__ import annotations

from loopd.core.inputs import (
    CronChangeRequested,
    CronPutRequested,
    GateExtendRequested,
    Input,
    ResumeRequested,
    Ticked,
)
from loopd.core.policy_inputs import ApprovalGiven
from loopd.core.session import next_deadline
from loopd.engine.router import Router
from loopd.engine.session_loop import SessionLoop

BOUND = ApprovalGiven | GateExtendRequested | ResumeRequested | CronPutRequested | CronChangeRequested
"""What is worth something only before a deadline, or would take a moment that came due out of the accounts.

Of all else no deadline decides: a message waits for the next tick, and who suspends is not to start a turn first.
"""


async def on_time(router: Router, sid: str, given: Input) -> SessionLoop:
    """The session that `given` is for; what was due before it is carried out, as the timer would have done.

    Raises:
        Refused: the session cannot be read, or the journal takes nothing.
    """
    loop = await router.loop_of(sid)
    if not isinstance(given, BOUND):
        return loop
    due_ms = next_deadline(loop.session, loop.house())
    if due_ms is None or due_ms > router.clock.now_ms():
        return loop
    await loop.apply(Ticked()).committed()
    return await router.loop_of(loop.session.sid)  # one that has ended by that left memory
