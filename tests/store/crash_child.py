"""A process that appends under load until it is killed: `python -m tests.store.crash_child DB SESSIONS`.

Each line on standard output is `session last-ss last-seq`, written after the acknowledgement.
"""

from __future__ import annotations

import os
import sys

import anyio
import uvloop

from loopd.store import SqliteStore
from loopd.testing.store_suite import Story
from loopd_protocol.sources import Source


async def produce(store: SqliteStore, num: int) -> None:
    story = Story(num)
    story.state = await store.load_session(story.sid)
    begun = story.state is not None
    while True:
        if not begun:
            append, begun = story.created(), True
        else:
            envelope = story.envelope(os.urandom(200).hex(), source=Source.CRON)
            append = story.tell(envelope, *story.turn(envelopes=(envelope.id,)), blobs=[os.urandom(300)])
        done = await store.submit(append)
        assert story.state is not None
        os.write(1, f"{num} {story.state.ss} {done.last}\n".encode())


async def main() -> None:
    store = await SqliteStore.open(sys.argv[1], boot=f"boot_{os.getpid()}")
    async with store, anyio.create_task_group() as tasks:
        for num in range(1, int(sys.argv[2]) + 1):
            tasks.start_soon(produce, store, num)


if __name__ == "__main__":
    uvloop.run(main())
