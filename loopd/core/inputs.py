"""What can happen to a session, what it is decided within, and what follows. Plain values.

Inputs are past participles, effects imperatives.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loopd.core.account import Purse
from loopd.core.conversation import AgentReply, AgentRequest, StepDone, TurnEnd
from loopd.core.policy_inputs import (
    AffordAsked,
    ApprovalGiven,
    BudgetSetRequested,
    ConfigSetRequested,
    PermitAsked,
    Settle,
)
from loopd.core.rules import Failure, Finding
from loopd.core.rules.signals import Near
from loopd.core.settings import Settings
from loopd.core.state import Session
from loopd_protocol.events import Event, Usage
from loopd_protocol.holds import AnyHold
from loopd_protocol.sources import Source, Trigger

CutCause = Literal["interrupt", "suspend", "kill", "drain", "crash", "freeze", "ended", "deadline", "budget"]


class _Input(msgspec.Struct, frozen=True, kw_only=True):
    pass


class EnvelopeArrived(_Input, frozen=True, kw_only=True):
    """Somebody sent something. `source` was stamped by the daemon."""

    source: Source
    text: str
    by: str
    dedupe: str | None = None


class SuspendRequested(_Input, frozen=True, kw_only=True):
    """`mode`: let a running turn finish, cancel it, or cancel it without grace."""

    by: str
    reason: str = ""
    until_ms: int | None = None
    mode: Literal["after_turn", "interrupt", "kill"] = "after_turn"
    quarantine: bool = False


class UnsuspendRequested(_Input, frozen=True, kw_only=True):
    """Remove `UserSuspend`, nothing else."""

    by: str


class InterruptRequested(_Input, frozen=True, kw_only=True):
    """Cut the running turn; nothing automatic for `for_ms` (None: the session's setting)."""

    by: str
    reason: str = ""
    for_ms: int | None = None
    suspend: bool = False


class GateOpenRequested(_Input, frozen=True, kw_only=True):
    """Remove all holds that are opened by hand, or one kind."""

    by: str
    kind: str | None = None


class GateExtendRequested(_Input, frozen=True, kw_only=True):
    """Move one deadline later."""

    by: str
    kind: str
    until_ms: int


class HoldRequested(_Input, frozen=True, kw_only=True):
    """The daemon itself closes the gate, for example `Maintenance`."""

    hold: AnyHold
    cause: str


class HoldReleased(_Input, frozen=True, kw_only=True):
    """The daemon itself removes a hold that it set, for example `Maintenance`."""

    kind: str
    cause: str


class GoalChangeRequested(_Input, frozen=True, kw_only=True):
    """A person sets (`text` given) or changes the goal. `status` as in `goal.changed`."""

    by: str
    status: str
    text: str | None = None
    note: str = ""


class CronPutRequested(_Input, frozen=True, kw_only=True):
    """Create or replace a job."""

    by: str
    job: str
    expr: str
    text: str
    tz: str = "UTC"
    missed: str = "one"
    catchup_ms: int = 86_400_000


class CronChangeRequested(_Input, frozen=True, kw_only=True):
    """Pause, resume, remove or run a job."""

    by: str
    job: str
    change: Literal["paused", "resumed", "removed", "run"]


class DropRequested(_Input, frozen=True, kw_only=True):
    """Forget one waiting envelope."""

    by: str
    id: str


class EndRequested(_Input, frozen=True, kw_only=True):
    """End the session for good."""

    by: str
    reason: str = ""


class ResumeRequested(_Input, frozen=True, kw_only=True):
    """Begin a new run of an ended session, or grant more steps to one that waits for them."""

    by: str
    reason: str = ""


class StepReported(_Input, frozen=True, kw_only=True):
    """A step of turn `n` ended. Content over the inline limit is in blobs named by these digests."""

    n: int
    done: StepDone
    text_blob: str | None = None
    cost_micro: int = 0
    model: str = ""
    priced: bool | None = None


class RetryReported(_Input, frozen=True, kw_only=True):
    """The driver will try a model call again."""

    n: int
    attempt: int
    cause: str
    delay_ms: int


class StreamJudged(_Input, frozen=True, kw_only=True):
    """The stream of turn `n`'s running step goes in circles; it is being cancelled."""

    n: int
    finding: Finding


class AgentAsked(_Input, frozen=True, kw_only=True):
    """The agent of turn `n` used one of loopd's own tools."""

    n: int
    request: AgentRequest


class Remembered(_Input, frozen=True, kw_only=True):
    """The driver of turn `n` keeps a fact over restarts; an empty value forgets it."""

    n: int
    key: str
    value: str


class EffectIntended(_Input, frozen=True, kw_only=True):
    """A tool is about to run in turn `n`."""

    n: int
    call: str
    tool: str
    args_sha256: str
    tool_class: str
    args: Any = None
    args_blob: str | None = None
    repeatable: bool = False


class EffectEnded(_Input, frozen=True, kw_only=True):
    """A tool that was intended has ended."""

    n: int
    call: str
    outcome: str


class EffectResolved(_Input, frozen=True, kw_only=True):
    """A person found out what became of an uncertain effect."""

    by: str
    id: str
    outcome: Literal["happened", "not_happened"]
    note: str = ""


class TurnEnded(_Input, frozen=True, kw_only=True):
    """The driver gave turn `n` back."""

    n: int
    end: TurnEnd


class CutRequested(_Input, frozen=True, kw_only=True):
    """Cut the running turn (drain, freeze, deadline). `n` None means whatever runs."""

    cause: CutCause
    by: str = "daemon"
    n: int | None = None


class Recovered(_Input, frozen=True, kw_only=True):
    """A new boot found this session; `crash_loop_boots` 0 switches that hold off."""

    boot: int
    crash_loop_boots: int = 3


class Ticked(_Input, frozen=True, kw_only=True):
    """Time has passed: everything that is due is carried out."""


class ContextShrunk(_Input, frozen=True, kw_only=True):
    """The driver made the context of turn `n` smaller; fields as in `context.compacted`."""

    n: int
    reason: str
    before_sha256: str
    after_sha256: str
    before_messages: int = 0
    after_messages: int = 0
    before_bytes: int = 0
    after_bytes: int = 0
    results_before_ss: int = 0
    result_chars: int = 0
    upto_ss: int = 0
    summary: str = ""
    summary_blob: str | None = None
    usage: Usage | None = None
    cost_micro: int = 0
    model: str = ""
    priced: bool | None = None


class ModelReported(_Input, frozen=True, kw_only=True):
    """A model call that began in turn `n` went through the proxy and ended; fields as in `model.called`."""

    n: int
    api: str
    model: str = ""
    outcome: str = "ok"
    cause: str = ""
    status: int = 0
    request_sha256: str = ""
    request_bytes: int = 0
    response_sha256: str = ""
    response_bytes: int = 0
    stored: bool = False
    usage: Usage | None = None
    first_ms: int = 0
    duration_ms: int = 0
    repeats: int = 0
    cost_micro: int = 0
    priced: bool | None = None


class Reconsidered(_Input, frozen=True, kw_only=True):
    """The house changed (unfreeze, end of a drain): judge again."""


Input = (
    EnvelopeArrived
    | SuspendRequested
    | UnsuspendRequested
    | InterruptRequested
    | GateOpenRequested
    | GateExtendRequested
    | HoldRequested
    | HoldReleased
    | GoalChangeRequested
    | CronPutRequested
    | CronChangeRequested
    | DropRequested
    | EndRequested
    | ResumeRequested
    | StepReported
    | RetryReported
    | Remembered
    | StreamJudged
    | AgentAsked
    | EffectIntended
    | PermitAsked
    | AffordAsked
    | ApprovalGiven
    | BudgetSetRequested
    | ConfigSetRequested
    | EffectEnded
    | EffectResolved
    | TurnEnded
    | CutRequested
    | ContextShrunk
    | ModelReported
    | Recovered
    | Ticked
    | Reconsidered
)


class House(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is decided within.

    Attributes:
        closed_by: `freeze` or `drain` when no session admits work, else None.
        partial: text streamed so far in the running step, in case this input cuts the turn.
        phase: `model` or `tool`: what the running turn is doing.
        settings: the session's settings, whole.
        scheduled_from_ms: cron and wake-ups wait until then: the daemon has just started too often.
        failed: in a replay: rules that failed on this input when it was decided first.
        purses: limits of labels and parents that bind the session, and what all of theirs have spent.
    """

    settings: Settings
    closed_by: str | None = None
    partial: str = ""
    partial_blob: str | None = None
    phase: str = "unknown"
    scheduled_from_ms: int = 0
    failed: tuple[Failure, ...] = ()
    purses: tuple[Purse, ...] = ()


class StartTurn(msgspec.Struct, frozen=True):
    """Call the driver for turn `n`; its `turn.started` is durable by now."""

    n: int
    trigger: Trigger


class CancelTurn(msgspec.Struct, frozen=True):
    """Stop the driver's work for turn `n` at once."""

    n: int
    cause: str


Effect = StartTurn | CancelTurn | Settle


class Advanced(msgspec.Struct, frozen=True, kw_only=True):
    """What an input led to. Journal `events` first, then carry out `effects` in order.

    Attributes:
        events: in order; the i-th has `ss` = `before.ss` + 1 + i.
        stop: the driver must end the turn now.
        reply: answer to an `AgentAsked`.
        envelope: id of the envelope that an arrival or `cron run` made.
        asked: id of the approval that the tool has to wait for.
        denied: why the tool or the model call may not go ahead.
        near: rules that are about to fire.
    """

    session: Session
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    stop: bool = False
    reply: AgentReply | None = None
    envelope: str | None = None
    asked: str | None = None
    denied: str | None = None
    near: tuple[Near, ...] = ()


def tokens_of(usage: Usage | None) -> int:
    """Tokens of a model call, both ways."""
    return 0 if usage is None else usage.input_tokens + usage.output_tokens
