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
    human_spoke,
    is_attended,
    observe_step,
    observe_turn,
    rearm,
    restart_evidence,
    restart_scope,
    streaks,
    wants_mask,
)
from loopd.core.rules.lanes import contradiction
from loopd.core.rules.rungs import LadderSettings
from loopd.core.rules.tool_repetition import RepetitionVerdict

__all__ = [
    "RULES",
    "Failure",
    "Finding",
    "LadderSettings",
    "Level",
    "RepetitionVerdict",
    "Rule",
    "RuleSettings",
    "RulesState",
    "Verdict",
    "Verdicts",
    "begin_turn",
    "contradiction",
    "human_spoke",
    "is_attended",
    "observe_step",
    "observe_turn",
    "rearm",
    "restart_evidence",
    "restart_scope",
    "streaks",
    "wants_mask",
]
