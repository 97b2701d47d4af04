"""One client on the control socket: hello, commands, subscriptions.

    connected ──hello──▶ open ──bye──▶ closing ──flushed or cut──▶ gone
        └──5 s, garbage, unknown user──────┘

An `asyncio.Protocol`, because one await for each message costs seven times the throughput.
Answers are written at once; events only while the socket's buffer is below its mark, so an answer
never waits behind more than that. While the buffer is above it, nothing is read from the peer
either: who does not take answers cannot ask more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import msgspec

from loopd.core.access import Answer, Caller
from loopd.server.auth import hung_up
from loopd.server.fanout import Subscription
from loopd.server.house import House, Job
from loopd.server.opening import check_encoding, first_cursor, pong, refusal, snapshot_parts, welcome
from loopd.server.rendering import Encoding, make_filter
from loopd_protocol import codec
from loopd_protocol.commands import SessionGet
from loopd_protocol.errors import Refused
from loopd_protocol.frames import (
    CORE_COMMANDS,
    CORE_VERSION,
    PROTOCOL_VERSION,
    Ack,
    Bye,
    Cancel,
    ClientFrame,
    Cmd,
    Cursor,
    EventSelector,
    Gap,
    Hello,
    Ok,
    Ping,
    Snap,
    Sub,
    Subd,
    Unsub,
)
from loopd_protocol.framing import Splitter

_log = logging.getLogger("loopd.server")
_FLUSH_BYTES = 65_536
_NOBODY = Caller(principal="nobody", scopes=frozenset())


class Connection(asyncio.Protocol):
    """One client. Made by the listener, driven by the event loop."""

    via = "socket"

    def __init__(self, house: House, loop: asyncio.AbstractEventLoop) -> None:
        self._house = house
        self._loop = loop
        self._splitter = Splitter(limit_bytes=house.limits.hello_bytes)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)  # until connection_made
        self._hello_timer: asyncio.TimerHandle | None = None
        self._inflight: dict[str, bool] = {}  # id → whether its answer is still wanted
        self._open = False
        self._core_only = False
        self._wants_deltas = False
        self._paused = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._bad = 0
        self._half_closed = False
        self._subscribing = 0
        self._written = self._drained = 0
        self._drained_at = self._closing_since = 0.0
        self.said_at = 0.0
        self.closing = False
        self.enc: Encoding = "json"
        self.caller = _NOBODY
        self.subs: dict[str, Subscription] = {}

    # -- events of the loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out who it is, and expect `hello`."""
        self._transport = cast("asyncio.Transport", transport)
        limits = self._house.limits
        self._transport.set_write_buffer_limits(high=limits.buffer_bytes, low=limits.buffer_bytes // 4)
        self.said_at = self._drained_at = self._loop.time()
        try:
            self.caller = self._house.admit(self)
        except Refused as refused:
            self._refuse(None, refused)
            self.bye(refused.code, refused.message)
            return
        self._hello_timer = self._loop.call_later(limits.hello_s, self._no_hello)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget everything; commands under way go on without an answer."""
        self.closing = True
        self._no_more_hello()
        for sub in self.subs.values():
            self._house.fanout.remove(sub)
        self.subs.clear()
        self._house.gone(self)

    def pause_writing(self) -> None:
        """The peer does not take what is written: no events for it, and nothing more from it."""
        self._paused = True
        if not self.closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer takes bytes again."""
        self._paused = False
        if self.closing:
            return
        self._transport.resume_reading()
        for sub in self.subs.values():
            self._house.fanout.resume(sub)

    def data_received(self, data: bytes) -> None:
        """Cut into frames and carry them out."""
        if self.closing:
            return
        splitter = self._splitter
        splitter.feed(data)
        while (frame := splitter.pull()) is not None:
            self._take(frame)
            if self.closing:
                return
        if splitter.failure is not None:
            self._refuse(None, splitter.failure)
            self.bye(splitter.failure.code, splitter.failure.message)

    def eof_received(self) -> bool:
        """Stay open for the answers of a peer that only stopped sending."""
        self._half_closed = True
        if hung_up(self._transport.get_extra_info("socket").fileno()):
            self._close()
        else:
            self._close_if_idle()
        return not self.closing

    # -- what others see ----------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        """The transport, once connected."""
        return self._transport

    @property
    def takes_events(self) -> bool:
        """Whether the socket's buffer is below its mark."""
        return not (self._paused or self.closing)

    def write(self, data: bytes) -> None:
        """Write bytes of whole frames."""
        if self.closing:
            return
        # One write for all that is said in this turn of the loop, but never a heap of it.
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)
            self._written += len(data)
            self.said_at = self._loop.time()

    def say(self, frame: msgspec.Struct) -> None:
        """Write one frame."""
        self.write(codec.encode_frame(frame, self.enc))

    def ended(self, sub: Subscription) -> None:
        """The subscription ended by itself."""
        self.subs.pop(sub.id, None)

    def tick(self, now: float) -> None:
        """Heartbeat, and an end to peers that take nothing. `now` is the loop's time."""
        limits = self._house.limits
        if self.closing:
            if now - self._closing_since >= limits.linger_s:
                self._transport.abort()
            return
        drained = self._written - self._transport.get_write_buffer_size()
        if drained != self._drained or drained == self._written:
            self._drained, self._drained_at = drained, now
        elif now - self._drained_at >= limits.stall_s:
            self.bye("slow_consumer", f"nothing was read for {limits.stall_s:g} s")
            return
        if self._open and not self._paused and now - self.said_at >= limits.heartbeat_s:
            self.say(pong(self._house, None, self.subs.values()))

    def bye(self, why: str, message: str = "") -> None:
        """Say goodbye and close, leaving the peer `linger_s` to take what is in the buffer."""
        if self.closing:
            return
        cursors = {sub.id: sub.prev if sub.snaps else sub.cursor for sub in self.subs.values()}
        log = self._house.bus.log_id
        cursor = Cursor(log=log, seq=min(cursors.values())) if cursors else None
        self.say(Bye(why=why, msg=message, cursor=cursor, cursors=cursors))
        self._close()

    def answer(self, frame: Cmd, answer: Answer | Refused) -> None:
        """A worker is done with a command."""
        if self._inflight.pop(frame.id, False):
            if isinstance(answer, Refused):
                self._refuse(frame.id, answer)
            else:
                self.say(Ok(id=frame.id, seq=answer.seq, rev=answer.rev, dup=answer.dup, r=answer.result))
        self._close_if_idle()

    async def subscribe(self, frame: Sub) -> None:
        """Carry out a `sub`: names to ids, snapshot, first cursor.

        Raises:
            Refused: `not_found` for an unknown session, `invalid` for contradictions.
        """
        house, bus = self._house, self._house.bus
        sids = [await self._sid(ref) for ref in frame.sel.sids]
        parts: list[Snap] = []
        gap: Gap | None = None
        if frame.snapshot:
            seq, sessions = await house.dispatcher.snapshot(EventSelector(sids=tuple(sids)), self.caller)
            parts = snapshot_parts(frame.id, Cursor(log=bus.log_id, seq=seq), sessions)
        else:
            seq, gap = first_cursor(frame, bus.log_id, bus.head)
        self._subscribing -= 1
        if not self._inflight.pop(frame.id, False) or self.closing:
            return
        wanted = make_filter(
            frozenset(sids) or None,
            frame.sel.kinds,
            metadata="read.content" not in self.caller.scopes,
            sees=house.dispatcher.sees(self.caller),
        )
        sub = Subscription(self, frame.id, wanted, seq)
        sub.snaps = parts
        self.subs[frame.id] = sub
        self.say(Subd(id=frame.id, at=Cursor(log=bus.log_id, seq=seq)))
        if gap is not None:
            self.say(gap)
        house.fanout.add(sub, deltas=self._wants_deltas and not wanted.metadata)

    # -- frames -------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        frame_id: str | None = None
        try:
            if self.enc == "msgpack":
                data = codec.unpack(data)
            try:
                frame = codec.decode_client_frame(data)
            except Refused:
                frame_id = codec.frame_id(data)
                raise
            frame_id = getattr(frame, "id", None)
            if not self._open and not isinstance(frame, Hello | Ping):
                raise Refused(
                    "unauthenticated",
                    f"the first frame was {frame.__struct_config__.tag!r}; expected 'hello'",
                )
            if isinstance(frame, Cmd):
                self._command(frame)
            else:
                self._other(frame)
            self._bad = 0
        except Refused as refused:
            self._refuse(frame_id, refused)
            self._bad += 1
            if not self._open or self._bad >= self._house.limits.bad_frames:
                self.bye(refused.code, f"{self._bad} refused in a row" if self._open else refused.message)

    def _command(self, frame: Cmd) -> None:
        self._claim(frame.id)
        command = codec.decode_command(frame.c)
        if self._core_only and command.type not in CORE_COMMANDS:
            raise Refused("unsupported_version", f"{command.type} needs protocol version {PROTOCOL_VERSION}")
        self._house.submit(Job(self, frame, command))
        self._inflight[frame.id] = True

    def _claim(self, frame_id: str) -> None:
        limit = self._house.limits.inflight
        if len(self._inflight) >= limit:
            raise Refused(
                "overloaded", f"{limit} commands without an answer; the limit is {limit}", retry_after_ms=100
            )
        if frame_id in self._inflight:
            raise Refused("invalid", f"id {frame_id!r} is in use by an unanswered frame", path="$.id")

    def _other(self, frame: ClientFrame) -> None:
        if isinstance(frame, Ping):
            self.say(pong(self._house, frame.id, self.subs.values()))
        elif isinstance(frame, Hello):
            self._hello(frame)
        elif isinstance(frame, Sub):
            self._sub(frame)
        elif isinstance(frame, Unsub):
            sub = self.subs.pop(frame.sub, None)
            if sub is None:
                raise Refused("not_found", f"no subscription {frame.sub!r}", path="$.sub")
            self._house.fanout.remove(sub)
            self.say(Ok(id=frame.id, seq=sub.cursor))
        elif isinstance(frame, Ack):
            acked = self.subs.get(frame.sub)
            if acked is None or frame.seq > acked.cursor:
                raise Refused("invalid", f"ack of {frame.seq} on {frame.sub!r}: nothing like that was sent")
            acked.acked = max(acked.acked, frame.seq)
        elif isinstance(frame, Cancel):
            if not self._inflight.get(frame.id):
                raise Refused("not_found", f"no command {frame.id!r} waits for an answer", path="$.id")
            # The place stays taken until the command is really over; its effect is not undone.
            self._inflight[frame.id] = False
            self._refuse(frame.id, Refused("cancelled", "no longer waited for; the effect may still happen"))

    def _hello(self, frame: Hello) -> None:
        if self._open:
            raise Refused("invalid", "'hello' was said before; expected once", path="$.t")
        house = self._house
        check_encoding(self.via, frame.enc)
        self.caller = house.greet(self, frame.auth)
        shared = frame.v[0] <= PROTOCOL_VERSION <= frame.v[1]
        if not shared:
            _log.warning("no shared protocol version", extra={"client": frame.client.name, "v": frame.v})
        self._open, self._core_only = True, not shared
        self._no_more_hello()
        self._wants_deltas = "delta" in frame.want
        # `welcome` is in the new encoding already: everything after `hello` is.
        self.enc = self._splitter.enc = frame.enc
        self._splitter.limit_bytes = house.limits.frame_bytes
        self.say(welcome(house, self.caller, version=PROTOCOL_VERSION if shared else CORE_VERSION))

    def _sub(self, frame: Sub) -> None:
        if self._core_only:
            raise Refused("unsupported_version", f"'sub' needs protocol version {PROTOCOL_VERSION}")
        if "read" not in self.caller.scopes:
            raise Refused("forbidden", f"sub needs scope 'read'; {self.caller.principal} lacks it")
        if frame.snapshot and frame.after is not None:
            raise Refused(
                "invalid", "a snapshot decides where the tail begins; expected no 'after'", path="$.after"
            )
        self._claim(frame.id)
        if frame.id in self.subs:
            raise Refused("already_exists", f"subscription {frame.id!r} stands already", path="$.id")
        limit = self._house.limits.subs
        if len(self.subs) + self._subscribing >= limit:
            raise Refused("overloaded", f"{limit} subscriptions; the limit is {limit}")
        self._house.submit(Job(self, frame, None))
        self._inflight[frame.id] = True
        self._subscribing += 1

    def subscription_refused(self, frame: Sub, refused: Refused) -> None:
        """A worker could not carry out a `sub`."""
        self._subscribing -= 1
        if self._inflight.pop(frame.id, False):
            self._refuse(frame.id, refused)
        self._close_if_idle()

    async def _sid(self, ref: str) -> str:
        answer = await self._house.dispatcher.dispatch(SessionGet(sid=ref), self.caller)
        return str(answer.result["sid"])

    def _refuse(self, frame_id: str | None, refused: Refused) -> None:
        self.say(refusal(frame_id, refused))

    def _no_hello(self) -> None:
        self._hello_timer = None
        limit = self._house.limits.hello_s
        self._refuse(None, Refused("timeout", f"no 'hello' within {limit:g} s"))
        self.bye("timeout", f"no 'hello' within {limit:g} s")

    def _no_more_hello(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def _close_if_idle(self) -> None:
        if self._half_closed and not (self._inflight or self.subs or self.closing):
            self._close()

    def _close(self) -> None:
        self.closing = True
        self._closing_since = self._loop.time()
        self._no_more_hello()
        for sub in self.subs.values():
            self._house.fanout.remove(sub)
        self.subs.clear()
        self._flush()
        self._transport.close()
