"""Holds: the reasons why a gate is closed.

Every hold but `UserSuspend` has a required deadline, so an automatic hold that lasts for ever
cannot be written down. Deadlines are milliseconds since the Unix epoch (UTC).
"""

from __future__ import annotations

import msgspec

from loopd_protocol.bounds import AtMs, Count, Label, Reason


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all holds say about themselves.

    Attributes:
        by: principal or part of the daemon that set it, for example `uid:1000`, `agent`,
            `rule:repeated_text`.
        reason: free text for people.
        since_ms: when it was set first.
        since_ss: the session sequence number of the event that set it last; a human envelope
            lifts `UserSuspend` and `Interrupted` only when its own number is higher.
    """

    by: Label
    reason: Reason = ""
    since_ms: AtMs = 0
    since_ss: Count = 0

    @property
    def kind(self) -> str:
        """The tag that names this hold in events, SQL and on the command line."""
        return str(self.__struct_config__.tag)


class UserSuspend(Hold, frozen=True, kw_only=True, tag="UserSuspend"):
    """An operator's suspension; the only hold that may lack a deadline.

    Attributes:
        until_ms: moment of automatic removal, or None for indefinite.
        quarantine: human envelopes wait as well instead of lifting it.
    """

    until_ms: AtMs | None = None
    quarantine: bool = False


class Degeneration(Hold, frozen=True, kw_only=True, tag="Degeneration"):
    """Set by detection at its closing rung.

    Attributes:
        rule: id of the rule that fired.
        detection: `ss` of the `degeneration.detected` event.
        relapse: 0 for the first closing by this loop, then 1, 2, …
    """

    until_ms: AtMs
    rule: Label
    detection: Count = 0
    relapse: Count = 0


class RequestIdle(Hold, frozen=True, kw_only=True, tag="RequestIdle"):
    """The agent asked to be left alone for 60 to 86,400 s."""

    until_ms: AtMs


class ContinuationBackoff(Hold, frozen=True, kw_only=True, tag="ContinuationBackoff"):
    """Continuations without a tool call in a row make the next ones rarer."""

    until_ms: AtMs


class Interrupted(Hold, frozen=True, kw_only=True, tag="Interrupted"):
    """An operator interrupted the running turn; nothing automatic starts for a while."""

    until_ms: AtMs


class ProviderBackoff(Hold, frozen=True, kw_only=True, tag="ProviderBackoff"):
    """The model endpoint is overloaded, refusing or down, after the driver's retries."""

    until_ms: AtMs
    cause: Label = "error"


class AwaitingApproval(Hold, frozen=True, kw_only=True, tag="AwaitingApproval"):
    """A question that policy does not settle; at the deadline it counts as denied."""

    until_ms: AtMs
    request: Label


class Budget(Hold, frozen=True, kw_only=True, tag="Budget"):
    """A windowed budget is exhausted until its window ends."""

    until_ms: AtMs
    which: Label


class CrashLoop(Hold, frozen=True, kw_only=True, tag="CrashLoop"):
    """The daemon died in the middle of this session's turns too often."""

    until_ms: AtMs
    boots: Count


class Maintenance(Hold, frozen=True, kw_only=True, tag="Maintenance"):
    """The daemon itself cannot take work: full disk, drain."""

    until_ms: AtMs


AnyHold = (
    UserSuspend
    | Degeneration
    | RequestIdle
    | ContinuationBackoff
    | Interrupted
    | ProviderBackoff
    | AwaitingApproval
    | Budget
    | CrashLoop
    | Maintenance
)

HOLD_KINDS: tuple[str, ...] = (
    "UserSuspend",
    "Degeneration",
    "RequestIdle",
    "ContinuationBackoff",
    "Interrupted",
    "ProviderBackoff",
    "AwaitingApproval",
    "Budget",
    "CrashLoop",
    "Maintenance",
)
