"""loopd's own events, as `loopctl tail -o ndjson`, `watch -o ndjson` and exports print them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from loopd.core.judge import LoggedStep
from loopd.transcripts.logs import Begin, Fault, Items
from loopd_protocol.events import TurnStep
from loopd_protocol.sources import Trigger

SESSIONS_MAX = 10_000
STEPS_MAX = 1_000_000
"""Steps of interleaved sessions that are kept until the file ends."""


def recognises(line: dict[str, Any]) -> bool:
    """Whether a line looks like an event."""
    return isinstance(line.get("k"), str) and isinstance(line.get("seq"), int) and "sid" in line


def steps(lines: Iterable[tuple[int, dict[str, Any]]], name: str) -> Items:
    """Turn events into steps, session after session (a log may interleave many)."""
    logs: dict[str, list[LoggedStep]] = {}
    triggers: dict[str, Trigger | None] = {}
    kept = 0
    for number, line in lines:
        sid = line.get("sid")
        body = line.get("b")
        if not isinstance(sid, str) or not isinstance(body, dict):
            continue
        if line["k"] == "turn.started":
            try:
                triggers[sid] = Trigger(str(body.get("trigger")))
            except ValueError:
                triggers[sid] = Trigger.CONTINUATION
        elif line["k"] == "turn.step":
            try:
                step = msgspec.convert(body, TurnStep)
            except msgspec.ValidationError as error:
                yield Fault(where=f"{name}, line {number}", message=str(error))
                continue
            kept += 1
            if kept > STEPS_MAX or (sid not in logs and len(logs) >= SESSIONS_MAX):
                yield Fault(
                    where=f"{name}, line {number}", message=f"more than {STEPS_MAX} steps", fatal=True
                )
                break
            at_ms = line.get("ts")
            logs.setdefault(sid, []).append(
                LoggedStep(
                    n=step.total,
                    text=step.text,
                    calls=step.calls,
                    usage=step.usage,
                    trigger=triggers.pop(sid, None),
                    at_ms=at_ms if isinstance(at_ms, int) else 0,
                    state_fingerprint=step.state_fingerprint,
                )
            )
    for sid, logged in logs.items():
        yield Begin(id=sid, source="loopd", task=name)
        yield from logged
