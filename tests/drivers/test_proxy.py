"""The model proxy: bytes pass unchanged, keys stay here, every call is told, and nobody else gets through."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.drivers.acp.driver import AcpDriver
from loopd.drivers.model import Limits
from loopd.drivers.proxy import bodies
from loopd.drivers.proxy.door import APIS, Upstream
from loopd.drivers.proxy.passage import OpenPassage
from loopd.drivers.proxy.server import ModelProxy
from loopd.drivers.proxy.stops import stop_body
from loopd.drivers.sse import EventParser
from loopd.drivers.wires import WIRES
from loopd.testing.driver_suite import RecordingHost, turn
from loopd.testing.endpoint import Call, Endpoint, Reply, Script, ask, fail, say
from loopd_protocol.commands import AcpSpec
from loopd_protocol.errors import Refused
from loopd_protocol.events import ModelAsked, ModelCalled
from tests.drivers.acp.stage import AcpStage

pytestmark = pytest.mark.anyio
PATHS = {api: WIRES[api].path for api in APIS}
WITHIN_S = 30.0


class Ledger:
    """A witness that lets everything through until it is told not to, and keeps what it is told."""

    def __init__(self) -> None:
        self.refuse: Refused | None = None
        self.asked: list[ModelAsked] = []
        self.calls: list[ModelCalled] = []
        self.bodies: list[tuple[bytes | None, bytes | None]] = []
        self.under_way: set[Callable[[], None]] = set()
        self.told = anyio.Event()

    async def admit(self, sid: str, request_bytes: int, cut: Callable[[], None]) -> int:
        await anyio.lowlevel.checkpoint()
        if self.refuse is not None:
            raise self.refuse
        self.under_way.add(cut)
        return 7

    def leaving(self, sid: str, call: ModelAsked) -> None:
        self.asked.append(call)

    def over(self, sid: str, cut: Callable[[], None]) -> None:
        self.under_way.discard(cut)

    def turn_of(self, sid: str) -> int:
        return 7

    async def called(
        self, sid: str, call: ModelCalled, *, request: bytes | None, response: bytes | None
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.calls.append(call)
        self.bodies.append((request, response))
        self.told.set()
        self.told = anyio.Event()

    async def wait_for(self, count: int) -> None:
        while len(self.calls) < count:
            await self.told.wait()


class Stage:
    def __init__(self, proxy: ModelProxy, ledger: Ledger, endpoint: Endpoint, passage: OpenPassage) -> None:
        self.proxy, self.ledger, self.endpoint, self.passage = proxy, ledger, endpoint, passage

    def client(self, key: str | None = None, **more: Any) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.passage.key}"}
        return httpx.AsyncClient(base_url=self.passage.base_url, headers=headers, trust_env=False, **more)

    async def post(self, api: str, body: bytes, **more: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(PATHS[api], content=body, **more)


@asynccontextmanager
async def stage(script: Script = (), *, limits: Limits | None = None) -> AsyncIterator[Stage]:
    ledger = Ledger()
    with anyio.fail_after(WITHIN_S):
        async with Endpoint(script) as endpoint, anyio.create_task_group() as tasks:
            proxy = ModelProxy(tasks, ledger, limits=limits)
            passage = await proxy.open("ses_proxy", Upstream(base_url=endpoint.base_url))
            yield Stage(proxy, ledger, endpoint, passage)
            await proxy.close("ses_proxy")
            assert ledger.under_way == set()
            tasks.cancel_scope.cancel()


def body(**more: Any) -> bytes:
    # Odd spacing and order on purpose: what goes through is bytes, not what they mean.
    return (
        b'{ "stream":true,\n"model" : "m-1", "messages":[] '
        + b"".join(b',"%s":%s' % (name.encode(), json.dumps(value).encode()) for name, value in more.items())
        + b"}"
    )


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_bytes_pass_unchanged_both_ways_and_are_recorded(api: str) -> None:
    reply = ask(Call("shell", {"command": "x"}), text="hello wörld", thought="hm", output_tokens=21)
    async with stage([reply]) as s:
        direct_url = s.endpoint.base_url + PATHS[api]
        async with httpx.AsyncClient(trust_env=False) as client:
            direct = await client.post(direct_url, content=body())
        through = await s.post(api, body(), headers={"x-stainless-lang": "test", "anthropic-beta": "b1"})
        await s.ledger.wait_for(1)
    sent = s.endpoint.requests[1]
    assert sent.body == body()
    assert through.content == direct.content.replace(b"call_1_", b"call_2_")
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert sent.headers["anthropic-beta"] == "b1"
    assert sent.headers["accept-encoding"] == "identity", "what is recorded can be read"
    (call,) = s.ledger.calls
    assert s.ledger.bodies == [(body(), through.content)]
    assert (call.n, call.api, call.model, call.outcome, call.status) == (7, api, "m-1", "ok", 200)
    assert call.request_sha256 == hashlib.sha256(body()).hexdigest()
    assert call.response_sha256 == hashlib.sha256(through.content).hexdigest()
    assert call.usage is not None
    assert (call.usage.output_tokens, call.usage.measured) == (21, True)
    assert call.stored is True


async def test_the_agent_never_has_the_real_key_and_its_own_goes_nowhere(
    api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REAL_KEY", "sk-real")
    async with stage([say("ok")]) as s:
        passage = await s.proxy.open(
            "ses_proxy", Upstream(base_url=s.endpoint.base_url, api_key_env="REAL_KEY")
        )
        async with s.client(passage.key) as client:
            answered = await client.post(PATHS[api], content=body())
        sent = s.endpoint.requests[0].headers
        assert "sk-real" in (sent["x-api-key"] if api == "messages" else sent["authorization"])
        assert passage.key not in json.dumps(sent)
        assert "sk-real" not in answered.text
        assert "cookie" not in sent


async def test_chunks_go_on_as_they_come(api: str) -> None:
    async with stage([say("one two three four", hang_after=5)]) as s:
        async with s.client() as client, client.stream("POST", PATHS[api], content=body()) as response:
            seen = b""
            async for chunk in response.aiter_raw():
                seen += chunk
                if b"one two" in seen:
                    break
            assert s.ledger.calls == [], "the answer is not over"
        await s.ledger.wait_for(1)
        await s.endpoint.wait_for_quiet()
        (call,) = s.ledger.calls
        assert (call.outcome, call.status) == ("cut", 200)
        assert call.response_bytes >= len(seen)
        assert s.endpoint.disconnects == 1, "the endpoint was hung up on, too"


@pytest.mark.parametrize(
    ("reply", "status", "cause"),
    [
        (fail(500), 500, "server_error"),
        (fail(429, retry_after="17"), 429, "rate_limited"),
        (fail(529), 529, "overloaded"),
        (fail(401), 401, "auth"),
        (fail(400, message="maximum context length is 8192 tokens"), 400, "context_overflow"),
        (say("a", error={"type": "overloaded_error", "message": "Overloaded"}), 200, "overloaded"),
        (say("abc", break_after=4), 200, "unreachable"),
    ],
    ids=["500", "429", "529", "401", "overflow", "in-stream", "broken"],
)
async def test_failures_pass_through_and_are_named(api: str, reply: Reply, status: int, cause: str) -> None:
    async with stage([reply]) as s:
        try:
            answered = await s.post(api, body())
            assert answered.status_code == status
            if status != 200:
                assert answered.text == reply.body
            assert answered.headers.get("retry-after") == reply.headers.get("retry-after")
        except httpx.HTTPError:
            assert cause == "unreachable", "only what broke off breaks the agent's connection"
        await s.ledger.wait_for(1)
        (call,) = s.ledger.calls
        assert (call.outcome, call.status, call.cause) == ("error", status, cause)
        traffic = s.passage.take()
        assert traffic.fault is not None
        assert (traffic.calls, traffic.fault.cause) == (1, cause)
        assert traffic.fault.retry_after_ms == (17_000 if "retry-after" in reply.headers else None)
        assert s.passage.take().calls == 0


async def test_an_endpoint_that_is_not_there_or_silent_is_a_502(api: str) -> None:
    quick = Limits(first_s=0.3, silence_s=0.3, connect_s=0.3)
    async with stage([say("x", first_ms=5_000)], limits=quick) as s:
        silent = await s.post(api, body())
        passage = await s.proxy.open("ses_nobody", Upstream(base_url="http://127.0.0.1:9/v1"))
        async with s.client(passage.key) as client:
            nobody = await client.post(PATHS[api], content=body())
        await s.proxy.close("ses_nobody")
    for answered, said in ((silent, "no answer within 0.3 s"), (nobody, "ConnectError")):
        assert answered.status_code == 502
        assert said in answered.json()["error"]["message"]
    assert [(c.outcome, c.cause, c.status) for c in s.ledger.calls] == [("error", "unreachable", 502)] * 2


async def test_a_silence_inside_an_answer_breaks_it_off(api: str) -> None:
    quick = Limits(first_s=3.0, silence_s=0.3, connect_s=0.3)
    async with stage([say("some text", hang_after=4)], limits=quick) as s:
        with pytest.raises(httpx.RemoteProtocolError):
            await s.post(api, body())
        await s.ledger.wait_for(1)
        assert [(c.outcome, c.cause) for c in s.ledger.calls] == [("error", "unreachable")]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_paused_session_gets_a_valid_stop_and_nothing_leaves(api: str, stream: bool) -> None:
    async with stage([say("never")]) as s:
        s.ledger.refuse = Refused("gate_closed", "The agent asked to idle.")
        asked = json.dumps({"model": "m", "stream": stream, "messages": []}).encode()
        answered = await s.post(api, asked)
        assert s.endpoint.requests == []
    assert answered.status_code == 200
    answer = WIRES[api].answer()
    if stream:
        for event in EventParser().feed(answered.content):
            answer.take(event.data)
    else:
        answer.take(answered.text)
    assert (answer.text, answer.finish) == ("[loopd] The agent asked to idle. This turn ends here.", "stop")
    assert answer.calls() == ()
    assert [(c.outcome, c.cause, c.usage) for c in s.ledger.calls] == [("paused", "gate_closed", None)]
    assert s.passage.take().paused == "gate_closed"


async def test_an_agent_that_asks_on_after_a_stop_waits_longer_and_fills_no_journal() -> None:
    async with stage() as s:
        s.ledger.refuse = Refused("gate_closed", "No turn runs.")
        began = anyio.current_time()
        for _ in range(4):
            await s.post("messages", body())
        assert anyio.current_time() - began > 1.0
        assert [c.repeats for c in s.ledger.calls] == [0, 1, 3]


async def test_cutting_the_turn_cuts_its_calls(api: str) -> None:
    async with stage([say("a long answer", hang_after=5)]) as s:
        async with s.client() as client, client.stream("POST", PATHS[api], content=body()) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            for cut in list(s.ledger.under_way):
                cut()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in chunks:
                    pass
        await s.endpoint.wait_for_quiet()
        assert s.endpoint.disconnects == 1, "the endpoint was hung up on, too"
        assert [c.outcome for c in s.ledger.calls] == ["cut"]


async def test_a_call_that_is_cut_before_its_answer_ends_with_a_stop(api: str) -> None:
    async with stage([say("late", first_ms=20_000)]) as s, anyio.create_task_group() as tasks:

        async def agent() -> None:
            answered = await s.post(api, body())
            assert answered.status_code == 200
            assert b"The turn in which this was asked is over." in answered.content

        tasks.start_soon(agent)
        await s.endpoint.wait_for_requests(1)
        for cut in list(s.ledger.under_way):
            cut()


async def test_a_query_and_the_questions_beside_the_models_go_on() -> None:
    async with stage([say("ok")]) as s, s.client() as client:
        await client.post("/messages?beta=true", content=body())
        models = await client.get("/models")
        counted = await client.post("/messages/count_tokens", content=b'{"messages":[]}')
        assert s.endpoint.requests[0].query == "beta=true"
        assert models.json()["data"][0]["id"] == "test"
        assert counted.json() == {"input_tokens": 4}
        await s.passage.settled()
        assert len(s.ledger.calls) == 1, "only model calls are told"


# -- attacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["wrong", "", "loopd-" + "A" * 43, "Bearer x"])
async def test_a_wrong_key_opens_nothing(key: str) -> None:
    async with stage() as s:
        async with httpx.AsyncClient(base_url=s.passage.base_url, trust_env=False) as client:
            for name in ("authorization", "x-api-key", "api-key"):
                answered = await client.post("/messages", content=body(), headers={name: key})
                assert answered.status_code == 401
            assert (await client.post("/messages", content=body())).status_code == 401
            assert (await client.get("/models")).status_code == 401
        assert (s.endpoint.requests, s.ledger.calls) == ([], [])


async def test_a_key_is_void_after_close_and_after_a_newer_one() -> None:
    async with stage([say("ok")]) as s:
        newer = await s.proxy.open("ses_proxy", Upstream(base_url=s.endpoint.base_url))
        assert (await s.post("messages", body())).status_code == 401
        async with s.client(newer.key) as client:
            assert (await client.post("/messages", content=body())).status_code == 200
            await s.proxy.close("ses_proxy")
            assert (await client.post("/messages", content=body())).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/models/test"),
        ("POST", "/v1/files"),
        ("POST", "/v1/chat/completions/../../requests"),
        ("GET", "/requests"),
        ("POST", "/v1//messages"),
        ("POST", "/v1/messages%2f..%2fadmin"),
        ("PUT", "/v1/messages"),
    ],
)
async def test_no_other_path_is_here(method: str, path: str) -> None:
    async with stage() as s:
        status = await anyio.to_thread.run_sync(
            _raw_status, s.proxy.port, f"{method} {path} HTTP/1.1", s.passage.key, b"{}"
        )
        assert status == 404
        assert s.endpoint.requests == []


async def test_only_the_apis_of_the_passage_are_open() -> None:
    async with stage() as s:
        upstream = Upstream(base_url=s.endpoint.base_url, apis=("responses",))
        passage = await s.proxy.open("ses_proxy", upstream)
        async with s.client(passage.key) as client:
            assert (await client.post("/messages", content=body())).status_code == 404
            assert (await client.post("/responses", content=body())).status_code == 200


async def test_another_host_name_is_refused() -> None:
    async with stage() as s, s.client() as client:
        answered = await client.post("/messages", content=body(), headers={"host": "evil.example"})
        assert answered.status_code == 421
        assert s.endpoint.requests == []


async def test_a_huge_body_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_BYTES", 100_000)
    async with stage() as s:
        answered = await s.post("messages", b"x" * 200_000)
        assert answered.status_code == 413
        assert answered.json()["error"]["type"] == "request_too_large"
        assert (s.endpoint.requests, s.ledger.calls) == ([], [])


SMUGGLED = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 4\r\ncontent-length: 60\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"content-length: +4\r\n",
        b"x: y\r\n z\r\ncontent-length: 0\r\n",
    ],
    ids=["cl-te", "cl-cl", "te-te", "te-space", "cl-sign", "folded"],
)
async def test_requests_cannot_be_smuggled(framing: bytes) -> None:
    async with stage([say("ok")]) as s:
        head = (
            f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1:{s.proxy.port}\r\nx-api-key: {s.passage.key}\r\n"
        ).encode()
        payload = head + framing + b"\r\n0\r\n\r\n" + SMUGGLED
        await anyio.to_thread.run_sync(_raw, s.proxy.port, payload)
        assert len(s.endpoint.requests) <= 1, "one request of the agent is one of the proxy"
        for request in s.endpoint.requests:
            assert b"POST" not in request.body
            assert "transfer-encoding" not in request.headers


def _raw(port: int, payload: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(payload)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(5)
        found = b""
        while chunk := sock.recv(65_536):
            found += chunk
        return found


def _raw_status(port: int, line: str, key: str, data: bytes) -> int:
    head = f"{line}\r\nhost: 127.0.0.1:{port}\r\nx-api-key: {key}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n\r\n"
    return int(_raw(port, head.encode() + data).split()[1])


# -- stops ----------------------------------------------------------------------------------------


@given(api=st.sampled_from(APIS), text=st.text(min_size=1), stream=st.booleans(), counted=st.booleans())
def test_every_stop_is_an_answer_of_its_protocol(api: str, text: str, stream: bool, counted: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    data = stop_body(api, "m", text, stream=stream, counted=counted)
    answer = WIRES[api].answer()
    if stream:
        for event in EventParser().feed(data):
            answer.take(event.data)
        assert answer.done
    else:
        answer.take(data.decode())
    assert (answer.text, answer.finish) == (text, "stop")


async def test_an_agent_that_hangs_up_behind_the_last_event_had_its_answer(api: str) -> None:
    async with stage([say("all of it")]) as s:
        async with s.client() as client, client.stream("POST", PATHS[api], content=body()) as response:
            answer = WIRES[api].answer()
            parser = EventParser()
            async for chunk in response.aiter_raw(64):
                for event in parser.feed(chunk):
                    answer.take(event.data)
                if answer.done:
                    break
        await s.ledger.wait_for(1)
        assert [(c.outcome, c.cause) for c in s.ledger.calls] == [("ok", "")]


async def test_closing_a_passage_breaks_off_what_is_under_way() -> None:
    async with stage([say("a long answer", hang_after=5)]) as s:
        async with s.client() as client, client.stream("POST", "/messages", content=body()) as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            with anyio.fail_after(5):
                await s.proxy.close("ses_proxy")
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in chunks:
                    pass
        assert [c.outcome for c in s.ledger.calls] == ["cut"]


async def test_a_kept_connection_that_the_endpoint_closes_under_a_request_is_no_failure() -> None:
    answer = stop_body("messages", "m", "hi", stream=False, counted=False)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
    connections = 0

    async def once(stream: anyio.abc.SocketStream) -> None:
        """One answer on each connection; the next request on it meets a close."""
        nonlocal connections
        connections += 1
        async with stream:
            seen = b""
            while not seen.endswith(b"}"):
                seen += await stream.receive()
            await stream.send(head + answer)
            await stream.receive()

    ledger = Ledger()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    with anyio.fail_after(WITHIN_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, once)
            proxy = ModelProxy(tasks, ledger)
            passage = await proxy.open("ses_kept", Upstream(base_url=f"http://127.0.0.1:{port}/v1"))
            asked = b'{"model":"m","messages":[]}'
            async with httpx.AsyncClient(trust_env=False, headers={"x-api-key": passage.key}) as client:
                for _ in range(3):
                    answered = await client.post(f"{passage.base_url}/messages", content=asked)
                    assert answered.content == answer
            await proxy.close("ses_kept")
            tasks.cancel_scope.cancel()
    await listener.aclose()
    assert connections == 3
    assert [c.outcome for c in ledger.calls] == ["ok"] * 3


@pytest.mark.parametrize("quirk", ["exits_at_once", "refuses_session"])
async def test_an_agent_that_does_not_start_leaves_no_way_open(tmp_path: Path, quirk: str) -> None:
    async with stage() as at:
        acp = AcpStage(tmp_path)
        kind = acp.kind(tmp_path / "agent", "--quirk", quirk)
        kind.write_text(kind.read_text() + '\n[model]\nenv = { MODEL_URL = "{base_url}" }\n')
        spec = AcpSpec(agent=str(kind), base_url=at.endpoint.base_url, model="m")
        driver = AcpDriver("ses_agent", spec, None, dataclasses.replace(acp.premises, proxy=at.proxy))
        end = await driver.take_turn(turn(), RecordingHost())
        assert end.outcome != "completed"
        assert at.proxy.passages == 1  # the one of this stage
        await driver.aclose()
