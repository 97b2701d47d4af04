"""Events as a stream of server-sent events, for browsers, curl and programs.

The `id:` of an event is its cursor, `LOG:SEQ`; a client that comes back with `Last-Event-ID` goes on behind it. The
bytes are those of the fan-out, which renders an event once for all who see the same of it; here they are only
cut into events, once for all as well. Whoever does not read costs a socket's buffer and is sent away after 30 s.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from loopd.core.access import Caller
from loopd.server.fanout import Subscription
from loopd.server.http.desk import Desk
from loopd.server.http.problems import refusal
from loopd.server.http.protocol import PEER
from loopd.server.opening import first_cursor, snapshot_parts
from loopd.server.rendering import Encoding, make_filter
from loopd_protocol import codec
from loopd_protocol.access_commands import ConsumerList
from loopd_protocol.commands import SessionGet
from loopd_protocol.errors import Refused
from loopd_protocol.frames import Bye, Cursor, EventSelector, Gap, Snap, Sub, Subd

SUB = "sse"
_SEQ = re.compile(rb'^\{"t":"ev","sub":"sse","seq":(\d+),')
_CACHE = 64
PARAMETERS = ("sid", "kind", "after", "snapshot", "deltas", "consumer")
_KIND = re.compile(r"^([a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*(\.\*)?|\*)\Z")


class SseCache:
    """Frames as server-sent events; the same bytes are cut only once."""

    def __init__(self, log: str) -> None:
        self._prefix = f"id: {log}:".encode()
        self._known: OrderedDict[bytes, bytes] = OrderedDict()

    def cut(self, data: bytes) -> bytes:
        """Event frames, a line each, as events with their cursors."""
        known = self._known.get(data)
        if known is None:
            known = b"".join(self._event(line) for line in data.splitlines())
            self._known[data] = known
            if len(self._known) > _CACHE:
                self._known.popitem(last=False)
        return known

    def _event(self, line: bytes) -> bytes:
        found = _SEQ.match(line)
        if found is None:
            return b"data: %b\n\n" % line
        return b"%b%b\ndata: %b\n\n" % (self._prefix, found[1], line)


class SseLine:
    """One stream: matches the fan-out's `Line`."""

    via = "sse"

    def __init__(self, desk: Desk, caller: Caller, cache: SseCache) -> None:
        self.enc: Encoding = "json"
        self.caller = caller
        self.over = False
        self._desk = desk
        self._cache = cache
        self._limit = desk.server.limits.buffer_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._filled = anyio.Event()

    @property
    def takes_events(self) -> bool:
        """Whether less than `buffer_bytes` waits for the client."""
        return not self.over and self._size < self._limit

    def write(self, data: bytes) -> None:
        """Events of the fan-out."""
        self._add(self._cache.cut(data))

    def say(self, frame: msgspec.Struct) -> None:
        """Any other frame, as an event with its tag for a name."""
        name = str(frame.__struct_config__.tag)
        self._add(b"event: %b\ndata: %b\n\n" % (name.encode(), codec.encode_frame(frame).rstrip(b"\n")))

    def ended(self, sub: Subscription) -> None:  # noqa: ARG002
        """The subscription ended by itself."""
        self.over = True
        self._filled.set()

    def bye(self, why: str, message: str) -> None:
        """Say why the stream ends, and end it."""
        if not self.over:
            self.say(Bye(why=why, msg=message))
            self.over = True

    def _add(self, data: bytes) -> None:
        if not self.over:
            self._parts.append(data)
            self._size += len(data)
            self._filled.set()

    async def pump(self, send: Send, sub: Subscription) -> None:
        """Send what is there, in as few pieces as possible, until the stream is over."""
        limits = self._desk.server.limits
        fanout = self._desk.server.fanout
        kid = self.caller.kid
        while True:
            if not self._parts and not self.over:
                with anyio.move_on_after(limits.heartbeat_s):
                    await self._filled.wait()
            if kid is not None and not self._desk.keys.valid(kid):
                self.bye("unauthenticated", "the token has expired or was revoked")
            if not self._parts and not self.over:
                self._parts.append(
                    b": still here\nid: %b:%d\n\n" % (self._desk.server.bus.log_id.encode(), sub.cursor)
                )
            data, self._parts = b"".join(self._parts), []
            over = self.over
            self._filled = anyio.Event()
            # While it is on its way it still counts: the client has not taken it.
            with anyio.move_on_after(limits.stall_s) as patience:
                await send({"type": "http.response.body", "body": data, "more_body": not over})
            if patience.cancelled_caught:
                return
            self._size = sum(map(len, self._parts))
            if over:
                return
            if self.takes_events:
                fanout.resume(sub)


class EventStream:
    """`GET /v1/events`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._cache = SseCache(desk.server.bus.log_id)

    async def serve(self, request: Request, caller: Caller, receive: Receive, send: Send) -> None:
        """Stream events until the client goes, the token ends or the daemon stops.

        Raises:
            Refused: before the first byte.
        """
        desk = self._desk
        if "read" not in caller.scopes:
            raise Refused("forbidden", f"events need scope 'read'; {caller.principal} lacks it")
        if desk.closing:
            raise Refused("draining", "the daemon is about to stop", retry_after_ms=1_000)
        frame, deltas = await self._asked(request, caller)
        line = SseLine(desk, caller, self._cache)
        sub, first = await self._subscribed(frame, caller, line)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        for said in first:
            line.say(said)
        fanout = desk.server.fanout
        desk.lines.add(line)
        fanout.add(sub, deltas=deltas and not sub.wanted.metadata)
        scope: Scope = request.scope
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_until_gone, receive, group.cancel_scope)
                await line.pump(send, sub)
                group.cancel_scope.cancel()
        finally:
            line.over = True
            fanout.remove(sub)
            desk.lines.discard(line)
            peer = scope.get(PEER)
            if peer is not None and not peer.transport.is_closing() and line._size:  # noqa: SLF001
                peer.transport.abort()  # it takes nothing: what is in its buffer would wait for ever

    async def _asked(self, request: Request, caller: Caller) -> tuple[Sub, bool]:
        query = request.query_params
        unknown = [name for name in query if name not in PARAMETERS]
        if unknown:
            raise Refused(
                "unknown_field",
                f"no query parameter {unknown[0]!r}; expected {', '.join(PARAMETERS)}",
                path=f"$.{unknown[0]}",
            )
        kinds = tuple(query.getlist("kind"))
        refs = tuple(query.getlist("sid"))
        for kind in kinds:
            if not _KIND.match(kind) or len(kind) > 100:
                raise Refused(
                    "invalid",
                    f"kind is {kind!r}; expected a kind, or a pattern such as gate.*",
                    path="$.kind",
                )
        if len(kinds) > 64 or len(refs) > 1_000:
            raise Refused("invalid", f"{len(kinds)} kinds and {len(refs)} sids; the limits are 64 and 1000")
        after = request.headers.get("last-event-id") or query.get("after")
        cursor = None if after is None else self._cursor(after)
        if name := query.get("consumer"):
            listed = (await self._desk.carry_out(ConsumerList(), caller)).result["consumers"]
            found = next((row for row in listed if row["name"] == name), None)
            if found is None:
                raise Refused("not_found", f"no consumer {name!r} of this token", path="$.consumer")
            kinds, refs = kinds or tuple(found["kinds"]), refs or tuple(found["sids"])
            cursor = cursor or Cursor(log=found["cursor"]["log"], seq=found["cursor"]["seq"])
        snapshot = _truth(query.get("snapshot"), "snapshot")
        if snapshot and cursor is not None:
            snapshot = False  # a browser that comes back asks the same again, with its cursor
        sids = [str((await self._desk.carry_out(_get(ref), caller)).result["sid"]) for ref in refs]
        selector = EventSelector(sids=tuple(sids), kinds=kinds)
        sub = Sub(id=SUB, after=cursor, sel=selector, snapshot=snapshot)
        return sub, _truth(query.get("deltas"), "deltas")

    def _cursor(self, text: str) -> Cursor:
        log, colon, seq = text.rpartition(":")
        if not re.fullmatch(r"[0-9]{1,16}", seq) or len(log) > 200 or int(seq) > 2**53 - 1:
            raise Refused("invalid", f"cursor {text[:80]!r}; expected LOG:SEQ or SEQ", path="$.after")
        return Cursor(log=log if colon else self._desk.server.bus.log_id, seq=int(seq))

    async def _subscribed(
        self, frame: Sub, caller: Caller, line: SseLine
    ) -> tuple[Subscription, list[msgspec.Struct]]:
        server = self._desk.server
        bus = server.bus
        parts: list[Snap] = []
        gap: Gap | None = None
        if frame.snapshot:
            seq, sessions = await server.dispatcher.snapshot(EventSelector(sids=frame.sel.sids), caller)
            parts = snapshot_parts(SUB, Cursor(log=bus.log_id, seq=seq), sessions)
        else:
            seq, gap = first_cursor(frame, bus.log_id, bus.head)
        wanted = make_filter(
            frozenset(frame.sel.sids) or None,
            frame.sel.kinds,
            metadata="read.content" not in caller.scopes,
            sees=server.dispatcher.sees(caller),
        )
        sub = Subscription(line, SUB, wanted, seq)
        sub.snaps = parts
        first: list[msgspec.Struct] = [Subd(id=SUB, at=Cursor(log=bus.log_id, seq=seq))]
        return sub, [*first, *([] if gap is None else [gap])]


_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # else nginx keeps events until its buffer is full
]


def _get(ref: str) -> SessionGet:
    command = codec.decode_command(msgspec.json.encode({"t": "session.get", "sid": ref}))
    assert isinstance(command, SessionGet)
    return command


def _truth(text: str | None, name: str) -> bool:
    if text is None or text in {"0", "false"}:
        return False
    if text in {"", "1", "true"}:
        return True
    raise Refused("invalid", f"{name} is {text[:40]!r}; expected true or false", path=f"$.{name}")


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> Any:
    """Answer with a problem instead of a stream."""
    await refusal(refused)(scope, receive, send)
