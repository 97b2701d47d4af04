"""Subscriptions: nothing lost, nothing doubled, nobody slowed down, every hole named."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.access import Caller
from loopd.core.writes import StoredEvent
from loopd.server.auth import PeerPolicy
from loopd.server.fanout import Fanout, Subscription
from loopd.server.limits import SocketLimits
from loopd.server.rendering import Slice, make_filter, slices
from loopd_protocol.events import DegenerationDetected, GateChanged, GoalChanged, TurnStep
from tests.control_stage import QUICK, SIDS, Stage, Wire, connected_as, dialled, serving

pytestmark = pytest.mark.anyio
HOLD = GateChanged(gate="closed", cause="suspend", by="uid:1", gen=1)


def sub(sub_id: str = "s", *, after: int | None = None, log: str = "lg_test", **more: Any) -> dict[str, Any]:
    frame = {"t": "sub", "id": sub_id, **more}
    return frame if after is None else {**frame, "after": {"log": log, "seq": after}}


async def events(wire: Wire, count: int) -> list[dict[str, Any]]:
    return [await wire.until("ev") for _ in range(count)]


def check_chain(frames: list[dict[str, Any]], *, start: int) -> None:
    for frame in frames:
        assert frame["prev"] == start, frame
        start = frame["seq"]


async def test_a_subscription_without_a_cursor_begins_at_the_head():
    async with serving() as (_, stage, path), dialled(path) as wire:
        stage.say("ses_a", "before")
        await wire.hello()
        await wire.send(sub())
        assert (await wire.read()) == {"t": "subd", "id": "s", "at": {"log": "lg_test", "seq": 1}}
        stage.say("ses_a", "after")
        event = await wire.read()
        assert (event["seq"], event["prev"], event["b"]["text"]) == (2, 1, "after")
        assert (event["sid"], event["ss"], event["k"], event["kv"]) == ("ses_a", 2, "envelope.accepted", 1)


@pytest.mark.parametrize("ring_events", [4, 100_000])
async def test_a_cursor_in_the_past_gets_everything_once_and_in_order(ring_events: int):
    stage = Stage(ring_events=ring_events)
    for n in range(700):
        stage.say("ses_a", str(n))
    async with serving(stage) as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub(after=100))
        for n in range(700, 1_500):
            stage.say("ses_a", str(n))
            if n % 50 == 0:
                await anyio.lowlevel.checkpoint()
        frames = await events(wire, 1_400)
        check_chain(frames, start=100)
        assert [frame["seq"] for frame in frames] == list(range(101, 1_501))


async def test_selected_sessions_and_kinds_come_with_a_checkable_chain():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(
            sub("one", sel={"sids": ["ses_a"], "kinds": ["gate.*"]}),
            sub("two", sel={"kinds": ["envelope.accepted"]}),
            sub("all", sel={"kinds": ["*"]}),
        )
        for _ in range(3):
            await wire.until("subd")
        stage.say("ses_a", "1")
        stage.append("ses_a", HOLD)
        stage.append("ses_b", HOLD)
        stage.say("ses_b", "4")
        stage.append("ses_a", HOLD)
        got: dict[str, list[dict[str, Any]]] = {"one": [], "two": [], "all": []}
        for frame in await events(wire, 9):
            got[frame["sub"]].append(frame)
        assert {name: [f["seq"] for f in frames] for name, frames in got.items()} == {
            "one": [2, 5],
            "two": [1, 4],
            "all": [1, 2, 3, 4, 5],
        }
        for frames in got.values():
            check_chain(frames, start=0)


async def test_a_session_may_be_selected_by_name_and_an_unknown_one_is_refused():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub(sel={"sids": ["name-ses_b"]}), sub("x", sel={"sids": ["nobody"]}))
        await wire.until("subd")
        refused = await wire.read()
        assert (refused["id"], refused["code"]) == ("x", "not_found")
        stage.say("ses_a", "no")
        stage.say("ses_b", "yes")
        assert (await wire.read())["b"]["text"] == "yes"


async def test_a_snapshot_and_its_tail_have_nothing_between_them():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        async with anyio.create_task_group() as group:

            async def talk() -> None:
                for n in range(300):
                    stage.say("ses_a", str(n))
                    await anyio.lowlevel.checkpoint()

            group.start_soon(talk)
            await anyio.lowlevel.checkpoint()
            await wire.send(sub(snapshot=True))
            at = (await wire.until("subd"))["at"]["seq"]
            parts = [await wire.read()]
            while not parts[-1]["last"]:
                parts.append(await wire.read())
            frames = await events(wire, 300 - at)
        assert [part["part"] for part in parts] == list(range(len(parts)))
        assert {part["at"]["seq"] for part in parts} == {at}
        rows = [row for part in parts for row in part["sessions"]]
        assert len(rows) == 300
        # What the snapshot says and what follows make the whole, without overlap.
        assert max(row["ss"] for row in rows) == at
        check_chain(frames, start=at)
        assert [frame["seq"] for frame in frames] == list(range(at + 1, 301))


async def test_an_empty_snapshot_is_one_last_part():
    async with serving() as (_, stage, path), dialled(path) as wire:
        stage.snapshot = lambda selector, caller=None: no_sessions()
        await wire.hello()
        await wire.send(sub(snapshot=True), sub("x", snapshot=True, after=0))
        refused = await wire.until("err")
        assert (refused["id"], refused["path"]) == ("x", "$.after")
        snap = await wire.until("snap")
        assert (snap.get("sessions", []), snap["last"], snap["part"]) == ([], True, 0)


async def test_a_snapshot_for_a_peer_that_does_not_read_stays_where_it_is():
    async with serving() as (server, stage, path), dialled(path) as frozen, dialled(path) as other:
        rows = [{"sid": f"ses_{n}", "pad": "x" * 2_000} for n in range(5_000)]

        async def many(*_: Any) -> tuple[int, list[dict[str, Any]]]:
            return 0, rows

        stage.snapshot = many
        await frozen.hello()
        await frozen.send(sub(snapshot=True))
        await frozen.until("subd")
        await other.hello()
        for _ in range(5):
            await other.ask("1", {"t": "daemon.status"})
        held = [c.transport.get_write_buffer_size() for c in server._connections]
        assert max(held) < QUICK.buffer_bytes + 2 * 262_144
        stage.say("ses_a", "after")
        got: list[str] = []
        while (frame := await frozen.read())["t"] == "snap":
            got += [row["sid"] for row in frame["sessions"]]
        assert got == [row["sid"] for row in rows]
        assert (frame["t"], frame["seq"]) == ("ev", 1)


class Paper:
    """A line that takes everything and keeps it."""

    enc = "json"
    caller = Caller(principal="uid:1", scopes=frozenset({"read"}))
    takes_events = True

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        self.frames += [json.loads(line) for line in data.splitlines()]

    def say(self, frame: msgspec.Struct) -> None:
        self.write(msgspec.json.encode(frame))

    def ended(self, subscription: Subscription) -> None:
        raise AssertionError("it did not end")


async def test_who_begins_ahead_of_the_others_gets_nothing_from_before():
    stage, everything = Stage(ring_events=10_000), make_filter(None, (), metadata=False)
    fanout = Fanout(stage.bus, SocketLimits(chunk_bytes=4_000, chunk_events=64))
    early, late = Paper(), Paper()
    async with anyio.create_task_group() as group:
        group.start_soon(fanout.run, group)
        await anyio.lowlevel.checkpoint()
        fanout.add(Subscription(early, "s", everything, 0), deltas=False)
        for n in range(1_000):
            stage.say("ses_a", str(n))
        # The pump has seen none of them yet; this one begins behind them all.
        fanout.add(Subscription(late, "s", everything, 1_000), deltas=False)
        with anyio.fail_after(5):
            while len(early.frames) < 1_000:
                await anyio.lowlevel.checkpoint()
        stage.say("ses_a", "last")
        with anyio.fail_after(5):
            while len(early.frames) < 1_001:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    check_chain(early.frames, start=0)
    assert [frame["seq"] for frame in late.frames] == [1_001]
    check_chain(late.frames, start=1_000)


async def no_sessions() -> tuple[int, list[dict[str, Any]]]:
    return 0, []


# -- holes ---------------------------------------------------------------------------------------


async def test_events_below_retention_are_an_explicit_gap():
    stage = Stage(ring_events=4)
    for n in range(50):
        stage.say("ses_a", str(n))
    stage.log.oldest = 21
    async with serving(stage) as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub(after=5))
        await wire.until("subd")
        gap = await wire.read()
        assert gap == {
            "t": "gap", "sub": "s", "from": 6, "to": 20, "why": "retention", "next": 21, "log": "lg_test",
        }  # fmt: skip
        frames = await events(wire, 30)
        assert [frame["seq"] for frame in frames] == list(range(21, 51))
        check_chain(frames, start=20)


@pytest.mark.parametrize(
    ("cursor", "gap"),
    [
        ({"log": "lg_old", "seq": 2}, {"from": 0, "to": 3, "why": "foreign_log"}),
        ({"log": "lg_test", "seq": 9}, {"from": 4, "to": 9, "why": "future"}),
    ],
)
async def test_a_cursor_of_another_log_or_of_the_future_is_an_explicit_gap(cursor: Any, gap: Any):
    async with serving() as (_, stage, path), dialled(path) as wire:
        for n in range(3):
            stage.say("ses_a", str(n))
        await wire.hello()
        await wire.send({"t": "sub", "id": "s", "after": cursor})
        assert (await wire.read())["at"] == {"log": "lg_test", "seq": 3}
        met = await wire.read()
        assert met == {"t": "gap", "sub": "s", **gap, "next": 4, "log": "lg_test"}
        stage.say("ses_a", "next")
        event = await wire.read()
        assert (event["seq"], event["prev"]) == (4, 3)


async def test_a_log_that_cannot_be_read_ends_that_subscription_and_no_other():
    stage = Stage(ring_events=4)
    for n in range(50):
        stage.say("ses_a", str(n))
    page, stage.log.page = stage.log.page, broken_page
    async with serving(stage) as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub("live"))
        await wire.until("subd")
        await wire.send(sub("old", after=0))
        refused = await wire.until("err")
        assert (refused["id"], refused["code"]) == ("old", "internal")
        assert "disk on fire" in refused["msg"]
        stage.say("ses_a", "more")
        assert (await wire.read())["sub"] == "live"
        stage.log.page = page
        await wire.send(sub("old", after=0))
        assert (await wire.until("ev"))["seq"] == 1


async def broken_page(**_: Any) -> list[StoredEvent]:
    raise OSError("disk on fire")


# -- slow and frozen -----------------------------------------------------------------------------


async def test_a_frozen_subscriber_loses_nothing_and_slows_nobody():
    count, size = 6_000, 300
    stage = Stage(ring_events=512)
    async with serving(stage) as (server, _, path), dialled(path) as frozen, dialled(path) as other:
        await frozen.hello()
        await frozen.send(sub())
        await frozen.until("subd")
        await other.hello()
        await other.send(sub())
        await other.until("subd")
        got: list[dict[str, Any]] = []

        async def read() -> None:
            got.extend(await events(other, count))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            for n in range(count):
                stage.say("ses_a", "x" * size)
                if n % 20 == 0:
                    await anyio.lowlevel.checkpoint()
        check_chain(got, start=0)
        assert got[-1]["seq"] == count
        # The frozen one costs its buffer, not the backlog.
        held = [c.transport.get_write_buffer_size() for c in server._connections]
        assert max(held) <= QUICK.buffer_bytes + QUICK.chunk_bytes + 2_000
        assert server.fanout.lag_max > count // 2
        late = await events(frozen, count)
        check_chain(late, start=0)
        assert [frame["seq"] for frame in late] == list(range(1, count + 1))
        assert [frame["b"] for frame in late] == [frame["b"] for frame in got]


async def test_a_peer_that_reads_nothing_is_sent_away_with_a_cursor_that_loses_nothing():
    limits = SocketLimits(stall_s=0.3, heartbeat_s=60, linger_s=5, buffer_bytes=65_536)
    stage = Stage(ring_events=512)
    count = 4_000
    async with serving(stage, limits=limits) as (server, _, path):
        async with dialled(path) as frozen:
            await frozen.hello()
            await frozen.send(sub())
            await frozen.until("subd")
            for n in range(count):
                stage.say("ses_a", f"{n} " + "x" * 300)
                if n % 20 == 0:
                    await anyio.lowlevel.checkpoint()
            with anyio.fail_after(5):
                while server.fanout.subscribers:  # noqa: ASYNC110  (what is waited for tells nobody)
                    await anyio.sleep(0.02)
            frames = await frozen.rest()
        bye, before = frames[-1], frames[:-1]
        assert (bye["t"], bye["why"]) == ("bye", "slow_consumer")
        assert bye["cursor"]["seq"] == bye["cursors"]["s"] == before[-1]["seq"] < count
        check_chain(before, start=0)
        async with dialled(path) as again:
            await again.hello()
            await again.send({"t": "sub", "id": "s", "after": bye["cursor"]})
            rest = await events(again, count - bye["cursor"]["seq"])
            check_chain(rest, start=bye["cursor"]["seq"])
            assert rest[-1]["seq"] == count


async def test_a_frozen_peer_that_never_thaws_is_cut_off():
    limits = SocketLimits(stall_s=0.1, heartbeat_s=60, linger_s=0.1, buffer_bytes=65_536)
    async with serving(limits=limits) as (server, stage, path), dialled(path) as frozen:
        await frozen.hello()
        await frozen.send(sub())
        await frozen.until("subd")
        for _ in range(3_000):
            stage.say("ses_a", "x" * 300)
        with anyio.fail_after(5):
            while server.connections:  # noqa: ASYNC110  (what is waited for tells nobody)
                await anyio.sleep(0.02)


async def test_a_peer_that_reads_slowly_is_not_sent_away():
    limits = SocketLimits(stall_s=0.4, heartbeat_s=60, buffer_bytes=65_536)
    async with serving(limits=limits) as (_, stage, path), dialled(path) as slow:
        await slow.hello()
        await slow.send(sub())
        await slow.until("subd")
        for _ in range(4_000):
            stage.say("ses_a", "x" * 300)
        frames: list[dict[str, Any]] = []
        for _ in range(8):  # longer in all than the limit, and never a pause of it
            frames += await events(slow, 500)
            await anyio.sleep(0.1)
        check_chain(frames, start=0)
        assert frames[-1]["seq"] == 4_000


async def test_who_takes_no_answers_cannot_ask_without_end():
    async with serving() as (server, _, path), dialled(path) as greedy, dialled(path) as other:
        await greedy.hello()
        await other.hello()
        ping = b'{"t":"ping","id":"' + b"x" * 60 + b'"}\n'
        with anyio.move_on_after(0.5) as scope:
            while True:
                await greedy.stream.send(ping * 1_000)
        assert scope.cancelled_caught
        held = [c.transport.get_write_buffer_size() for c in server._connections]
        assert max(held) < 2_000_000
        assert (await other.ask("1", {"t": "daemon.status"}))["t"] == "ok"


async def test_an_answer_does_not_wait_behind_a_backlog():
    async with serving() as (_, stage, path), dialled(path) as wire:
        for _ in range(20_000):
            stage.say("ses_a", "x" * 300)
        await wire.hello()
        await wire.send(sub(after=0), {"t": "cmd", "id": "1", "c": {"t": "daemon.status"}})
        seen = 0
        while (frame := await wire.read()).get("id") != "1" or frame["t"] != "ok":
            seen += frame["t"] == "ev"
        # At most what the socket and its buffer held before the answer, not the backlog.
        assert seen < 5_000


async def test_two_hundred_subscribers_get_the_same():
    async with serving() as (server, stage, path):
        got: list[int] = []

        async def watch(*, task_status: Any) -> None:
            async with dialled(path) as wire:
                await wire.hello()
                await wire.send(sub())
                await wire.until("subd")
                task_status.started()
                frames = await events(wire, 50)
                check_chain(frames, start=0)
                got.append(frames[-1]["seq"])

        async with anyio.create_task_group() as group:
            for _ in range(200):
                await group.start(watch)
            assert server.fanout.subscribers == 200
            for n in range(50):
                stage.say("ses_a", str(n))
                await anyio.lowlevel.checkpoint()
        assert got == [50] * 200


# -- life of a subscription ----------------------------------------------------------------------


async def test_nothing_follows_the_end_of_a_subscription():
    async with serving() as (server, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub())
        await wire.until("subd")
        stage.say("ses_a", "1")
        await wire.until("ev")
        await wire.send({"t": "unsub", "id": "u", "sub": "s"}, {"t": "unsub", "id": "v", "sub": "s"})
        done, refused = await wire.read(), await wire.read()
        assert (done["id"], done["t"], refused["code"]) == ("u", "ok", "not_found")
        stage.say("ses_a", "2")
        assert (await wire.ask("1", {"t": "daemon.status"}))["t"] == "ok"
        assert server.fanout.subscribers == 0


async def test_a_subscriber_that_hung_up_is_forgotten_and_one_that_only_stopped_sending_is_not():
    async with serving() as (server, stage, path), dialled(path) as quiet:
        async with dialled(path) as gone:
            await gone.hello()
            await gone.send(sub())
            await gone.until("subd")
        await quiet.hello()
        await quiet.send(sub())
        await quiet.until("subd")
        await quiet.stream.send_eof()
        with anyio.fail_after(2):
            while server.connections > 1:
                await anyio.lowlevel.checkpoint()
        assert server.fanout.subscribers == 1
        stage.say("ses_a", "still there")
        assert (await quiet.read())["b"]["text"] == "still there"


async def test_the_33rd_subscription_is_overloaded_and_a_name_is_taken_once():
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(*(sub(str(n)) for n in range(33)))
        frames = [await wire.read() for _ in range(33)]
        refused = [frame for frame in frames if frame["t"] == "err"]
        assert [(frame["id"], frame["code"]) for frame in refused] == [("32", "overloaded")]
        await wire.send({"t": "unsub", "id": "u", "sub": "3"}, sub("4"))
        assert (await wire.read())["t"] == "ok"
        assert (await wire.read())["code"] == "already_exists"


async def test_an_ack_of_what_was_never_sent_is_refused():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub())
        await wire.until("subd")
        stage.say("ses_a", "1")
        await wire.until("ev")
        await wire.send(
            {"t": "ack", "sub": "s", "seq": 1}, {"t": "ack", "sub": "s", "seq": 2}, {"t": "ping", "id": "p"}
        )
        assert (await wire.read())["code"] == "invalid"
        assert (await wire.read())["t"] == "pong"


async def test_a_heartbeat_tells_how_far_the_log_was_looked_through():
    async with serving(limits=SocketLimits(heartbeat_s=0.1)) as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(sub(sel={"kinds": ["gate.*"]}))
        await wire.until("subd")
        stage.say("ses_a", "not a gate")
        beat = await wire.until("pong")
        assert "id" not in beat
        assert beat["head"]["seq"] == 1
        assert beat["cursors"] == {"s": 1}


async def test_live_text_comes_to_those_who_want_it_and_loss_is_told():
    async with serving() as (_, stage, path), dialled(path) as wants, dialled(path) as plain:
        await wants.hello(want=["delta", "holograms"])
        await plain.hello()
        for wire in (wants, plain):
            await wire.send(sub(sel={"sids": ["ses_a"]}))
            await wire.until("subd")
        stage.bus.publish_delta("ses_b", 1, "of another session")
        stage.bus.publish_delta("ses_a", 7, "Hel")
        assert (await wants.read()) == {"t": "delta", "sub": "s", "sid": "ses_a", "n": 7, "text": "Hel"}
        for n in range(400):  # more than the receiver holds, in one go
            stage.bus.publish_delta("ses_a", 7, str(n))
        lag = await wants.read()
        assert (lag["t"], lag["deltas"]) == ("lag", 400 - 256)
        texts = [(await wants.read())["text"] for _ in range(256)]
        assert texts == [str(n) for n in range(144, 400)]
        stage.say("ses_a", "durable")
        assert (await plain.read())["t"] == "ev"


# -- what may be seen ----------------------------------------------------------------------------


async def test_without_the_scope_for_content_events_come_without_it():
    mine = os.geteuid()
    reader = 65_534 if mine == 0 else mine
    policy = PeerPolicy(owner=mine + 1, uids={reader: frozenset({"read"})})
    async with serving(policy=policy) as (_, stage, path):
        sock = connected_as(reader, path) if mine == 0 else socket.socket(socket.AF_UNIX)
        if mine:
            sock.connect(path)
        async with await anyio.abc.SocketStream.from_socket(sock) as stream:
            wire = Wire(stream)
            await wire.hello(want=["delta"])
            await wire.send(sub())
            await wire.until("subd")
            stage.bus.publish_delta("ses_a", 1, "secret")
            stage.say("ses_a", "secret")
            event = await wire.read()
            assert (event["t"], event["b"]["text"], event["b"]["source"]) == ("ev", "", "human")


def stored(seq: int, event: Any, *, kind: str | None = None, sid: str | None = "ses_a") -> StoredEvent:
    return StoredEvent(
        seq=seq, sid=sid, ss=seq, at_ms=5, kind=kind or event.kind, kv=1, body=msgspec.json.encode(event)
    )


def rendered(
    piece: Slice, wanted: Any, *, after: int = 0, prev: int = 0, sub_id: str = "s"
) -> list[dict[str, Any]]:
    data, _ = piece.render(sub_id, wanted, "json", after=after, prev=prev)
    return [json.loads(line) for line in data.splitlines()]


def test_metadata_has_no_content_and_no_unknown_kinds():
    detected = DegenerationDetected(
        rule="repeated_text", verdict="close", level="hard", score=5, threshold=5, evidence=("secret",)
    )
    piece = Slice(
        [
            stored(1, GoalChanged(status="active", origin="user", text="secret", note="secret")),
            stored(2, TurnStep(n=1, step=1, total=1, text="secret")),
            stored(3, detected),
            stored(4, HOLD),
            stored(5, {"k": "aura.read", "text": "secret"}, kind="aura.read"),
        ]
    )
    open_filter, closed = make_filter(None, (), metadata=False), make_filter(None, (), metadata=True)
    assert len(rendered(piece, open_filter)) == 5
    seen = rendered(piece, closed)
    assert [frame["seq"] for frame in seen] == [1, 2, 3, 4]
    assert "secret" not in json.dumps(seen)
    assert seen[0]["b"]["status"] == "active"
    assert seen[2]["b"]["rule"] == "repeated_text"
    assert seen[3]["b"] == json.loads(msgspec.json.encode(HOLD))


@given(
    st.lists(st.tuples(st.sampled_from([*SIDS, None]), st.sampled_from(["gate.changed", "gate.x", "goal.changed", "gateway.up"])), min_size=1, max_size=12),
    st.lists(st.sampled_from(SIDS), max_size=2),
    st.lists(st.sampled_from(["gate.*", "goal.*", "gate.changed", "gate.x", "*", "wake.*"]), max_size=3),
    st.integers(0, 12),
    st.integers(1, 2_000),
)  # fmt: skip
def test_rendering_is_a_filter_and_a_chain_however_it_is_cut(log, sids, kinds, after, size_bytes):
    run = [stored(n, {"k": kind, "n": n}, kind=kind, sid=sid) for n, (sid, kind) in enumerate(log, 1)]

    def wants(sid: str | None, kind: str) -> bool:
        of_kind = not kinds or any(
            kind == p or (p.endswith(".*") and kind.startswith(p[:-1])) or p == "*" for p in kinds
        )
        return of_kind and (not sids or sid in sids)

    wanted = make_filter(frozenset(sids) or None, kinds, metadata=False)
    got, prev = [], after
    pieces = slices(run, size_bytes)
    assert [event for piece in pieces for event in piece.events] == run
    for piece in pieces:
        frames = rendered(piece, wanted, after=after, prev=prev, sub_id='"s"\u2028')
        got += frames
        prev = frames[-1]["seq"] if frames else prev
    assert [f["seq"] for f in got] == [
        n for n, (sid, kind) in enumerate(log, 1) if n > after and wants(sid, kind)
    ]
    check_chain(got, start=after)
    assert all(f["sub"] == '"s"\u2028' and f["b"]["n"] == f["seq"] for f in got)


def test_subscribers_who_share_a_place_share_the_bytes():
    piece = Slice([stored(n, HOLD) for n in range(1, 50)])
    wanted, same = (make_filter(None, ("gate.*",), metadata=False) for _ in range(2))
    renderings = [piece.render("s", each, "json", after=0, prev=0) for each in (wanted, same, wanted, same)]
    # From the second time on they are kept: one that nobody shares costs no memory.
    assert renderings[1] is renderings[2] is renderings[3]
    assert renderings[0] == renderings[1]
    assert piece.render("s", same, "json", after=0, prev=7) != renderings[1]


async def test_those_who_fall_behind_together_share_the_bytes_too():
    stage, everything = Stage(ring_events=8), make_filter(None, (), metadata=False)
    fanout = Fanout(stage.bus, SocketLimits(chunk_bytes=4_000, chunk_events=64))
    papers = [Paper() for _ in range(20)]
    pages = 0
    page = stage.log.page

    async def counted(**more: Any) -> list[StoredEvent]:
        nonlocal pages
        pages += 1
        return await page(**more)

    stage.log.page = counted
    for n in range(640):
        stage.say("ses_a", str(n))
    async with anyio.create_task_group() as group:
        group.start_soon(fanout.run, group)
        await anyio.lowlevel.checkpoint()
        for paper in papers:
            fanout.add(Subscription(paper, "s", everything, 0), deltas=False)
        with anyio.fail_after(5):
            while any(len(paper.frames) < 640 for paper in papers):
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    for paper in papers:
        check_chain(paper.frames, start=0)
    assert pages < 3 * 640 / 64 + len(papers)  # read about once, not once for each
