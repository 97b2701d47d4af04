"""The HTTP API: commands, resources, events, WebSockets, logins; and a list of attacks on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from loopd.server.http import documents
from loopd.server.http.routes import NOT_HERE, query_fields, resource_routes
from loopd.server.limits import SocketLimits
from loopd_protocol import schema
from loopd_protocol.commands import COMMAND_TYPES
from loopd_protocol.errors import ERRORS
from tests.faces import Events, Faces, faces

pytestmark = pytest.mark.anyio
ALL = ("read", "read.content", "send", "control", "create", "cron", "admin")


@asynccontextmanager
async def open_house(**more: Any) -> AsyncIterator[tuple[Faces, httpx.AsyncClient, str]]:
    """All doors, a token with every right, and a client that shows it."""
    async with faces(**more) as at:
        token = await at.token(*ALL)
        async with at.http(token) as client:
            yield at, client, token


# -- commands and resources ----------------------------------------------------------------------


async def test_an_operators_day_over_http():
    async with open_house() as (at, client, _):
        made = await client.post(
            "/v1/sessions",
            json={
                "driver": {"kind": "scripted", "script": "plain"},
                "name": "mapper",
                "goal": "map it",
                "labels": {"team": "web"},
            },
        )
        sid = made.json()["r"]["sid"]
        assert (await client.get("/v1/sessions/mapper")).json()["r"]["sid"] == sid
        assert [
            r["sid"]
            for r in (await client.get("/v1/sessions?label=team=web&sort=stagnation")).json()["r"]["sessions"]
        ] == [sid]
        sent = await client.post("/v1/sessions/mapper/send", json={"text": "look at chapter 3"})
        assert (sent.status_code, sent.json()["r"]["held"]) == (200, False)
        await at.engine.settle()
        closed = await client.post(
            "/v1/sessions/mapper/suspend", json={"reason": "cost review", "quarantine": True}
        )
        proof = closed.json()["seq"]
        assert closed.json()["r"]["gate"] == "closed"
        why = (await client.get("/v1/sessions/mapper/why")).json()["r"]
        assert [hold["kind"] for hold in why["holds"]] == ["UserSuspend"]
        assert (await client.get("/v1/verify", params={"sid": sid, "suspended_since": proof})).json()["r"][
            "ok"
        ] is True
        job = await client.put(
            "/v1/sessions/mapper/crons/nightly", json={"expr": "0 3 * * *", "text": "check"}
        )
        assert job.json()["r"]["job"]["job"] == "nightly"
        assert len((await client.get("/v1/crons", params={"sid": "mapper"})).json()["r"]["jobs"]) == 1
        assert (await client.post("/v1/sessions/mapper/crons/nightly/pause")).status_code == 200
        assert (await client.delete("/v1/sessions/mapper/crons/nightly")).status_code == 200
        held = await client.post("/v1/sessions/mapper/send", json={"text": "and this later"})
        waiting = (await client.get("/v1/sessions/mapper/inbox")).json()["r"]["envelopes"]
        assert held.json()["r"]["id"] in {envelope["id"] for envelope in waiting}
        dropped = await client.delete(f"/v1/sessions/mapper/inbox/{held.json()['r']['id']}")
        assert dropped.status_code == 200
        assert (await client.post("/v1/sessions/mapper/unsuspend")).json()["r"]["removed"] == ["UserSuspend"]
        turn = (await client.get("/v1/sessions/mapper/turn", params={"n": 1})).json()["r"]
        assert turn["n"] == 1
        page = (await client.get("/v1/history", params={"sid": sid, "kind": "gate.*", "limit": 5})).json()[
            "r"
        ]
        assert {event["k"] for event in page["events"]} == {"gate.changed"}
        assert (await client.post("/v1/freeze", json={"reason": "outage"})).json()["r"]["frozen"] is True
        assert (await client.get("/v1/status")).json()["r"] == {"status": "fine"}
        assert (await client.post("/v1/unfreeze")).json()["r"]["frozen"] is False
        over = await client.post("/v1/sessions/mapper/end", json={"reason": "done"})
        assert over.json()["r"]["status"] == "aborted_constraint"


async def test_any_command_can_be_posted_as_its_object():
    async with open_house() as (_, client, _token):
        done = await client.post("/v1/commands", content=b'{"t":"daemon.freeze","reason":"x"}')
        assert (done.status_code, sorted(done.json())) == (200, ["dup", "r", "rev", "seq"])


async def test_the_same_idempotency_key_does_it_once():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        path, key = f"/v1/sessions/{sid}/send", {"idempotency-key": "k-1"}
        one = await client.post(path, json={"text": "once"}, headers=key)
        two = await client.post(path, json={"text": "once"}, headers=key)
        assert (one.json()["dup"], two.json()["dup"]) == (False, True)
        assert one.json()["r"]["id"] == two.json()["r"]["id"]
        other = await client.post(path, json={"text": "something else"}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        assert len(await at.engine.events(sid, "envelope.accepted")) == 1


async def test_conditions_refuse_a_change_when_the_session_moved_on():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        rev = (await client.get(f"/v1/sessions/{sid}")).json()["r"]["rev"]
        stale = await client.post(f"/v1/sessions/{sid}/suspend", headers={"if-rev": str(rev - 1)})
        assert (stale.status_code, stale.json()["code"], stale.json()["path"]) == (
            412,
            "precondition_failed",
            "$.if_rev",
        )
        assert (
            await client.post(f"/v1/sessions/{sid}/suspend", headers={"if-rev": str(rev)})
        ).status_code == 200
        for bad in ("x", "-1", "1.0", "9" * 30):
            assert (
                await client.post(f"/v1/sessions/{sid}/suspend", headers={"if-rev": bad})
            ).status_code == 422


async def test_a_field_that_is_not_known_is_an_error_wherever_it_stands():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        for method, path, more in (
            ("POST", f"/v1/sessions/{sid}/suspend", {"json": {"untli_ms": 1}}),
            ("GET", "/v1/sessions", {"params": {"sorted": "name"}}),
            ("GET", "/v1/events", {"params": {"kinds": "gate.*"}}),
            ("POST", f"/v1/sessions/{sid}/suspend?until_ms=1", {"json": {}}),
            ("POST", "/v1/commands", {"json": {"t": "suspend", "sid": sid, "untli_ms": 1}}),
        ):
            answer = await client.request(method, path, **more)
            assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field"), path
        for body in ({"sid": "other"}, {"t": "unsuspend"}):
            twice = await client.post(f"/v1/sessions/{sid}/suspend", json=body)
            assert (twice.status_code, twice.json()["code"]) == (422, "invalid")
        assert not (await at.engine.state(sid)).gate.holds


async def test_every_refusal_is_a_problem_document_with_the_registrys_status():
    async with open_house() as (_, client, _token):
        for path, code in (
            ("/v1/sessions/nobody", "not_found"), ("/v1/sessions?limit=0", "invalid"), ("/v1/sessions?limit=x", "invalid"),
            ("/v1/nothing", "not_found"), ("/v1/sessions/" + "x" * 65, "invalid"), ("/v1/crons/next?count=5", "invalid"),
        ):  # fmt: skip
            answer = await client.get(path)
            body = answer.json()
            assert (body["code"], answer.status_code, body["status"]) == (
                code,
                ERRORS[code].http,
                ERRORS[code].http,
            ), path
            assert body["type"] == f"urn:loopd:error:{code}"
            assert answer.headers["content-type"] == "application/problem+json"


async def test_nothing_is_served_without_a_token_but_the_health_pages():
    async with faces() as at, at.http() as client:
        for path in ("/v1/status", "/v1/events", "/v1/schema", "/v1/me", "/v1/welcome"):
            answer = await client.get(path)
            assert (answer.status_code, "loopctl token new" in answer.json()["detail"]) == (404, True), path
        with pytest.raises(InvalidStatus) as met:
            async with connect(at.url.replace("http", "ws") + "/v1/ws"):
                pass
        assert met.value.response.status_code == 404
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
        await at.token("read")
        assert (await client.get("/v1/status")).status_code == 401


async def test_metrics_need_a_token_where_others_could_read_them():
    async with faces(metrics_auth=True) as at:
        good, bad = await at.token("metrics"), await at.token("read")
        async with at.http() as client:
            assert (await client.get("/metrics")).status_code == 401
        async with at.http(bad) as client:
            assert (await client.get("/metrics")).status_code == 403
        async with at.http(good) as client:
            assert (await client.get("/metrics")).content == b"loopd_boot_total 1\n"
            assert (await client.get("/v1/status")).status_code == 403


async def test_it_can_be_a_unix_socket(tmp_path: Any):
    path = f"/tmp/lp{os.getpid()}.sock"
    async with faces(host=f"unix:{path}") as at:
        token = await at.token("read")
        assert os.stat(path).st_mode & 0o777 == 0o660
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            assert (
                await client.get("/v1/status", headers={"authorization": f"Bearer {token}"})
            ).status_code == 200
    assert not os.path.exists(path)  # noqa: ASYNC240


# -- what it says of itself --------------------------------------------------------------------------


async def test_the_documents_are_served_and_name_every_command():
    async with open_house() as (_, client, _token):
        assert (await client.get("/v1/schema")).json() == schema.build()
        openapi = (await client.get("/v1/openapi.json")).json()
        named = {op["operationId"] for path in openapi["paths"].values() for op in path.values()}
        assert named >= set(COMMAND_TYPES) - NOT_HERE
        asyncapi = (await client.get("/v1/asyncapi.json")).json()
        assert {"server.ev", "client.hello"} <= set(asyncapi["components"]["messages"])
        welcome = (await client.get("/v1/welcome")).json()
        assert (welcome["t"], welcome["schema"]) == ("welcome", schema.digest())


def test_every_reference_in_the_documents_leads_somewhere() -> None:
    for name in ("openapi", "asyncapi"):
        document = json.loads(documents.document(name))
        for ref in set(re.findall(r'"\$ref":\s*"(#/[^"]+)"', json.dumps(document))):
            node = document
            for part in ref[2:].split("/"):
                node = node[part.replace("~1", "/").replace("~0", "~")]
            assert isinstance(node, dict), ref


def test_routes_are_unambiguous_and_their_places_are_fields() -> None:
    routes = resource_routes()
    shapes = {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in routes}
    assert len(shapes) == len(routes)
    assert {route.command for route in routes} == set(COMMAND_TYPES) - NOT_HERE
    for route in routes:
        assert set(route.in_path) <= set(query_fields(route.cls)), route


# -- events ------------------------------------------------------------------------------------------


async def test_a_stream_resumes_behind_its_last_id_without_loss_or_repetition():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        await at.engine.send(sid, "one")
        await at.engine.settle()
        async with client.stream("GET", "/v1/events", params={"after": "0"}) as answer:
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            events = Events(answer)
            first = [await events.message() for _ in range(3)]
            last = events.last_id
        assert last == f"{at.server.bus.log_id}:{first[-1]['seq']}"
        await at.engine.send(sid, "two")
        await at.engine.settle()
        async with client.stream("GET", "/v1/events", headers={"last-event-id": last}) as answer:
            events = Events(answer)
            rest = []
            while not rest or rest[-1]["seq"] < at.engine.store.head:
                rest.append(await events.message())
        assert [e["seq"] for e in first + rest] == [e.seq for e in await at.engine.events()]
        assert [e["prev"] for e in rest] == [first[-1]["seq"], *[e["seq"] for e in rest[:-1]]]


async def test_heartbeats_move_the_cursor_of_a_filtered_stream():
    async with open_house() as (at, client, _):
        asked = {"params": {"kind": "gate.*"}}
        async with client.stream("GET", "/v1/events", **asked) as answer:
            events = Events(answer)
            assert (await events.next())[0] == "subd"
            await at.engine.new()
            head = at.engine.store.head
            while events.last_id != f"{at.server.bus.log_id}:{head}":
                assert (await events.next())[0] == "beat"


async def test_a_cursor_that_is_not_of_this_log_is_told_as_a_gap():
    async with open_house() as (at, client, _):
        for after, why in (("lg_other:5", "foreign_log"), (f"{at.server.bus.log_id}:99999", "future")):
            async with client.stream("GET", "/v1/events", headers={"last-event-id": after}) as answer:
                assert (await Events(answer).named("gap"))["why"] == why
        for bad in ("x", "lg_1:", ":", "lg:-1", "lg:" + "9" * 20):
            answer = await client.get("/v1/events", params={"after": bad})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), bad


async def test_a_snapshot_comes_first_and_the_tail_follows_without_a_hole():
    async with open_house() as (at, client, _):
        sid = await at.engine.new(name="mapper")
        async with client.stream("GET", "/v1/events", params={"snapshot": "true"}) as answer:
            events = Events(answer)
            snap = await events.named("snap")
            assert [row["sid"] for row in snap["sessions"]] == [sid]
            await at.engine.send(sid, "x")
            assert (await events.message())["prev"] == snap["at"]["seq"]


async def test_live_text_is_streamed_to_those_who_may_read_it():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        blind = await at.token("read")
        async with at.http(blind) as other:
            asked = {"params": {"deltas": "true", "sid": sid}}
            async with (
                client.stream("GET", "/v1/events", **asked) as seen,
                other.stream("GET", "/v1/events", **asked) as hidden,
            ):
                events, nothing = Events(seen), Events(hidden)
                await events.named("subd")
                await nothing.named("subd")
                at.server.bus.publish_delta(sid, 1, "so it goes")
                assert (await events.named("delta"))["text"] == "so it goes"
                assert (await nothing.next())[0] == "beat"


async def test_a_client_that_does_not_read_holds_up_nobody_and_is_cut_off():
    limits = SocketLimits(heartbeat_s=0.2, stall_s=0.5, linger_s=0.3, buffer_bytes=65_536)
    async with open_house(limits=limits) as (at, client, token):
        port = int(at.url.rpartition(":")[2])
        frozen = socket.create_connection(("127.0.0.1", port))
        frozen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        frozen.sendall(
            f"GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        try:
            async with client.stream("GET", "/v1/events") as answer:
                events = Events(answer)
                await events.named("subd")
                sid = await at.engine.new()
                for n in range(120):
                    await at.engine.send(sid, "x" * 50_000 + str(n))
                seen = 0
                while seen < at.engine.store.head - 2:
                    seen = (await events.message())["seq"]
            with anyio.fail_after(10):
                while at.desk.lines:  # noqa: ASYNC110  (a set tells nobody, and this is bounded)
                    await anyio.sleep(0.05)
        finally:
            frozen.close()


async def test_a_stopping_server_says_goodbye_to_its_streams():
    async with open_house() as (at, client, _):
        async with client.stream("GET", "/v1/events") as answer:
            events = Events(answer)
            await events.named("subd")
            at.desk.close()
            assert (await events.named("bye"))["why"] == "draining"
        assert (await client.get("/v1/events")).status_code == 503


# -- WebSocket ---------------------------------------------------------------------------------------


async def frames_of(ws: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in str(await ws.recv()).splitlines()]


async def ask(ws: Any, frame_id: str, **command: Any) -> dict[str, Any]:
    await ws.send(json.dumps({"t": "cmd", "id": frame_id, "c": command}))
    with anyio.fail_after(5):
        while True:
            for frame in await frames_of(ws):
                if frame.get("id") == frame_id:
                    return frame


async def test_a_websocket_speaks_the_frames_of_the_socket():
    async with open_house() as (at, _, token), connect(at.url.replace("http", "ws") + "/v1/ws") as ws:
        await ws.send(json.dumps({"t": "hello", "v": [1, 1], "auth": token, "want": ["delta"]}))
        (welcome,) = await frames_of(ws)
        assert (welcome["t"], welcome["auth"]["principal"][:6]) == ("welcome", "token:")
        made = await ask(ws, "1", t="session.create", driver={"kind": "scripted", "script": "plain"})
        after = {"log": at.server.bus.log_id, "seq": 0}
        await ws.send(json.dumps({"t": "sub", "id": "s", "after": after}))
        seqs: list[int] = []
        while len(seqs) < made["seq"]:
            seqs += [frame["seq"] for frame in await frames_of(ws) if frame["t"] == "ev"]
        assert seqs == list(range(1, made["seq"] + 1))
        await ws.send('{"t":"hello"')
        refused = [f for f in await frames_of(ws) if f["t"] == "err"]
        assert refused[0]["code"] == "bad_frame"
        await ws.send(b"\x00\x01")
        while not (found := [f for f in await frames_of(ws) if f["t"] == "err"]):
            pass
        assert found[0]["code"] == "bad_frame"


async def test_a_websocket_carries_text_and_says_so_to_who_asks_for_bytes():
    async with open_house() as (at, _, token), connect(at.url.replace("http", "ws") + "/v1/ws") as ws:
        await ws.send(json.dumps({"t": "hello", "v": [1, 1], "auth": token, "enc": "msgpack"}))
        frames = await frames_of(ws)
        assert (frames[0]["t"], frames[0]["code"]) == ("err", "invalid")
        assert "msgpack" in frames[0]["msg"]
        with pytest.raises(ConnectionClosed):
            await ws.recv()


async def test_a_ticket_opens_one_websocket_once_and_soon():
    async with open_house() as (at, client, _):
        url = at.url.replace("http", "ws") + "/v1/ws"
        ticket = (await client.post("/v1/tickets")).json()["ticket"]
        async with connect(f"{url}?ticket={ticket}") as ws:
            await ws.send('{"t":"hello","v":[1,1]}')
            assert (await frames_of(ws))[0]["t"] == "welcome"
        with pytest.raises(InvalidStatus) as replayed:
            async with connect(f"{url}?ticket={ticket}"):
                pass
        assert replayed.value.response.status_code == 401
        late = (await client.post("/v1/tickets")).json()["ticket"]
        at.engine.clock.advance(30_000)
        async with connect(url) as ws:
            await ws.send(json.dumps({"t": "hello", "v": [1, 1], "auth": late}))
            assert (await frames_of(ws))[0]["code"] == "unauthenticated"


async def test_a_websocket_without_a_token_gets_no_further_than_hello():
    async with open_house() as (at, _, _token):
        for first in ('{"t":"hello","v":[1,1]}', '{"t":"cmd","id":"1","c":{"t":"daemon.status"}}', "x"):
            async with connect(at.url.replace("http", "ws") + "/v1/ws") as ws:
                await ws.send(first)
                frames = await frames_of(ws)
                assert frames[0]["code"] in {"unauthenticated", "bad_frame"}
                with pytest.raises(ConnectionClosed):
                    await ws.recv()


async def test_a_slow_websocket_gets_its_answers_and_all_events():
    async with open_house() as (at, _, token):
        sid = await at.engine.new()
        async with connect(
            at.url.replace("http", "ws") + "/v1/ws",
            additional_headers={"authorization": f"Bearer {token}"},
            max_queue=1,
            max_size=None,
        ) as ws:
            await ws.send('{"t":"hello","v":[1,1]}')
            await frames_of(ws)
            await ws.send('{"t":"sub","id":"s"}')
            for n in range(60):
                await at.engine.send(sid, "y" * 20_000 + str(n))
            answer = await ask(ws, "q", t="session.get", sid=sid)
            assert answer["t"] == "ok"


# -- the page's logins ----------------------------------------------------------------------------------


async def test_a_login_is_a_cookie_that_scripts_cannot_read_and_changes_need_its_secret():
    async with open_house() as (at, _, token):
        sid = await at.engine.new()
        async with at.http() as page:
            inside = await page.post("/v1/login", json={"token": token})
            cookie = inside.headers["set-cookie"]
            assert ("HttpOnly" in cookie, "SameSite=strict" in cookie, "Path=/" in cookie) == (
                True,
                True,
                True,
            )
            assert token not in cookie
            csrf = inside.json()["csrf"]
            assert (await page.get("/v1/me")).json()["csrf"] == csrf
            assert (await page.get(f"/v1/sessions/{sid}")).status_code == 200
            path = f"/v1/sessions/{sid}/suspend"
            assert (await page.post(path)).status_code == 403
            assert (await page.post(path, headers={"x-csrf-token": "guess"})).status_code == 403
            assert (await page.post(path, headers={"x-csrf-token": csrf})).status_code == 200
            assert (await page.post("/v1/logout")).status_code == 403
            assert (await page.post("/v1/logout", headers={"x-csrf-token": csrf})).status_code == 200
            page.cookies.set(
                "loopd", cookie.partition("=")[2].partition(";")[0], domain="127.0.0.1", path="/"
            )
            assert (await page.get("/v1/me")).status_code == 401
        for forged in ("", "x", f"{token.split('_')[1]}.99999999999999.x.y", "....", "é"):
            async with at.http() as page:
                answer = await page.get("/v1/me", headers={"cookie": f"loopd={forged}".encode()})
                assert answer.status_code == 401, forged


async def test_logins_end_after_their_hours_and_with_their_token():
    async with open_house() as (at, admin, _):
        made = await at.made("read")
        async with at.http() as page:
            await page.post("/v1/login", json={"token": made.result["token"]})
            assert (await page.get("/v1/me")).status_code == 200
            await admin.delete(f"/v1/tokens/{made.result['kid']}")
            assert (await page.get("/v1/me")).status_code == 401
        token = await at.token("read")
        async with at.http() as page:
            await page.post("/v1/login", json={"token": token})
            at.engine.clock.advance(12 * 3_600_000)
            assert (await page.get("/v1/me")).status_code == 401


async def test_a_login_wants_json_so_that_no_form_can_send_it():
    async with open_house() as (at, _, token), at.http() as page:
        assert (await page.post("/v1/login", data={"token": token})).status_code == 422
        assert (
            await page.post(
                "/v1/login", content=json.dumps({"token": token}), headers={"content-type": "text/plain"}
            )
        ).status_code == 422
        assert (await page.post("/v1/login", json={"token": "lpd_x"})).status_code == 401
        assert (await page.post("/v1/login", json={"token": "x" * 5_000})).status_code in {413, 422}


async def test_a_websocket_by_cookie_needs_our_own_origin():
    async with open_house() as (at, _, token):
        async with at.http() as page:
            await page.post("/v1/login", json={"token": token})
            cookie = {"cookie": f"loopd={page.cookies['loopd']}"}
        url = at.url.replace("http", "ws") + "/v1/ws"
        async with connect(url, additional_headers=cookie, origin=at.url) as ws:
            await ws.send('{"t":"hello","v":[1,1]}')
            assert (await frames_of(ws))[0]["t"] == "welcome"
        for origin in (None, "https://evil.example", "null", at.url + ".evil.example", "http://localhost:1"):
            with pytest.raises(InvalidStatus) as met:
                async with connect(url, additional_headers=cookie, origin=origin):
                    pass
            assert met.value.response.status_code == 403, origin


# -- attacks ----------------------------------------------------------------------------------------------


async def raw(at: Faces, request: bytes, *, within_s: float = 8.0) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", int(at.url.rpartition(":")[2])) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            await stream.send(request)
        data = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError), anyio.fail_after(within_s):
            while True:
                data += await stream.receive()
    return data


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_foreign_pages_get_nothing_whatever_they_send():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        own = at.url.removeprefix("http://")
        for origin in (
            "https://evil.example",
            "null",
            "http://127.0.0.1",
            f"http://{own}.evil.example",
            f"http://evil@{own}",
            "file://",
            "",
        ):
            for method, path in (
                ("GET", "/v1/status"),
                ("POST", f"/v1/sessions/{sid}/suspend"),
                ("OPTIONS", "/v1/status"),
                ("GET", "/v1/events"),
            ):
                answer = await client.request(method, path, headers={"origin": origin})
                assert answer.status_code == 403, (origin, method, path)
                assert "access-control-allow-origin" not in answer.headers
        assert (await client.get("/v1/status", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        assert (await client.get("/v1/status", headers={"origin": at.url})).status_code == 200
        assert not (await at.engine.state(sid)).gate.holds


async def test_a_name_that_points_here_is_not_served():
    async with open_house() as (_, client, _token):
        for host in (
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "[::1",
            "",
            "0.0.0.0",
        ):
            assert (await client.get("/v1/status", headers={"host": host})).status_code in {400, 421}, host


async def test_smuggled_doubled_and_oversized_requests_are_refused():
    async with open_house() as (at, client, token):
        auth = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n".encode()
        for request in (
            b"POST /v1/freeze HTTP/1.1\r\n" + auth + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
            b"POST /v1/freeze HTTP/1.1\r\n" + auth + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
            b"POST /v1/freeze HTTP/1.1\r\n" + auth + b"Content-Length: +2\r\n\r\n{}",
            b"POST /v1/freeze HTTP/1.1\r\n" + auth + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\n" + auth + f"Authorization: Bearer {token}\r\n\r\n".encode(),
            b"GET /v1/status HTTP/1.1\r\n" + auth + b"Host: localhost\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\n" + auth + b"X: " + b"x" * 20_000 + b"\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\n" + auth + b"".join(b"X-%d: y\r\n" % n for n in range(80)) + b"\r\n",
            b"GET /v1/status HTTP/1.1\r\n" + auth + b"X : y\r\n\r\n",
            b"GET /v1/status HTTP/1.1\r\n" + auth + b"X: a\r\n b\x00c\r\n\r\n",
            b"GET /v1/status\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01\x00\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):  # fmt: skip
            answer = await raw(at, request)
            assert answer == b"" or status_of(answer) in {400, 413, 421, 501}, (request[:60], answer[:200])
        assert (await client.get("/v1/status")).status_code == 200
        assert at.engine.router.frozen is False


async def test_who_dawdles_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loopd.server.http.protocol.HEAD_S", 0.3)
    monkeypatch.setattr("loopd.server.http.app.BODY_S", 0.3)
    async with open_house() as (at, client, token):
        auth = f"Host: localhost\r\nAuthorization: Bearer {token}\r\n".encode()
        for start in (b"", b"GET /v1/st", b"GET /v1/status HTTP/1.1\r\nHost: loc"):
            assert await raw(at, start) == b""
        slow_body = await raw(at, b"POST /v1/freeze HTTP/1.1\r\n" + auth + b"Content-Length: 100\r\n\r\n{")
        assert slow_body == b"" or status_of(slow_body) == 504
        kept = await raw(at, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /liv")
        assert kept.count(b"HTTP/1.1") == 1  # the second one never came whole
        assert (await client.get("/v1/status")).status_code == 200


async def test_many_idle_strangers_make_room_for_those_who_ask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loopd.server.http.protocol.IDLE_S", 0.0)
    async with open_house(connections=128) as (at, client, _):
        port = int(at.url.rpartition(":")[2])
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
        try:
            assert (await client.get("/v1/status")).status_code == 200
            for stranger in strangers:
                stranger.settimeout(0.05)
            gone = 0
            for stranger in strangers:
                with contextlib.suppress(TimeoutError):
                    try:
                        gone += stranger.recv(1) == b""
                    except ConnectionResetError:
                        gone += 1
            assert gone >= 20  # room is made when somebody comes, so not down to the last one
        finally:
            for stranger in strangers:
                stranger.close()


async def test_a_million_characters_go_in_and_more_do_not():
    async with open_house() as (at, client, _):
        sid = await at.engine.new()
        path = f"/v1/sessions/{sid}/send"
        assert (await client.post(path, json={"text": "x" * 1_000_000})).status_code == 200
        assert (await client.post(path, json={"text": "x" * 1_000_001})).status_code == 422
        assert (await client.post(path, json={"text": "x" * 2_000_000})).status_code == 413
        chunked = (b"x" * 65_536 for _ in range(40))

        async def body() -> AsyncIterator[bytes]:
            for part in chunked:
                yield part

        answer: Any = None
        with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
            answer = await client.post(path, content=body())
        assert answer is None or answer.status_code == 413
        deep = await client.post("/v1/commands", content=b"[" * 100_000)
        assert (deep.status_code, deep.json()["code"]) == (400, "bad_frame")
        twice = await client.post(path, content=b'{"text":"a","text":"b"}')
        assert (twice.status_code, twice.json()["code"]) == (400, "bad_frame")
        for bad in (b'{"text":"\xff"}', b"{", b"null", b'"x"', b'{"text":NaN}', b'{"text":"\\ud800"}'):
            assert (await client.post(path, content=bad)).status_code in {400, 422}, bad
        assert len(await at.engine.events(sid, "envelope.accepted")) == 1


async def test_agent_text_comes_back_as_text_that_no_browser_takes_for_a_page():
    async with open_house() as (at, client, _):
        nasty = (
            "</script><script>alert(1)</script>\x1b[2J\u202e<img src=x onerror=alert(1)>\r\nSet-Cookie: a=b"
        )
        sid = await at.engine.new()
        await client.post(f"/v1/sessions/{sid}/send", json={"text": nasty})
        for path in (
            "/v1/history",
            f"/v1/sessions/{sid}/inbox",
            "/v1/sessions/<script>alert(1)</script>",
            f"/v1/{quote(nasty)}",
        ):
            answer = await client.get(path)
            assert answer.headers["content-type"] in {"application/json", "application/problem+json"}
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "a=b" not in answer.headers.get("set-cookie", "")
            assert b"\x1b" not in answer.content
        async with client.stream(
            "GET", "/v1/events", params={"after": "0", "kind": "envelope.accepted"}
        ) as answer:
            events = Events(answer)
            assert (await events.message())["b"][
                "text"
            ] == nasty  # no line of it became a field of the stream


async def test_path_tricks_lead_nowhere():
    async with open_house() as (at, client, token):
        auth = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n".encode()
        for target in (
            b"/v1/../metrics", b"/v1/%2e%2e/metrics", b"//v1/status", b"/v1//status", b"/v1/status/", b"/V1/status", b"/v1/sessions/..%2f..%2fetc",
            b"/v1/sessions/%00", b"/v1/sessions/a%2fwhy", b"/page/../../etc/passwd", b"/page/%2e%2e/%2e%2e/app.py", b"/v1/status;x=1", b"http://evil.example/v1/status", b"*",
        ):  # fmt: skip
            answer = await raw(at, b"GET " + target + b" HTTP/1.1\r\n" + auth + b"\r\n")
            assert status_of(answer) in {400, 404, 405, 421, 422}, (target, answer[:100])
            assert b"root:" not in answer
        assert (await client.get("/v1/status")).status_code == 200


async def test_errors_tell_nothing_of_the_token_and_neither_does_the_log(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("DEBUG"):
        async with open_house() as (at, client, token):
            said = ""
            for path in (
                "/v1/sessions/nobody",
                "/v1/nothing",
                f"/v1/events?after={token}",
                f"/v1/sessions?token={token[:8]}",
            ):
                said += (await client.get(path)).text.replace(path.rpartition("=")[2], "")
            async with at.http(token[:-1]) as other:
                said += (await other.get("/v1/status")).text
    assert token[-43:] not in said
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert not [line for line in ours if token[-43:] in line]
