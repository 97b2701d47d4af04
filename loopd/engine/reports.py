"""Reports of runs: what the pure report needs from the journal."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.report import EVENTS, KINDS, Happened, run_report
from loopd.core.report_page import markdown
from loopd.core.settings import settings_for
from loopd.engine.router import Router
from loopd_protocol import commands as cm
from loopd_protocol import events as ev


async def report(router: Router, command: cm.SessionReport) -> dict[str, Any]:
    """The answer to `report`: the committed state, the last events, the texts behind the edges."""
    session = await router.state_of(command.sid)
    tail = await router.store.session_tail(session.sid, kinds=KINDS, limit=EVENTS)
    happened = [
        Happened(ss=stored.ss, at_ms=stored.at_ms, event=ev.decode(stored.body), turn=stored.turn)
        for stored in tail
        if stored.ss <= session.ss
    ]
    marks = sorted({ss for edge in session.stops.main.edges.values() for ss in edge.marks})
    reasons = {}
    for stored in await router.store.events_at(session.sid, marks):
        event = ev.decode(stored.body)
        if isinstance(event, ev.TurnStep):
            reasons[stored.ss] = event.text
    settings = settings_for(session.preset, session.overrides)
    made = run_report(session, settings, happened, reasons, router.clock.now_ms())
    result: dict[str, Any] = {"sid": session.sid, "report": msgspec.to_builtins(made)}
    if command.format == "md":
        result["text"] = markdown(made)
    return result
