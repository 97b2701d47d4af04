"""loopd's own events, as `loopctl tail -o ndjson`, `watch -o ndjson` and `history.page` give them."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.judge import LoggedStep
from loopd.transcripts.logs import Amend, Begin, Fault, Items, Resume, TurnEnd
from loopd_protocol.events import TurnStep
from loopd_protocol.sources import Trigger

SESSIONS_MAX = 1_000
"""Sessions of one file that are judged at the same time; what goes beyond is a fault."""

KINDS = (
    "session.created", "session.ended", "goal.changed", "turn.started", "turn.step", "turn.completed",
    "turn.interrupted",
)  # fmt: skip
"""Kinds of events that are needed to judge a session."""


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like an event."""
    return isinstance(line.get("k"), str) and isinstance(line.get("seq"), int) and "sid" in line


class Events:
    """Importer; sessions may be interleaved."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: dict[str, int] = {}
        self._triggers: dict[str, Trigger | None] = {}
        self._at: str | None = None
        self._full = False

    def line(self, number: int, line: dict[str, Any], /) -> Items:
        """Read one event."""
        sid, body, kind = line.get("sid"), line.get("b"), line.get("k")
        if not isinstance(sid, str) or not isinstance(body, dict) or kind not in KINDS:
            return
        if sid not in self._last and len(self._last) >= SESSIONS_MAX:
            if not self._full:
                self._full = True
                message = f"more than {SESSIONS_MAX} sessions; session {sid!r} and later ones are not judged"
                yield Fault(where=f"{self._name}, line {number}", message=message)
            return
        if sid not in self._last:
            self._last[sid], self._at = 0, sid
            yield _begin(sid, body if kind == "session.created" else {})
        elif sid != self._at:
            self._at = sid
            yield Resume(sid)
        at = line.get("ts")
        at_ms = at if isinstance(at, int) and 0 <= at < 2**53 else 0
        match kind:
            case "turn.started":
                try:
                    self._triggers[sid] = Trigger(str(body.get("trigger")))
                except ValueError:
                    self._triggers[sid] = Trigger.CONTINUATION
            case "turn.step":
                yield from self._step(sid, body, at_ms, f"{self._name}, line {number}")
            case "turn.completed":
                yield TurnEnd(str(body.get("outcome") or "completed"))
            case "turn.interrupted":
                yield TurnEnd("interrupted")
            case "goal.changed" if isinstance(body.get("text"), str):
                yield Amend(task=" ".join(body["text"][:800].split())[:200])
            case "session.ended":
                yield Amend(outcome=str(body.get("status") or "ended"))
            case _:
                pass

    def end(self) -> Items:
        """Nothing is kept back."""
        yield from ()

    def _step(self, sid: str, body: dict[str, Any], at_ms: int, where: str) -> Items:
        try:
            step = msgspec.convert({key: value for key, value in body.items() if key != "k"}, TurnStep)
        except msgspec.ValidationError as error:
            yield Fault(where=where, message=f"no turn.step: {error}")
            return
        if step.total <= self._last[sid]:
            if step.total != self._last[sid]:  # told twice: `tail` and `watch` overlap
                message = f"step {step.total} of {sid} after step {self._last[sid]}; expected rising numbers"
                yield Fault(where=where, message=message)
            return
        self._last[sid] = step.total
        text = step.text
        if step.text_blob is not None:
            text = f"{text}\0{step.text_blob}"  # as live: equal iff the whole texts are equal
        yield LoggedStep(
            n=step.total,
            text=text,
            calls=step.calls,
            usage=step.usage,
            trigger=self._triggers.pop(sid, None),
            at_ms=at_ms,
            state_fingerprint=step.state_fingerprint,
            compacted=step.compacted,
        )


def _begin(sid: str, body: dict[str, Any]) -> Begin:
    preset, settings = body.get("preset"), body.get("settings")
    return Begin(
        id=sid,
        source="loopd",
        task=body["name"][:200] if isinstance(body.get("name"), str) else None,
        preset=preset if isinstance(preset, str) else None,
        settings=settings if isinstance(settings, dict) else None,
        interleaved=True,
    )
