"""One command for many sessions: each is carried out by itself, and told of by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from loopd.core.access import Answer
from loopd.engine.keyed import Keyed
from loopd.engine.router import Router
from loopd.engine.selection import select
from loopd_protocol import commands as cm
from loopd_protocol.errors import Refused

ANSWERS_KEPT = 1_000
"""The answer of a larger batch is not kept whole; asked again, it is put together of what its parts answered."""

Each = Callable[[cm.Command, str | None], Awaitable[Answer]]
"""Carries out a command of one session, with an idempotency key or without."""


async def carry_out(router: Router, command: cm.Batch, keyed: Keyed | None, each: Each) -> Answer:
    """Carry out a batch.

    With a key each session has one of its own: a batch that is asked for again, also after a crash in its
    middle, does for every session what it has not done yet.
    """
    selector = command.selector
    rows = select(router, selector.labels, selector.sids, ended=selector.ended)
    if command.dry_run:
        names = [{"sid": row.sid, "name": row.name} for row in rows]
        return Answer(seq=router.store.head, result={"would": names})
    base = None if keyed is None else hashlib.sha256(keyed.key.encode()).hexdigest()
    results = []
    for row in rows:
        one = msgspec.structs.replace(command.cmd, sid=row.sid)
        named = {"sid": row.sid, "name": row.name}
        try:
            answer = await each(one, None if base is None else f"batch:{base}:{row.sid}")
        except Refused as refusal:
            error = {"code": refusal.code, "message": refusal.message}
            results.append({**named, "ok": False, "error": error})
        else:
            results.append({**named, "ok": True, "seq": answer.seq, "r": answer.result})
    result = {"results": results}
    if keyed is not None and len(results) <= ANSWERS_KEPT:
        await router.keep(keyed.stored(result))
    return Answer(seq=router.store.head, result=result)
