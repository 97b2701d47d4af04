"""How running turns come to an end together: waited for, or cut."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import anyio

from loopd.core.inputs import CutCause, CutRequested
from loopd.engine.session_loop import SessionLoop
from loopd_protocol.errors import Refused


async def finished(loops: Sequence[SessionLoop]) -> None:
    """Wait until no turn of these sessions runs. Only useful while no new one may start."""
    for loop in loops:
        await loop.written()  # its start may be on the way to the journal
        if loop.turn is not None:
            await loop.turn.finished.wait()


async def cut(
    loops: Sequence[SessionLoop], cause: CutCause, *, by: str, within_s: float | None = None
) -> int:
    """Interrupt the turns of these sessions and wait until their drivers have stopped; returns how many."""
    running = [loop for loop in loops if loop.session.turn is not None]
    given = CutRequested(cause=cause, by=by)
    marks = []
    for loop in running:  # in one step: none of them ends by itself while another one is being cut
        with contextlib.suppress(Refused):  # not written, but `lost` has stopped its driver
            marks.append(loop.apply(given, principal=by))
    for mark in marks:
        with contextlib.suppress(Refused):
            await mark.committed()
    async with anyio.create_task_group() as waiting:  # together: one that is stuck holds nobody else up
        for loop in running:
            waiting.start_soon(loop.stopped, within_s)
    return len(running)
