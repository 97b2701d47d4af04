"""A daemon with a driver that does not hear its cancellation: `python -m tests.e2e.stuck_daemon DATA`."""

from __future__ import annotations

import sys
from typing import Any

import anyio

from loopd.config import load
from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.daemon import configured, leaving, run


class Stuck:
    """Takes its first turn for ever, whatever anybody says."""

    async def take_turn(self, request: TurnRequest, host: Any) -> TurnEnd:
        host.delta("half a sentence")
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
        raise AssertionError

    def render(self, request: TurnRequest) -> bytes | None:
        return None

    async def aclose(self) -> None:
        return None


if __name__ == "__main__":
    configured.make_driver = lambda *_: Stuck()  # type: ignore[assignment]
    leaving.STUCK_S = 0.5
    run(load(flags={"data": sys.argv[1], "drain.budget_ms": 200}))
