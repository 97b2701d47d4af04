"""How a session stands, in words: its state, why, and until when."""

from __future__ import annotations

from loopd.cli.console import Cell
from loopd.cli.exits import Failure
from loopd.cli.instants import span, until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.run import Run

STATE_STYLES = {"running": "green", "closed": "yellow", "open": "", "idle": "dim", "frozen": "magenta"}


def state(session: dict[str, Any]) -> Cell:
    """`running`, `closed`, `open`, `idle` (nothing to do) or the terminal state."""
    if session.get("status", "live") != "live":
        return Cell(session["status"], "red" if session["status"].startswith("aborted") else "dim")
    if session.get("turn"):
        return Cell("running", "green")
    if session.get("gate") == "closed":
        return Cell("closed", "yellow")
    goal = session.get("goal") or {}
    word = "open" if goal.get("status") == "active" or session.get("inbox") else "idle"
    return Cell(word, STATE_STYLES[word])


def because(session: dict[str, Any], now: int) -> str:
    """Why it is in that state."""
    if session.get("imported"):
        return (
            f"only to be read: {session['imported']['events']:,} events of log {session['imported']['log']}"
        )
    if session.get("status", "live") != "live":
        return str(session.get("stop_reason") or "ended")
    if session.get("holds"):
        return "; ".join(hold_words(hold) for hold in session["holds"])
    turn = session.get("turn")
    if turn:
        since = f" for {span(now - turn['started_ms'])}" if turn.get("started_ms") else ""
        return f"turn {turn['n']}, {turn['trigger']}{since}"
    goal = session.get("goal") or {}
    if not goal:
        return "no goal"
    return "goal active" if goal["status"] == "active" else f"goal {goal['status']}"


def hold_words(hold: dict[str, Any]) -> str:
    """One hold: `UserSuspend by uid:1000: cost review`."""
    reason = str(hold.get("reason") or "")
    by = f" by {hold['by']}" if hold.get("by") else ""
    return f"{hold['kind']}{by}" + (f": {reason}" if reason else "")


def ends(session: dict[str, Any], now: int) -> str:
    """Until when: the last deadline of its holds, or `you lift it`; empty while nothing holds it."""
    holds = session.get("holds") or []
    if not holds or session.get("status", "live") != "live":
        return ""
    moments = [hold.get("until_ms") for hold in holds]
    return until(None if None in moments else max(moments), now)


def holds_table(holds: list[dict[str, Any]], now: int) -> list[list[str | Cell]]:
    """Rows `kind, until, by, reason`."""
    return [
        [
            Cell(hold["kind"], "yellow"),
            until(hold.get("until_ms"), now),
            str(hold.get("by", "")),
            str(hold.get("reason", "")),
        ]
        for hold in holds
    ]


def names_of(run: Run, *refs: str) -> dict[str, str]:
    """Ids to names for readable lines, of some sessions or of all; ids stand in where lists are forbidden."""
    if run.console.format != "table":
        return {}
    try:
        found = [session for ref in refs for session in _one(run, ref)] if refs else all_sessions(run)
    except Failure as failure:
        if failure.code != "forbidden":
            raise
        return {}
    return {session["sid"]: session.get("name") or session["sid"] for session in found}


def _one(run: Run, ref: str) -> list[dict[str, Any]]:
    """A session, or none: retention may have forgotten it since it was written down."""
    try:
        return [run.link.ask({"t": "session.get", "sid": ref})]
    except Failure as failure:
        if failure.code != "not_found":
            raise
        return []


def all_sessions(run: Run, **command: Any) -> list[dict[str, Any]]:
    """Every page of `session.list`; by default ended sessions too."""
    return pages_of(run.link.ask, {"t": "session.list", **(command or {"selector": {"ended": True}})})


def pages_of(
    ask: Callable[[dict[str, Any]], dict[str, Any]], command: dict[str, Any]
) -> list[dict[str, Any]]:
    """The sessions on every page of an answer."""
    answer = ask(command)
    sessions = list(answer["sessions"])
    while answer.get("next"):
        answer = ask({**command, "after": answer["next"]})
        sessions += answer["sessions"]
    return sessions


HOLDS_HEADER = ("HOLD", "UNTIL", "BY", "REASON")
