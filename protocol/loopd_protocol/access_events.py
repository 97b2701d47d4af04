"""Events about tokens, consumers and webhooks: what the house tells of its doors."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import AtMs, Count, Key, Label, Name, Reason, Seq
from loopd_protocol.event import Event

ATTEMPTS_MAX = 8
"""Sources that one `access.refused` names; the others are counted."""


class TokenCreated(Event, frozen=True, kw_only=True, tag="token.created"):
    """A token exists; `replaces` names the one that it was rotated from."""

    kid: Key
    scopes: tuple[Label, ...]
    labels: dict[str, str] = {}
    expires_ms: AtMs | None = None
    note: Reason = ""
    replaces: Label = ""
    by: Label = ""


class TokenRevoked(Event, frozen=True, kw_only=True, tag="token.revoked"):
    """A token is worth nothing from `at_ms` on (0: from now on)."""

    kid: Key
    reason: Reason = ""
    at_ms: AtMs = 0
    by: Label = ""


class ConsumerCreated(Event, frozen=True, kw_only=True, tag="consumer.created"):
    """A named cursor exists; it began after `after`."""

    name: Name
    after: Seq
    kinds: tuple[Label, ...] = ()
    sids: tuple[Key, ...] = ()
    by: Label = ""


class ConsumerDeleted(Event, frozen=True, kw_only=True, tag="consumer.deleted"):
    """A named cursor is forgotten."""

    name: Name
    by: Label = ""


class WebhookCreated(Event, frozen=True, kw_only=True, tag="webhook.created"):
    """Events go to a sink from now on. `origin` is scheme, host and port of its address; paths hold secrets."""

    name: Name
    origin: Label
    format: Label
    after: Seq
    kinds: tuple[Label, ...] = ()
    labels: dict[str, str] = {}
    content: bool = False
    by: Label = ""


class WebhookDeleted(Event, frozen=True, kw_only=True, tag="webhook.deleted"):
    """Nothing goes to this sink any more."""

    name: Name
    by: Label = ""


class WebhookFailing(Event, frozen=True, kw_only=True, tag="webhook.failing"):
    """A sink does not take event `seq`; it is tried again and later events wait. Said once, not at each try."""

    name: Name
    seq: Seq
    error: Reason


class WebhookRecovered(Event, frozen=True, kw_only=True, tag="webhook.recovered"):
    """A failing sink takes events again, after `tries` attempts and `down_ms`."""

    name: Name
    tries: Count = 0
    down_ms: Count = 0


class WebhookDeadLetter(Event, frozen=True, kw_only=True, tag="webhook.dead_letter"):
    """A sink refused event `seq` for good; it is kept aside and the next one is sent."""

    name: Name
    seq: Seq
    error: Reason


class WebhookGap(Event, frozen=True, kw_only=True, tag="webhook.gap"):
    """A sink was behind retention: events `first` to `last` were deleted before they were delivered, or looked at."""

    name: Name
    first: Seq
    last: Seq


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """How often one source was turned away at a door, for one reason.

    Attributes:
        door: `control`, `agent`, `http`.
        source: `uid:1001`, `ip:192.0.2.7`, or `local` for an HTTP door on a unix socket.
        kid: of the token that was shown, if there is one of that name; its secret was wrong, or it is worth nothing.
    """

    door: Label
    source: Label
    code: Label
    kid: Label = ""
    count: Count = 1


class AccessRefused(Event, frozen=True, kw_only=True, tag="access.refused"):
    """Somebody who is not known here knocked. At most one such event a minute; what came in between is added up.

    Attributes:
        more: attempts of sources that are not among `attempts`.
    """

    attempts: Annotated[tuple[Attempt, ...], Meta(max_length=ATTEMPTS_MAX)]
    first_ms: AtMs
    last_ms: AtMs
    more: Count = 0


class WatcherAttached(Event, frozen=True, kw_only=True, tag="watcher.attached"):
    """Somebody has followed the log for five seconds and goes on. Its principal is in the row.

    A note: nobody waits for it, and a crash may lose those of the last 50 ms.

    Attributes:
        id: of this attendance, within the boot.
        via: `socket`, `websocket` or `sse`.
        all: it follows all sessions that it may see; else those in `sids`, of which at most 20 are named.
    """

    id: Key
    via: Label = ""
    all: bool = False
    sids: tuple[Key, ...] = ()
    sids_count: Count = 0


class WatcherDetached(Event, frozen=True, kw_only=True, tag="watcher.detached"):
    """A watcher is gone, after `lasted_ms`; it had been given what is up to `cursor`. A note.

    When the daemon stops or dies, everybody is gone: that is not told for each.
    """

    id: Key
    lasted_ms: Count = 0
    cursor: Seq = 0


AnyAccessEvent = (
    AccessRefused
    | TokenCreated
    | TokenRevoked
    | ConsumerCreated
    | ConsumerDeleted
    | WebhookCreated
    | WebhookDeleted
    | WebhookFailing
    | WebhookRecovered
    | WebhookDeadLetter
    | WebhookGap
    | WatcherAttached
    | WatcherDetached
)
