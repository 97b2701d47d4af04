"""From finding to action: what a session does about what the rules found. Pure.

Published detectors give their verdict themselves; the findings of all other rules have been up the
ladder (`loopd.core.rules.rungs`) by then.

warn ─▶ an event        nudge, text_only ─▶ a note that rides on the next step or turn
close ─▶ a Degeneration hold with a deadline and a note        terminate ─▶ `aborted_stuck`
"""

from __future__ import annotations

from typing import Protocol

from loopd.core import rules
from loopd.core.settings import Settings, config_revision
from loopd.core.state import Session
from loopd_protocol import events as ev
from loopd_protocol.events import Event
from loopd_protocol.holds import AnyHold, Degeneration
from loopd_protocol.sources import Source

SLOW = "RuleTooSlow"
"""Name of the exception by which the shell interrupts a rule that takes too long."""


class Decides(Protocol):
    """The part of `loopd.core.decision.Decision` that is needed here."""

    session: Session
    now: int
    settings: Settings

    def emit(self, event: Event) -> rules.Verdicts:
        """Add an event and follow it."""

    def close(self, hold: AnyHold, *, cause: str) -> None:
        """Set a hold."""

    def accept(self, source: Source, text: str, *, by: str) -> str:
        """Make an envelope durable."""


def act_on(decision: Decides, found: rules.Verdicts) -> list[str]:
    """Record findings, close the gate or leave notes. Returns `terminate:…` verdicts."""
    ends: list[str] = []
    for failure in found.failures:
        cause = "slow" if failure.error.startswith(SLOW) else "raised"
        decision.emit(ev.DetectorFailed(rule=failure.rule, cause=cause, error=failure.error[:4_000]))
    for finding in found.findings:
        relapse = finding.relapse
        if not finding.laddered:
            relapse = decision.session.relapses.get(finding.loop_id, 0)
        detection = decision.session.ss + 1
        decision.emit(
            ev.DegenerationDetected(
                rule=finding.rule,
                verdict=finding.verdict,
                level=finding.level,
                score=finding.score,
                threshold=finding.threshold,
                unit=finding.unit,
                window=finding.window,
                evidence=finding.evidence,
                loop_id=finding.loop_id,
                config_revision=config_revision(decision.settings),
                tokens_since_onset=finding.onset_tokens,
                shadow=finding.shadow,
                relapse=relapse,
            )
        )
        if finding.shadow:
            continue
        if finding.verdict == "close":
            reason = f"{finding.rule}: {finding.score} {finding.unit} (threshold {finding.threshold})"
            decision.close(
                Degeneration(
                    by=f"rule:{finding.rule}",
                    reason=reason,
                    until_ms=decision.now + finding.close_ms,
                    rule=finding.rule,
                    detection=detection,
                    relapse=relapse,
                ),
                cause="detection",
            )
        if finding.note is not None:
            decision.accept(Source.SYSTEM, finding.note, by=f"rule:{finding.rule}")
        if finding.verdict == "terminate":
            ends.append(f"terminate:{finding.rule}")
    return ends
