"""A scrape with 10,000 sessions, beside the same page with a label per session, and the cost of counting."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import msgspec
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from loopd.core.writes import PassiveRow, StoredEvent
from loopd.telemetry import Metrics
from loopd_protocol import events as ev
from loopd_protocol.sources import Source, Trigger
from tests.bench.figures import report

SESSIONS = 10_000
RUNS = 15
NOW = 1_795_338_000_000


def rows() -> dict[str, PassiveRow]:
    """Sessions in all states, with progress at scattered moments."""
    return {
        f"ses_{i}": PassiveRow(
            sid=f"ses_{i}", num=i, name=f"s{i}", status="live", preset="published", goal="active",
            holds="Degeneration" if i % 3 == 0 else "", until_ms=None, deadline_ms=None, inbox=i % 2,
            inbox_oldest_ms=NOW - i if i % 2 else None, turns=1, steps=1, tokens=5, tokens_barren=1, repeat_streak=i % 7,
            barren_streak=i % 60, progress_ms=NOW - 1_000 * (i * 7_919 % SESSIONS), created_ms=1, last_turn_ms=1,
            running=0, trigger="", labels="{}",
        )
        for i in range(SESSIONS)
    }  # fmt: skip


def turn(n: int) -> list[StoredEvent]:
    """The events of one turn, 1 KB of text."""
    bodies = [
        ev.EnvelopeAccepted(id=f"e{n}", source=Source.HUMAN, text="x" * 300, ephemeral_in_history=False),
        ev.TurnStarted(n=n, trigger=Trigger.HUMAN, envelopes=(f"e{n}",)),
        ev.TurnStep(n=n, step=1, total=n, text="x" * 1_000, usage=ev.Usage(input_tokens=9, output_tokens=9)),
        ev.TurnCompleted(n=n, outcome="completed", duration_ms=5),
    ]
    return [
        StoredEvent(seq=n, sid=f"ses_{n % SESSIONS}", ss=1, at_ms=NOW, kind=body.kind, kv=1, body=msgspec.json.encode(body))
        for body in bodies
    ]  # fmt: skip


def timed_ms(work: object) -> float:
    """Processor time of one call in ms."""
    began = time.process_time()
    work()  # type: ignore[operator]
    return 1e3 * (time.process_time() - began)


def main() -> None:
    """Measure and report."""
    sessions = rows()

    def directory(sids: Collection[str] | None) -> Iterable[PassiveRow]:
        return sessions.values() if sids is None else [sessions[sid] for sid in sids]

    metrics = Metrics(version="1", now_ms=lambda: NOW, directory=directory)
    first = timed_ms(metrics.render)
    note = f"{SESSIONS:,} sessions"
    report("scrape: first page, sums made", [first], "ms", note=note)
    report("scrape: page", [timed_ms(metrics.render) for _ in range(RUNS)], "ms", goal=5, note=note)
    size = len(metrics.render())
    report("scrape: size of the page", [size / 1024], "KiB", note=note)

    events = [event for n in range(250) for event in turn(n)]
    counted = []
    pages = []
    for _ in range(RUNS):
        counted.append(1e3 * timed_ms(lambda: metrics.committed(events)) / len(events))
        pages.append(timed_ms(metrics.render))
    report(
        "scrape: counting one event",
        counted,
        "us",
        note="with what is looked at again at 512 changed sessions",
    )
    report("scrape: page after 250 sessions changed", pages, "ms", note=note)

    registry = CollectorRegistry()
    labelled = [
        Gauge(f"naive_{name}", name, ["session"], registry=registry)
        for name in ("progress_age_seconds", "barren_streak", "repeat_text_streak", "gate_closed")
    ]
    for sid in sessions:
        for gauge in labelled:
            gauge.labels(sid).set(1)
    naive = [timed_ms(lambda: generate_latest(registry)) for _ in range(5)]
    report("scrape: a page with four labelled gauges per session", naive, "ms", note=note)


if __name__ == "__main__":
    main()
