"""The control socket against peers that behave, and against those that do not."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from loopd.server.auth import PeerPolicy
from loopd.server.limits import SocketLimits
from loopd.server.unix import PATH_LIMIT_BYTES, UnixServer, bind, clear_stale, occupant
from loopd_protocol import codec, schema
from loopd_protocol.errors import Refused
from loopd_protocol.framing import Splitter
from loopd_protocol.sources import Source
from tests.control_stage import NOW_MS, QUICK, Stage, Wire, connected_as, dialled, serving, short_folder

pytestmark = pytest.mark.anyio
STATUS = {"t": "daemon.status"}


def cmd(frame_id: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"t": "cmd", "id": frame_id, "c": body, **more}


async def still_serves(path: str) -> None:
    async with dialled(path) as other:
        await other.hello()
        assert (await other.ask("1", STATUS))["t"] == "ok"


# -- hello ---------------------------------------------------------------------------------------


async def test_hello_and_a_command_may_come_in_one_write():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.send({"t": "hello", "v": [1, 1]}, cmd("1", {"t": "send", "sid": "ses_a", "text": "hi"}))
        welcome, answer = await wire.read(), await wire.read()
        assert welcome["v"] == 1
        assert welcome["schema"] == schema.digest()
        assert welcome["limits"] == {"frame": 1_048_576, "inflight": 64, "subs": 32, "hb_ms": 60_000}
        assert welcome["auth"]["principal"] == f"uid:{os.geteuid()}"
        assert welcome["head"] == {"log": "lg_test", "seq": 0}
        assert welcome["now_ms"] == NOW_MS
        assert answer == {"t": "ok", "id": "1", "seq": 1, "rev": 1, "dup": False, "r": {"id": "env_1"}}
        assert stage.sent == ["hi"]


async def test_the_source_is_stamped_from_the_connection():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.ask("1", STATUS)
        assert stage.callers[-1].principal == f"uid:{os.geteuid()}"
        assert stage.callers[-1].source is Source.HUMAN


async def test_nothing_but_ping_is_taken_before_hello():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.send({"t": "ping", "id": "p"})
        assert (await wire.read()) == {
            "t": "pong", "head": {"log": "lg_test", "seq": 0}, "now_ms": NOW_MS, "id": "p",
        }  # fmt: skip
        await wire.send(cmd("1", STATUS), cmd("2", STATUS))
        refused, bye = await wire.rest()
        assert (refused["code"], refused["id"]) == ("unauthenticated", "1")
        assert bye["t"] == "bye"
        assert stage.callers == []


async def test_hello_is_said_once():
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send({"t": "hello", "v": [1, 1]})
        assert (await wire.read())["code"] == "invalid"


async def test_a_client_of_another_age_can_still_stop_the_daemon():
    async with serving() as (_, stage, path), dialled(path) as wire:
        welcome = await wire.hello(v=[7, 9])
        assert (welcome["v"], welcome["caps"]) == (0, ["core-0"])
        assert (await wire.ask("1", STATUS))["t"] == "ok"
        assert (await wire.ask("2", {"t": "send", "sid": "ses_a", "text": "x"}))[
            "code"
        ] == "unsupported_version"
        await wire.send({"t": "sub", "id": "3"})
        assert (await wire.read())["code"] == "unsupported_version"
        assert stage.sent == []


async def test_a_peer_that_does_not_say_hello_in_time_is_sent_away():
    async with serving() as (server, _, path), dialled(path) as slow, dialled(path) as other:
        await other.hello()
        await slow.send(b'{"t":"he')
        refused, bye = await slow.rest()
        assert (refused["code"], bye["t"]) == ("timeout", "bye")
        assert "0.15 s" in refused["msg"]
        assert (await other.ask("1", STATUS))["t"] == "ok"
        assert server.connections == 1


async def test_a_hello_over_16_kib_is_refused_and_after_it_frames_may_be_larger():
    async with serving() as (_, stage, path):
        async with dialled(path) as wire:
            await wire.send(b'{"t":"hello","v":[1,1],"pad":"' + b"x" * 17_000 + b'"}\n')
            assert [frame.get("code", frame["t"]) for frame in await wire.rest()] == [
                "frame_too_large",
                "bye",
            ]
        async with dialled(path) as wire:
            await wire.hello()
            big = {"t": "send", "sid": "ses_a", "text": "x" * 900_000}
            assert (await wire.ask("1", big))["t"] == "ok"
            assert len(stage.sent[0]) == 900_000


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({"t": "suspend", "sid": "ses_a", "untill_ms": 5}, "unknown_field", "$.untill_ms"),
        ({"t": "suspend", "sid": "ses_a", "until_ms": -5}, "invalid", "$.until_ms"),
        ({"t": "suspend", "sid": 5}, "invalid", "$.sid"),
        ({"t": "suspnd", "sid": "ses_a"}, "unknown_type", "$.t"),
        ({"t": "session.get", "sid": "nobody"}, "not_found", None),
    ],
)
async def test_a_bad_command_gets_its_error_with_its_id_and_changes_nothing(body: Any, code: str, path: Any):
    async with serving() as (_, stage, socket_path), dialled(socket_path) as wire:
        await wire.hello()
        refused = await wire.ask("9", body)
        assert (refused["t"], refused["code"], refused.get("path")) == ("err", code, path)
        assert stage.bus.head == 0
        assert (await wire.ask("10", STATUS))["t"] == "ok"


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"[1,2]\n", b'{"t":"cmd"}\n', b'{"t":"x"}\n', b"\xff\xff\n", b"[" * 60_000 + b"\n", b'{"t":"ping","t":"ping"}\n'],
)  # fmt: skip
async def test_a_bad_line_is_refused_and_the_next_one_is_taken(line: bytes):
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(line, cmd("1", STATUS))
        refused, answer = await wire.read(), await wire.read()
        assert refused["t"] == "err"
        assert refused["code"] in {"bad_frame", "unknown_type", "invalid"}
        assert (answer["t"], answer["id"]) == ("ok", "1")


async def test_a_bad_frame_with_a_readable_id_is_answered_under_that_id():
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send({"t": "cmd", "id": "7", "if_revv": 3, "c": STATUS})
        refused = await wire.read()
        assert (refused["id"], refused["code"], refused["path"]) == ("7", "unknown_field", "$.if_revv")


async def test_sixteen_bad_frames_in_a_row_end_the_connection():
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(*[b"garbage\n"] * 15, {"t": "ping"}, *[b"garbage\n"] * 40)
        frames = await wire.rest()
        assert [frame["t"] for frame in frames] == ["err"] * 15 + ["pong"] + ["err"] * 16 + ["bye"]
        await still_serves(path)


@pytest.mark.parametrize("garbage", [b"\x00" * 2_000_000, os.urandom(1_000_000) * 2, b"{" * 2_000_000])
async def test_two_megabytes_of_garbage_end_one_connection_and_nothing_else(garbage: bytes):
    async with serving() as (server, _, path), dialled(path) as other:
        await other.hello()
        async with dialled(path) as wire:
            await wire.hello()
            with suppress(anyio.BrokenResourceError):  # it hung up before all of it was taken
                await wire.stream.send(garbage)
            said = [frame.get("code", frame["t"]) for frame in await wire.rest()]
            assert said[-1] == "bye"
            assert said[-2] in {"frame_too_large", "bad_frame"}
        assert (await other.ask("1", STATUS))["t"] == "ok"
        with anyio.fail_after(2):
            while server.connections > 1:
                await anyio.lowlevel.checkpoint()


async def test_an_oversized_frame_is_refused_in_words():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(b'{"t":"cmd","id":"1","c":{"t":"send","sid":"ses_a","text":"' + b"x" * 1_048_577)
        refused, bye = await wire.rest()
        assert (refused["code"], bye["why"]) == ("frame_too_large", "frame_too_large")
        assert "1048576" in refused["msg"]
        assert stage.sent == []


async def test_frames_in_single_bytes_are_frames():
    async with serving() as (_, _, path), dialled(path) as wire:
        for byte in b'{"t":"hello","v":[1,1]}\n{"t":"ping","id":"\xc3\xa4"}\n':
            await wire.send(bytes([byte]))
        assert (await wire.read())["t"] == "welcome"
        assert (await wire.read())["id"] == "ä"


async def test_a_fault_of_the_daemon_is_an_answer_and_not_its_end(caplog: pytest.LogCaptureFixture):
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        with caplog.at_level(logging.ERROR, "loopd.server"):
            refused = await wire.ask("1", {"t": "daemon.drain"})
        assert refused["code"] == "internal"
        assert "ZeroDivisionError" in refused["msg"]
        assert "a fault of the daemon itself" in caplog.text
        assert (await wire.ask("2", STATUS))["t"] == "ok"


# -- commands ------------------------------------------------------------------------------------


async def test_pipelined_commands_are_all_answered_and_begin_in_order():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        texts = [str(n) for n in range(60)]
        await wire.send(*(cmd(n, {"t": "send", "sid": "ses_a", "text": n}) for n in texts))
        answers = [await wire.read() for _ in texts]
        assert {answer["id"] for answer in answers} == set(texts)
        assert stage.sent == texts


async def test_the_65th_unanswered_command_is_overloaded_and_nothing_was_accepted():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(*(cmd(str(n), {"t": "verify"}) for n in range(66)))
        for n in ("64", "65"):
            refused = await wire.read()
            assert (refused["code"], refused["id"]) == ("overloaded", n)
            assert refused["retry"]["after_ms"] > 0
        stage.hold.set()
        answers = [await wire.read() for _ in range(64)]
        assert {answer["t"] for answer in answers} == {"ok"}
        assert (await wire.ask("66", STATUS))["t"] == "ok"
        assert stage.finished == 64


async def test_all_connections_together_are_bounded_too():
    limits = SocketLimits(inflight_total=3)
    async with serving(limits=limits) as (_, stage, path), dialled(path) as one, dialled(path) as two:
        await one.hello()
        await two.hello()
        await one.send(cmd("1", {"t": "verify"}), cmd("2", {"t": "verify"}), {"t": "ping"})
        await one.until("pong")
        await two.send(cmd("1", {"t": "verify"}), cmd("2", {"t": "verify"}))
        refused = await two.read()
        assert (refused["code"], refused["id"]) == ("overloaded", "2")
        stage.hold.set()
        assert (await two.read())["t"] == "ok"
        for n in range(10):
            assert (await two.ask(f"more-{n}", STATUS))["t"] == "ok"


async def test_a_slow_command_does_not_hold_up_the_next():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(cmd("slow", {"t": "verify"}), cmd("quick", STATUS))
        assert (await wire.read())["id"] == "quick"
        stage.hold.set()
        assert (await wire.read())["id"] == "slow"


async def test_an_id_in_use_is_refused_and_free_again_after_its_answer():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(cmd("1", {"t": "verify"}), cmd("1", STATUS))
        refused = await wire.read()
        assert (refused["code"], refused["path"]) == ("invalid", "$.id")
        stage.hold.set()
        assert (await wire.read())["t"] == "ok"
        assert (await wire.ask("1", STATUS))["t"] == "ok"


async def test_cancel_ends_the_wait_and_not_the_effect():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.hello()
        await wire.send(cmd("1", {"t": "verify"}), {"t": "cancel", "id": "1"}, {"t": "cancel", "id": "1"})
        first, second = await wire.read(), await wire.read()
        assert (first["id"], first["code"], second["code"]) == ("1", "cancelled", "not_found")
        stage.hold.set()
        assert (await wire.ask("2", STATUS))["id"] == "2"
        assert stage.finished == 1


async def test_a_client_that_hangs_up_changes_nothing_about_its_command():
    async with serving() as (server, stage, path):
        async with dialled(path) as wire:
            await wire.hello()
            await wire.send(cmd("1", {"t": "verify"}), {"t": "ping"})
            await wire.until("pong")
        with anyio.fail_after(2):
            while server.connections:
                await anyio.lowlevel.checkpoint()
        assert (stage.entered, stage.finished) == (1, 0)
        stage.hold.set()
        await still_serves(path)
        assert stage.finished == 1


async def test_a_half_closed_peer_still_gets_its_answers():
    async with serving() as (_, stage, path), dialled(path) as wire:
        await wire.send({"t": "hello", "v": [1, 1]}, cmd("1", {"t": "verify"}))
        await wire.stream.send_eof()
        assert (await wire.read())["t"] == "welcome"
        stage.hold.set()
        assert [frame["id"] for frame in await wire.rest()] == ["1"]


async def test_a_key_and_preconditions_reach_the_dispatcher():
    async with serving() as (_, _, path), dialled(path) as wire:
        await wire.hello()
        send = {"t": "send", "sid": "ses_a", "text": "once"}
        first, again = await wire.ask("1", send, key="k1"), await wire.ask("2", send, key="k1")
        assert (first["dup"], again["dup"], again["r"]) == (False, True, first["r"])
        seen = await wire.ask("3", STATUS, if_rev=4, if_gate_gen=5, if_turn=6)
        assert seen["r"]["preconditions"] == [4, 5, 6]


async def test_every_command_is_counted_with_its_code():
    seen: list[tuple[str, str]] = []
    async with (
        serving(observe=lambda name, code, seconds: seen.append((name, code)) if seconds >= 0 else None) as (
            _,
            _,
            path,
        ),
        dialled(path) as wire,
    ):
        await wire.hello()
        await wire.ask("1", STATUS)
        await wire.ask("2", {"t": "session.get", "sid": "nobody"})
    assert seen == [("daemon.status", "ok"), ("session.get", "not_found")]


# -- msgpack -------------------------------------------------------------------------------------


async def test_msgpack_begins_right_after_hello_and_says_the_same():
    async with serving() as (_, _, path), await anyio.connect_unix(path) as stream:

        def packed(frame: dict[str, Any]) -> bytes:
            return codec.pack(json.dumps(frame).encode())

        hello = b'{"t":"hello","v":[1,1],"enc":"msgpack","want":["delta"]}\n'
        await stream.send(
            hello
            + packed({"t": "sub", "id": "s"})
            + packed(cmd("1", {"t": "send", "sid": "ses_a", "text": "ü"}))
        )
        splitter, frames = Splitter(enc="msgpack"), []
        with anyio.fail_after(5):
            while len(frames) < 4:
                frames += [msgspec.msgpack.decode(raw) for raw in splitter.split(await stream.receive())]
        assert [frame["t"] for frame in frames] == ["welcome", "subd", "ok", "ev"]
        assert frames[3]["b"]["text"] == "ü"
        await stream.send(b"\x00\x00\x00\x02\x81\xc1" + packed({"t": "ping", "id": "p"}))
        frames = []
        with anyio.fail_after(5):
            while len(frames) < 2:
                frames += [msgspec.msgpack.decode(raw) for raw in splitter.split(await stream.receive())]
        assert [frame["t"] for frame in frames] == ["err", "pong"]
        assert frames[0]["code"] == "bad_frame"


# -- who may -------------------------------------------------------------------------------------

NOBODY = 65_534


async def greeted_as(uid: int, path: str) -> dict[str, Any]:
    """What another user of this machine gets to hear first."""
    async with await anyio.abc.SocketStream.from_socket(connected_as(uid, path)) as stream:
        wire = Wire(stream)
        with suppress(anyio.BrokenResourceError):
            await wire.send({"t": "hello", "v": [1, 1]})
        return await wire.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_by_the_kernels_word_and_admitted_by_the_configuration():
    async with serving() as (_, stage, path):
        refused = await greeted_as(NOBODY, path)
        assert (refused["t"], refused["code"]) == ("err", "unauthenticated")
        assert str(NOBODY) in refused["msg"]
        assert stage.callers == []
    policy = PeerPolicy(uids={NOBODY: frozenset({"read"})})
    async with serving(policy=policy) as (_, _, path):
        welcome = await greeted_as(NOBODY, path)
        assert welcome["auth"] == {"principal": f"uid:{NOBODY}", "scopes": ["read"]}
    policy = PeerPolicy(gids={NOBODY: frozenset({"read", "control"})})
    async with serving(policy=policy) as (_, _, path):
        assert (await greeted_as(NOBODY, path))["auth"]["scopes"] == ["control", "read"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may always talk; see the test above")
async def test_a_user_who_is_not_the_owner_is_refused():
    async with serving(policy=PeerPolicy(owner=os.geteuid() + 1)) as (_, stage, path), dialled(path) as wire:
        refused, bye = await wire.rest()
        assert (refused["code"], bye["why"]) == ("unauthenticated", "unauthenticated")
        assert stage.callers == []


async def test_one_connection_too_many_is_told_so():
    limits = SocketLimits(connections=2)
    async with serving(limits=limits) as (_, _, path), dialled(path) as one, dialled(path) as two:
        await one.hello()
        await two.hello()
        async with dialled(path) as three:
            said = [frame.get("code", frame["t"]) for frame in await three.rest()]
            assert said == ["overloaded", "bye"]
        assert (await one.ask("1", STATUS))["t"] == "ok"


# -- the socket itself ---------------------------------------------------------------------------


async def test_the_socket_is_private_and_goes_with_the_server():
    with short_folder() as folder:
        path = folder / "sub" / "c.sock"
        stage = Stage()
        server = UnixServer(path, stage, stage.bus, now_ms=lambda: 0, version="0", boot="b", limits=QUICK)
        async with anyio.create_task_group() as group:
            await group.start(server.serve)
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
            assert occupant(str(path)) == "alive"
            group.cancel_scope.cancel()
        assert not path.exists()


async def test_a_socket_that_replaced_ours_is_left_alone():
    with short_folder() as folder:
        path = folder / "c.sock"
        stage = Stage()
        server = UnixServer(path, stage, stage.bus, now_ms=lambda: 0, version="0", boot="b", limits=QUICK)
        async with anyio.create_task_group() as group:
            await group.start(server.serve)
            path.rename(folder / "moved")
            path.touch()
            group.cancel_scope.cancel()
        assert path.exists()


async def test_bye_tells_from_where_to_go_on_when_the_server_stops():
    stage = Stage()
    frames: list[dict[str, Any]] = []
    async with anyio.create_task_group() as group:

        async def watch(path: str, *, task_status: Any) -> None:
            async with dialled(path) as wire:
                await wire.hello()
                await wire.send({"t": "sub", "id": "s"}, cmd("1", {"t": "verify"}))
                await wire.until("subd")
                stage.say("ses_a", "one")
                await wire.until("ev")
                task_status.started()
                frames.extend(await wire.rest())

        async with serving(stage) as (_, _, path):
            await group.start(watch, path)
            stage.hold.set()
    assert frames[0]["id"] == "1"
    bye = frames[-1]
    assert (bye["t"], bye["why"], bye["cursor"]) == ("bye", "draining", {"log": "lg_test", "seq": 1})


def test_a_path_that_is_too_long_is_refused_with_its_length():
    with short_folder() as folder:
        name = folder / ("x" * (PATH_LIMIT_BYTES - len(str(folder)) - 1))
        bind(str(name)).close()
        with pytest.raises(Refused, match=r"108 bytes.* 107") as met:
            bind(str(name) + "x")
        assert met.value.code == "invalid"


def test_only_a_socket_that_nobody_listens_on_is_cleared():
    with short_folder() as folder:
        path = str(folder / "c.sock")
        assert (occupant(path), clear_stale(path)) == ("nothing", False)
        with bind(path) as sock:
            sock.listen()
            with pytest.raises(Refused, match="another process listens"):
                clear_stale(path)
            with pytest.raises(Refused) as met:
                bind(path)
            assert met.value.code == "already_exists"
        assert (occupant(path), clear_stale(path), occupant(path)) == ("stale", True, "nothing")
        Path(path).write_text("precious")
        with pytest.raises(Refused, match="no socket is at"):
            clear_stale(path)
        assert Path(path).read_text() == "precious"


def test_a_folder_that_cannot_be_used_is_refused():
    with short_folder() as folder:
        (folder / "file").touch()
        with pytest.raises(Refused, match="cannot listen"):
            bind(str(folder / "file" / "c.sock"))


_INHERIT = """
import os
from loopd.server.unix import inherited_socket
os.environ["LISTEN_PID"] = str(os.getpid())
sock = inherited_socket()
print(sock.getsockname(), os.get_inheritable(sock.fileno()))
"""


@pytest.mark.process
def test_a_socket_of_systemd_is_taken_over():
    with short_folder() as folder:
        path = str(folder / "c.sock")
        with bind(path) as sock:
            sock.listen()

            def run(count: str, fd: int) -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    [sys.executable, "-c", _INHERIT],
                    env={**os.environ, "LISTEN_FDS": count},
                    pass_fds=[3],
                    preexec_fn=lambda: os.dup2(fd, 3),
                    capture_output=True,
                    text=True,
                    check=False,
                )

            assert run("1", sock.fileno()).stdout.split() == [path, "False"]
            assert "expected 1" in run("2", sock.fileno()).stderr
            with socket.socket(socket.AF_INET) as tcp:
                assert "expected a unix stream socket" in run("1", tcp.fileno()).stderr


async def test_a_server_on_an_inherited_socket_leaves_the_file_in_place():
    with short_folder() as folder:
        path = folder / "c.sock"
        sock = bind(str(path))
        stage = Stage()
        server = UnixServer(
            path, stage, stage.bus, now_ms=lambda: 0, version="0", boot="b", limits=QUICK, sock=sock
        )
        async with anyio.create_task_group() as group:
            await group.start(server.serve)
            await still_serves(str(path))
            group.cancel_scope.cancel()
        assert path.exists()
