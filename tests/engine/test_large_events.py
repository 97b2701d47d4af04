"""What a model streamed before it was cut off is kept, and no event is too large for those who follow."""

from __future__ import annotations

import pytest

from loopd.core.conversation import TurnEnd, TurnRequest
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol.frames import FRAME_LIMIT_BYTES
from tests.engine.stage import Gate, say, stage

pytestmark = pytest.mark.anyio
WORDS = "\x00é"


@pytest.mark.parametrize("times", [10, 10_000, 500_000])
async def test_the_text_of_an_interrupted_step_fits_however_long_it_was(times: int) -> None:
    long, gate = WORDS * times, Gate()

    async def chatters(request: TurnRequest, host: TurnHost) -> TurnEnd:
        if request.n > 1:
            await say(host)
            return TurnEnd(outcome="completed")
        for start in range(0, len(long), 10_000):
            host.delta(long[start : start + 10_000])
        await gate.wait()
        raise AssertionError

    async with stage() as on:
        sid = await on.new("chatters", run=chatters)
        await on.send(sid)
        await gate.reached.wait()
        await on.call(cm.Interrupt(sid=sid))
        assert max(len(stored.body) for stored in await on.events()) < FRAME_LIMIT_BYTES // 4
        await on.send(sid, "go on")
        await on.until(lambda: len(on.requests) > 1)
        said = [m.text for m in on.requests[1].messages if m.role == "assistant"]
        assert said == ([long] if times < 500_000 else [])  # more than the context holds
        shown = (await on.call(cm.TurnGet(sid=sid, n=1))).result
        assert long.startswith(shown["partial"])
