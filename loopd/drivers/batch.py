"""The tool calls of one answer: which run at the same time, and how the others wait. Results stay in order.

Shell commands in a row run side by side, at most so many at once, and so do reads in a row and calls of MCP
tools in a row. A read behind a command waits for it, though: models do ask for both in one answer and mean it
in this order. What changes files, and loopd's own tools, run alone: two edits of one file asked for
together must not lose one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import anyio

from loopd.drivers.host import TurnHost
from loopd.drivers.tools import Toolbox, denied
from loopd_protocol.events import ToolCall

TURN_ENDED = "denied: not run, the turn had ended"


async def run_calls(
    asked: Sequence[ToolCall], toolbox: Toolbox, host: TurnHost, *, parallel: int
) -> tuple[tuple[ToolCall, ...], bool]:
    """Carry out calls; returns them with their results in the same order, and whether the turn ends.

    Raises:
        Refused: a result could not be made durable.
    """
    done: list[ToolCall] = []
    while len(done) < len(asked):
        group = [asked[len(done)]]
        lane = toolbox.lane(group[0].name)
        if lane is not None:
            group += itertools.takewhile(lambda call: toolbox.lane(call.name) == lane, asked[len(done) + 1 :])  # noqa: B023
        results = await _together(group, toolbox, host, parallel)
        done += [call for call, _ in results]
        if any(ends for _, ends in results):
            done += [denied(call, TURN_ENDED) for call in asked[len(done) :]]
            return tuple(done), True
    return tuple(done), False


async def _together(
    group: Sequence[ToolCall], toolbox: Toolbox, host: TurnHost, parallel: int
) -> list[tuple[ToolCall, bool]]:
    if len(group) == 1:
        return [await toolbox.run(group[0], host)]
    results: dict[int, tuple[ToolCall, bool]] = {}
    failed: list[Exception] = []
    places = anyio.CapacityLimiter(parallel)
    async with anyio.create_task_group() as tasks:

        async def run(place: int, call: ToolCall) -> None:
            try:
                async with places:
                    results[place] = await toolbox.run(call, host)
            except Exception as error:  # noqa: BLE001  # raised below, alone instead of in a group
                failed.append(error)
                tasks.cancel_scope.cancel()

        for place, call in enumerate(group):
            tasks.start_soon(run, place, call)
    if failed:
        raise failed[0]
    return [results[place] for place in range(len(group))]
