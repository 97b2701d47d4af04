"""A process that writes notes all the time, and now and then a fact that it waits for, until it is killed.

Lines on standard output: `noted NUMBER MOMENT` when a note was handed in, `kept NUMBER NOTES` when a fact was
acknowledged that came behind so many notes. `python -m tests.store.lazy_child DB`.
"""

from __future__ import annotations

import os
import random
import sys
import time

import anyio
import uvloop

from loopd.core.writes import Append, Fact
from loopd.store import SqliteStore
from loopd_protocol import events as ev


async def main() -> None:
    dice = random.Random(1)
    notes = facts = 0
    async with await SqliteStore.open(sys.argv[1], boot=f"boot_{os.getpid()}") as store:
        while True:
            for _ in range(dice.randrange(1, 30)):
                event = ev.DetectorNear(rule="cycle", n=1, score=notes, soft=9)
                if store.takes_lazy():
                    store.submit(Append(sid=None, at_ms=1, facts=(Fact(event=event, ss=0),), lazy=True))
                    os.write(1, f"noted {notes} {time.monotonic()}\n".encode())
                    notes += 1
                await anyio.sleep(0.003)
            before = notes
            told = ev.DaemonStopped(reason="x", interrupted=facts)
            await store.submit(Append(sid=None, at_ms=1, facts=(Fact(event=told, ss=0),)))
            os.write(1, f"kept {facts} {before}\n".encode())
            facts += 1


if __name__ == "__main__":
    uvloop.run(main())
