"""Commands about who may do what, who is told what, and what a hosted agent may ask for itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from loopd_protocol.bounds import AtMs, Label, Name, Reason, Seq, SessionRef
from loopd_protocol.command import DAY_MS, Command, Labels, Page
from loopd_protocol.frames import KindPattern

ScopeName = Literal[
    "read",
    "read.content",
    "send",
    "control",
    "create",
    "cron",
    "approve",
    "export",
    "metrics",
    "admin",
]
"""What a token can carry. `agent` is not among them: only the daemon gives that, to a hosted agent."""
Kid = Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9]+\Z")]
"""Id of a token: the part between its underscores, no secret."""
Url = Annotated[str, Meta(min_length=8, max_length=2_048, pattern=r"^https?://")]
AGENT_VERBS = ("request_idle", "update_goal", "wake_me", "report_phase", "report_progress")


class AgentAsk(Command, frozen=True, kw_only=True, tag="agent.ask"):
    """→ `{"ok", "text", "ends_turn"}`: what a hosted agent asks of its own session, on `agent.sock`.

    The session is that of the caller's token; there is no way to name another one.
    """

    name: Literal["request_idle", "update_goal", "wake_me", "report_phase", "report_progress"]
    args: Annotated[dict[Label, Any], Meta(max_length=32)] = {}


# -- tokens -----------------------------------------------------------------------------------


class TokenNew(Command, frozen=True, kw_only=True, tag="token.new"):
    """→ `{"kid", "token", …}`; the token is shown this once, only its digest is kept.

    With `labels` it reaches only sessions that have all of them; others do not exist for it. `source` is what
    its messages count as: those of a `channel` (a program) never count as a person's.
    """

    scopes: Annotated[tuple[ScopeName, ...], Meta(min_length=1, max_length=16)]
    source: Literal["human", "channel"] = "human"
    labels: Labels = {}
    expires_ms: AtMs | None = None
    note: Reason = ""


class TokenList(Command, frozen=True, kw_only=True, tag="token.list"):
    """→ `{"tokens": […]}` with scopes, labels, expiry, note and last use; never the secret."""


class TokenRevoke(Command, frozen=True, kw_only=True, tag="token.revoke"):
    """The token is worth nothing from now on; its connections are closed."""

    kid: Kid
    reason: Reason = ""


class TokenRotate(Command, frozen=True, kw_only=True, tag="token.rotate"):
    """→ `{"kid", "token", …}`: a new token with the same rights; the old one lives for `grace_ms` more."""

    kid: Kid
    grace_ms: Annotated[int, Meta(ge=0, le=7 * DAY_MS)] = 0


class Audit(Command, frozen=True, kw_only=True, tag="audit"):
    """→ `{"entries": […], "more": bool}`: who did what, newest last; refused commands too.

    `principal` is exact, or a prefix such as `token:*`; `denied` leaves only refusals.
    """

    principal: Label | None = None
    sid: SessionRef | None = None
    denied: bool = False
    after: Seq | None = None
    limit: Page = 100


# -- consumers and webhooks -------------------------------------------------------------------


class ConsumerCreate(Command, frozen=True, kw_only=True, tag="consumer.create"):
    """→ `{"name", "cursor", …}`: a named, durable cursor that `consumer.ack` moves forward.

    It begins after `after`, or at the head. The same name with the same selection again is no error.
    """

    name: Name
    kinds: Annotated[tuple[KindPattern, ...], Meta(max_length=64)] = ()
    sids: Annotated[tuple[SessionRef, ...], Meta(max_length=1_000)] = ()
    after: Seq | None = None


class ConsumerAck(Command, frozen=True, kw_only=True, tag="consumer.ack"):
    """Everything up to `seq` is done with; never moves backwards, unless `rewind` says so."""

    name: Name
    seq: Seq
    log: Label | None = None
    rewind: bool = False


class ConsumerList(Command, frozen=True, kw_only=True, tag="consumer.list"):
    """→ `{"consumers": […]}` with cursor and lag."""


class ConsumerDelete(Command, frozen=True, kw_only=True, tag="consumer.delete"):
    """Forgets a consumer."""

    name: Name


class WebhookCreate(Command, frozen=True, kw_only=True, tag="webhook.create"):
    """→ `{"name", "secret", …}`: POST events to `url`, signed, in order, again until it takes them.

    Attributes:
        kinds: exact kinds or patterns; none means the ones an operator wants to hear of.
        labels: only of sessions that have all of these.
        format: `json` (the event), `ntfy` or `slack` (a sentence for people).
        secret: for the signature; a random one is made and shown once when it is left out.
        content: also send what was said; without it only metadata leaves the daemon.
        after: begin after this event; None begins at the head.
        give_up_ms: for so long a sink may refuse (4xx) one event before it goes to the dead letters. One that
            is away, or answers 5xx, is asked for ever; its events wait in the log.
    """

    name: Name
    url: Url
    kinds: Annotated[tuple[KindPattern, ...], Meta(max_length=64)] = ()
    labels: Labels = {}
    format: Literal["json", "ntfy", "slack"] = "json"
    secret: Annotated[str, Meta(min_length=16, max_length=256)] | None = None
    content: bool = False
    after: Seq | None = None
    timeout_ms: Annotated[int, Meta(ge=100, le=60_000)] = 10_000
    give_up_ms: Annotated[int, Meta(ge=1_000, le=30 * DAY_MS)] = 3_600_000


class WebhookList(Command, frozen=True, kw_only=True, tag="webhook.list"):
    """→ `{"webhooks": […]}` with cursor, lag, last error, next try and dead letters."""


class WebhookDelete(Command, frozen=True, kw_only=True, tag="webhook.delete"):
    """Forgets a webhook and its dead letters."""

    name: Name


class WebhookRetry(Command, frozen=True, kw_only=True, tag="webhook.retry"):
    """Tries now instead of waiting; with `dead` the dead letters are sent once more."""

    name: Name
    dead: bool = False


AnyAccessCommand = (
    AgentAsk
    | TokenNew
    | TokenList
    | TokenRevoke
    | TokenRotate
    | Audit
    | ConsumerCreate
    | ConsumerAck
    | ConsumerList
    | ConsumerDelete
    | WebhookCreate
    | WebhookList
    | WebhookDelete
    | WebhookRetry
)

ACCESS_SCOPES: dict[str, str] = {
    "agent.ask": "agent",
    "token.new": "admin",
    "token.list": "admin",
    "token.revoke": "admin",
    "token.rotate": "admin",
    "audit": "admin",
    "consumer.create": "read",
    "consumer.ack": "read",
    "consumer.list": "read",
    "consumer.delete": "read",
    "webhook.create": "admin",
    "webhook.list": "admin",
    "webhook.delete": "admin",
    "webhook.retry": "admin",
}
READ_BY_ADMIN: frozenset[str] = frozenset({"token.list", "audit", "webhook.list"})
"""Commands that change nothing although their scope is not one of reading."""
CHANGED_BY_READERS: frozenset[str] = frozenset({"consumer.create", "consumer.ack", "consumer.delete"})
"""Commands that change something of the reader's own."""
