"""Judging a log that is already written: the same rules and the same ladder as live. Pure.

    judge = Judge(settings_of("hardened", {}))
    for step in steps: judge.step(step)        findings of this step, if any
    judge.judgement()                          what a daemon would have done

Gate closings are simulated: the hold is taken to have run its time before the next logged step, so
what follows it is judged as after a correction. After a verdict `terminate` nothing is judged any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from loopd.core import rules
from loopd.core.records import TurnRecord, step_record
from loopd.core.settings import Settings
from loopd_protocol.events import ToolCall, TurnStep, Usage
from loopd_protocol.sources import Trigger

Outcome = Literal["ok", "nudge", "text_only", "close", "terminate"]

_RANKS: dict[str, int] = {"ok": 0, "warn": 0, "nudge": 1, "text_only": 2, "close": 3, "terminate": 4}


class LoggedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a log.

    Attributes:
        n: number of the step in its log, from 1, rising.
        trigger: what began a turn with this step; None: the running turn goes on.
        at_ms: when the step ended (UTC); 0 for unknown.
        compacted: the context was compacted before this step.
    """

    n: int
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    trigger: Trigger | None = None
    at_ms: int = 0
    state_fingerprint: str | None = None
    compacted: bool = False


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A rule fired at a step, and what the ladder made of it.

    Attributes:
        verdict: `warn` (an event only), `nudge`, `text_only`, `close` or `terminate`.
        shadow: the rule only watches; the verdict would not have been carried out.
    """

    rule: str
    level: rules.Level
    step: int
    verdict: rules.Verdict
    loop_id: str
    evidence: tuple[str, ...]
    score: int
    threshold: int
    unit: str
    window: int
    shadow: bool = False


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon would have done about a whole log.

    Attributes:
        first_soft: first step with a nudge or more, None for none.
        first_hard: first step at which a hard threshold was reached or the ladder would have closed the
            gate or ended the session.
        verdict: the strongest measure that was taken; `ok` for none.
        tokens_after_first_soft: tokens spent behind `first_soft`; None without one or without any usage.
        rungs: (step, rung) whenever the rung changed: 0 ok, 1 nudge, 2 text_only, 3 closed, 4 ended.
        near_misses: how often each rule came within three quarters of its threshold.
    """

    steps: int
    findings: tuple[Judged, ...] = ()
    first_soft: int | None = None
    first_hard: int | None = None
    verdict: Outcome = "ok"
    tokens_after_first_soft: int | None = None
    rungs: tuple[tuple[int, int], ...] = ()
    near_misses: dict[str, int] = {}
    failures: tuple[str, ...] = ()


class Judge:
    """Judges one log step by step, in memory that does not grow with it (findings do).

    Args:
        settings: whole settings, as of a session.
        attended: a person is watching; a hard finding then nudges and asks instead of closing.
    """

    def __init__(self, settings: Settings, *, attended: bool = False) -> None:
        self._settings = settings
        self._attended = attended
        self._state = rules.RulesState()
        self._turn = 0
        self._trigger = Trigger.CONTINUATION
        self._last = TurnRecord(n=0, trigger=Trigger.CONTINUATION, at_ms=0, outcome="completed")
        self._steps = 0
        self._n = 0
        self._ended = False
        self._progressed = False
        self._findings: list[Judged] = []
        self._failures: list[str] = []
        self._near: dict[str, int] = {}
        self._rungs: list[tuple[int, int]] = []
        self._first_soft: int | None = None
        self._first_hard: int | None = None
        self._verdict: Outcome = "ok"
        self._tokens_after = 0
        self._tokens_known = False

    def step(self, given: LoggedStep) -> tuple[Judged, ...]:
        """Judge the next step; a `trigger` ends the running turn first. Returns the findings."""
        before: tuple[Judged, ...] = ()
        if given.trigger is not None or self._turn == 0:
            before = self.turn_end()
            self._begin(given.trigger or Trigger.CONTINUATION, given.at_ms)
        self._steps += 1
        self._n = given.n
        event = TurnStep(
            n=self._turn,
            step=self._last.steps + 1,
            total=given.n,
            text=given.text,
            calls=given.calls,
            usage=given.usage,
            state_fingerprint=given.state_fingerprint,
        )
        masked = rules.wants_mask(self._state, self._settings.rules, self._trigger)
        record = step_record(event, self._trigger, given.at_ms, masked=masked)
        if given.compacted:
            record = msgspec.structs.replace(record, compacted=True)
        self._last = msgspec.structs.replace(
            self._last,
            at_ms=given.at_ms,
            text=given.text,
            calls=self._last.calls + len(given.calls),
            steps=self._last.steps + 1,
            tokens=self._last.tokens + record.tokens,
        )
        if given.usage is not None:
            self._tokens_known = True
            if self._first_soft is not None:
                self._tokens_after += record.tokens
        if self._ended:
            return before
        found = rules.observe_step(
            self._state,
            self._settings.rules,
            record,
            ladder=self._settings.ladder,
            attended=self._attended,
        )
        if found.progress is not None and found.progress.made:
            self._progressed = True
        return before + self._act(found)

    def turn_end(self, outcome: str = "completed") -> tuple[Judged, ...]:
        """The running turn is over; does nothing when none runs. `step` and `judgement` call it."""
        if self._turn == 0 or self._last.steps == 0 or self._ended:
            return ()
        record = msgspec.structs.replace(self._last, outcome=outcome, progressed=self._progressed)
        self._progressed = False
        self._last = TurnRecord(
            n=self._turn, trigger=self._trigger, at_ms=self._last.at_ms, outcome="completed"
        )
        found = rules.observe_turn(
            self._state,
            self._settings.rules,
            record,
            ladder=self._settings.ladder,
            attended=self._attended,
        )
        return self._act(found)

    def judgement(self) -> Judgement:
        """What would have been done so far; ends the running turn."""
        self.turn_end()
        known = self._first_soft is not None and self._tokens_known
        return Judgement(
            steps=self._steps,
            findings=tuple(self._findings),
            first_soft=self._first_soft,
            first_hard=self._first_hard,
            verdict=self._verdict,
            tokens_after_first_soft=self._tokens_after if known else None,
            rungs=tuple(self._rungs),
            near_misses=dict(self._near),
            failures=tuple(self._failures),
        )

    def _begin(self, trigger: Trigger, at_ms: int) -> None:
        self._turn += 1
        self._trigger = trigger
        self._last = TurnRecord(
            n=self._turn, trigger=trigger, at_ms=at_ms, outcome="completed", started_ms=at_ms
        )
        self._state = rules.begin_turn(self._state)
        if trigger is Trigger.HUMAN:
            self._state = rules.human_spoke(self._state, at_ms, self._n)

    def _act(self, found: rules.Verdicts) -> tuple[Judged, ...]:
        self._state = found.state
        self._failures += [f"{failure.rule}: {failure.error}" for failure in found.failures]
        made = []
        for each in found.near:
            self._near[each.rule] = self._near.get(each.rule, 0) + 1
        for finding in found.findings:
            judged = Judged(
                rule=finding.rule,
                level=finding.level,
                step=self._n,
                verdict=finding.verdict,
                loop_id=finding.loop_id,
                evidence=finding.evidence,
                score=finding.score,
                threshold=finding.threshold,
                unit=finding.unit,
                window=finding.window,
                shadow=finding.shadow,
            )
            made.append(judged)
            if not finding.shadow:
                self._carry_out(judged)
        self._findings += made
        rung = 4 if self._ended else self._state.rungs.highest
        if rung != (self._rungs[-1][1] if self._rungs else 0):
            self._rungs.append((self._n, rung))
        return tuple(made)

    def _carry_out(self, judged: Judged) -> None:
        rank = _RANKS[judged.verdict]
        if rank >= 1 and self._first_soft is None:
            self._first_soft = judged.step
        if (judged.level == "hard" or rank >= 3) and self._first_hard is None:
            self._first_hard = judged.step
        if rank > _RANKS[self._verdict]:
            self._verdict = judged.verdict  # type: ignore[assignment]
        if judged.verdict == "close":
            self._state = rules.rearm(self._state, judged.rule)
        self._ended = self._ended or judged.verdict == "terminate"


def judge(steps: Iterable[LoggedStep], settings: Settings, *, attended: bool = False) -> Judgement:
    """Judge a whole log: the same as feeding a `Judge` step by step."""
    judging = Judge(settings, attended=attended)
    for step in steps:
        judging.step(step)
    return judging.judgement()
