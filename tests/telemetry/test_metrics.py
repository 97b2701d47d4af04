"""Numbers come from committed events and from how sessions stand, and Prometheus can read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from loopd.core.writes import PassiveRow, StoredEvent
from loopd.telemetry import Gauges, LoopLag, Metrics
from loopd.telemetry.catalogue import METRICS
from loopd.telemetry.metrics import LABEL_SETS_MAX
from loopd.telemetry.readings import READINGS
from loopd.telemetry.standing import MARKED_MAX
from loopd_protocol import events as ev
from loopd_protocol import policy_events as pe
from loopd_protocol.events import EVENT_TYPES
from loopd_protocol.holds import HOLD_KINDS, Degeneration, UserSuspend
from loopd_protocol.retention_events import RetentionForgot
from loopd_protocol.sources import Source, Trigger

NOW = 1_795_338_000_000


def stored(body: ev.Event, sid: str | None = "ses_a", seq: int = 1) -> StoredEvent:
    return StoredEvent(
        seq=seq, sid=sid, ss=seq, at_ms=NOW, kind=body.kind, kv=1, body=msgspec.json.encode(body)
    )


def row(sid: str = "ses_a", **fields: Any) -> PassiveRow:
    plain: dict[str, Any] = {
        "sid": sid, "num": 1, "name": sid, "status": "live", "preset": "published", "goal": "", "holds": "", "until_ms": None,
        "deadline_ms": None, "inbox": 0, "inbox_oldest_ms": None, "turns": 0, "steps": 0, "tokens": 0, "tokens_barren": 0,
        "repeat_streak": 0, "barren_streak": 0, "progress_ms": NOW, "created_ms": NOW, "last_turn_ms": 0, "running": 0,
        "trigger": "", "labels": "{}",
    }  # fmt: skip
    return PassiveRow(**{**plain, **fields})


class Sessions:
    """The directory of a daemon."""

    def __init__(self, *rows: PassiveRow) -> None:
        self.rows = {row.sid: row for row in rows}
        self.asked: list[Collection[str] | None] = []

    def __call__(self, sids: Collection[str] | None) -> Iterable[PassiveRow]:
        self.asked.append(None if sids is None else set(sids))
        return (
            list(self.rows.values()) if sids is None else [self.rows[sid] for sid in sids if sid in self.rows]
        )

    def put(self, row: PassiveRow) -> None:
        self.rows[row.sid] = row


def metrics(*rows: PassiveRow, gauges: Gauges | None = None, **more: Any) -> Metrics:
    sessions = Sessions(*rows)
    return Metrics(
        version="1",
        now_ms=lambda: NOW,
        directory=sessions,
        gauges=lambda: gauges or Gauges(),
        process=False,
        **more,
    )


def shown(of: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(of.render().decode())
        for sample in family.samples
    }


def value(of: Metrics, name: str, **labels: str) -> float:
    return shown(of)[name, tuple(sorted(labels.items()))]


# -- counting ---------------------------------------------------------------------------------

LIFE = [
    ev.EnvelopeAccepted(id="e1", source=Source.HUMAN, text="hi", ephemeral_in_history=False),
    ev.EnvelopeHeld(id="e1", by=("Budget", "ProviderBackoff")),
    ev.TurnStarted(n=1, trigger=Trigger.HUMAN, envelopes=("e1",)),
    ev.TurnStep(n=1, step=1, total=1, text="x", usage=ev.Usage(input_tokens=7, output_tokens=3, cached_tokens=2), charge=ev.Charge(input=7, output=3, cost_micro=40)),
    ev.ModelCalled(n=1, api="messages", charge=ev.Charge(input=5, output=1, model="m", priced=False)),
    ev.ContextCompacted(n=1, reason="window", before_sha256="", after_sha256="", charge=ev.Charge(cost_micro=2)),
    pe.ApprovalRequested(id="a", n=1, call="c", tool="shell", tool_class="exec", args_sha256="x", until_ms=1),
    pe.ApprovalAnswered(id="a", answer="deny"),
    pe.ApprovalExpired(id="b", cause="deadline"),
    pe.EffectDenied(n=1, call="c", tool="shell", tool_class="exec", args_sha256="x"),
    pe.BudgetExhausted(which="session tokens", what="tokens", used=2, limit=1),
    ev.TurnCompleted(n=1, outcome="completed", duration_ms=1_500, near_misses={"cycle": 2}),
    ev.TurnStarted(n=2, trigger=Trigger.CONTINUATION),
    ev.TurnInterrupted(n=2, cause="crash", duration_ms=10),
    ev.DegenerationDetected(rule="repeated_text", verdict="close", level="hard", score=5, threshold=5),
    ev.GateChanged(gate="closed", cause="detection", by="rule:repeated_text", gen=1, added=Degeneration(by="rule:repeated_text", rule="repeated_text", until_ms=1)),
    ev.GateChanged(gate="closed", cause="suspend", by="uid:0", gen=2, added=UserSuspend(by="uid:0")),
    ev.GateChanged(gate="open", cause="unsuspend", by="uid:0", gen=3, removed=("UserSuspend",)),
    ev.EnvelopeAccepted(id="c1", source=Source.CRON, text="", ephemeral_in_history=True, job="j"),
    ev.EnvelopeCoalesced(id="c1", into="c2", job="j", count=2),
    ev.EnvelopeDropped(id="gone", reason="inbox_full"),
    ev.CronOccurrence(job="j", due_ms=1, result="late", late_ms=5),
    ev.EffectOutcome(id="f", outcome="uncertain"),
    ev.DetectorFailed(rule="x", cause="raised"),
    ev.ProviderRetrying(n=1, attempt=1, cause="http_429", delay_ms=10),
    ev.SessionEnded(status="aborted_stuck", stop_reason="tool_repetition", rule="tool_repetition"),
    ev.DaemonStarted(version="1", boot="b", pid=1, epoch=7),
    RetentionForgot(sids=("ses_old",), nums=(9,)),
]  # fmt: skip


@pytest.fixture
def lived() -> Metrics:
    found = metrics(row())
    found.committed(stored(event, seq=seq) for seq, event in enumerate(LIFE, 1))
    return found


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("loopd_envelopes_total", {"source": "human", "result": "accepted"}, 1),
        ("loopd_envelopes_total", {"source": "human", "result": "held"}, 1),
        ("loopd_envelopes_total", {"source": "human", "result": "delivered"}, 1),
        ("loopd_envelopes_total", {"source": "cron", "result": "coalesced"}, 1),
        ("loopd_envelopes_total", {"source": "unknown", "result": "dropped"}, 1),
        ("loopd_continuations_suppressed_total", {"source": "human", "reason": "Budget"}, 1),
        ("loopd_continuations_total", {}, 1),
        ("loopd_turns_total", {"trigger": "human", "outcome": "completed"}, 1),
        ("loopd_turns_total", {"trigger": "continuation", "outcome": "interrupted"}, 1),
        ("loopd_recoveries_total", {"cause": "crash"}, 1),
        ("loopd_turn_duration_seconds_sum", {"trigger": "human"}, 1.5),
        ("loopd_turn_duration_seconds_bucket", {"trigger": "human", "le": "1"}, 0),
        ("loopd_turn_duration_seconds_bucket", {"trigger": "human", "le": "2.5"}, 1),
        ("loopd_steps_total", {}, 1),
        ("loopd_tokens_total", {"kind": "input"}, 7),
        ("loopd_tokens_total", {"kind": "output"}, 3),
        ("loopd_tokens_total", {"kind": "cached"}, 2),
        ("loopd_cost_micros_total", {}, 42),
        ("loopd_unpriced_tokens_total", {"model": "m"}, 6),
        ("loopd_approvals_total", {"result": "requested"}, 1),
        ("loopd_approvals_total", {"result": "deny"}, 1),
        ("loopd_approvals_total", {"result": "expired"}, 1),
        ("loopd_effects_denied_total", {}, 1),
        ("loopd_budget_exhausted_total", {"kind": "tokens"}, 1),
        ("loopd_degeneration_detected_total", {"rule": "repeated_text", "verdict": "close"}, 1),
        ("loopd_rule_near_miss_total", {"rule": "cycle"}, 2),
        (
            "loopd_gate_transitions_total",
            {"from": "open", "to": "closed", "reason": "detection", "by": "rule"},
            1,
        ),
        (
            "loopd_gate_transitions_total",
            {"from": "closed", "to": "closed", "reason": "suspend", "by": "uid"},
            1,
        ),
        (
            "loopd_gate_transitions_total",
            {"from": "closed", "to": "open", "reason": "unsuspend", "by": "uid"},
            1,
        ),
        ("loopd_cron_occurrences_total", {"result": "late"}, 1),
        ("loopd_cron_occurrences_total", {"result": "missed"}, 0),
        ("loopd_effects_total", {"outcome": "uncertain"}, 1),
        ("loopd_detector_failures_total", {"rule": "x"}, 1),
        ("loopd_provider_retries_total", {"cause": "http_429"}, 1),
        ("loopd_terminal_total", {"status": "aborted_stuck", "rule": "tool_repetition"}, 1),
        ("loopd_boot_total", {}, 7),
        ("loopd_events_total", {}, len(LIFE)),
        ("loopd_telemetry_errors_total", {}, 0),
    ],
)
def test_an_event_counts(lived: Metrics, name: str, labels: dict[str, str], expected: float) -> None:
    assert value(lived, name, **labels) == expected


def test_transitions_after_a_restart_count_from_where_the_gate_was() -> None:
    found = metrics(
        row("ses_a", holds="UserSuspend"), row("ses_b"), row("ses_c", status="done_success", holds="Budget")
    )
    found.committed([stored(ev.DaemonStarted(version="1", boot="b", pid=1, epoch=2), None)])
    opened = ev.GateChanged(gate="open", cause="unsuspend", by="uid:0", gen=3, removed=("UserSuspend",))
    found.committed([stored(opened, sid) for sid in ("ses_a", "ses_b")])
    moved = {"to": "open", "reason": "unsuspend", "by": "uid"}
    assert value(found, "loopd_gate_transitions_total", **{"from": "closed"}, **moved) == 1
    assert value(found, "loopd_gate_transitions_total", **{"from": "open"}, **moved) == 1


def test_every_reading_is_of_a_known_kind_and_every_counter_is_in_the_catalogue(lived: Metrics) -> None:
    assert set(READINGS) <= set(EVENT_TYPES)
    assert {event.kind for event in LIFE} >= set(READINGS)
    counted = {name for name, metric in METRICS.items() if metric.kind == "counter"}
    assert set(lived.counts) == counted


@given(st.sampled_from(sorted(READINGS)), st.binary(max_size=40) | st.just(b'{"id":5}') | st.just(b"{}"))
def test_an_event_that_cannot_be_read_is_counted_and_never_raises(kind: str, body: bytes) -> None:
    found = metrics()
    bad = StoredEvent(seq=1, sid="ses_a", ss=1, at_ms=NOW, kind=kind, kv=1, body=body)
    good = stored(LIFE[0], seq=2)
    found.committed([bad, good])
    assert found.counts["loopd_events_total"][()] == 2
    assert found.counts["loopd_envelopes_total"]["human", "accepted"] == 1


def test_an_unknown_kind_only_counts_as_an_event() -> None:
    found = metrics()
    found.committed([StoredEvent(seq=1, sid=None, ss=0, at_ms=NOW, kind="moon.phase", kv=9, body=b"\xff")])
    assert (value(found, "loopd_events_total"), value(found, "loopd_telemetry_errors_total")) == (1, 0)


def test_labels_cannot_grow_without_end() -> None:
    found = metrics()
    found.committed(stored(ev.DetectorFailed(rule=f"r{i}", cause="x")) for i in range(LABEL_SETS_MAX + 50))
    known = found.counts["loopd_detector_failures_total"]
    assert len(known) == LABEL_SETS_MAX + 1
    assert known["other",] == 50
    assert sum(known.values()) == LABEL_SETS_MAX + 50


def test_commands_and_commits_are_timed() -> None:
    found = metrics()
    found.command("suspend", "ok", 0.002)
    found.command("suspend", "not_found", 0.2)
    found.commit(64, 0.003)
    assert value(found, "loopd_commands_total", cmd="suspend", code="not_found") == 1
    assert value(found, "loopd_command_seconds_bucket", cmd="suspend", le="0.0025") == 1
    assert value(found, "loopd_command_seconds_count", cmd="suspend") == 2
    assert value(found, "loopd_journal_batch_size_sum") == 64
    assert value(found, "loopd_journal_commit_seconds_bucket", le="0.0025") == 0
    assert value(found, "loopd_journal_commit_seconds_bucket", le="0.005") == 1


# -- how sessions stand -----------------------------------------------------------------------


def test_sessions_are_shown_as_sums_without_names() -> None:
    found = metrics(
        row("ses_a", goal="active", progress_ms=NOW - 100_000, repeat_streak=4, barren_streak=12),
        row("ses_b", goal="active", progress_ms=NOW - 10_000, holds="UserSuspend,Degeneration", running=1),
        row("ses_c", inbox=3, inbox_oldest_ms=NOW - 60_000),
        row("ses_d", status="aborted_stuck", repeat_streak=99, holds="Budget", goal="active", progress_ms=1),
        gauges=Gauges(next_deadline_ms=NOW - 2_500, head=9, bus_lag_max=4),
    )
    page = found.render().decode()
    assert "ses_" not in page
    for name, labels, expected in (
        ("loopd_sessions", {"status": "live"}, 3),
        ("loopd_sessions", {"status": "aborted_stuck"}, 1),
        ("loopd_turns_running", {}, 1),
        ("loopd_gate_closed", {"reason": "UserSuspend"}, 1),
        ("loopd_gate_closed", {"reason": "Degeneration"}, 1),
        ("loopd_gate_closed", {"reason": "Budget"}, 0),
        ("loopd_goals", {"status": "active"}, 2),
        ("loopd_progress_age_seconds_bucket", {"le": "60"}, 1),
        ("loopd_progress_age_seconds_bucket", {"le": "300"}, 2),
        ("loopd_progress_age_seconds_count", {}, 2),
        ("loopd_progress_age_seconds_max", {}, 100),
        ("loopd_repeat_text_streak_max", {}, 4),
        ("loopd_barren_streak_bucket", {"le": "10"}, 2),
        ("loopd_barren_streak_count", {}, 3),
        ("loopd_inbox_depth", {}, 3),
        ("loopd_inbox_oldest_seconds", {}, 60),
        ("loopd_gate_deadline_overdue_seconds", {}, 2.5),
        ("loopd_journal_seq", {}, 9),
        ("loopd_bus_lag_events_max", {}, 4),
    ):
        assert value(found, name, **labels) == expected, name


@given(st.lists(st.integers(-2, 400), min_size=1, max_size=12), st.integers(-1, 1))
def test_ages_are_counted_to_the_millisecond(seconds: list[int], off_ms: int) -> None:
    ages = [1_000 * age + off_ms for age in seconds]
    kept = metrics(*(row(f"ses_{i}", goal="active", progress_ms=NOW - age) for i, age in enumerate(ages)))
    kept.standing.refresh()
    counts, _, greatest = kept.standing.progress_ages(NOW, (60, 300))
    assert counts == [sum(age <= 60_000 for age in ages), sum(age <= 300_000 for age in ages), len(ages)]
    assert greatest == max(0, *ages) / 1_000


def test_every_kind_of_hold_is_shown_before_it_happens() -> None:
    assert {
        dict(labels)["reason"] for (name, labels) in shown(metrics()) if name == "loopd_gate_closed"
    } == set(HOLD_KINDS)


def test_only_changed_sessions_are_looked_at_again() -> None:
    sessions = Sessions(row("ses_a"), row("ses_b"))
    found = Metrics(version="1", now_ms=lambda: NOW, directory=sessions, process=False)
    found.committed([stored(LIFE[0], "ses_a")])
    assert sessions.asked == []
    found.render()
    sessions.put(row("ses_a", holds="Budget"))
    found.committed([stored(LIFE[0], "ses_a")])
    found.render()
    found.render()
    assert sessions.asked == [None, {"ses_a"}]
    assert value(found, "loopd_gate_closed", reason="Budget") == 1


def test_many_changed_sessions_are_not_left_for_one_scrape() -> None:
    sessions = Sessions(*(row(f"ses_{i}") for i in range(MARKED_MAX)))
    found = Metrics(version="1", now_ms=lambda: NOW, directory=sessions, process=False)
    found.render()
    found.committed(stored(LIFE[0], f"ses_{i}") for i in range(MARKED_MAX))
    assert sessions.asked == [None, set(sessions.rows)]


def test_forgotten_sessions_are_not_shown_any_more() -> None:
    sessions = Sessions(
        row("ses_a", status="stopped", goal="active"), row("ses_b", goal="active", progress_ms=NOW - 7_000)
    )
    of = Metrics(version="1", now_ms=lambda: NOW, directory=sessions, gauges=Gauges, top_k=5)
    assert value(of, "loopd_progress_age_seconds_max") == 7
    del sessions.rows["ses_b"]
    of.committed([stored(RetentionForgot(sids=("ses_b",), nums=(2,)), sid=None)])
    assert value(of, "loopd_sessions", status="live") == 0
    assert value(of, "loopd_sessions", status="stopped") == 1
    assert value(of, "loopd_progress_age_seconds_max") == 0
    assert b"ses_b" not in of.render()


def test_barren_tokens_only_grow() -> None:
    sessions = Sessions(row(tokens_barren=100))
    found = Metrics(version="1", now_ms=lambda: NOW, directory=sessions, process=False)
    total = []
    for barren in (100, 160, 0, 30):
        sessions.put(row(tokens_barren=barren))
        found.committed([stored(LIFE[0])])
        total.append(value(found, "loopd_tokens_barren_total"))
    assert total == [0, 60, 60, 90]


def test_the_worst_sessions_are_named_only_when_asked_for() -> None:
    rows = [row(f"ses_{i}", goal="active", progress_ms=NOW - i * 1_000, repeat_streak=i) for i in range(10)]
    found = shown(metrics(*rows, top_k=2))
    named = {
        (name, dict(labels)["session"]): value for (name, labels), value in found.items() if "_top_" in name
    }
    assert named == {
        ("loopd_top_progress_age_seconds", "ses_9"): 9,
        ("loopd_top_progress_age_seconds", "ses_8"): 8,
        ("loopd_top_repeat_text_streak", "ses_9"): 9,
        ("loopd_top_repeat_text_streak", "ses_8"): 8,
    }


ROWS = st.builds(
    row,
    st.sampled_from(["ses_a", "ses_b", "ses_c"]),
    status=st.sampled_from(["live", "live", "done_success"]),
    goal=st.sampled_from(["", "active", "paused"]),
    holds=st.sampled_from(["", "Budget", "UserSuspend,Budget"]),
    inbox=st.integers(0, 5),
    repeat_streak=st.integers(0, 200),
    barren_streak=st.integers(0, 200),
    progress_ms=st.integers(NOW - 10**9, NOW + 1_000),
    running=st.integers(0, 1),
)


@given(st.lists(ROWS, max_size=25))
def test_sums_kept_up_to_date_equal_sums_made_afresh(history: list[PassiveRow]) -> None:
    sessions = Sessions()
    kept = Metrics(version="1", now_ms=lambda: NOW, directory=sessions, process=False)
    kept.render()
    for place, state in enumerate(history):
        sessions.put(state)
        kept.standing.mark(state.sid)
        if place % 3 == 0:
            kept.render()
    fresh = Metrics(
        version="1", now_ms=lambda: NOW, directory=Sessions(*sessions.rows.values()), process=False
    )
    interesting = (
        "loopd_sessions",
        "loopd_gate_closed",
        "loopd_goals",
        "_age_",
        "_streak",
        "loopd_inbox",
        "loopd_turns_running",
    )

    def sums(of: Metrics) -> dict[Any, float]:
        return {key: v for key, v in shown(of).items() if any(word in key[0] for word in interesting) and v}

    assert sums(kept) == sums(fresh)


def test_an_anchor_that_does_not_leave_the_machine_shows() -> None:
    of = metrics(gauges=Gauges(anchored_ms=NOW - 90_000, anchor_behind=12))
    of.anchor("failed")
    of.delivery("anchor.signed", "failed")
    of.delivery("turn.completed", "taken")
    of.stranger("http")
    assert value(of, "loopd_anchor_age_seconds") == 90
    assert value(of, "loopd_anchor_behind_events") == 12
    assert value(of, "loopd_anchors_total", result="failed") == 1
    assert value(of, "loopd_anchor_deliveries_total", result="failed") == 1
    assert value(of, "loopd_anchor_deliveries_total", result="taken") == 0
    assert value(of, "loopd_webhook_deliveries_total", result="taken") == 1
    assert value(of, "loopd_access_refused_total", door="http") == 1
    assert ("loopd_anchor_delivered_age_seconds", ()) not in shown(of), "none has left yet"
    of.delivery("anchor.signed", "taken")
    assert value(of, "loopd_anchor_delivered_age_seconds") == 0


# -- Prometheus itself ------------------------------------------------------------------------


def test_the_page_is_what_the_catalogue_says(lived: Metrics) -> None:
    lived._gauges = lambda: Gauges(anchored_ms=NOW - 2_000, anchor_behind=3)
    lived.delivery("anchor.signed", "taken")
    families = {family.name: family for family in text_string_to_metric_families(lived.render().decode())}
    for name, metric in METRICS.items():
        if "_top_" in name or name in {"loopd_wal_bytes", "loopd_resident_bytes"}:
            continue
        family = families[name.removesuffix("_total")]
        kind = {"buckets": "histogram"}.get(metric.kind, metric.kind)
        assert (family.type, family.documentation) == (kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    ours = {name for name in families if name.startswith("loopd_")}
    assert ours <= {name.removesuffix("_total") for name in METRICS}


@pytest.mark.real
def test_promtool_finds_nothing_to_say(lived: Metrics) -> None:
    promtool = shutil.which(os.environ.get("PROMTOOL", "promtool"))
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus); PROMTOOL names another place")
    found = metrics(row(goal="active"), top_k=1, gauges=Gauges(wal_bytes=1, resident_bytes=1))
    found.committed(stored(event) for event in LIFE)
    done = subprocess.run(
        [promtool, "check", "metrics"], input=found.render(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


# -- the loop ---------------------------------------------------------------------------------


def test_loop_lag_is_remembered_for_one_to_two_windows() -> None:
    lag = LoopLag(lambda: 0.0)
    lag.sample(0.5, 1.0)
    lag.sample(0.1, 29.0)
    assert lag.max_s == 0.5
    lag.sample(0.1, 31.0)
    assert lag.max_s == 0.5
    lag.sample(0.2, 62.0)
    assert lag.max_s == 0.2
    lag.sample(0.0, 300.0)
    assert lag.max_s == 0.0


@pytest.mark.anyio
async def test_a_blocked_loop_is_seen() -> None:
    lag = LoopLag()
    async with anyio.create_task_group() as group:
        group.start_soon(lag.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            while lag.max_s < 0.2:
                time.sleep(0.7)  # noqa: ASYNC251  blocking is what this is about
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
