"""Progress: the one definition that every rule, reset, report and metric uses. Pure, incremental.

A step is progress when it brought
  `state`   a state fingerprint that was never seen before (back to an old one is an oscillation);
  `write`   the same by proxy where no sensor looks: a change that succeeded and was never made before;
  `check`   a check that failed before and passes for the first time at this fingerprint;
  `failing` fewer failing checks than ever;
  `result`  a result never seen in this session, success or failure, of at least 3 visible characters,
            that is not only the call's own words;
  `metric`  a reported value better than any before; `item` a tracked item closed; `human` human input.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loopd.core import packed
from loopd.core.records import CallRecord, StepRecord

VISIBLE_CHARS = 3
"""Shorter results are acknowledgements: neither progress nor stagnation."""

FINGERPRINTS = 64
RESULTS = 256
"""Results remembered; an older one is new again, which errs on the patient side."""
IDENTITIES = 256
CHECKS = 16
METRICS = 16
OWN_TOOLS = frozenset({"request_idle", "update_goal", "wake_me", "report_phase", "report_progress"})
"""loopd's own tools: what they answer is no information about the task."""
BLIND_STEPS = 16
"""A sensor that fails this often in a row is given up: changes are then judged by the calls."""


class Check(msgspec.Struct, frozen=True, array_like=True):
    """A check command: whether it passes, at how many failures it was best, where it passed (packed)."""

    identity: bytes
    passes: bool
    fewest: int
    passed_at: bytes = b""


class ProgressState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has been seen in a session.

    Attributes:
        last: number of the last step with progress; `last_ms` its moment.
        human_ms: moment of the last human input, 0 for none.
        fingerprints, results, identities: packed rings of what was seen.
        fingerprint: the last known one (packed), empty for none.
        blind: steps in a row without a fingerprint although one was known before.
        best: best value of each reported metric, in millionths.
        oscillations: how often the outside went back to an old state.
        pending: progress between two steps, which the next step brings to the rules.
    """

    last: int = 0
    last_ms: int = 0
    human_ms: int = 0
    fingerprints: bytes = b""
    results: bytes = b""
    identities: bytes = b""
    fingerprint: bytes = b""
    blind: int = 0
    checks: tuple[Check, ...] = ()
    best: dict[str, int] = {}
    oscillations: int = 0
    pending: tuple[str, ...] = ()


FRESH = ProgressState()


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a step brought.

    Attributes:
        reasons: kinds of progress; empty for none.
        fresh: for each call, whether its like was never called before.
        oscillated: the outside is back at an old state.
        seen: whether the state fingerprint is known in this step.
    """

    reasons: tuple[str, ...] = ()
    fresh: tuple[bool, ...] = ()
    oscillated: bool = False
    sensed: bool = False

    @property
    def made(self) -> bool:
        """Whether there was any."""
        return bool(self.reasons)


def observe(
    state: ProgressState, record: StepRecord, results: Iterable[bytes | None]
) -> tuple[ProgressState, Progress]:
    """Feed one step.

    Args:
        state: before the step.
        record: the step.
        results: for each call the packed digest of its result, masked if it was; None for unknown.
    """
    reasons: list[str] = list(state.pending)
    changes: dict[str, object] = {"pending": ()} if reasons else {}
    known = record.state_fingerprint
    fingerprint, oscillated = state.fingerprint, False
    if known:
        fingerprint = packed.digest(known)
        seen = packed.find(state.fingerprints, fingerprint, packed.DIGEST) >= 0
        if not seen:
            changes["fingerprints"] = packed.push(state.fingerprints, fingerprint, FINGERPRINTS)
            if state.fingerprint:
                reasons.append("state")
        elif fingerprint != state.fingerprint:
            oscillated = True
            changes["oscillations"] = state.oscillations + 1
        changes["fingerprint"] = fingerprint
        if state.blind:
            changes["blind"] = 0
    elif state.fingerprint:
        changes["blind"] = min(state.blind + 1, BLIND_STEPS)
    sensed = bool(known) or bool(state.fingerprint and state.blind + 1 < BLIND_STEPS)
    fresh: list[bool] = []
    ring, identities, checks = state.results, state.identities, state.checks
    for call, result in zip(record.calls, results, strict=True):
        identity = bytes.fromhex(call.identity)[: packed.DIGEST]
        new = packed.find(identities, identity, packed.DIGEST) < 0
        fresh.append(new)
        if new:
            identities = packed.push(identities, identity, IDENTITIES)
        if new and call.writes and not call.failed and not sensed and "write" not in reasons:
            reasons.append("write")
        if call.tool_class == "test" and not call.infra:
            checks, reason = _checked(checks, call, identity, fingerprint)
            if reason is not None:
                reasons.append(reason)
        if result is None or call.result_chars < VISIBLE_CHARS:
            continue
        if packed.find(ring, result, packed.DIGEST) < 0:
            ring = packed.push(ring, result, RESULTS)
            idle = call.echo or call.noop or call.waits or call.infra or call.name in OWN_TOOLS
            if not idle and "result" not in reasons:
                reasons.append("result")
    if ring is not state.results:
        changes["results"] = ring
    if identities is not state.identities:
        changes["identities"] = identities
    if checks is not state.checks:
        changes["checks"] = checks
    if reasons:
        changes |= {"last": record.n, "last_ms": record.at_ms}
    after = msgspec.structs.replace(state, **changes) if changes else state
    return after, Progress(
        reasons=tuple(reasons), fresh=tuple(fresh), oscillated=oscillated, sensed=bool(known)
    )


def _checked(
    checks: tuple[Check, ...], call: CallRecord, identity: bytes, fingerprint: bytes
) -> tuple[tuple[Check, ...], str | None]:
    old = next((check for check in checks if check.identity == identity), None)
    count = call.failing if call.failing is not None else -1
    if old is None:
        new = Check(identity, not call.failed, count, b"" if call.failed else fingerprint)
        return (*checks, new)[-CHECKS:], None
    reason = None
    if not call.failed and not old.passes and (not fingerprint or old.passed_at != fingerprint):
        reason = "check"
    elif call.failed and 0 <= count < old.fewest:
        reason = "failing"
    fewest = count if old.fewest < 0 else min(old.fewest, count) if count >= 0 else old.fewest
    new = Check(identity, not call.failed, fewest, old.passed_at if call.failed else fingerprint)
    return (*(check for check in checks if check is not old), new), reason


def human(state: ProgressState, at_ms: int, n: int) -> ProgressState:
    """A person said something: whatever happened before is no evidence any more.

    Args:
        state: before.
        at_ms: moment of it.
        n: number of the last step before it.
    """
    return msgspec.structs.replace(state, last=n, last_ms=at_ms, human_ms=max(at_ms, 1))


def reported(
    state: ProgressState, metric: str, value_micro: int, at_ms: int, n: int
) -> tuple[ProgressState, bool]:
    """The agent reported a metric; progress iff it beats its best. More is better."""
    old = state.best.get(metric)
    if old is not None and value_micro <= old:
        return state, False
    best = {name: value for name, value in state.best.items() if name != metric}
    best[metric] = value_micro
    while len(best) > METRICS:
        del best[next(iter(best))]
    changes: dict[str, object] = {"best": best}
    if old is not None:
        changes |= {"last": n, "last_ms": at_ms, "pending": _pending(state, "metric")}
    return msgspec.structs.replace(state, **changes), old is not None


def closed(state: ProgressState, at_ms: int, n: int) -> ProgressState:
    """A tracked item was closed, as the daemon observed it."""
    return msgspec.structs.replace(state, last=n, last_ms=at_ms, pending=_pending(state, "item"))


def _pending(state: ProgressState, reason: str) -> tuple[str, ...]:
    return state.pending if reason in state.pending else (*state.pending, reason)
