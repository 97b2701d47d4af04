"""Frames: the outer objects on a connection, one tagged struct for each `t`.

A client says `hello` first and may send commands in the same write. `id`s are the client's own
and only name things on its connection. Cursors are `(log, seq)`, the same on every transport.

Unknown fields are skipped in `hello`, `ping`, `ack` and in everything that the server says, so
that newer peers can talk to older ones. `cmd`, `sub`, `unsub` and `cancel` are strict: a mistyped
`if_rev` would silently drop a precondition.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import MAX_INT, AtMs, Count, DurationMs, Key, Label, Seq, SessionRef

PROTOCOL_VERSION = 1
CORE_VERSION = 0
"""Version in `welcome` when the peers share none: only `CORE_COMMANDS` are taken then."""

CORE_COMMANDS: frozenset[str] = frozenset({"daemon.status", "daemon.freeze", "daemon.drain", "daemon.stop"})
"""Frozen for ever, with `hello` and `ping`: any client can always stop any daemon."""

FRAME_LIMIT_BYTES = 1_048_576
HELLO_LIMIT_BYTES = 16_384
DEPTH_LIMIT = 64

FrameId = Annotated[str, Meta(min_length=1, max_length=64)]
KindPattern = Annotated[
    str, Meta(min_length=1, max_length=100, pattern=r"^([a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?|\*)\Z")
]
"""An exact kind (`gate.changed`), all kinds below a word (`gate.*`) or every kind (`*`)."""
_Int = Annotated[int, Meta(ge=-MAX_INT, le=MAX_INT)]


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """A position in one log: everything up to and including `seq` has been seen."""

    log: Label
    seq: Seq


class Peer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is connecting, for logs only."""

    name: Label = ""
    ver: Label = ""


class EventSelector(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Which events: of these sessions (ids or names) and of these kinds; empty means all."""

    sids: Annotated[tuple[SessionRef, ...], Meta(max_length=1_000)] = ()
    kinds: Annotated[tuple[KindPattern, ...], Meta(max_length=64)] = ()


# -- client -----------------------------------------------------------------------------------


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of what a client may say."""


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """First frame of a connection, always NDJSON.

    Attributes:
        v: lowest and highest protocol version that the client speaks.
        want: optional streams; `delta` is live text. Unknown words are skipped.
        enc: encoding of everything after this frame, in both directions.
        auth: a bearer token, or a ticket on a WebSocket; it stands instead of what the kernel says.
    """

    v: tuple[Count, Count] = (PROTOCOL_VERSION, PROTOCOL_VERSION)
    client: Peer = Peer()
    want: Annotated[tuple[Label, ...], Meta(max_length=32)] = ()
    enc: Literal["json", "msgpack"] = "json"
    auth: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class Cmd(ClientFrame, frozen=True, kw_only=True, tag="cmd", forbid_unknown_fields=True):
    """Asks for a command; answered by `ok` or `err` with the same `id`, in any order.

    Attributes:
        c: the command, decoded strictly in a second stage.
        key: idempotency key of a mutating command.
        if_rev: refuse unless the session's revision is this one.
        if_gate_gen: refuse unless the gate's generation is this one.
        if_turn: refuse unless this turn runs.
    """

    id: FrameId
    c: msgspec.Raw
    key: Key | None = None
    if_rev: Count | None = None
    if_gate_gen: Count | None = None
    if_turn: Count | None = None


class Sub(ClientFrame, frozen=True, kw_only=True, tag="sub", forbid_unknown_fields=True):
    """Subscribes to events after a cursor, or from the head on; `id` names the subscription.

    With `snapshot` the present sessions come first and the tail follows without a hole; `after`
    must be absent then.
    """

    id: FrameId
    after: Cursor | None = None
    sel: EventSelector = EventSelector()
    snapshot: bool = False


class Unsub(ClientFrame, frozen=True, kw_only=True, tag="unsub", forbid_unknown_fields=True):
    """Ends the subscription `sub`; no event of it follows the `ok`."""

    id: FrameId
    sub: FrameId


class Ack(ClientFrame, frozen=True, kw_only=True, tag="ack"):
    """The client is done with everything of `sub` up to `seq`. Never answered."""

    sub: FrameId
    seq: Seq


class Cancel(ClientFrame, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True):
    """Stop waiting for command `id`: it is answered by `err cancelled`. Its effect is not undone."""

    id: FrameId


class Ping(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Answered by `pong` with the same `id`; allowed before `hello`."""

    id: FrameId | None = None


AnyClientFrame = Hello | Cmd | Sub | Unsub | Ack | Cancel | Ping

# -- server -----------------------------------------------------------------------------------


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", omit_defaults=True):
    """Base of what the server may say."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Version of the daemon and the id of its present boot."""

    ver: Label
    boot: Label


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of this connection.

    Attributes:
        frame: largest frame in bytes, in both directions.
        inflight: commands without an answer.
        subs: subscriptions.
        hb_ms: the server says something at least this often.
    """

    frame: Count
    inflight: Count
    subs: Count
    hb_ms: DurationMs


class Auth(msgspec.Struct, frozen=True, kw_only=True):
    """Who the server takes the client for, and what it may do."""

    principal: Label
    scopes: tuple[Label, ...]


class Welcome(ServerFrame, frozen=True, kw_only=True, tag="welcome"):
    """Answer to `hello`.

    Attributes:
        v: the version both speak; `CORE_VERSION` when there is none.
        caps: optional abilities of this daemon.
        schema: digest of the protocol's schema, `sha256:…`.
        head: last committed event.
    """

    v: Count
    server: ServerInfo
    caps: tuple[Label, ...]
    schema: Label
    limits: Limits
    auth: Auth
    head: Cursor
    now_ms: AtMs


class Ok(ServerFrame, frozen=True, kw_only=True, tag="ok", omit_defaults=False):
    """A command was carried out, durably. `r` is its result; the rest as in `Answer`."""

    id: FrameId
    seq: Seq = 0
    rev: Count | None = None
    dup: bool = False
    r: dict[str, Any] = {}


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """When the same request may succeed."""

    after_ms: DurationMs


class Err(ServerFrame, frozen=True, kw_only=True, tag="err"):
    """A frame was refused and changed nothing. `id` is None when it could not be read."""

    code: Label
    msg: str
    id: FrameId | None = None
    path: str | None = None
    retry: Retry | None = None


class Subd(ServerFrame, frozen=True, kw_only=True, tag="subd"):
    """A subscription stands; the first event's `prev` is `at.seq`."""

    id: FrameId
    at: Cursor


class Snap(ServerFrame, frozen=True, kw_only=True, tag="snap"):
    """Part of a snapshot as of `at`; the tail follows the part that is `last`."""

    sub: FrameId
    at: Cursor
    part: Count
    last: bool
    sessions: tuple[dict[str, Any], ...] = ()


class Ev(ServerFrame, frozen=True, kw_only=True, tag="ev"):
    """One committed event.

    Attributes:
        prev: `seq` of the event delivered before it on this subscription, or where it began.
        ss: sequence number in the session, 0 for events of the daemon.
        ts: when it was committed.
        k: kind; kv: version of that kind.
        cause: `seq` of the event that led to it.
        turn: turn it belongs to.
        b: payload, decoded in a second stage; unknown kinds are passed on.
    """

    sub: FrameId
    seq: Seq
    prev: Seq
    ss: Count
    ts: AtMs
    k: Label
    kv: Count
    b: msgspec.Raw
    sid: Label | None = None
    cause: Seq | None = None
    turn: Count | None = None


class Delta(ServerFrame, frozen=True, kw_only=True, tag="delta"):
    """Text as the model streams it. Lossy: what counts is in `turn.step`."""

    sub: FrameId
    sid: Label
    n: Count
    text: str


class Gap(ServerFrame, frozen=True, kw_only=True, tag="gap"):
    """Events `from` to `to` will not come; the subscription goes on with `next`.

    Attributes:
        why: `retention` (deleted), `foreign_log` (the cursor is of another log, everything before
            `next` is unknown to the client) or `future` (the cursor is ahead of this log).
        log: the log that `next` counts in.
    """

    sub: FrameId
    from_: Seq = msgspec.field(name="from")
    to: Seq
    why: Label
    next: Seq
    log: Label = ""


class Lag(ServerFrame, frozen=True, kw_only=True, tag="lag"):
    """The reader was too slow: `deltas` pieces of live text were dropped. Events never are."""

    sub: FrameId
    deltas: Count = 0
    behind: Count = 0


class Pong(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """Answer to `ping`, and the heartbeat (without `id`).

    `cursors` tells for each subscription how far the log has been looked through, so a filtered
    reader can move its own cursor although nothing was delivered.
    """

    head: Cursor
    now_ms: AtMs
    id: FrameId | None = None
    cursors: dict[str, _Int] = {}


class Bye(ServerFrame, frozen=True, kw_only=True, tag="bye"):
    """Last frame of a connection.

    Attributes:
        why: `slow_consumer`, `draining`, or the code of the error before it.
        cursor: from where to go on: nothing up to here will be missed by subscribing after it.
        cursors: the same for each subscription.
    """

    why: Label
    msg: str = ""
    cursor: Cursor | None = None
    cursors: dict[str, _Int] = {}


AnyServerFrame = Welcome | Ok | Err | Subd | Snap | Ev | Delta | Gap | Lag | Pong | Bye

CLIENT_FRAMES: dict[str, type[ClientFrame]] = {
    str(cls.__struct_config__.tag): cls for cls in AnyClientFrame.__args__
}
SERVER_FRAMES: dict[str, type[ServerFrame]] = {
    str(cls.__struct_config__.tag): cls for cls in AnyServerFrame.__args__
}
