"""RepeatedText: the same final text, turn after turn (published detector, exact hash).

A turn that called tools and wrote nothing has no final text: it ends a run and begins none, because
`request_idle` without a word is the polite way to wait. An empty turn without a call is text "".
"""

from __future__ import annotations

import hashlib

from loopd.core.records import TurnRecord
from loopd.core.rules import turn_run
from loopd.core.rules.findings import EXITS, Finding, excerpt, loop_identity
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.turn_run import TurnRun, TurnRunParameters

ID = "repeated_text"


class RepeatedTextParameters(TurnRunParameters, frozen=True, kw_only=True):
    """Parameters of RepeatedText.

    Attributes:
        threshold: identical turns in a row at which it fires; 0 is off.
    """

    threshold: Threshold = 5

    @property
    def on(self) -> bool:
        """Whether the rule is fed at all."""
        return self.enabled and self.threshold > 0


def observe(
    state: TurnRun, parameters: RepeatedTextParameters, record: TurnRecord
) -> tuple[TurnRun, Finding | None]:
    """Feed one ended turn."""
    current = turn_run.awake(state, record)
    if current is None:
        return state, None
    if not turn_run.judged(record):
        return turn_run.cut_off(current, record), None
    if not record.text and record.calls:
        return (turn_run.FRESH if current.run else current), None
    digest = hashlib.sha256(record.text.encode("utf-8", "surrogatepass")).hexdigest()
    run = turn_run.extend(current if current.text == digest else turn_run.FRESH, record, digest)
    if run.run < parameters.threshold:
        return run, None
    return turn_run.silence(run, parameters, record), _finding(run, parameters, record)


def _finding(run: TurnRun, parameters: RepeatedTextParameters, record: TurnRecord) -> Finding:
    shown = excerpt(record.text) or "(empty)"
    return Finding(
        rule=ID,
        verdict="close",
        level="hard",
        score=run.run,
        threshold=parameters.threshold,
        unit="turns",
        window=run.run,
        evidence=(
            f"turns {run.first} to {record.n} ended with the same text, {run.run} in a row",
            f"text ({len(record.text)} characters): {shown}",
            f"sha256 {run.text}",
        ),
        loop_id=loop_identity(ID, (run.text or "",)),
        note=(
            f"You ended {run.run} turns in a row with exactly the same text: {shown!r}. Nothing has come "
            f"of it, so no further turn was started for a while. Do not answer with this text again. {EXITS}"
        ),
        close_ms=parameters.wake_after_s * 1_000,
        onset_tokens=run.tokens,
    )
