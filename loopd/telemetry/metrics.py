"""Committed events to numbers, and numbers to Prometheus text.

Counting happens on the daemon's event loop right after a commit, so it decodes only the fields
that it counts and never raises. Nothing here is a label per session unless `top_k` asks for it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from loopd.core.writes import StoredEvent
from loopd.telemetry.catalogue import METRICS
from loopd.telemetry.readings import READINGS
from loopd.telemetry.standing import Directory, Standing, cumulative
from loopd_protocol.holds import HOLD_KINDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_SETS_MAX = 500
"""Label sets of one metric; what comes later is counted under `other`."""
WAITING_MAX = 100_000
"""Envelopes whose source is remembered until they are delivered."""


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon knows about itself at the moment of a scrape.

    Attributes:
        next_deadline_ms: the earliest deadline of all sessions (head of the heap), or None.
        bus_lag_max: events between the head and the slowest subscriber.
        wal_bytes, resident_bytes: None when they are not known.
        idle_bytes: what sessions at rest keep in memory.
        anchored_ms: when the newest anchor was signed, None for never; `anchor_behind`: events that wait for one,
            None when nobody signs.
    """

    head: int = 0
    uptime_ms: int = 0
    next_deadline_ms: int | None = None
    frozen: bool = False
    draining: bool = False
    bus_subscribers: int = 0
    bus_lag_max: int = 0
    wal_bytes: int | None = None
    loop_lag_s: float = 0.0
    resident_bytes: int | None = None
    sessions_in_memory: int = 0
    idle_bytes: int = 0
    anchored_ms: int | None = None
    anchor_behind: int | None = None


class Distribution:
    """Counts per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Counts of values up to each bound, and of all."""
        total, counts = 0, []
        for count in self.counts:
            total += count
            counts.append(total)
        return counts


class Metrics:
    """All numbers of one daemon. Matches the engine's port `Telemetry`."""

    def __init__(
        self,
        *,
        version: str,
        now_ms: Callable[[], int],
        directory: Directory | None = None,
        gauges: Callable[[], Gauges] | None = None,
        top_k: int = 0,
        process: bool = True,
    ) -> None:
        self._version = version
        self._now_ms = now_ms
        self._gauges = gauges or Gauges
        self._top_k = top_k
        self._directory = directory or (lambda _sids: ())
        self.standing = Standing(self._directory)
        self.counts: dict[str, defaultdict[tuple[str, ...], int]] = {}
        self.distributions: dict[str, dict[tuple[str, ...], Distribution]] = {}
        for name, metric in METRICS.items():
            if metric.kind == "counter":
                self.counts[name] = defaultdict(int, dict.fromkeys(metric.always, 0))
            elif metric.kind == "histogram":
                self.distributions[name] = {}
                if not metric.labels:
                    self.distributions[name][()] = Distribution(metric.bounds)
        self.sources: dict[str, str] = {}
        self.triggers: dict[str, str] = {}
        self.closed: set[str] = set()
        self._anchor_taken_ms: int | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        if process:
            ProcessCollector(registry=self._registry)

    # -- counting -----------------------------------------------------------------------------

    def committed(self, events: Iterable[StoredEvent]) -> None:
        """Count events that are durable now. Never raises, never waits."""
        number = 0
        for event in events:
            number += 1
            if event.sid is not None:
                self.standing.mark(event.sid)
            reading = READINGS.get(event.kind)
            if reading is None:
                continue
            try:
                reading(self, event)
            except Exception:  # noqa: BLE001  a wall: bad bytes in one event must not stop the writer
                self.counts["loopd_telemetry_errors_total"][()] += 1
        self.counts["loopd_events_total"][()] += number

    def add(self, name: str, *labels: str, by: int = 1) -> None:
        """Raise a counter."""
        known = self.counts[name]
        if labels not in known and len(known) >= LABEL_SETS_MAX:
            labels = ("other",) * len(labels)
        known[labels] += by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Count a value in a histogram."""
        known = self.distributions[name]
        found = known.get(labels)
        if found is None:
            if len(known) >= LABEL_SETS_MAX:
                labels = ("other",) * len(labels)
            found = known.setdefault(labels, Distribution(METRICS[name].bounds))
        found.observe(value)

    def command(self, cmd: str, code: str, seconds: float) -> None:
        """Count an answered command; `code` is `ok` or an error code."""
        self.add("loopd_commands_total", cmd, code)
        self.observe("loopd_command_seconds", seconds, cmd)

    def anchor(self, result: str) -> None:
        """Count an anchor that was `written`, or a try that `failed`."""
        self.add("loopd_anchors_total", result)

    def stranger(self, door: str) -> None:
        """Count somebody who was turned away at a door."""
        self.add("loopd_access_refused_total", door)

    def delivery(self, kind: str, result: str) -> None:
        """Count a try to deliver an event of this kind to a webhook: `taken` or `failed`."""
        self.add("loopd_webhook_deliveries_total", result)
        if kind.startswith("anchor."):
            self.add("loopd_anchor_deliveries_total", result)
            if result == "taken":
                self._anchor_taken_ms = self._now_ms()

    def commit(self, events: int, seconds: float) -> None:
        """Count one journal commit of so many events."""
        self.distributions["loopd_journal_commit_seconds"][()].observe(seconds)
        self.distributions["loopd_journal_batch_size"][()].observe(events)

    def await_delivery(self, envelope: str, source: str) -> None:
        """Remember the source of an envelope until `delivered` asks for it."""
        if len(self.sources) >= WAITING_MAX:
            del self.sources[next(iter(self.sources))]
        self.sources[envelope] = source

    def recall_gates(self) -> None:
        """Learn which gates are closed at boot, so that transitions count from where they began."""
        self.closed = {row.sid for row in self._directory(None) if row.holds and row.status == "live"}

    # -- showing ------------------------------------------------------------------------------

    def render(self) -> bytes:
        """The page for Prometheus, text format 0.0.4."""
        return generate_latest(self._registry)

    def describe(self) -> list[Family]:
        """Nothing: names are fixed by the catalogue (asked for by the registry)."""
        return []

    def collect(self) -> Iterator[Family]:
        """All families (asked for by the registry)."""
        self.standing.refresh()
        self.counts["loopd_tokens_barren_total"][()] = self.standing.barren_tokens
        yield from self._current()
        for name, known in self.counts.items():
            metric = METRICS[name]
            counter = CounterMetricFamily(name, metric.help, labels=metric.labels)
            for labels, value in known.items():
                counter.add_metric(labels, value)
            yield counter
        for name, distributions in self.distributions.items():
            metric = METRICS[name]
            histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            for labels, found in distributions.items():
                histogram.add_metric(labels, _bounded(metric.bounds, found.cumulative()), found.sum)
            yield histogram

    def _current(self) -> Iterator[Family]:
        now, state, gauges = self._now_ms(), self.standing, self._gauges()
        yield _gauge("loopd_sessions", {("live",): 0, **_keyed(state.statuses)})
        yield _gauge("loopd_turns_running", {(): state.running})
        yield _gauge("loopd_gate_closed", {**{(kind,): 0 for kind in HOLD_KINDS}, **_keyed(state.holds)})
        yield _gauge("loopd_goals", _keyed(state.goals))
        deadline = gauges.next_deadline_ms
        overdue = 0.0 if deadline is None else max(0, now - deadline) / 1000
        yield _gauge("loopd_gate_deadline_overdue_seconds", {(): overdue})
        counts, total, greatest = state.progress_ages(now, METRICS["loopd_progress_age_seconds"].bounds)
        yield from _spread("loopd_progress_age_seconds", counts, total, greatest)
        for name, values in (
            ("loopd_barren_streak", state.barren),
            ("loopd_repeat_text_streak", state.repeat),
        ):
            yield from _spread(name, *cumulative(values, METRICS[name].bounds))
        yield _gauge("loopd_inbox_depth", {(): state.inbox})
        yield _gauge("loopd_inbox_oldest_seconds", {(): state.oldest_age(now)})
        yield _gauge("loopd_info", {(self._version,): 1})
        yield _gauge("loopd_uptime_seconds", {(): gauges.uptime_ms / 1000})
        yield _gauge("loopd_journal_seq", {(): gauges.head})
        yield _gauge("loopd_frozen", {(): int(gauges.frozen)})
        yield _gauge("loopd_draining", {(): int(gauges.draining)})
        yield _gauge("loopd_bus_subscribers", {(): gauges.bus_subscribers})
        yield _gauge("loopd_bus_lag_events_max", {(): gauges.bus_lag_max})
        yield _gauge("loopd_event_loop_lag_seconds_max", {(): gauges.loop_lag_s})
        yield _gauge("loopd_sessions_in_memory", {(): gauges.sessions_in_memory})
        yield _gauge("loopd_sessions_idle_bytes", {(): gauges.idle_bytes})
        if gauges.resident_bytes is not None:
            yield _gauge("loopd_resident_bytes", {(): gauges.resident_bytes})
        if gauges.wal_bytes is not None:
            yield _gauge("loopd_wal_bytes", {(): gauges.wal_bytes})
        for name, moment in (
            ("loopd_anchor_age_seconds", gauges.anchored_ms),
            ("loopd_anchor_delivered_age_seconds", self._anchor_taken_ms),
        ):
            if moment is not None:
                yield _gauge(name, {(): max(0, now - moment) / 1000})
        if gauges.anchor_behind is not None:
            yield _gauge("loopd_anchor_behind_events", {(): gauges.anchor_behind})
        if self._top_k:
            ages = {(name,): max(0, now - at) / 1000 for name, at in state.stalest(self._top_k)}
            yield _gauge("loopd_top_progress_age_seconds", ages)
            streaks = {(name,): streak for name, streak in state.most_repeating(self._top_k)}
            yield _gauge("loopd_top_repeat_text_streak", streaks)


def _keyed(counts: dict[str, int]) -> dict[tuple[str, ...], int]:
    return {(sys.intern(name),): number for name, number in counts.items()}


def _gauge(name: str, values: Mapping[Any, float]) -> Family:
    metric = METRICS[name]
    family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _spread(name: str, counts: list[int], total: float, greatest: float) -> Iterator[Family]:
    metric = METRICS[name]
    family = HistogramMetricFamily(name, metric.help, labels=())
    family.add_metric((), _bounded(metric.bounds, counts), total)
    yield family
    yield _gauge(f"{name}_max", {(): greatest})


def _bounded(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, counts, strict=True))
