"""The two clients against a real server."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest

from loopd.client import READ_ONLY, CallFailed, Client
from loopd.client_async import Disconnected, connect
from loopd.server.limits import SocketLimits
from loopd.server.unix import bind
from loopd_protocol.commands import COMMAND_TYPES, MUTATING, DaemonStatus, Send, SessionGet, Verify
from loopd_protocol.errors import ERRORS, Refused
from loopd_protocol.frames import Cursor, Ev, Subd
from tests.control_stage import QUICK, Stage, serving, short_folder

pytestmark = pytest.mark.anyio
STATUS = {"t": "daemon.status"}


async def in_thread(work: Any) -> Any:
    with anyio.fail_after(10):
        return await anyio.to_thread.run_sync(work)


def ask_once(path: Any, command: dict[str, Any]) -> Any:
    with Client(path) as client:
        return client.call(command)


def failure(work: Any) -> CallFailed:
    with pytest.raises(CallFailed) as met:
        work()
    return met.value


async def test_a_call_is_answered():
    async with serving() as (_, stage, path):

        def work() -> None:
            with Client(path) as client:
                assert client.call({"t": "daemon.status"})["head"] == 0
                assert client.welcome["server"]["boot"] == "b_1"
                answer = client.ask({"t": "send", "sid": "ses_a", "text": "ü"})
                assert (answer["seq"], answer["dup"]) == (1, False)
                assert client.ping()["head"]["seq"] == 1
                assert client.call({"t": "daemon.status"}, if_rev=3)["preconditions"] == [3, None, None]

        await in_thread(work)
        assert stage.sent == ["ü"]


async def test_only_changes_carry_a_key_and_the_same_key_is_done_once():
    async with serving() as (_, stage, path):

        def work() -> None:
            with Client(path) as client:
                send = {"t": "send", "sid": "ses_a", "text": "x"}
                client.call(send)
                client.call(send)
                assert client.ask(send, key="mine")["dup"] is False
                assert client.ask(send, key="mine")["dup"] is True
                client.call({"t": "daemon.status"})

        await in_thread(work)
        assert stage.sent == ["x"] * 3
        assert len(stage.keys) == 3
        assert "mine" in stage.keys


def test_the_client_knows_which_commands_change_nothing():
    assert set(COMMAND_TYPES) - MUTATING - {"batch"} == READ_ONLY


async def test_a_refusal_has_its_code_path_and_exit_code():
    async with serving() as (_, _, path):

        def work() -> None:
            with Client(path) as client:
                met = failure(lambda: client.call({"t": "suspend", "sid": "ses_a", "untill_ms": 3}))
                assert (met.code, met.path, met.exit_code) == ("unknown_field", "$.untill_ms", 2)
                met = failure(lambda: client.call({"t": "session.get", "sid": "nobody"}))
                assert (met.code, met.exit_code) == ("not_found", 3)
                met = failure(lambda: client.call({"t": "send", "sid": "ses_a", "text": "\ud800"}))
                assert met.code == "invalid"
                met = failure(lambda: client.call({"t": "verify"}, timeout_s=0.1))
                assert (met.code, met.exit_code) == ("timeout", 7)
                assert client.call({"t": "daemon.status"})["head"] == 0

        await in_thread(work)


def test_a_daemon_that_is_not_there_is_unavailable():
    with short_folder() as folder:
        met = failure(lambda: ask_once(folder / "none.sock", {"t": "daemon.status"}))
        assert (met.code, met.exit_code) == ("unavailable", 6)
        assert "nothing is at" in met.message
        bind(str(folder / "stale.sock")).close()
        met = failure(lambda: ask_once(folder / "stale.sock", {"t": "daemon.status"}))
        assert (met.code, met.exit_code) == ("unavailable", 6)
        assert "nobody listens" in met.message
        (folder / "file").touch()
        assert failure(lambda: ask_once(folder / "file", STATUS)).exit_code == 6
        met = failure(lambda: ask_once(folder / ("x" * 200), STATUS))
        assert met.exit_code == 6


async def test_a_peer_that_is_no_daemon_is_met_with_words():
    with short_folder() as folder:
        listener = await anyio.create_unix_listener(folder / "x.sock")

        async def chat(stream: Any) -> None:
            async with stream:
                await stream.send(b"220 mail.example ESMTP\r\n")
                await anyio.sleep_forever()

        async with anyio.create_task_group() as group, listener:
            group.start_soon(listener.serve, chat)
            met = await in_thread(lambda: failure(lambda: ask_once(folder / "x.sock", STATUS)))
            assert (met.code, met.exit_code) == ("unsupported_version", 6)
            group.cancel_scope.cancel()


async def test_a_daemon_that_hangs_up_before_the_answer_leaves_the_outcome_uncertain():
    with short_folder() as folder:
        listener = await anyio.create_unix_listener(folder / "x.sock")

        async def chat(stream: Any) -> None:
            async with stream:
                await stream.receive()
                await stream.send(b'{"t":"welcome","v":1,"limits":{}}\n')

        async with anyio.create_task_group() as group, listener:
            group.start_soon(listener.serve, chat)
            call = {"t": "send", "sid": "a", "text": "x"}
            met = await in_thread(lambda: failure(lambda: ask_once(folder / "x.sock", call)))
            assert (met.code, met.exit_code) == ("timeout", 7)
            group.cancel_scope.cancel()


async def test_an_oversized_command_is_refused_in_words_not_as_a_broken_pipe():
    async with serving() as (_, stage, path):
        big = {"t": "send", "sid": "ses_a", "text": "x" * 3_000_000}
        met = await in_thread(lambda: failure(lambda: ask_once(path, big)))
        assert (met.code, met.exit_code) == ("frame_too_large", 2)
        assert stage.sent == []


async def test_a_subscription_gives_the_past_and_the_present_and_calls_go_between():
    async with serving() as (_, stage, path):
        for n in range(3):
            stage.say("ses_a", str(n))

        def work() -> list[int]:
            with Client(path) as client:
                frames = client.subscribe(after={"log": "lg_test", "seq": 1}, kinds=["envelope.*"])
                assert next(frames)["t"] == "subd"
                seen = [next(frames)["seq"]]
                client.call({"t": "send", "sid": "ses_b", "text": "mine"})
                seen += [next(frames)["seq"] for _ in range(2)]
                return seen

        assert await in_thread(work) == [2, 3, 4]


async def test_a_snapshot_comes_before_the_tail():
    async with serving() as (_, _, path):

        def work() -> list[str]:
            with Client(path) as client:
                frames = client.subscribe(sids=["ses_a"], snapshot=True)
                kinds = [next(frames)["t"] for _ in range(3)]
                client.call({"t": "send", "sid": "ses_a", "text": "mine"})
                return [*kinds, next(frames)["t"]]

        assert await in_thread(work) == ["subd", "snap", "snap", "ev"]


async def test_a_subscription_ends_with_its_reason_and_a_cursor():
    stage = Stage()

    def work(path: str) -> list[Any]:
        seen: list[Any] = []
        with Client(path) as client:
            frames = client.subscribe()
            next(frames)
            client.call({"t": "send", "sid": "ses_a", "text": "x"})
            try:
                for frame in frames:
                    seen.append(frame["seq"])
                    anyio.from_thread.run_sync(stop.set)
            except CallFailed as error:
                seen += [error.code, error.cursor]
        return seen

    stop = anyio.Event()
    got: list[Any] = []
    async with anyio.create_task_group() as group, serving(stage) as (_, _, path):

        async def watch() -> None:
            got.extend(await anyio.to_thread.run_sync(work, path))

        group.start_soon(watch)
        with anyio.fail_after(5):
            await stop.wait()
    assert got == [1, "draining", {"log": "lg_test", "seq": 1}]


async def test_a_refused_subscription_and_a_limit_in_time_raise():
    async with serving() as (_, _, path):

        def work() -> None:
            with Client(path) as client:
                met = failure(lambda: list(client.subscribe(sids=["nobody"])))
                assert met.code == "not_found"
                met = failure(lambda: list(client.subscribe(timeout_s=0.2)))
                assert met.code == "timeout"

        await in_thread(work)


async def test_heartbeats_keep_a_silent_subscription_alive():
    async with serving(limits=SocketLimits(heartbeat_s=0.1)) as (_, _, path):

        def work() -> list[str]:
            with Client(path) as client:
                frames = client.subscribe()
                return [next(frames)["t"] for _ in range(4)]

        assert await in_thread(work) == ["subd", "pong", "pong", "pong"]


@pytest.mark.process
def test_importing_the_client_brings_neither_asyncio_nor_msgspec():
    code = "import sys, loopd.client; print([m for m in ('asyncio','msgspec','anyio','ssl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_code_has_an_exit_code():
    assert {CallFailed(code, "").exit_code for code in ERRORS} == {2, 3, 4, 5, 6, 7}
    assert CallFailed("unavailable", "").exit_code == 6


# -- the asynchronous one ------------------------------------------------------------------------


@pytest.mark.parametrize("enc", ["json", "msgpack"])
async def test_many_calls_at_once_and_a_subscription_on_one_connection(enc: Any):
    async with serving() as (_, stage, path), connect(path, enc=enc) as client:
        assert client.welcome.head == Cursor(log="lg_test", seq=0)
        frames = client.subscribe(after=client.welcome.head)
        assert isinstance(await anext(frames), Subd)
        async with anyio.create_task_group() as group:
            for n in range(40):
                group.start_soon(client.call, Send(sid="ses_a", text=str(n)))
        assert sorted(stage.sent, key=int) == [str(n) for n in range(40)]
        got = [await anext(frames) for _ in range(40)]
        assert [frame.seq for frame in got if isinstance(frame, Ev)] == list(range(1, 41))
        await frames.aclose()
        assert (await client.call(DaemonStatus())).seq == 40
        assert (await client.ping()).head.seq == 40


async def test_refusals_cancels_and_ends_reach_the_right_call():
    async with serving() as (_, stage, path), connect(path) as client:
        with pytest.raises(Refused) as met:
            await client.call(SessionGet(sid="nobody"))
        assert met.value.code == "not_found"
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(Refused, match="cancelled"):
                    await client.call(Verify(), frame_id="v")

            group.start_soon(wait)
            while not stage.entered:
                await client.ping()
            await client.cancel("v")
        stage.hold.set()


async def test_a_lost_connection_ends_what_waits():
    stage = Stage()
    async with anyio.create_task_group() as group, serving(stage, limits=QUICK) as (_, _, path):

        async def wait(*, task_status: Any) -> None:
            async with connect(path) as client:
                frames = client.subscribe()
                await anext(frames)
                task_status.started()
                with pytest.raises(Disconnected) as met:
                    await anext(frames)
                assert met.value.bye is not None
                assert met.value.bye.why == "draining"
                with pytest.raises(Disconnected):
                    await client.call(DaemonStatus())

        await group.start(wait)
