"""A daemon with a driver that does not hear its cancellation: `python -m tests.e2e.stuck_daemon DATA`."""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio

from loopd.config import load
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.daemon import configured, leaving, run
from loopd.drivers.fittings import Fittings


class Stuck:
    """Takes its first turn for ever, whatever anybody says, with a process that does not either."""

    def __init__(self, fittings: Fittings) -> None:
        self._fittings = fittings

    async def take_turn(self, request: TurnRequest, host: Any) -> TurnEnd:
        process = await anyio.open_process(
            ["sleep", "600"],
            env={**os.environ, **self._fittings.boot_mark},
            stdin=None,
            stdout=None,
            stderr=None,
            start_new_session=True,
        )
        await anyio.Path(sys.argv[1], "agent.pid").write_text(str(process.pid))
        host.delta("half a sentence")
        await host.remember("agent", "runs")
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
        raise AssertionError

    def render(self, request: TurnRequest) -> bytes | None:
        return None

    async def aclose(self) -> None:
        return None


if __name__ == "__main__":
    configured.make_driver = lambda *given: Stuck(given[-1])  # type: ignore[attr-defined]
    leaving.STUCK_S = 0.5
    run(load(flags={"data": sys.argv[1], "drain.budget_ms": 200}))
