"""Sessions from the journal back into memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from loopd.core.state import Session
from loopd.core.writes import StoredEvent
from loopd.engine.history import CONTEXT_BYTES, KINDS, History, step_messages
from loopd.engine.office import Office
from loopd.engine.ports import Store
from loopd.engine.session_loop import SessionLoop
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_events import SessionForked

LIFE = ("session.created", "session.ended", "session.resumed")
"""Kinds of events that say whether a session lives."""

BLOBS_AT_ONCE = 8
"""Contents that are read in one go: a context of full steps has seven."""

SUMMARIES = 16
"""Compactions among which the newest with a summary is looked for; the others only shorten results."""

HISTORY_EVENTS = 2_000
"""Newest events of a session that are read when it is loaded."""


async def contradiction(store: Store, session: Session) -> str | None:
    """What the stored state says otherwise than the journal; None when they agree.

    A look at the newest events, not a proof (that is `verify`): enough that an edited row does not
    open a gate or revive a session.
    """
    newest = await store.session_tail(session.sid, kinds=(), limit=1)
    if newest and newest[0].ss != session.ss:
        return f"its state is at event {session.ss}; its journal ends at {newest[0].ss}"
    for stored in await store.session_tail(session.sid, kinds=("gate.changed",), limit=1):
        event = ev.decode(stored.body) if stored.body else None
        if not isinstance(event, ev.GateChanged):
            continue
        here = [(hold.kind, hold.until_ms) for hold in session.gate.holds]
        there = [(hold.kind, hold.until_ms) for hold in event.holds]
        if (here, session.gate.gen) != (there, event.gen):
            return f"its state has the holds {here}; its journal says {there}"
        break
    else:
        if session.gate.gen == 0 and session.gate.holds:
            return "its state has holds; its journal has none"
    for stored in await store.session_tail(session.sid, kinds=LIFE, limit=1):
        event = ev.decode(stored.body) if stored.body else None
        status = event.status if isinstance(event, ev.SessionEnded) else "live"
        if event is not None and status != session.status:
            return f"its state calls it {session.status!r}; its journal says {status!r}"
    return None


async def read_session(office: Office, sid: str, *, trusted: bool = False) -> SessionLoop:
    """Load a session from the journal: its state, and the tail of what its model was told.

    Args:
        office: whose session it is.
        sid: which.
        trusted: this boot wrote the state itself, or has compared it with the journal.

    Raises:
        Refused: `corrupt`, or a storage code when it cannot be read.
    """
    session = await office.store.load_session(sid)
    if session is None:
        raise Refused("corrupt", f"session {sid!r} is listed but has no stored state")
    if not trusted and (found := await contradiction(office.store, session)) is not None:
        raise Refused(
            "corrupt", f"session {session.name!r} is left alone: {found}; see `loopctl verify {session.name}`"
        )
    history = History(context_bytes=int(session.driver.get("context_bytes") or CONTEXT_BYTES))
    tail = await office.store.session_tail(sid, kinds=KINDS, limit=HISTORY_EVENTS)
    first = tail[0].ss if tail else session.ss + 1
    older = [w.ss for w in session.inbox if w.ss < first]
    earlier = list(await office.store.events_at(sid, older)) if older else []
    if len(tail) == HISTORY_EVENTS:  # the summary that stands for what is older
        summed = await office.store.session_tail(sid, kinds=("context.compacted",), limit=SUMMARIES)
        earlier = [*summing([each for each in summed if each.ss < first]), *earlier]
    # Of an event whose content is deleted nothing is left to be told.
    whole = [each for each in (*earlier, *tail) if not each.reduced]
    events = [(ev.decode(each.body), each.ss) for each in whole]
    blobs = await _content(office.store, [event for event, _ in events], history.context_bytes)
    for event, ss in events:
        history.feed(event, ss, blobs)
    return SessionLoop(office, session, history)


def summing(compacted: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
    """Of these compactions, in order, those that still count: from the newest with a summary on."""
    for place in range(len(compacted) - 1, -1, -1):
        body = compacted[place].body
        event = ev.decode(body) if body else None
        if isinstance(event, ev.ContextCompacted) and event.upto_ss:
            return compacted[place:]
    return compacted


async def _content(store: Store, events: Sequence[ev.Event], context_bytes: int) -> dict[str, bytes]:
    """The blobs of the newest turns, as many as the context can hold: a session may have written thousands.

    Turns before those leave the history again while it is fed, whatever they said. Counted is what a model and
    its tools said in turns that have ended, for no rule makes that shorter; before a compaction, which does, all
    is read.
    """
    blobs: dict[str, bytes] = {}
    asked: set[str] = set()
    newer = turn = 0  # bytes of the turns that were passed, and of the one that is being passed
    ended = compacted = False
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        while not asked.issuperset(blob_names(event)):
            wanted = list(islice(_unasked((events[at] for at in range(place, -1, -1)), asked), BLOBS_AT_ONCE))
            blobs.update(await store.blobs(wanted))
            asked.update(wanted)
        match event:
            case ev.TurnCompleted() | ev.TurnInterrupted():
                ended = True
            case ev.TurnStep() if ended:
                turn += sum(len(message.text) for message in step_messages(event, 0, blobs))
            case ev.ContextCompacted() | SessionForked():
                compacted = True
            case ev.TurnStarted():
                newer, turn = newer + turn, 0
                if newer > context_bytes and not compacted:
                    break
            case _:
                pass
    return blobs


def _unasked(events: Iterable[ev.Event], asked: Collection[str]) -> Iterator[str]:
    return (digest for event in events for digest in blob_names(event) if digest not in asked)


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
        case SessionForked():
            names = [event.history]
        case _:
            names = []
    return [name for name in names if name is not None]
