"""Bounds of the control socket. Everything that could grow has one."""

from __future__ import annotations

import msgspec

from loopd_protocol.frames import FRAME_LIMIT_BYTES, HELLO_LIMIT_BYTES


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection, and all of them together, may use.

    Attributes:
        frame_bytes, hello_bytes: largest frame after and before `hello`.
        inflight: unanswered commands of one connection.
        inflight_total: unanswered commands of all connections.
        subs: subscriptions of one connection.
        connections: open at once; one more is told `overloaded` and closed.
        hello_s: time from connecting to `hello`.
        heartbeat_s: the server says something at least this often.
        stall_s: a peer that takes nothing of what is waiting for it for so long is sent away.
        linger_s: after `bye`, time to take what is in the buffer before the connection is cut.
        buffer_bytes: events are written only while less than this waits for the peer.
        chunk_bytes: events are written in pieces of about this size.
        chunk_events: events read from the log at once.
        bad_frames: refused frames in a row before the connection is closed.
    """

    frame_bytes: int = FRAME_LIMIT_BYTES
    hello_bytes: int = HELLO_LIMIT_BYTES
    inflight: int = 64
    inflight_total: int = 4_096
    subs: int = 32
    connections: int = 4_096
    hello_s: float = 5.0
    heartbeat_s: float = 10.0
    stall_s: float = 30.0
    linger_s: float = 5.0
    buffer_bytes: int = 262_144
    chunk_bytes: int = 131_072
    chunk_events: int = 512
    bad_frames: int = 16
