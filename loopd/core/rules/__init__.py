"""Rules: one file, one way of going in circles. Pure, incremental, O(1) per record.

`observe_step` and `observe_turn` feed all enabled rules. A rule that raises is skipped for that
record and reported as a `Failure`; `MemoryError` and `RecursionError` propagate.
"""

from __future__ import annotations

from loopd.core.rules.findings import Failure, Finding, Level, Verdict
from loopd.core.rules.framework import (
    RULES,
    Rule,
    RuleSettings,
    RulesState,
    Verdicts,
    begin_turn,
    observe_step,
    observe_turn,
    rearm,
    restart_scope,
    streaks,
)
from loopd.core.rules.tool_repetition import RepetitionVerdict

__all__ = [
    "RULES",
    "Failure",
    "Finding",
    "Level",
    "RepetitionVerdict",
    "Rule",
    "RuleSettings",
    "RulesState",
    "Verdict",
    "Verdicts",
    "begin_turn",
    "observe_step",
    "observe_turn",
    "rearm",
    "restart_scope",
    "streaks",
]
