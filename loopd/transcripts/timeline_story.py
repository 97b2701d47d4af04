"""What the timeline shows of a session, gathered while its events pass."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

RUNGS = ("warn", "nudge", "text_only", "close", "terminate")


class Moment(NamedTuple):
    """An event as it was stored."""

    seq: int
    session: int | str | None
    ss: int
    at_ms: int
    kind: str
    body: bytes


class Turn:
    """One turn with what was said to it, its steps and its end."""

    def __init__(self, n: int, trigger: str, seq: int, at_ms: int) -> None:
        self.n, self.trigger, self.seq, self.at_ms = n, trigger, seq, at_ms
        self.outcome, self.end_ms = "running", at_ms
        self.input = self.output = 0
        self.steps: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.error = ""
        self.partial = ""


class Hold(NamedTuple):
    """A hold from one place among the turns to another."""

    kind: str
    begin: float
    end: float
    title: str


class Story:
    """What a page shows of one session, gathered while its events pass."""

    def __init__(self) -> None:
        self.name, self.sid, self.driver = "", "", ""
        self.turns: list[Turn] = []
        self.envelopes: dict[str, dict[str, Any]] = {}
        self.standing: dict[str, tuple[float, dict[str, Any], int]] = {}
        self.holds: list[Hold] = []
        self.rungs: list[tuple[float, int]] = []
        self.findings: list[tuple[float, dict[str, Any], int, int]] = []
        self.marks: list[tuple[float, str, str]] = []
        self.status = "live"
        self.first_ms = self.last_ms = 0
        self.events = 0

    @property
    def place(self) -> float:
        """Where something that happens now stands: in the running turn, or behind the last one."""
        count = len(self.turns)
        if self.turns and self.turns[-1].outcome == "running":
            return count - 0.5
        return float(count)

    def see(self, moment: Moment) -> None:
        """Follow one event."""
        value: dict[str, Any] = msgspec.json.decode(moment.body)
        self.events += 1
        self.first_ms = self.first_ms or moment.at_ms
        self.last_ms = max(self.last_ms, moment.at_ms)
        turn = self.turns[-1] if self.turns else None
        match moment.kind:
            case "session.created":
                self.name, self.sid = str(value.get("name") or ""), str(value.get("sid") or "")
                driver = value.get("driver") or {}
                self.driver = " ".join(str(driver[k]) for k in ("kind", "agent", "model") if driver.get(k))
            case "session.forked":
                self.marks.append(
                    (0.0, "fork", f"forked from {value.get('parent')} after turn {value.get('n')}")
                )
            case "envelope.accepted":
                self.envelopes[str(value.get("id"))] = value
            case "turn.started":
                began = Turn(int(value["n"]), str(value.get("trigger")), moment.seq, moment.at_ms)
                began.said = [
                    self.envelopes.pop(e, {"source": "?", "text": e}) for e in value.get("envelopes") or ()
                ]
                if value.get("prompt"):
                    began.said.append({"source": "continuation", "text": value["prompt"]})
                self.turns.append(began)
            case "turn.step" if turn is not None:
                turn.steps.append(value)
                usage = value.get("usage") or {}
                turn.input += int(usage.get("input_tokens") or 0)
                turn.output += int(usage.get("output_tokens") or 0)
            case "turn.completed" | "turn.interrupted" if turn is not None:
                turn.outcome = str(value.get("outcome") or "interrupted")
                turn.end_ms = moment.at_ms
                turn.error = str(
                    value.get("error")
                    or (value.get("cause") if moment.kind == "turn.interrupted" else "")
                    or ""
                )
                turn.partial = str(value.get("partial") or "")
            case "degeneration.detected":
                self.findings.append((self.place, value, moment.seq, moment.at_ms))
                if turn is not None:
                    turn.findings.append(value)
                if not value.get("shadow") and value.get("verdict") in RUNGS:
                    self.rungs.append((self.place, RUNGS.index(str(value["verdict"])) + 1))
            case "gate.changed":
                self._gate(value, moment)
            case "session.ended":
                self.status = str(value.get("status"))
                self.marks.append(
                    (
                        self.place,
                        "end",
                        f"{value.get('status')}: {value.get('stop_reason')}. {value.get('explanation') or ''}",
                    )
                )
            case "session.resumed":
                self.status = "live"
                self.marks.append(
                    (self.place, "resume", f"run {value.get('run')} begins, resumed by {value.get('by')}")
                )
            case _:
                pass

    def _gate(self, value: dict[str, Any], moment: Moment) -> None:
        for kind in value.get("removed") or ():
            begun = self.standing.pop(kind, None)
            if begun is not None:
                self._over(kind, begun, self.place, f"removed by {value.get('cause')}, {clock(moment.at_ms)}")
            if kind == "Degeneration":
                self.rungs.append((self.place, 0))
        added = value.get("added")
        if added is not None:
            kind = str(added.get("kind"))
            place = self.standing[kind][0] if kind in self.standing else self.place
            self.standing[kind] = place, added, moment.at_ms

    def _over(self, kind: str, begun: tuple[float, dict[str, Any], int], end: float, how: str) -> None:
        place, hold, at_ms = begun
        title = f"{kind} by {hold.get('by')}: {hold.get('reason') or ''}\nset {clock(at_ms)}, {how}"
        self.holds.append(Hold(kind, place, max(end, place + 0.12), title))

    def finish(self) -> None:
        """Holds that still stand reach to the end."""
        for kind, begun in self.standing.items():
            until = begun[1].get("until_ms")
            self._over(
                kind,
                begun,
                len(self.turns) + 0.4,
                "stands" + (f" until {clock(until)}" if until else " until lifted"),
            )
        self.standing = {}


def clock(at_ms: Any) -> str:
    """A moment for people, UTC."""
    try:
        return datetime.fromtimestamp(int(at_ms) / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError, TypeError):
        return str(at_ms)
