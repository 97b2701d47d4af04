"""The trail: the last 128 steps and 64 turns of a lane as packed digests, and one look at each new step.

A lane is what a rule's memory belongs to. The main lane lasts as long as the session; a cron run gets a
clean one for its turn, so that 48 mornings without news are not one loop.
"""

from __future__ import annotations

import msgspec

from loopd.core import packed
from loopd.core.packed import DIGEST
from loopd.core.progress import VISIBLE_CHARS, Progress
from loopd.core.records import CallRecord, StepRecord, TurnRecord
from loopd.core.similarity import masked_text

STEPS = 128
"""Steps that the ring holds; a rule that would need more is refused."""
TURNS = 64
"""Turns that the ring holds."""
CALLS = 96
OUTCOMES = 64
LABELS = 8
LABEL_CHARS = 80

STEP_BYTES = DIGEST + 1 + 4 + 5
CALL_BYTES = DIGEST + DIGEST + 4
OUTCOME_BYTES = 3 * DIGEST

POLL, TOOLLESS, WROTE, PROGRESSED, RETRY, POLLED = 1, 2, 4, 8, 16, 32
"""Flags of a step in the ring. POLL: it only polled or waited; POLLED: it polled indeed."""

UNKNOWN = b"\0" * DIGEST


class Trail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ring.

    Attributes:
        steps: entries of symbol, flags, step number and tokens before it.
        calls: entries of identity, outcome and step number.
        outcomes: entries of identity, raw result and the result by which it is compared.
        labels: what the last steps did, for evidence.
        tokens: spent in this lane.
        wrote: number of the last step that changed something.
        task: something was left running in the background and is not known to be over.
        raw: the last step's calls with their raw results.
        turn: number of the running turn; `idle`: all calls in it so far only polled or waited.
    """

    steps: bytes = b""
    calls: bytes = b""
    outcomes: bytes = b""
    labels: tuple[str, ...] = ()
    tokens: int = 0
    wrote: int = 0
    task: bool = False
    raw: bytes = b""
    turn: int = 0
    idle: bool = False

    @property
    def length(self) -> int:
        """Steps in the ring."""
        return len(self.steps) // STEP_BYTES

    def symbol(self, back: int) -> bytes:
        """Symbol of the step `back` steps before the newest, which is 0; empty if not there."""
        at = len(self.steps) - (back + 1) * STEP_BYTES
        return self.steps[at : at + DIGEST] if at >= 0 else b""

    def flags(self, back: int) -> int:
        """Flags of the step `back` steps before the newest; 0 if not there."""
        at = len(self.steps) - (back + 1) * STEP_BYTES
        return self.steps[at + DIGEST] if at >= 0 else 0

    def number(self, back: int) -> int:
        """Number of the step `back` steps before the newest; 0 if not there."""
        at = len(self.steps) - (back + 1) * STEP_BYTES + DIGEST + 1
        return int.from_bytes(self.steps[at : at + 4], "big") if at > DIGEST else 0

    def tokens_since(self, onset: int) -> int:
        """Tokens spent from step `onset` on; of an older one: from the beginning of the ring."""
        for at in range(0, len(self.steps), STEP_BYTES):
            if int.from_bytes(self.steps[at + DIGEST + 1 : at + DIGEST + 5], "big") >= onset:
                return self.tokens - int.from_bytes(self.steps[at + DIGEST + 5 : at + STEP_BYTES], "big")
        return 0


FRESH = Trail()


class CallLook(msgspec.Struct, frozen=True, gc=False):
    """One call: its identity, its outcome (None for unknown), whether its like was never called before."""

    identity: bytes
    outcome: bytes | None
    fresh: bool


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What all rules see of a step.

    Attributes:
        calls, looks: calls as recorded, and what the trail knows of them; empty when tools were withheld.
        symbol: equal for steps that did the same with the same outcome; None for unknown.
        identical: the results are also byte for byte those of the step before.
        toolless: it called nothing. `waiting`: it only polled or waited.
        retrying: all its calls met failures of a service.
        barren: nothing new in it at all; `neutral`: new calls, but no information.
        reporting: text behind nothing but polls and waits in this turn: a report on what is waited for.
        attended: a person is there.
        trail: after the step.
    """

    record: StepRecord
    n: int
    progress: Progress
    calls: tuple[CallRecord, ...]
    looks: tuple[CallLook, ...]
    symbol: bytes | None
    identical: bool
    toolless: bool
    waiting: bool
    retrying: bool
    barren: bool
    neutral: bool
    reporting: bool
    attended: bool
    trail: Trail

    @property
    def label(self) -> str:
        """What the step did, as one short line."""
        return self.trail.labels[-1] if self.trail.labels else ""


def wants_mask(trail: Trail, call: CallRecord) -> bool:
    """Whether the result of a call has to be masked to be compared: not if it is known as it is.

    A long result is masked only when the same call was made before.
    """
    if call.result is None or call.result_chars < VISIBLE_CHARS:
        return False
    identity = bytes.fromhex(call.identity)[:DIGEST]
    if packed.find(trail.outcomes, identity + bytes.fromhex(call.result[:12]), OUTCOME_BYTES) >= 0:
        return False
    return call.short or packed.find(trail.outcomes, identity, OUTCOME_BYTES) >= 0


def results_of(trail: Trail, record: StepRecord) -> tuple[Trail, tuple[bytes | None, ...]]:
    """For each call the result by which it is compared; None for unknown. The ring remembers it."""
    if record.tools_withheld:
        return trail, (None,) * len(record.calls)
    outcomes = trail.outcomes
    made: list[bytes | None] = []
    for call in record.calls:
        if call.result is None:
            made.append(None)
            continue
        raw = bytes.fromhex(call.result[:12])
        identity = bytes.fromhex(call.identity)[:DIGEST]
        at = packed.find(outcomes, identity + raw, OUTCOME_BYTES)
        if at >= 0:
            made.append(outcomes[at + 2 * DIGEST : at + OUTCOME_BYTES])
            continue
        result = bytes.fromhex(call.masked[:12]) if call.masked is not None else raw
        outcomes = packed.push(outcomes, identity + raw + result, OUTCOMES)
        made.append(result)
    if outcomes is not trail.outcomes:
        trail = msgspec.structs.replace(trail, outcomes=outcomes)
    return trail, tuple(made)


def look(
    trail: Trail,
    record: StepRecord,
    results: tuple[bytes | None, ...],
    progress: Progress,
    *,
    attended: bool,
) -> Look:
    """Take a step into the ring and say what it is."""
    calls = () if record.tools_withheld else record.calls
    looks: list[CallLook] = []
    entries = b""
    raws = b""
    number = record.n.to_bytes(4, "big")
    for call, result, fresh in zip(calls, results, progress.fresh, strict=False):
        identity = bytes.fromhex(call.identity)[:DIGEST]
        outcome = None if result is None else packed.digest(call.identity, result.hex())
        looks.append(CallLook(identity, outcome, fresh))
        entries += identity + (outcome or UNKNOWN) + number
        raws += identity + (bytes.fromhex(call.result[:12]) if call.result else UNKNOWN)
    toolless = not record.calls
    waiting = bool(calls) and all((call.polls and not call.failed) or call.waits for call in calls)
    symbol: bytes | None
    if toolless:
        symbol = packed.digest(masked_text(record.text)) if record.text.strip() else None
    elif not looks or any(each.outcome is None for each in looks):
        symbol = None
    elif len(looks) == 1:
        symbol = looks[0].outcome
    else:
        symbol = packed.digest(*sorted((each.outcome or b"").hex() for each in looks))
    made = progress.made
    wrote = any(
        not call.failed and (call.writes or (each.fresh and _may_write(call)))
        for call, each in zip(calls, looks, strict=False)
    )
    retrying = bool(calls) and all(call.infra for call in calls)
    same_turn = record.turn == trail.turn
    idle = waiting and (trail.idle or not same_turn or not trail.turn)
    if toolless:
        idle = trail.idle and same_turn
    waiting = waiting or (toolless and idle)
    polled = any(call.polls for call in calls)
    flags = (
        POLLED * polled
        | RETRY * retrying
        | POLL * waiting
        | TOOLLESS * toolless
        | WROTE * wrote
        | PROGRESSED * made
    )
    entry = (
        (symbol or packed.digest("unknown", str(record.n)))
        + flags.to_bytes(1, "big")
        + number
        + min(trail.tokens, 2**40 - 1).to_bytes(5, "big")
    )
    label = "; ".join(call.label for call in calls[:3]) if calls else " ".join(record.text[:200].split())
    label = label[:LABEL_CHARS].encode("utf-8", "replace").decode()  # it is stored: no lone surrogates
    task = (trail.task or any(call.background for call in calls)) and not any(call.ended for call in calls)
    after = Trail(
        steps=packed.push(trail.steps, entry, STEPS),
        calls=(trail.calls + entries)[-CALLS * CALL_BYTES :],
        outcomes=trail.outcomes,
        labels=(*trail.labels, label)[-LABELS:],
        tokens=trail.tokens + record.tokens,
        wrote=record.n if wrote else trail.wrote,
        task=task,
        raw=raws,
        turn=record.turn,
        idle=idle,
    )
    known = all(not each.fresh for each in looks)
    errors = bool(calls) and all(call.failed for call in calls)
    unknown = bool(looks) and all(each.outcome is None for each in looks)
    mute = toolless and not record.text.strip() and not record.billed
    judged = not made and not waiting and not retrying and not record.tools_withheld and not mute
    barren = judged and ((known and not unknown) or errors or _nothing_came(calls, progress))
    return Look(
        record=record,
        n=record.n,
        progress=progress,
        calls=calls,
        looks=tuple(looks),
        symbol=symbol,
        identical=bool(raws) and raws == trail.raw,
        toolless=toolless,
        waiting=waiting,
        retrying=retrying,
        barren=barren,
        neutral=judged and not barren and not toolless,
        reporting=toolless and idle,
        attended=attended,
        trail=after,
    )


def _may_write(call: CallRecord) -> bool:
    """A program of which nobody knows what it does."""
    return call.tool_class == "exec" and not (call.reads or call.noop or call.waits or call.polls)


def _nothing_came(calls: tuple[CallRecord, ...], progress: Progress) -> bool:
    """Calls that are new and yet known to have brought nothing: thoughts, edits that changed nothing."""
    return bool(calls) and all(
        call.tool_class == "plan" or (call.tool_class == "edit" and progress.sensed) for call in calls
    )


class TurnLook(msgspec.Struct, frozen=True, kw_only=True):
    """What rules see of an ended turn. `n`: number of its last step, or of the last one before it."""

    record: TurnRecord
    n: int
    attended: bool
    trail: Trail
