"""near_duplicate_text: the agent says nearly the same again and again instead of doing something.

Only steps without a tool call are judged, each against the last six of them. A text that is not alike
does not end the run; progress and human input do. A report behind a poll is no loop.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loopd.core import packed
from loopd.core.rules.findings import excerpt
from loopd.core.rules.parameters import Threshold
from loopd.core.rules.signals import Signal, Thresholds
from loopd.core.rules.trail import Look
from loopd.core.similarity import MIN_TOKENS, masked_text, permille, sketch, tokens

ID = "near_duplicate_text"


class NearDuplicateTextParameters(Thresholds, frozen=True, kw_only=True):
    """Parameters of near_duplicate_text.

    Attributes:
        soft: alike texts, nobody attending. `soft_attended`: the same while a person is there.
        similarity_permille: Jaccard index from which on two texts are alike, in thousandths.
        memory: how many texts a new one is compared with.
    """

    soft: Threshold = 3
    soft_attended: Threshold = 5
    hard: Threshold = 10
    similarity_permille: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 600
    memory: Annotated[int, msgspec.Meta(ge=1, le=16)] = 6


class Said(msgspec.Struct, frozen=True, array_like=True):
    """A text: in which step, digest of its masked form, sketch of its words (empty for few)."""

    n: int
    masked: bytes
    words: bytes


class NearDuplicateTextState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last texts and the run of alike ones."""

    said: tuple[Said, ...] = ()
    run: int = 0
    onset: int = 0


FRESH = NearDuplicateTextState()


def observe(
    state: NearDuplicateTextState, parameters: NearDuplicateTextParameters, look: Look
) -> tuple[NearDuplicateTextState, Signal | None]:
    """Feed one step."""
    if look.progress.made:
        return (FRESH if state.said else state), None
    if not look.toolless or look.reporting:
        return state, None
    text = look.record.text
    if not text.strip() and not look.record.billed:
        return state, None  # a fault of the model's endpoint, or nobody knows
    words = tokens(text)
    new = Said(look.n, packed.digest(masked_text(text)), sketch(words) if len(words) >= MIN_TOKENS else b"")
    alike = next((old for old in reversed(state.said) if _alike(old, new, parameters)), None)
    said = (*state.said, new)[-parameters.memory :]
    if alike is None:
        return NearDuplicateTextState(said=said, run=state.run, onset=state.onset), None
    run, onset = (state.run + 1, state.onset) if state.run else (2, alike.n)
    after = NearDuplicateTextState(said=said, run=run, onset=onset)
    return after, Signal(
        score=run,
        soft=parameters.soft_attended if look.attended else parameters.soft,
        hard=parameters.hard,
        unit="steps",
        onset=onset,
        loop=("text",),
        say=lambda: _say(run, onset, look),
    )


def _alike(old: Said, new: Said, parameters: NearDuplicateTextParameters) -> bool:
    if old.masked == new.masked:
        return True
    if not old.words or not new.words:
        return False
    return permille(old.words, new.words) >= parameters.similarity_permille


def _say(run: int, onset: int, look: Look) -> tuple[tuple[str, ...], str]:
    shown = excerpt(look.record.text) or "(nothing)"
    evidence = (
        f"{run} steps without a tool call between {onset} and {look.n} say nearly the same",
        f"last: {shown}",
    )
    return evidence, (
        f"You have said nearly the same {run} times without doing anything: {shown!r}. Do not say it again."
    )
