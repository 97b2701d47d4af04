"""What a driver is asked for: the session as it is when a turn of it begins."""

from __future__ import annotations

from loopd.core.conversation import TurnRequest
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd.engine.history import History
from loopd_protocol.events import TurnStarted


def turn_request(event: TurnStarted, after: Session, history: History, settings: Settings) -> TurnRequest:
    """The request of a turn.

    Args:
        event: its beginning.
        after: the session behind it.
        history: what the model is shown of what was before.
        settings: of the session.
    """
    return TurnRequest(
        sid=after.sid,
        n=event.n,
        trigger=event.trigger,
        messages=history.request(_system(after)),
        workspace=after.workspace,
        tools_withheld=after.withhold_tools,
        turns_seen=event.n - 1,
        steps_seen=after.steps,
        fresh=history.newest,
        memory=after.memory,
        asks=bool(after.permits.all_rules) or settings.approvals.default != "allow",
    )


def _system(session: Session) -> str:
    parts = [str(session.driver.get("system") or "")]
    if session.goal is not None and session.goal.status == "active":
        parts.append(f"Your goal: {session.goal.text}")
    return "\n\n".join(part for part in parts if part)
