"""What the journal must say, read with plain SQL and JSON: an independent check of the contracts.

Nothing of loopd is imported here, so a mistake in its own verifier cannot hide one in its engine.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Journal:
    """All events of a database, oldest first."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=10, isolation_level=None)) as db:
            db.execute("BEGIN")  # one moment for all tables, whatever the daemon writes meanwhile
            rows = db.execute("SELECT seq, sid, ss, boot, at_ms, kind, body FROM journal ORDER BY seq")
            self.events = [
                {"seq": s, "num": n, "ss": ss, "boot": b, "at_ms": at, "k": k, "b": json.loads(body)}
                for s, n, ss, b, at, k, body in rows
            ]
            self.sids = dict(db.execute("SELECT sid, num FROM session"))
            self.waiting: dict[int, set[str]] = defaultdict(set)
            for num, envelope in db.execute("SELECT sid, id FROM inbox"):
                self.waiting[num].add(envelope)

    def of(self, sid: str) -> list[dict[str, Any]]:
        """Events of one session."""
        num = self.sids[sid]
        return [event for event in self.events if event["num"] == num]

    def check(self) -> None:
        """Everything that holds for every journal."""
        assert [e["seq"] for e in self.events] == list(range(1, len(self.events) + 1))
        for sid in self.sids:
            events = self.of(sid)
            assert [e["ss"] for e in events] == list(range(1, len(events) + 1)), sid
            turns_alternate(sid, events)
            gate_admits(sid, events)
            self.envelopes_have_one_fate(sid, events)
            occurrences_end_once(sid, events)

    def envelopes_have_one_fate(self, sid: str, events: Iterable[dict[str, Any]]) -> None:
        """Consumed by one turn, coalesced, dropped, shown inside a turn, or waiting: exactly one."""
        fates: dict[str, list[str]] = {}
        for event in events:
            body = event["b"]
            match event["k"]:
                case "envelope.accepted":
                    assert body["id"] not in fates, f"{body['id']} was accepted twice"
                    fates[body["id"]] = []
                case "turn.started":
                    for envelope in body.get("envelopes", ()):
                        fates[envelope].append(f"turn {body['n']}")
                case "envelope.coalesced" | "envelope.dropped" | "envelope.delivered":
                    fates[body["id"]].append(event["k"])
        for envelope in self.waiting[self.sids[sid]]:
            fates[envelope].append("waiting")
        wrong = {envelope: fate for envelope, fate in fates.items() if len(fate) != 1}
        assert not wrong, f"{sid}: {wrong}"

    def acknowledged(self, acknowledged: Mapping[str, str]) -> None:
        """No acknowledged envelope was lost; `acknowledged`: id → sid."""
        accepted = {e["b"]["id"]: e["num"] for e in self.events if e["k"] == "envelope.accepted"}
        lost = {
            envelope for envelope, sid in acknowledged.items() if accepted.get(envelope) != self.sids[sid]
        }
        assert not lost, f"{len(lost)} acknowledged envelopes are not in the journal: {sorted(lost)[:5]}"

    def texts_are_unique(self, prefix: str) -> None:
        """No text with this prefix was accepted twice: nothing that was sent once became two."""
        counts = Counter(
            e["b"]["text"]
            for e in self.events
            if e["k"] == "envelope.accepted" and e["b"]["text"].startswith(prefix)
        )
        doubled = [text for text, count in counts.items() if count > 1]
        assert not doubled, doubled


def turns_alternate(sid: str, events: Iterable[dict[str, Any]]) -> None:
    """One turn at a time, numbered without a hole, each with one end."""
    running, last = None, 0
    for event in events:
        body = event["b"]
        if event["k"] == "turn.started":
            assert running is None, f"{sid}: turn {body['n']} began in turn {running}"
            assert body["n"] == last + 1, f"{sid}: turn {body['n']} after {last}"
            running = last = body["n"]
        elif event["k"] == "turn.step":
            assert running == body["n"], f"{sid}: a step of turn {body['n']} in turn {running}"
        elif event["k"] in {"turn.completed", "turn.interrupted"}:
            assert running == body["n"], f"{sid}: end of turn {body['n']} in turn {running}"
            running = None


def gate_admits(sid: str, events: Iterable[dict[str, Any]]) -> None:
    """Preset `published`: nothing passes a hold, so no turn starts while any stands."""
    holds: list[str] = []
    for event in events:
        body = event["b"]
        if event["k"] == "gate.changed":
            holds = [hold["kind"] for hold in body.get("holds", ())]
            assert body["gate"] == ("closed" if holds else "open")
            for hold in body.get("holds", ()):
                assert hold["kind"] == "UserSuspend" or hold.get("until_ms"), f"{sid}: {hold}"
        elif event["k"] == "turn.started":
            assert not holds, f"{sid}: turn {body['n']} started (seq {event['seq']}) under {holds}"


def suspension_holds(events: Iterable[dict[str, Any]], since: int) -> int | None:
    """Contract 3: no turn began behind `since` before `UserSuspend` went; returns where it went."""
    stands = False
    for event in events:
        kinds = [hold["kind"] for hold in event["b"].get("holds", ())]
        if event["k"] == "gate.changed":
            if event["seq"] <= since:
                stands = "UserSuspend" in kinds
                continue
            if "UserSuspend" not in kinds:
                return int(event["seq"])
        elif event["seq"] > since and event["k"] == "turn.started":
            raise AssertionError(f"turn {event['b']['n']} began at {event['seq']}, suspended since {since}")
    assert stands, f"no UserSuspend stood at {since}"
    return None


def occurrences_end_once(sid: str, events: Iterable[dict[str, Any]]) -> None:
    """Each due moment of a cron job has at most one final account."""
    final: Counter[tuple[str, int, bool]] = Counter()
    for event in events:
        if event["k"] == "cron.occurrence" and event["b"]["result"] not in {"due", "held"}:
            body = event["b"]
            final[body["job"], body["due_ms"], body.get("manual", False)] += 1
    doubled = [key for key, count in final.items() if count > 1]
    assert not doubled, f"{sid}: {doubled}"
