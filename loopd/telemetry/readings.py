"""What each kind of event adds to the numbers: one small function per kind, one table."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from loopd.core.writes import StoredEvent

if TYPE_CHECKING:
    from loopd.telemetry.metrics import Metrics

Reading = Callable[["Metrics", StoredEvent], None]


class _Ended(msgspec.Struct, gc=False):
    status: str
    rule: str | None = None


class _Accepted(msgspec.Struct, gc=False):
    id: str
    source: str


class _Held(msgspec.Struct):
    id: str
    by: list[str]


class _Gone(msgspec.Struct, gc=False):
    id: str


class _Gate(msgspec.Struct, gc=False):
    gate: str
    cause: str
    by: str


class _Detected(msgspec.Struct, gc=False):
    rule: str
    verdict: str = ""


class _Started(msgspec.Struct):
    trigger: str
    envelopes: list[str] = []


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class _Charge(msgspec.Struct, gc=False):
    input: int = 0
    output: int = 0
    cost_micro: int = 0
    model: str = ""
    priced: bool = True


class _Step(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    charge: _Charge | None = None


class _Charged(msgspec.Struct, gc=False):
    charge: _Charge | None = None


class _Answered(msgspec.Struct, gc=False):
    answer: str


class _Limit(msgspec.Struct, gc=False):
    what: str


class _Turn(msgspec.Struct, gc=False):
    outcome: str = "interrupted"
    cause: str = ""
    duration_ms: int = 0
    near_misses: dict[str, int] = {}


class _Caused(msgspec.Struct, gc=False):
    cause: str


class _Forgot(msgspec.Struct):
    sids: list[str]


class _Result(msgspec.Struct, gc=False):
    result: str


class _Outcome(msgspec.Struct, gc=False):
    outcome: str


class _Boot(msgspec.Struct, gc=False):
    epoch: int = 1


def _decoder(shape: type[Any]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(shape).decode


_ended, _accepted, _held, _gone = map(_decoder, (_Ended, _Accepted, _Held, _Gone))
_gate, _detected, _started, _step = map(_decoder, (_Gate, _Detected, _Started, _Step))
_turn, _caused, _result, _outcome, _boot = map(_decoder, (_Turn, _Caused, _Result, _Outcome, _Boot))


_forgot = _decoder(_Forgot)
_charged, _answered, _limit = map(_decoder, (_Charged, _Answered, _Limit))


def sort_of(principal: str) -> str:
    """The sort of a principal, so that a label has few values: `uid:1000` → `uid`."""
    return principal.partition(":")[0] or "daemon"


def _session_ended(to: Metrics, event: StoredEvent) -> None:
    body = _ended(event.body)
    to.add("loopd_terminal_total", body.status, body.rule or "")
    if event.sid is not None:
        to.closed.discard(event.sid)


def _retention_forgot(to: Metrics, event: StoredEvent) -> None:
    for sid in _forgot(event.body).sids:
        to.standing.mark(sid)
        to.closed.discard(sid)
        to.triggers.pop(sid, None)


def _envelope_accepted(to: Metrics, event: StoredEvent) -> None:
    body = _accepted(event.body)
    to.await_delivery(body.id, body.source)
    to.add("loopd_envelopes_total", body.source, "accepted")


def _envelope_held(to: Metrics, event: StoredEvent) -> None:
    body = _held(event.body)
    source = to.sources.get(body.id, "unknown")
    to.add("loopd_envelopes_total", source, "held")
    for kind in body.by:
        to.add("loopd_continuations_suppressed_total", source, kind)


def _envelope_coalesced(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_envelopes_total", to.sources.pop(_gone(event.body).id, "cron"), "coalesced")


def _envelope_dropped(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_envelopes_total", to.sources.pop(_gone(event.body).id, "unknown"), "dropped")


def _gate_changed(to: Metrics, event: StoredEvent) -> None:
    body, sid = _gate(event.body), event.sid or ""
    before = "closed" if sid in to.closed else "open"
    to.add("loopd_gate_transitions_total", before, body.gate, body.cause, sort_of(body.by))
    if body.gate == "closed":
        to.closed.add(sid)
    else:
        to.closed.discard(sid)


def _degeneration_detected(to: Metrics, event: StoredEvent) -> None:
    body = _detected(event.body)
    to.add("loopd_degeneration_detected_total", body.rule, body.verdict)


def _detector_failed(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_detector_failures_total", _detected(event.body).rule)


def _turn_started(to: Metrics, event: StoredEvent) -> None:
    body = _started(event.body)
    if event.sid is not None:
        to.triggers[event.sid] = body.trigger
    if body.trigger == "continuation":
        to.add("loopd_continuations_total")
    for envelope in body.envelopes:
        to.add("loopd_envelopes_total", to.sources.pop(envelope, "unknown"), "delivered")


def _turn_step(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_steps_total")
    body = _step(event.body)
    usage = body.usage
    _cost(to, body.charge)
    if usage is not None:
        to.add("loopd_tokens_total", "input", by=usage.input_tokens)
        to.add("loopd_tokens_total", "output", by=usage.output_tokens)
        to.add("loopd_tokens_total", "cached", by=usage.cached_tokens)


def _cost(to: Metrics, charge: _Charge | None) -> None:
    if charge is None:
        return
    if charge.cost_micro:
        to.add("loopd_cost_micros_total", by=charge.cost_micro)
    if not charge.priced:
        to.add("loopd_unpriced_tokens_total", charge.model, by=charge.input + charge.output)


def _model_called(to: Metrics, event: StoredEvent) -> None:
    _cost(to, _charged(event.body).charge)


def _budget_exhausted(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_budget_exhausted_total", _limit(event.body).what)


def _approval_requested(to: Metrics, event: StoredEvent) -> None:
    del event
    to.add("loopd_approvals_total", "requested")


def _approval_answered(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_approvals_total", _answered(event.body).answer)


def _approval_expired(to: Metrics, event: StoredEvent) -> None:
    del event
    to.add("loopd_approvals_total", "expired")


def _effect_denied(to: Metrics, event: StoredEvent) -> None:
    del event
    to.add("loopd_effects_denied_total")


def _turn_ended(to: Metrics, event: StoredEvent) -> None:
    body = _turn(event.body)
    trigger = to.triggers.pop(event.sid or "", "unknown")
    to.add("loopd_turns_total", trigger, body.outcome)
    to.observe("loopd_turn_duration_seconds", body.duration_ms / 1000, trigger)
    if event.kind == "turn.interrupted" and body.cause == "crash":
        to.add("loopd_recoveries_total", body.cause)
    for rule, count in body.near_misses.items():
        to.add("loopd_rule_near_miss_total", rule, by=count)


def _provider_retrying(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_provider_retries_total", _caused(event.body).cause)


def _cron_occurrence(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_cron_occurrences_total", _result(event.body).result)


def _effect_outcome(to: Metrics, event: StoredEvent) -> None:
    to.add("loopd_effects_total", _outcome(event.body).outcome)


def _daemon_started(to: Metrics, event: StoredEvent) -> None:
    to.counts["loopd_boot_total"][()] = _boot(event.body).epoch
    to.recall_gates()


READINGS: MappingProxyType[str, Reading] = MappingProxyType(
    {
        "session.ended": _session_ended,
        "envelope.accepted": _envelope_accepted,
        "envelope.held": _envelope_held,
        "envelope.coalesced": _envelope_coalesced,
        "envelope.dropped": _envelope_dropped,
        "gate.changed": _gate_changed,
        "degeneration.detected": _degeneration_detected,
        "detector.failed": _detector_failed,
        "turn.started": _turn_started,
        "turn.step": _turn_step,
        "model.called": _model_called,
        "context.compacted": _model_called,
        "budget.exhausted": _budget_exhausted,
        "approval.requested": _approval_requested,
        "approval.answered": _approval_answered,
        "approval.expired": _approval_expired,
        "effect.denied": _effect_denied,
        "turn.completed": _turn_ended,
        "turn.interrupted": _turn_ended,
        "provider.retrying": _provider_retrying,
        "cron.occurrence": _cron_occurrence,
        "effect.outcome": _effect_outcome,
        "daemon.started": _daemon_started,
        "retention.forgot": _retention_forgot,
    }
)
"""Kind → reading. Kinds that are not here only count as events."""
