"""Webhooks and consumers: signed, in order, nothing lost, nobody delayed. Time is virtual where hours pass."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.bus import Bus
from loopd.core.webhook import LAST_DELAY_MS, Webhook, delay_ms, given_up
from loopd.core.writes import StoredEvent
from loopd.engine.commands import Dispatcher
from loopd.webhooks import Deliveries
from loopd.webhooks.formats import sentence
from loopd.webhooks.signature import new_secret
from loopd_protocol import codec
from loopd_protocol.errors import Refused
from tests.engine.stage import Stage, stage
from tests.faces import faces

pytestmark = pytest.mark.anyio
HOUR_MS = 3_600_000


class Sink:
    """A sink that the test turns off and on, behind the real client; it keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[httpx.Request] = []
        self.tried: list[tuple[int, httpx.Request]] = []
        self.answer: Any = lambda request: 200
        self.now: Any = lambda: 0

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.tried.append((self.now(), request))
        said = self.answer(request)
        if isinstance(said, Exception):
            raise said
        status, headers = said if isinstance(said, tuple) else (said, {})
        if status < 300:
            self.taken.append(request)
        return httpx.Response(status, headers=headers)

    def open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.handle))

    def seqs(self) -> list[int]:
        return [int(request.headers["webhook-id"].rpartition(":")[2]) for request in self.taken]


class Here:
    """An engine whose events go to a sink in virtual time."""

    def __init__(self, engine: Stage, sink: Sink, bus: Bus) -> None:
        self.engine, self.sink, self.bus = engine, sink, bus

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        command = codec.decode_command(json.dumps({"t": kind, **fields}).encode())
        return (await self.engine.call(command)).result

    async def hook(self, **fields: Any) -> dict[str, Any]:
        given = {"name": "h", "url": "http://sink.example/in", "kinds": ["*"], **fields}
        return await self.ask("webhook.create", **given)

    async def listed(self) -> dict[str, Any]:
        (row,) = (await self.ask("webhook.list"))["webhooks"]
        return dict(row)


@asynccontextmanager
async def here(*, image: bytes | None = None, sink: Sink | None = None) -> AsyncIterator[Here]:
    sink = sink or Sink()
    async with stage(image=image) as engine, anyio.create_task_group() as group:
        bus = Bus(log_id=engine.store.log_id, head=engine.store.head, pages=engine.store)
        engine.store.on_commit = bus.publish
        engine.dispatcher = Dispatcher(
            engine.router, engine.queries, engine.dispatcher._stop, new_secret=new_secret
        )
        await engine.dispatcher.open()
        sink.now = engine.clock.now_ms

        async def sleep(seconds: float) -> None:
            """Time passes when somebody waits for it."""
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            engine.clock.advance(round(seconds * 1_000))

        deliveries = Deliveries(
            bus, engine.dispatcher.hooks, now_ms=engine.clock.now_ms, sink=sink.open, sleep=sleep
        )
        group.start_soon(deliveries.run)
        yield Here(engine, sink, bus)
        group.cancel_scope.cancel()


# -- delivery ------------------------------------------------------------------------------------


async def test_a_sink_that_is_down_for_an_hour_gets_everything_afterwards_in_order():
    async with here() as at:
        made = await at.hook()
        engine, sink = at.engine, at.sink
        began = engine.clock.now_ms()
        sink.answer = lambda request: (
            200 if engine.clock.now_ms() - began >= HOUR_MS else httpx.ConnectError("refused")
        )
        sid = await engine.new()
        for n in range(20):
            await engine.send(sid, f"message {n}")
        await engine.until(lambda: engine.clock.now_ms() - began >= HOUR_MS and at.sink.taken)
        await engine.send(sid, "the last one")
        await engine.settle()
        wanted = [e.seq for e in await engine.events() if e.seq > made["cursor"]]
        await engine.until(lambda: len(at.sink.seqs()) >= len(wanted))
        await engine.settle()
        wanted = [e.seq for e in await engine.events() if e.seq > made["cursor"]]
        await engine.until(lambda: len(at.sink.seqs()) >= len(wanted))
        assert at.sink.seqs() == wanted
        waits = [b - a for (a, _), (b, _) in zip(at.sink.tried, at.sink.tried[1:], strict=False) if b > a]
        assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
        assert max(waits) == LAST_DELAY_MS
        kinds = [e.kind for e in await engine.events()]
        assert (kinds.count("webhook.failing"), kinds.count("webhook.recovered")) == (1, 1)
        assert (await at.listed())["state"] == "well"


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl, as the independent implementation"
)
async def test_the_signature_is_what_openssl_computes():
    async with here() as at:
        secret = (await at.hook(kinds=["session.*"]))["secret"]
        assert secret.startswith("whsec_")
        await at.engine.new(name="mapper")
        await at.engine.until(lambda: at.sink.taken)
        request = at.sink.taken[0]
        signed = (
            f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
            + request.content
        )
        key = base64.b64decode(secret.removeprefix("whsec_")).hex()
        command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key}", "-binary"]
        done = await anyio.run_process(command, input=signed)
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(done.stdout).decode()}"
        assert request.headers["webhook-id"] == f"{at.bus.log_id}:{json.loads(request.content)['seq']}"
        assert int(request.headers["webhook-timestamp"]) == at.engine.clock.now_ms() // 1_000
        assert secret not in json.dumps(await at.ask("webhook.list"))
        assert b"whsec_" not in b"".join(e.body for e in await at.engine.events())


async def test_what_a_sink_refuses_for_good_goes_to_the_dead_letters_and_the_rest_goes_on():
    async with here() as at:
        await at.hook(kinds=["envelope.accepted"], give_up_ms=10_000)
        sid = await at.engine.new()
        poison: list[int] = []

        def answer(request: httpx.Request) -> int:
            seq = int(request.headers["webhook-id"].rpartition(":")[2])
            if not poison:
                poison.append(seq)  # the first one that comes
            return 422 if seq == poison[0] else 200

        at.sink.answer = answer
        await at.engine.send(sid, "one")
        await at.engine.send(sid, "two")
        first, second = [e.seq for e in await at.engine.events(sid, "envelope.accepted")]
        await at.engine.until(lambda: at.sink.taken)
        await at.engine.settle()
        assert at.sink.seqs() == [second]
        row = await at.listed()
        assert (row["dead_count"], row["dead"][0]["seq"], row["dead"][0]["error"]) == (
            1,
            poison[0],
            "status 422",
        )
        assert row["dead"][0]["tries"] >= 5
        assert poison == [first]
        at.sink.answer = lambda request: 200
        await at.ask("webhook.retry", name="h", dead=True)
        await at.engine.until(lambda: len(at.sink.taken) >= 3)
        assert at.sink.seqs()[1:] == [first, second]
        assert (await at.listed())["dead_count"] == 0


async def test_retry_after_is_kept_to():
    async with here() as at:
        await at.hook(kinds=["session.created"])
        answers = iter([(429, {"retry-after": "120"}), 200])
        at.sink.answer = lambda request: next(answers)
        await at.engine.new()
        await at.engine.until(lambda: at.sink.taken)
        (first, _), (second, _) = at.sink.tried
        assert second - first == 120_000


async def test_a_restart_goes_on_where_the_sink_was():
    sink = Sink()
    async with here(sink=sink) as at:
        await at.hook(kinds=["envelope.accepted"])
        sid = await at.engine.new()
        await at.engine.send(sid, "one")
        await at.engine.until(lambda: sink.taken)
        sink.answer = lambda request: 503
        await at.engine.send(sid, "two")
        await at.engine.until(lambda: len(sink.tried) > 2)
        await at.engine.settle()
        image = at.engine.store.image()
    sink.answer = lambda request: 200
    async with here(image=image, sink=sink) as at:
        await at.engine.until(lambda: len(sink.taken) >= 2)
        await at.engine.settle()
        texts = [json.loads(request.content)["seq"] for request in sink.taken]
        assert texts == sorted(set(texts))
        assert len(texts) == 2


class Aged:
    """A store from whose pages retention has taken a stretch."""

    def __init__(self, store: Any, first: int, last: int, looked: Any = lambda: None) -> None:
        self._store, self._gone, self._looked = store, range(first, last + 1), looked

    async def page(self, **asked: Any) -> list[StoredEvent]:
        self._looked()
        return [event for event in await self._store.page(**asked) if event.seq not in self._gone]


async def test_what_retention_deleted_before_it_was_delivered_is_journaled_once_and_the_rest_goes_on():
    async with here() as at:
        engine, sink = at.engine, at.sink
        sid = await engine.new()
        for n in range(5):
            await engine.send(sid, f"message {n}")
        await engine.settle()
        gone = range(3, engine.store.head - 3)
        at.bus._pages = Aged(engine.store, gone[0], gone[-1])
        at.bus.forget()
        await at.hook(after=0, kinds=["*"])
        await engine.until(lambda: engine.store.head in sink.seqs())
        await engine.settle()
        told = [json.loads(e.body) for e in await engine.events() if e.kind == "webhook.gap"]
        assert [(e["name"], e["first"], e["last"]) for e in told] == [("h", gone[0], gone[-1])]
        assert sink.seqs() == [e.seq for e in await engine.events() if e.seq not in gone]
        assert (await at.listed())["cursor"] >= gone[-1]


async def test_a_gap_that_cannot_be_journaled_is_told_when_the_journal_takes_it():
    async with here() as at:
        engine, sink = at.engine, at.sink
        sid = await engine.new()
        await engine.send(sid, "hello")
        await engine.settle()
        answers = [Refused("storage_full", "no room"), Refused("storage_full", "no room"), None]
        cursors: list[int | None] = []

        def looked() -> None:
            hook = engine.dispatcher.hooks.get("h")
            cursors.append(None if hook is None else hook.cursor)
            engine.store.refuse = answers.pop(0) if answers else None

        at.bus._pages = Aged(engine.store, 1, 3, looked)
        at.bus.forget()
        await at.hook(after=0, kinds=["session.ended"])
        await engine.until(lambda: len(cursors) >= 3)
        await engine.settle()
        assert cursors[:3] == [0, 0, 0]
        assert (await at.listed())["cursor"] >= 3
        assert [e.kind for e in await engine.events()].count("webhook.gap") == 1
        assert sink.seqs() == []


async def test_a_deleted_webhook_sends_nothing_more_and_its_name_is_free():
    async with here() as at:
        await at.hook(kinds=["session.created"])
        await at.engine.new()
        await at.engine.until(lambda: at.sink.taken)
        with pytest.raises(Refused, match="is called"):
            await at.hook()
        await at.ask("webhook.delete", name="h")
        await at.engine.new()
        await at.engine.settle()
        assert len(at.sink.taken) == 1
        await at.hook()


class SlowSink(Sink):
    """A sink whose answers wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.go = anyio.Event()
        self.go.set()

    async def held(self, request: httpx.Request) -> httpx.Response:
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        return self.handle(request)

    def open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.held))


async def test_dead_letters_are_sent_again_also_when_a_request_is_under_way_meanwhile():
    sink = SlowSink()
    async with here(sink=sink) as at:
        await at.hook(kinds=["envelope.accepted"], give_up_ms=10_000, timeout_ms=30_000)
        sid = await at.engine.new()
        sink.answer = lambda request: 422
        await at.engine.send(sid, "one")
        (first,) = [e.seq for e in await at.engine.events(sid, "envelope.accepted")]
        with anyio.fail_after(10):
            while not (await at.listed())["dead_count"]:
                await anyio.lowlevel.checkpoint()
        sink.answer = lambda request: 200
        sink.go = anyio.Event()
        await at.engine.send(sid, "two")
        await at.engine.until(lambda: sink.waiting)
        await at.ask("webhook.retry", name="h", dead=True)
        sink.go.set()
        second = [e.seq for e in await at.engine.events(sid, "envelope.accepted")][1]
        await at.engine.settle(400)
        assert sink.seqs() == [second, first, second]
        assert (await at.listed())["cursor"] == second


async def test_a_webhook_that_is_deleted_while_a_request_is_answered_stays_deleted():
    sink = SlowSink()
    async with here(sink=sink) as at:
        await at.hook(kinds=["envelope.accepted"], timeout_ms=30_000)
        sid = await at.engine.new()
        await at.engine.settle()
        sink.go = anyio.Event()
        await at.engine.send(sid, "one")
        await at.engine.until(lambda: sink.waiting)
        store = at.engine.store
        store.held = True
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: at.ask("webhook.delete", name="h"))
            await at.engine.settle()
            sink.go.set()
            await at.engine.settle()
            store.release()
        await at.engine.settle()
        assert await store.house("webhook") == {}


async def test_only_wanted_events_of_wanted_sessions_are_sent_and_content_stays_at_home():
    async with here() as at:
        await at.hook(kinds=["envelope.*"], labels={"team": "web"})
        await at.ask(
            "webhook.create",
            name="full",
            url="http://sink.example/full",
            kinds=["envelope.accepted"],
            content=True,
        )
        web = await at.engine.new(labels={"team": "web"}, name="web1")
        ops = await at.engine.new(labels={"team": "ops"})
        for sid in (ops, web):
            await at.engine.send(sid, "a secret word")
        await at.engine.until(lambda: len(at.sink.taken) >= 3)
        await at.engine.settle()
        plain = [r for r in at.sink.taken if r.url.path == "/in"]
        assert {json.loads(r.content)["sid"] for r in plain} == {web}
        assert {json.loads(r.content)["name"] for r in plain} == {"web1"}
        assert not [r for r in plain if b"secret" in r.content]
        full = [r for r in at.sink.taken if r.url.path == "/full"]
        assert len(full) == 2
        assert all(b"a secret word" in r.content for r in full)


async def test_a_frozen_sink_delays_nobody():
    started = anyio.Event()

    class Frozen(Sink):
        def open(self) -> Any:
            async def never(request: httpx.Request) -> httpx.Response:
                if request.url.path == "/frozen":
                    started.set()
                    await anyio.sleep_forever()
                return self.handle(request)

            return httpx.AsyncClient(transport=httpx.MockTransport(never))

    async with here(sink=Frozen()) as at:
        await at.hook(kinds=["session.created"])
        await at.ask(
            "webhook.create", name="frozen", url="http://sink.example/frozen", kinds=["*"], timeout_ms=60_000
        )
        with anyio.fail_after(5):
            for n in range(50):
                await at.engine.new(name=f"s-{n}")
            await started.wait()
            await at.engine.until(lambda: len(at.sink.taken) == 50)
        assert at.sink.seqs() == sorted(at.sink.seqs())


async def test_a_sink_that_answers_too_slowly_is_tried_again():
    class Slow(Sink):
        def open(self) -> Any:
            async def handle(request: httpx.Request) -> httpx.Response:
                self.tried.append((self.now(), request))
                if len(self.tried) == 1:
                    await anyio.sleep_forever()
                self.taken.append(request)
                return httpx.Response(204)

            return httpx.AsyncClient(transport=httpx.MockTransport(handle))

    async with here(sink=Slow()) as at:
        await at.hook(kinds=["session.created"], timeout_ms=100)
        await at.engine.new()
        await at.engine.until(lambda: at.sink.taken)
        failing = [json.loads(e.body) for e in await at.engine.events() if e.kind == "webhook.failing"]
        assert failing[0]["error"] == "no answer within 0.1 s"


# -- formats --------------------------------------------------------------------------------------


async def test_ntfy_and_slack_get_a_sentence_that_cannot_be_taken_for_markup():
    async with here() as at:
        for name in ("ntfy", "slack"):
            await at.ask(
                "webhook.create",
                name=name,
                url=f"http://sink.example/{name}",
                format=name,
                kinds=["goal.changed", "session.ended"],
                content=True,
            )
        sid = await at.engine.new(name="mapper", goal="<!channel> & \x1b[31m\nred")
        await at.ask("session.end", sid=sid, reason="enough")
        await at.engine.until(lambda: len(at.sink.taken) >= 4)
        by_path: dict[str, list[httpx.Request]] = {}
        for request in at.sink.taken:
            by_path.setdefault(request.url.path, []).append(request)
        texts = [json.loads(r.content)["text"] for r in by_path["/slack"]]
        assert "&lt;!channel&gt; &amp;" in texts[0]
        assert texts[-1] == "mapper ended as aborted_constraint: operator"
        ntfy = by_path["/ntfy"][-1]
        assert (ntfy.headers["title"], ntfy.content.decode()) == ("loopd: mapper", texts[-1])
        assert all(
            "\x1b" not in r.content.decode() and "\n" not in r.content.decode() for r in by_path["/ntfy"]
        )


@given(
    st.dictionaries(
        st.text(max_size=8), st.text() | st.integers() | st.none() | st.lists(st.text()), max_size=6
    )
)
def test_any_payload_makes_a_short_sentence_without_control_characters(body: dict[str, Any]) -> None:
    for kind in (
        "gate.changed",
        "degeneration.detected",
        "session.ended",
        "something.new",
        "webhook.failing",
        "webhook.gap",
    ):
        event = StoredEvent(seq=1, sid="ses_a", ss=1, at_ms=0, kind=kind, kv=1, body=b"{}")
        text = sentence(event, body, None)
        assert text.isprintable()
        assert 0 < len(text) <= 600


@given(st.integers(1, 10_000), st.none() | st.integers(0, 10**9))
def test_a_delay_grows_to_its_bound_and_never_ends_early(tries: int, asked: int | None) -> None:
    assert 1_000 <= delay_ms(tries) <= LAST_DELAY_MS
    assert delay_ms(tries + 1) >= delay_ms(tries)
    assert delay_ms(tries, asked_ms=asked) >= delay_ms(tries)
    assert delay_ms(tries, asked_ms=asked) <= max(LAST_DELAY_MS, HOUR_MS)


def test_a_sink_that_is_away_is_never_given_up() -> None:
    hook = Webhook(
        name="h", url="http://x.example/", secret="s" * 16, tries=10_000, since_ms=1, give_up_ms=1_000
    )
    assert given_up(hook, 10**12, refused=True)
    assert not given_up(hook, 10**12, refused=False)


# -- consumers --------------------------------------------------------------------------------------


async def test_a_consumer_comes_back_where_it_acknowledged_last_also_after_a_restart():
    async with here() as at:
        sid = await at.engine.new()
        await at.ask("consumer.create", name="lake", after=0, kinds=["envelope.*"])
        sent = await at.engine.send(sid, "one")
        acked = await at.ask("consumer.ack", name="lake", seq=sent.result["seq"])
        assert acked["cursor"]["seq"] == sent.result["seq"]
        late = await at.ask("consumer.ack", name="lake", seq=1)
        assert late["cursor"]["seq"] == sent.result["seq"]  # one that came late moves nothing back
        with pytest.raises(Refused, match="the log ends with"):
            await at.ask("consumer.ack", name="lake", seq=10**6)
        with pytest.raises(Refused, match="this is"):
            await at.ask("consumer.ack", name="lake", seq=1, log="lg_other")
        image = at.engine.store.image()
    async with here(image=image) as at:
        (row,) = (await at.ask("consumer.list"))["consumers"]
        assert (row["cursor"]["seq"], row["lag"] > 0) == (sent.result["seq"], True)
        assert (await at.ask("consumer.ack", name="lake", seq=1, rewind=True))["cursor"]["seq"] == 1
        await at.ask("consumer.delete", name="lake")
        assert (await at.ask("consumer.list"))["consumers"] == []


async def test_a_stream_of_a_consumer_begins_at_its_cursor_with_its_selection():
    async with faces() as at:
        token = await at.token("read")
        async with at.http(token) as client:
            body = {"name": "pager", "after": 0, "kinds": ["session.created"]}
            assert (await client.post("/v1/consumers", json=body)).status_code == 200
            for n in range(3):
                await at.engine.new(name=f"s-{n}")
            async with client.stream("GET", "/v1/events", params={"consumer": "pager"}) as stream:
                seen = []
                async for line in stream.aiter_lines():
                    if line.startswith("data: ") and '"t":"ev"' in line:
                        seen.append(json.loads(line[6:]))
                        if len(seen) == 2:
                            break
            acked = await client.post("/v1/consumers/pager/ack", json={"seq": seen[-1]["seq"]})
            assert acked.json()["r"]["cursor"]["seq"] == seen[-1]["seq"]
            async with client.stream("GET", "/v1/events", params={"consumer": "pager"}) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: ") and '"t":"ev"' in line:
                        third = json.loads(line[6:])
                        break
            assert (third["k"], third["seq"] > seen[-1]["seq"]) == ("session.created", True)


async def test_a_consumer_belongs_to_who_made_it_and_survives_the_rotation_of_the_token():
    async with faces() as at:
        mine, other = await at.made("read"), await at.token("read")
        async with at.http(str(mine.result["token"])) as client, at.http(other) as stranger:
            await client.post("/v1/consumers", json={"name": "lake", "after": 0})
            assert (await stranger.get("/v1/consumers")).json()["r"]["consumers"] == []
            assert (await stranger.post("/v1/consumers/lake/ack", json={"seq": 1})).status_code == 404
            assert (await stranger.delete("/v1/consumers/lake")).status_code == 404
            assert (await stranger.post("/v1/consumers", json={"name": "lake"})).status_code == 409
        rotate = codec.decode_command(json.dumps({"t": "token.rotate", "kid": mine.result["kid"]}).encode())
        fresh = (await at.engine.call(rotate)).result["token"]
        async with at.http(fresh) as client:
            assert (await client.post("/v1/consumers/lake/ack", json={"seq": 1})).status_code == 200
