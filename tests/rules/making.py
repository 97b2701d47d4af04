"""Short ways to make records, and to feed them to the framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loopd.core.records import CallRecord, StepRecord, TurnRecord, call_record
from loopd.core.rules import Finding, RuleSettings, RulesState, observe_step, observe_turn
from loopd.core.settings import settings_of
from loopd_protocol.events import ToolCall
from loopd_protocol.sources import Trigger

FILLER = "16/100. Not complete. No action."


def turn(text: str = FILLER, **given: Any) -> TurnRecord:
    values: dict[str, Any] = {"n": 1, "trigger": Trigger.CONTINUATION, "at_ms": 0, "outcome": "completed"}
    return TurnRecord(**values | {"text": text} | given)


def step(*calls: CallRecord | str, **given: Any) -> StepRecord:
    values: dict[str, Any] = {"n": 1, "turn": 1, "trigger": Trigger.CONTINUATION, "at_ms": 0}
    made = tuple(call if isinstance(call, CallRecord) else call_to(call) for call in calls)
    return StepRecord(**values | {"calls": made} | given)


def call_to(name: str, args: Any = None, **given: Any) -> CallRecord:
    values: dict[str, Any] = {"id": "c", "name": name, "args": {} if args is None else args, "ok": True}
    return call_record(ToolCall(**values | given))


def rule_settings(**overrides: Any) -> RuleSettings:
    """`repeated_text__threshold=3` stands for `rules.repeated_text.threshold`."""
    return settings_of(
        "published", {"rules." + key.replace("__", "."): value for key, value in overrides.items()}
    ).rules


def feed(
    records: Iterable[StepRecord | TurnRecord],
    settings: RuleSettings | None = None,
    state: RulesState | None = None,
) -> tuple[RulesState, list[tuple[int, Finding]]]:
    """Feed records; findings come with the index of their record. No rule may fail."""
    settings, state = settings or RuleSettings(), state or RulesState()
    found: list[tuple[int, Finding]] = []
    for index, record in enumerate(records):
        observe = observe_step if isinstance(record, StepRecord) else observe_turn
        verdicts = observe(state, settings, record)  # type: ignore[arg-type]
        assert verdicts.failures == ()
        state = verdicts.state
        found += [(index, finding) for finding in verdicts.findings]
    return state, found
