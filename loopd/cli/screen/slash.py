"""A typed line becomes a command for the daemon, or for the screen itself. Pure.

/suspend cost review     /gate extend Degeneration 2h     /goal pause     look at chapter 3 first
"""

from __future__ import annotations

from loopd.cli.instants import duration_ms, moment_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GOAL_WORDS = ("pause", "resume", "infeasible", "complete", "clear")
HELP: dict[str, str] = {
    "/suspend [REASON]": "close the gate until somebody lifts it",
    "/unsuspend": "lift the suspension, and nothing else",
    "/interrupt [30m]": "cut the running turn; nothing automatic starts for that long",
    "/send TEXT": "send a message (a line without / does the same)",
    "/goal TEXT": "set the goal; or one of pause, resume, infeasible, complete, clear",
    "/gate open [KIND]": "remove holds by hand; `/gate extend KIND 2h` moves a deadline later",
    "/why": "why is it not running, and until when",
    "/end REASON": "end the session for good",
    "/freeze REASON": "no session of the house admits work; /unfreeze ends that",
    "/sort sick|name|progress|tokens": "order of the fleet",
    "/filter WORD": "only sessions with this in name, goal, labels or holds; empty for all",
    "/help  /back  /quit": "",
}


class Line:
    """What a typed line means.

    Attributes:
        command: for the daemon, or None.
        local: `why`, `sort`, `filter`, `help`, `back` or `quit`, or empty.
        word: argument of a local one.
        grave: ask the person before it is carried out.
    """

    __slots__ = ("command", "grave", "local", "word")

    def __init__(
        self, command: dict[str, Any] | None = None, *, local: str = "", word: str = "", grave: bool = False
    ) -> None:
        self.command = command
        self.local = local
        self.word = word
        self.grave = grave


def parse(text: str, sid: str | None, now: int) -> Line:
    """Understand a line; `sid` is the session that is shown or chosen.

    Raises:
        ValueError: what is wrong with it, for the person who typed it.
    """
    text = text.strip()
    if not text.startswith("/"):
        return Line({"t": "send", "sid": _needed(sid), "text": _given(text, "a message or a /command")})
    word, _, rest = text[1:].partition(" ")
    rest = rest.strip()
    if word in {"why", "sort", "filter", "help", "back", "quit"}:
        return Line(local=word, word=rest)
    if word == "freeze":
        return Line({"t": "daemon.freeze", "reason": rest}, grave=True)
    if word == "unfreeze":
        return Line({"t": "daemon.unfreeze"})
    if word not in _SESSION:
        near = [
            name
            for name in (*_SESSION, "freeze", "unfreeze", "why", "sort", "filter")
            if name[:2] == word[:2]
        ]
        more = f"; did you mean /{near[0]}?" if near else "; /help lists them"
        raise ValueError(f"unknown command /{word}{more}")
    return _SESSION[word](_needed(sid), rest, now)


def _suspend(sid: str, rest: str, _: int) -> Line:
    return Line({"t": "suspend", "sid": sid, "reason": rest})


def _unsuspend(sid: str, rest: str, _: int) -> Line:
    return Line({"t": "unsuspend", "sid": sid, "reason": rest})


def _interrupt(sid: str, rest: str, _: int) -> Line:
    command: dict[str, Any] = {"t": "interrupt", "sid": sid}
    if rest:
        command["for_ms"] = duration_ms(rest)
    return Line(command)


def _send(sid: str, rest: str, _: int) -> Line:
    return Line({"t": "send", "sid": sid, "text": _given(rest, "/send TEXT")})


def _goal(sid: str, rest: str, _now: int) -> Line:
    word, _, reason = _given(rest, f"/goal TEXT, or /goal {'|'.join(GOAL_WORDS)}").partition(" ")
    if word not in GOAL_WORDS:
        return Line({"t": "goal.set", "sid": sid, "text": rest})
    command: dict[str, Any] = {"t": f"goal.{word}", "sid": sid}
    if word in {"infeasible", "complete"}:
        command["reason"] = reason.strip()
    elif reason:
        raise ValueError(
            f"/goal {word} takes nothing more; to set a goal that begins so, use `loopctl goal set`"
        )
    return Line(command, grave=word in {"infeasible", "complete", "clear"})


def _gate(sid: str, rest: str, now: int) -> Line:
    words = rest.split()
    if words[:1] == ["open"] and len(words) <= 2:
        command: dict[str, Any] = {"t": "gate.open", "sid": sid}
        if words[1:]:
            command["kind"] = hold_kind(words[1])
        return Line(command, grave=True)
    if words[:1] == ["extend"] and len(words) >= 3:
        until = moment_ms(" ".join(words[2:]), now)
        return Line({"t": "gate.extend", "sid": sid, "kind": hold_kind(words[1]), "until_ms": until})
    raise ValueError("expected /gate open [KIND] or /gate extend KIND 2h")


def _end(sid: str, rest: str, _: int) -> Line:
    return Line({"t": "session.end", "sid": sid, "reason": _given(rest, "/end REASON")}, grave=True)


def hold_kind(word: str) -> str:
    """A kind of hold, in any case.

    Raises:
        ValueError: there is none.
    """
    from loopd_protocol.holds import HOLD_KINDS

    found = {kind.lower(): kind for kind in HOLD_KINDS}.get(word.lower())
    if found is None:
        raise ValueError(f"{word!r} is no hold; expected one of {', '.join(HOLD_KINDS)}")
    return found


def _needed(sid: str | None) -> str:
    if sid is None:
        raise ValueError("no session is chosen; move to one with the arrow keys")
    return sid


def _given(text: str, expected: str) -> str:
    if not text:
        raise ValueError(f"nothing was given; expected {expected}")
    return text


_SESSION = {
    "suspend": _suspend,
    "unsuspend": _unsuspend,
    "interrupt": _interrupt,
    "send": _send,
    "goal": _goal,
    "gate": _gate,
    "end": _end,
}


def told(command: dict[str, Any], answer: dict[str, Any]) -> str:
    """One line for what the daemon answered."""
    kind = command["t"]
    if kind == "send":
        by = ", ".join(answer.get("by") or ())
        return f"durable as {answer.get('id')}" + (f"; waits for {by}" if answer.get("held") else "")
    if kind == "suspend":
        turn = answer.get("turn") or {}
        will = f"; turn {turn['n']} will {turn['will']}" if turn.get("will") else ""
        return f"⏸ suspended, proof from seq {answer.get('seq')}{will}"
    words = {
        "unsuspend": "unsuspended",
        "interrupt": "interrupted",
        "gate.open": f"gate {answer.get('gate', 'open')}",
        "gate.extend": "deadline moved",
        "session.end": "ended",
        "daemon.freeze": "frozen: no session admits work",
        "daemon.unfreeze": "not frozen",
    }
    return f"{words.get(kind, kind)} (seq {answer.get('seq', '?')})"
