"""Frames that the server says by itself: `welcome`, `pong`, refusals, and how a subscription begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from loopd.core.access import Caller
from loopd.server.fanout import Subscription
from loopd.server.house import House
from loopd.server.rendering import Encoding
from loopd_protocol.errors import Refused
from loopd_protocol.frames import (
    CORE_VERSION,
    Auth,
    Cursor,
    Err,
    Gap,
    Limits,
    Pong,
    Retry,
    Snap,
    Sub,
    Welcome,
)
from loopd_protocol.schema import digest

CAPS = ("core-0", "sub", "snapshot", "delta", "msgpack", "cancel")
_SNAP_SESSIONS = 100
_SNAP_BYTES = 262_144


def check_encoding(via: str, enc: Encoding) -> None:
    """Refuse an encoding that does not fit the way.

    Raises:
        Refused: `invalid`.
    """
    if via == "websocket" and enc != "json":
        raise Refused(
            "invalid", f"enc is {enc!r}; a WebSocket carries text here, expected 'json'", path="$.enc"
        )


def welcome(house: House, caller: Caller, *, version: int) -> Welcome:
    """The answer to `hello`."""
    limits = house.limits
    return Welcome(
        v=version,
        server=house.info,
        caps=CAPS[:1] if version == CORE_VERSION else CAPS,
        schema=digest(),
        limits=Limits(
            frame=limits.frame_bytes,
            inflight=limits.inflight,
            subs=limits.subs,
            hb_ms=round(limits.heartbeat_s * 1000),
        ),
        auth=Auth(principal=caller.principal, scopes=tuple(sorted(caller.scopes))),
        head=Cursor(log=house.bus.log_id, seq=house.bus.head),
        now_ms=house.now_ms(),
    )


def pong(house: House, ping_id: str | None, subs: Iterable[Subscription]) -> Pong:
    """The answer to `ping`, and the heartbeat."""
    return Pong(
        id=ping_id,
        head=Cursor(log=house.bus.log_id, seq=house.bus.head),
        now_ms=house.now_ms(),
        cursors={sub.id: sub.cursor for sub in subs},
    )


def refusal(frame_id: str | None, refused: Refused) -> Err:
    """A refusal as a frame."""
    after_ms = refused.retry_after_ms
    return Err(
        id=frame_id,
        code=refused.code,
        msg=refused.message,
        path=refused.path,
        retry=None if after_ms is None else Retry(after_ms=after_ms),
    )


def first_cursor(frame: Sub, log: str, head: int) -> tuple[int, Gap | None]:
    """Where a subscription begins, and what it will not get because of that."""
    after = frame.after
    if after is None:
        return head, None
    if after.log != log:
        return head, Gap(sub=frame.id, from_=0, to=head, why="foreign_log", next=head + 1, log=log)
    if after.seq > head:
        return head, Gap(sub=frame.id, from_=head + 1, to=after.seq, why="future", next=head + 1, log=log)
    return after.seq, None


def snapshot_parts(sub: str, at: Cursor, sessions: list[dict[str, Any]]) -> list[Snap]:
    """A snapshot as frames that stay far below the frame limit; at least one, the last one marked."""
    groups: list[list[dict[str, Any]]] = [[]]
    size = 0
    for session in sessions:
        size += len(msgspec.json.encode(session))
        if groups[-1] and (len(groups[-1]) >= _SNAP_SESSIONS or size > _SNAP_BYTES):
            groups.append([])
            size = 0
        groups[-1].append(session)
    last = len(groups) - 1
    return [
        Snap(sub=sub, at=at, part=n, last=n == last, sessions=tuple(group)) for n, group in enumerate(groups)
    ]
