"""Rungs: how far up the ladder each loop has come, and what a finding therefore leads to. Pure.

    ok ──soft──▶ nudge ──soft──▶ text_only ──soft──▶ closed (60 s, 5, 15, 60 min, 24 h) ──▶ terminate
     ▲ human input                  progress: one rung down                 hard: closed at once

The same loop within 50 steps of a correction skips a rung. What was said is said again only when the
count has doubled, or when all of the evidence is newer than what was said.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core.rules.findings import Failure, Finding
from loopd.core.rules.signals import told

LOOPS = 64
OK, NUDGE, TEXT_ONLY, CLOSED = 0, 1, 2, 3
NAMES = ("ok", "nudge", "text_only", "closed")
"""Names of the rungs, as people see them."""

CloseSeconds = Annotated[int, msgspec.Meta(ge=1, le=2_592_000)]

ASK = " A person is there: ask before you go on."
NO_TOOLS = (
    " Your next step has no tools: say what you know, what is missing and what you will do differently."
)
CLOSED_NOTE = " The gate was closed for a while because of it."


class LadderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From finding to action.

    Attributes:
        close_s: how long the gate stays closed: the first time, the second, …; the last one repeats.
        max_relapses: a loop that closes the gate once more often than this ends the session.
        skip_within_steps: the same loop so soon after a correction skips a rung.
        attended_for_s: how long after human input a turn of a person counts as attended; 0: never.
    """

    close_s: Annotated[tuple[CloseSeconds, ...], msgspec.Meta(min_length=1, max_length=16)] = (
        60,
        300,
        900,
        3_600,
        86_400,
    )
    max_relapses: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    skip_within_steps: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 50
    attended_for_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 900


class Loop(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a loop.

    Attributes:
        told: number of the step at which something was last said about it; 0 for never.
        score: what was counted then; `hard`: at the hard level.
        closings: how often it closed the gate; human input does not change that.
        rule: the one that found it.
    """

    id: str
    rung: int = OK
    told: int = 0
    score: int = 0
    hard: bool = False
    closings: int = 0
    rule: str = ""


class Rungs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Loops, the one that was seen longest ago first."""

    loops: tuple[Loop, ...] = ()

    @property
    def highest(self) -> int:
        """The highest rung of any loop: 0 ok, 1 nudge, 2 text_only, 3 closed."""
        return max((loop.rung for loop in self.loops), default=OK)


FRESH = Rungs()


class Climbed(msgspec.Struct, frozen=True, kw_only=True):
    """What the findings lead to.

    Attributes:
        restart: the gate closes: whatever the rules counted so far is no evidence any more.
    """

    rungs: Rungs
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    restart: bool = False


def climb(
    rungs: Rungs, findings: tuple[Finding, ...], n: int, settings: LadderSettings, *, attended: bool
) -> Climbed:
    """Decide about all findings of one record; those about which nothing new is to be said are left out.

    At most one finding of a record leads to an action; others that are due become events.

    Args:
        rungs: before.
        findings: of the rules; those that are not laddered pass unchanged.
        n: number of the last step.
        settings: of the ladder.
        attended: a person is there.
    """
    if not findings:
        return Climbed(rungs=rungs)
    made: list[Finding] = []
    failures: list[Failure] = []
    acted = restart = False
    loops = rungs.loops
    for found in sorted(findings, key=lambda each: each.level != "hard"):
        if not found.laddered:
            made.append(found)
            acted = acted or (not found.shadow and found.verdict != "warn")
            restart = restart or (not found.shadow and found.verdict == "close")
            continue
        old = next((loop for loop in loops if loop.id == found.loop_id), Loop(found.loop_id))
        if not _due(old, found):
            continue
        try:
            after, decided = _decided(old, found, n, settings, attended=attended, acted=acted)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - evidence that cannot be told must not end a session
            failures.append(Failure(rule=found.rule, error=f"{type(error).__name__}: {error}"[:500]))
            continue
        made.append(decided)
        loops = (*(loop for loop in loops if loop.id != old.id), after)[-LOOPS:]
        if not found.shadow and decided.verdict != "warn":
            acted = True
            restart = restart or decided.verdict == "close"
    return Climbed(
        rungs=rungs if loops is rungs.loops else Rungs(loops=loops),
        findings=tuple(made),
        failures=tuple(failures),
        restart=restart,
    )


def _due(loop: Loop, found: Finding) -> bool:
    if not loop.told or found.onset > loop.told:
        return True
    if found.level == "hard" and not loop.hard:
        return True
    return found.score >= 2 * loop.score


def _decided(
    loop: Loop, found: Finding, n: int, settings: LadderSettings, *, attended: bool, acted: bool
) -> tuple[Loop, Finding]:
    found = told(found)
    hard = found.level == "hard"
    after = Loop(loop.id, loop.rung, max(n, 1), found.score, hard, loop.closings, found.rule)
    if found.shadow or found.verdict == "warn":
        return after, found
    if acted:
        return after, msgspec.structs.replace(found, verdict="warn", note=None)
    if hard:
        rung = NUDGE if attended else CLOSED
    else:
        skips = loop.rung > OK and loop.told > 0 and n - loop.told <= settings.skip_within_steps
        rung = loop.rung + 1 + skips
        if attended:
            rung = min(rung, TEXT_ONLY)
    note = found.note or ""
    if attended and (hard or rung > NUDGE):
        note += ASK
    if rung <= NUDGE:
        return _at(after, NUDGE if not hard else max(loop.rung, NUDGE)), msgspec.structs.replace(
            found, verdict="nudge", note=note
        )
    if rung == TEXT_ONLY:
        return _at(after, TEXT_ONLY), msgspec.structs.replace(
            found, verdict="text_only", note=note + NO_TOOLS
        )
    closed = _at(after, CLOSED)
    relapse = loop.closings
    closed = msgspec.structs.replace(closed, closings=relapse + 1)
    if relapse > settings.max_relapses:
        return closed, msgspec.structs.replace(found, verdict="terminate", note=None, relapse=relapse)
    close_s = settings.close_s[min(relapse, len(settings.close_s) - 1)]
    return closed, msgspec.structs.replace(
        found, verdict="close", note=note + CLOSED_NOTE, relapse=relapse, close_ms=close_s * 1_000
    )


def _at(loop: Loop, rung: int) -> Loop:
    return msgspec.structs.replace(loop, rung=rung)


def defied(rungs: Rungs, n: int) -> Finding | None:
    """What step `n` means when it called tools although it was told to do without: its loop goes on.

    None when no loop was at that rung.
    """
    loop = next((each for each in reversed(rungs.loops) if each.rung == TEXT_ONLY and each.rule), None)
    if loop is None:
        return None
    return Finding(
        rule=loop.rule,
        verdict="nudge",
        level="soft",
        score=loop.score + 1,
        threshold=loop.score + 1,
        unit="steps",
        evidence=("a tool was called in a step that was to be words alone",),
        loop_id=loop.id,
        laddered=True,
        onset=n,
        note="You were asked for words alone, and called a tool.",
    )


def climb_down(rungs: Rungs) -> Rungs:
    """There was progress: each loop is one rung lower."""
    if not any(loop.rung for loop in rungs.loops):
        return rungs
    return Rungs(loops=tuple(_at(loop, loop.rung - 1) if loop.rung else loop for loop in rungs.loops))


def forgive(rungs: Rungs) -> Rungs:
    """A person spoke: all is well again, but how often each loop closed the gate is remembered."""
    if not rungs.loops:
        return rungs
    return Rungs(loops=tuple(Loop(loop.id, closings=loop.closings) for loop in rungs.loops if loop.closings))
