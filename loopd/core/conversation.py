"""What the model is shown: messages of a session, and the request that a turn makes of them.

Messages are not stored a second time: each one is a journal event of the session (an accepted
envelope, the prompt of a continuation, a step), named by that event's `ss`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loopd_protocol.events import ToolCall, Usage
from loopd_protocol.sources import Trigger

Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a model request.

    Attributes:
        ss: session sequence number of the event that holds the content; 0 for the system prompt.
        source: `human`, `cron`, …, `continuation`, `model`, `tool`, `session`.
        ephemeral: left out of the prompts of later turns.
        calls: tool calls that an assistant message asked for, without their results.
        call_id: for role `tool`: which call this is the result of.
    """

    ss: int
    role: Role
    source: str
    text: str
    ephemeral: bool = False
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver gets to take one turn.

    Attributes:
        n: turn number in the session, from 1.
        messages: the whole context, oldest first; the last ones are this turn's own input.
        tools_withheld: offer no tools in the first step.
        turns_seen: completed turns before this one (a script continues behind them).
        steps_seen: steps of all turns before this one.
        fresh: how many of the last messages are this turn's own input.
        memory: what the driver asked to be remembered.
        asks: policy wants to be asked before tools run: a hosted agent must not run them unasked.
        tools: offer these tool schemas (JSON) and no others: a recorded request is rebuilt.
    """

    sid: str
    n: int
    trigger: Trigger
    messages: tuple[Message, ...]
    workspace: str | None
    tools_withheld: bool = False
    turns_seen: int = 0
    steps_seen: int = 0
    fresh: int = 0
    memory: dict[str, str] = {}
    asks: bool = False
    tools: bytes | None = None


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """One model call with its tool results, as the driver saw it; nothing is cut yet.

    Attributes:
        request_sha256: of the exact bytes that were sent to the model, or None.
        state_fingerprint: digest of everything the agent can change outside, None for unknown.
        compacted: the context was compacted before this step.
        tools: the tool schemas exactly as they were offered, JSON; None for none or unknown.
        tools_sha256: filled in by the host, which keeps `tools` as a blob.
        model: that answered, when it is not the one that the driver is set to.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish: str = "stop"
    tools_withheld: bool = False
    state_fingerprint: str | None = None
    request_sha256: str | None = None
    compacted: bool = False
    tools: bytes | None = None
    tools_sha256: str | None = None
    model: str = ""


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """What the host tells a driver after a step.

    Attributes:
        stop: end the turn now; no further model request.
        messages: to be appended before the next model request of this turn: the step's own
            assistant and tool messages as they were stored, then notices of the host. A driver
            sends these and nothing else, so that the request can be rebuilt from the journal.
        tools_withheld: offer no tools in the next step.
        idle: the agent asked to idle in this turn; the turn ends now, like after `stop`.
    """

    stop: bool = False
    messages: tuple[Message, ...] = ()
    tools_withheld: bool = False
    idle: bool = False


Outcome = Literal["completed", "empty", "idle", "model_error", "stopped_by_rule", "deadline", "failed"]


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended, when it was not cut off.

    Attributes:
        outcome: `completed`; `empty` (no text, no call); `idle` (the agent asked for it);
            `model_error` (the endpoint failed after the driver's retries); `stopped_by_rule`;
            `failed` (the driver itself failed).
        retry_after_ms: for `model_error`, what the endpoint asked for, or None.
        goal_complete: the script is at its end and `once` was asked for.
    """

    outcome: Outcome
    error: str = ""
    cause: str = ""
    retry_after_ms: int | None = None
    goal_complete: bool = False


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Something only the agent itself may ask for; `args` are unchecked JSON.

    Attributes:
        name: `request_idle | update_goal | wake_me | report_phase | report_progress`.
    """

    name: str
    args: dict[str, Any]


class AgentReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to an `AgentRequest`: text for the model; `ends_turn` after this tool's result."""

    ok: bool
    text: str
    ends_turn: bool = False
