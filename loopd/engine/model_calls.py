"""The model calls of a turn that went through the proxy, with their exact bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.engine.ports import Store

PAGE = 500
CALLS_MAX = 2_000
"""Calls of one turn that are shown."""
BYTES_MAX = 32 * 1024 * 1024
"""Bodies that are shown; of further calls only the digests are."""


async def calls_of(store: Store, sid: str, n: int, since: int) -> list[dict[str, Any]]:
    """All calls that began in turn `n`, oldest first; some may have ended behind it.

    Args:
        store: the journal.
        sid: session.
        n: turn.
        since: `seq` of the turn's start.
    """
    calls: list[dict[str, Any]] = []
    shown = 0
    while len(calls) < CALLS_MAX:
        page = await store.page(sid=sid, after=since, before=None, limit=PAGE, kinds=("model.called",))
        for event in page:
            body = msgspec.json.decode(event.body)
            if body["n"] > n:
                return calls
            if body["n"] == n:
                call = {"seq": event.seq, "at_ms": event.at_ms, **body}
                if body.get("stored") and shown < BYTES_MAX:
                    for part in ("request", "response"):
                        data = await store.blob(body[f"{part}_sha256"])
                        call[part] = None if data is None else data.decode("utf-8", "replace")
                        shown += len(data or b"")
                calls.append(call)
        if len(page) < PAGE:
            return calls
        since = page[-1].seq
    return calls
