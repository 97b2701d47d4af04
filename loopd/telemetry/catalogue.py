"""Every metric by name: its type, labels and meaning. `/metrics` and the reference come from this table."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

import msgspec

SECONDS_OF_PROGRESS = (60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800)
STREAKS = (1, 2, 3, 5, 10, 20, 50, 100, 1_000)
SECONDS_OF_COMMIT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SECONDS_OF_COMMAND = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
SECONDS_OF_TURN = (0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 1_800, 3_600)
BATCH_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric family.

    Attributes:
        kind: `buckets` is a histogram of what is true now (it may fall), `histogram` one of what
            happened (it only grows).
        always: label sets that are shown as 0 before anything happened, so that `rate` works.
    """

    kind: Literal["counter", "gauge", "buckets", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    always: tuple[tuple[str, ...], ...] = ()


def _counter(meaning: str, *labels: str, always: tuple[tuple[str, ...], ...] = ()) -> Metric:
    return Metric(kind="counter", help=meaning, labels=labels, always=always or (() if labels else ((),)))


def _gauge(meaning: str, *labels: str) -> Metric:
    return Metric(kind="gauge", help=meaning, labels=labels)


def _buckets(meaning: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(kind="buckets", help=meaning, bounds=bounds)


def _histogram(meaning: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    return Metric(kind="histogram", help=meaning, bounds=bounds, labels=labels)


METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        # -- what is true now: sessions
        "loopd_sessions": _gauge("Sessions by status; live ones have not ended.", "status"),
        "loopd_turns_running": _gauge("Turns that run now."),
        "loopd_gate_closed": _gauge(
            "Live sessions whose gate has a hold of this kind; one session may count under several.", "reason"
        ),
        "loopd_gate_deadline_overdue_seconds": _gauge(
            "How long the earliest deadline of all sessions is overdue; 0 while timers keep up."
        ),
        "loopd_progress_age_seconds": _buckets(
            "Live sessions with an active goal, by time since their last progress.", SECONDS_OF_PROGRESS
        ),
        "loopd_progress_age_seconds_max": _gauge(
            "Longest time without progress of a live session with an active goal."
        ),
        "loopd_barren_streak": _buckets("Live sessions by turns in a row without progress.", STREAKS),
        "loopd_barren_streak_max": _gauge("Longest run of turns without progress of a live session."),
        "loopd_repeat_text_streak": _buckets("Live sessions by equal turn texts in a row.", STREAKS),
        "loopd_repeat_text_streak_max": _gauge("Longest run of equal turn texts of a live session."),
        "loopd_inbox_depth": _gauge("Envelopes that wait, in all sessions."),
        "loopd_inbox_oldest_seconds": _gauge("Age of the envelope that waits longest."),
        "loopd_goals": _gauge("Live sessions by status of their goal.", "status"),
        "loopd_top_progress_age_seconds": _gauge(
            "Time since the last progress of the worst sessions; only with `metrics.top_k`.", "session"
        ),
        "loopd_top_repeat_text_streak": _gauge(
            "Equal turn texts in a row of the worst sessions; only with `metrics.top_k`.", "session"
        ),
        # -- what is true now: daemon
        "loopd_info": _gauge("1, with the daemon's version.", "version"),
        "loopd_uptime_seconds": _gauge("Time since this boot."),
        "loopd_journal_seq": _gauge("Sequence number of the last committed event."),
        "loopd_frozen": _gauge("1 while the whole daemon is frozen."),
        "loopd_draining": _gauge("1 while the daemon is about to stop."),
        "loopd_bus_subscribers": _gauge("Subscriptions to the event bus."),
        "loopd_bus_lag_events_max": _gauge("How far the slowest subscriber is behind the head."),
        "loopd_sessions_in_memory": _gauge("Sessions that are loaded, at work or at rest."),
        "loopd_sessions_idle_bytes": _gauge(
            "What sessions at rest keep in memory; at most `limits.idle_bytes`, but for the newest."
        ),
        "loopd_resident_bytes": _gauge(
            "Memory that the daemon occupies; absent where the system does not say."
        ),
        "loopd_wal_bytes": _gauge("Size of the write-ahead log."),
        "loopd_event_loop_lag_seconds_max": _gauge(
            "Longest delay of the event loop in the last 30 to 60 seconds."
        ),
        "loopd_anchor_age_seconds": _gauge(
            "Time since the newest anchor was signed; absent before the first."
        ),
        "loopd_anchor_behind_events": _gauge(
            "Events that no anchor covers yet; at most 1,000, and not for over a minute, while anchors are written."
        ),
        "loopd_anchor_delivered_age_seconds": _gauge(
            "Time since a webhook last took an anchor; absent until one did in this boot."
        ),
        # -- what happened: gate and detection
        "loopd_gate_transitions_total": _counter(
            "Changes of gates; `reason` is the cause, `by` the sort of principal (`uid`, `rule`, `agent`, …).",
            "from",
            "to",
            "reason",
            "by",
        ),
        "loopd_degeneration_detected_total": _counter("Findings of rules.", "rule", "verdict"),
        "loopd_rule_near_miss_total": _counter(
            "Times a rule came within three quarters of its soft threshold.", "rule"
        ),
        "loopd_detector_failures_total": _counter(
            "Rules that raised or took too long and were skipped.", "rule"
        ),
        "loopd_continuations_total": _counter("Turns that the daemon itself began because of a goal."),
        "loopd_continuations_suppressed_total": _counter(
            "Inputs that a hold kept waiting, by source and kind of hold.", "source", "reason"
        ),
        # -- what happened: turns
        "loopd_turns_total": _counter("Ended turns.", "trigger", "outcome"),
        "loopd_turn_duration_seconds": _histogram("Duration of ended turns.", SECONDS_OF_TURN, "trigger"),
        "loopd_steps_total": _counter("Model calls that ended."),
        "loopd_tokens_total": _counter(
            "Tokens as drivers report them; `cached` ones are counted under `input` too.",
            "kind",
            always=(("input",), ("output",), ("cached",)),
        ),
        "loopd_tokens_barren_total": _counter(
            "Tokens spent without progress, sampled at each scrape: a lower bound."
        ),
        "loopd_cost_micros_total": _counter("Cost of model calls, in millionths of the configured currency."),
        "loopd_unpriced_tokens_total": _counter(
            "Tokens of models that the price table does not name: they are in no cost.", "model"
        ),
        "loopd_budget_exhausted_total": _counter("Limits of which nothing was left, by kind.", "kind"),
        "loopd_approvals_total": _counter(
            "Questions to people: `requested`, then `allow`, `deny`, or `expired` without an answer.",
            "result",
            always=tuple((word,) for word in ("requested", "allow", "deny", "expired")),
        ),
        "loopd_effects_denied_total": _counter("Tool calls that policy refused without asking."),
        "loopd_terminal_total": _counter(
            "Sessions that ended; `rule` is empty unless a rule ended it.", "status", "rule"
        ),
        "loopd_provider_retries_total": _counter("Model calls that drivers tried again.", "cause"),
        # -- what happened: inputs and effects
        "loopd_envelopes_total": _counter(
            "Envelopes by what became of them: `accepted`, then `held`, `delivered`, `coalesced`, `dropped`.",
            "source",
            "result",
        ),
        "loopd_cron_occurrences_total": _counter(
            "Due moments of cron jobs; `held` ones get a final result later.",
            "result",
            always=tuple((word,) for word in ("fired", "late", "coalesced", "held", "skipped", "missed")),
        ),
        "loopd_effects_total": _counter("Tool effects by outcome.", "outcome"),
        "loopd_recoveries_total": _counter("Turns found cut off, by cause.", "cause"),
        # -- what happened: evidence that leaves the machine, and strangers at the doors
        "loopd_anchors_total": _counter(
            "Anchors: `written`, or `failed` because the journal took nothing.",
            "result",
            always=(("written",), ("failed",)),
        ),
        "loopd_anchor_deliveries_total": _counter(
            "Tries to deliver an anchor to a webhook.", "result", always=(("taken",), ("failed",))
        ),
        "loopd_webhook_deliveries_total": _counter(
            "Tries to deliver an event to a webhook.", "result", always=(("taken",), ("failed",))
        ),
        "loopd_access_refused_total": _counter(
            "Attempts of nobody who is known here, by door.",
            "door",
            always=(("control",), ("agent",), ("http",)),
        ),
        # -- what happened: machinery
        "loopd_journal_commit_seconds": _histogram("Duration of journal commits.", SECONDS_OF_COMMIT),
        "loopd_journal_batch_size": _histogram("Events in one journal commit.", BATCH_SIZES),
        "loopd_events_total": _counter("Committed events."),
        "loopd_commands_total": _counter("Commands by result: `ok` or an error code.", "cmd", "code"),
        "loopd_command_seconds": _histogram("Duration of commands.", SECONDS_OF_COMMAND, "cmd"),
        "loopd_boot_total": _counter("Boots of this data folder, this one included."),
        "loopd_telemetry_errors_total": _counter("Events that could not be counted."),
    }
)
