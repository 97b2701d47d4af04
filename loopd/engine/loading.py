"""Sessions from the journal back into memory."""

from __future__ import annotations

from loopd.engine.history import CONTEXT_BYTES, KINDS, History
from loopd.engine.session_loop import Office, SessionLoop
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused

HISTORY_EVENTS = 2_000
"""Newest events of a session that are read when it is loaded."""


async def read_session(office: Office, sid: str) -> SessionLoop:
    """Load a session from the journal: its state, and the tail of what its model was told.

    Raises:
        Refused: `corrupt`, or a storage code when it cannot be read.
    """
    session = await office.store.load_session(sid)
    if session is None:
        raise Refused("corrupt", f"session {sid!r} is listed but has no stored state")
    history = History(context_bytes=int(session.driver.get("context_bytes") or CONTEXT_BYTES))
    tail = await office.store.session_tail(sid, kinds=KINDS, limit=HISTORY_EVENTS)
    first = tail[0].ss if tail else session.ss + 1
    older = [w.ss for w in session.inbox if w.ss < first]
    earlier = await office.store.events_at(sid, older) if older else []
    blobs: dict[str, bytes] = {}
    for stored in (*earlier, *tail):
        event = ev.decode(stored.body)
        for digest in blob_names(event):
            data = await office.store.blob(digest)
            if data is not None:
                blobs[digest] = data
        history.feed(event, stored.ss, blobs)
    return SessionLoop(office, session, history)


def blob_names(event: ev.Event) -> list[str]:
    """Digests of the blobs that an event's content is in."""
    match event:
        case ev.TurnStep():
            names = [event.text_blob, *(call.result_blob for call in event.calls)]
        case ev.TurnInterrupted():
            names = [event.partial_blob]
        case ev.EffectIntent():
            names = [event.args_blob]
        case ev.ContextCompacted():
            names = [event.summary_blob]
        case _:
            names = []
    return [name for name in names if name is not None]
