"""BarrenStreak: turn after turn without a single tool call (published detector)."""

from __future__ import annotations

from loopd.core.records import TurnRecord
from loopd.core.rules import turn_run
from loopd.core.rules.findings import EXITS, Finding, excerpt, loop_identity
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.turn_run import TurnRun, TurnRunParameters

ID = "barren_streak"


class BarrenStreakParameters(TurnRunParameters, frozen=True, kw_only=True):
    """Parameters of BarrenStreak.

    Attributes:
        threshold: turns without a tool call in a row at which it fires; 0 is off.
    """

    threshold: Threshold = 50

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled and self.threshold > 0


def observe(
    state: TurnRun, parameters: BarrenStreakParameters, record: TurnRecord
) -> tuple[TurnRun, Finding | None]:
    """Feed one ended turn."""
    current = turn_run.awake(state, record)
    if current is None:
        return state, None
    if not turn_run.judged(record):
        return turn_run.cut_off(current, record), None
    if record.calls:
        return (turn_run.FRESH if current.run else current), None
    run = turn_run.extend(current, record)
    if run.run < parameters.threshold:
        return run, None
    shown = excerpt(record.text) or "(empty)"
    finding = Finding(
        rule=ID,
        verdict="close",
        level="hard",
        score=run.run,
        threshold=parameters.threshold,
        unit="turns",
        window=run.run,
        evidence=(
            f"turns {run.first} to {record.n} called no tool, {run.run} in a row",
            f"last text ({len(record.text)} characters): {shown}",
        ),
        loop_id=loop_identity(ID, ()),
        note=(
            f"You took {run.run} turns in a row without a single tool call; the last one said {shown!r}. "
            f"Talking has not moved the goal, so no further turn was started for a while. {EXITS}"
        ),
        close_ms=parameters.wake_after_s * 1_000,
        onset_tokens=run.tokens,
    )
    return turn_run.silence(run, parameters, record), finding
