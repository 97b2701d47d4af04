"""Tokens: how they are made, what they open, and how they end; on every transport."""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import time
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from loopd.core.access import ALL_SCOPES, Answer
from loopd.engine.clock import ManualClock
from loopd.engine.commands import Dispatcher
from loopd.engine.keyring import Keyring
from loopd.engine.rates import Rates
from loopd.server.agent_door import AgentTokens
from loopd.server.http.routes import resource_routes
from loopd_protocol import codec
from loopd_protocol.access_commands import TokenNew, TokenRevoke
from loopd_protocol.commands import COMMAND_TYPES, SCOPES, ForMany
from loopd_protocol.errors import ERRORS, Refused
from tests.control_stage import dialled
from tests.faces import Faces, faces
from tests.golden.examples import examples

pytestmark = pytest.mark.anyio


class Tied(Dispatcher):
    """A dispatcher that lets in whom it would let in, and then does nothing."""

    async def _carry_out(self, *_: Any) -> Answer:
        raise Refused("conflict", "let in")


def sample(kind: str, **more: Any) -> dict[str, Any]:
    """A body of this command that decodes."""
    for body in examples(COMMAND_TYPES[kind]):
        for changed in ({**body, **more}, body, {**body, **FIXES.get(kind, {})}):
            with contextlib.suppress(Refused):
                codec.decode_command(json.dumps(changed).encode())
                return changed
    return {"t": kind, **FIXES[kind]}


FIXES: dict[str, dict[str, Any]] = {
    "batch": {"selector": {}, "cmd": {"t": "suspend", "sid": "x"}, "dry_run": True},
    "session.create": {"driver": {"kind": "scripted", "script": "x"}},
    "webhook.create": {"name": "w", "url": "http://127.0.0.1:9/x"},
}


# -- the matrix ----------------------------------------------------------------------------------


USUAL = {"read", "admin"}
SCOPES_TRIED = [
    pytest.param(scope, marks=[] if scope in USUAL else pytest.mark.long) for scope in sorted(ALL_SCOPES)
]


@pytest.mark.parametrize("scope", SCOPES_TRIED)
async def test_each_scope_opens_its_commands_and_no_other_on_every_transport(scope: str):
    cells = 0
    routes = {route.command: route for route in resource_routes()}
    async with faces(dispatcher=Tied) as at:
        engine = at.engine
        token, key = engine.dispatcher.keyring.make(
            scopes=(scope,), source="human", labels={}, note="", expires_ms=None, by="test"
        )
        engine.dispatcher.keyring.keep(key)
        async with (
            at.http(token) as client,
            at.wire(token) as wire,
            connect(
                at.url.replace("http", "ws") + "/v1/ws",
                additional_headers={"authorization": f"Bearer {token}"},
            ) as ws,
        ):
            await ws.send('{"t":"hello","v":[1,1]}')
            assert json.loads(await ws.recv())["auth"]["scopes"] == [scope]
            for kind in COMMAND_TYPES:
                body = sample(kind)
                needs = {SCOPES[kind], *([SCOPES[body["cmd"]["t"]]] if kind == "batch" else [])}
                expected = "conflict" if needs <= {scope} else "forbidden"
                answer = await client.post("/v1/commands", json=body)
                got = {"http": answer.json()["code"], "socket": (await wire.ask(f"c{cells}", body))["code"]}
                assert answer.status_code == ERRORS[expected].http
                await ws.send(json.dumps({"t": "cmd", "id": f"w{cells}", "c": body}))
                while (frame := json.loads((await ws.recv()).splitlines()[-1])).get("id") != f"w{cells}":
                    pass
                got["websocket"] = frame["code"]
                if kind in routes:
                    got["route"] = (await resource(client, routes[kind], body)).json()["code"]
                assert got == dict.fromkeys(got, expected), (kind, scope, got)
                cells += len(got)
            for path, method in (("/v1/events", "GET"),):
                async with client.stream(method, path) as stream:
                    assert stream.status_code == (200 if scope == "read" else 403)
            await wire.send({"t": "sub", "id": "s"})
            frame = await wire.read()
            assert (frame["t"] == "subd") == (scope == "read"), frame
    assert cells >= 4 * len(COMMAND_TYPES) - 1


async def resource(client: httpx.AsyncClient, route: Any, body: dict[str, Any]) -> httpx.Response:
    left = {name: value for name, value in body.items() if name not in {*route.in_path, "t"}}
    path = route.path.format(**{name: body[name] for name in route.in_path})
    if not route.by_query:
        return await client.request(route.method, path, json=left)
    query: list[tuple[str, str]] = []
    for name, value in left.items():
        short = {"labels": "label", "kinds": "kind", "sids": "sid"}.get(name, name)
        if name == "selector":
            continue
        if isinstance(value, dict) and route.command != "replay":
            query += [(short, f"{key}={text}") for key, text in value.items()]
        elif isinstance(value, list):
            query += [(short, str(item)) for item in value]
        elif isinstance(value, bool | dict):
            query.append((short, json.dumps(value)))
        elif value is not None:
            query.append((short, str(value)))
    return await client.request(route.method, path, params=query)


async def test_no_scope_at_all_is_refused_at_once():
    async with faces() as at:
        with pytest.raises(msgspec.ValidationError):
            await at.made()
        with pytest.raises(msgspec.ValidationError):
            await at.made("agent")  # only the daemon gives that


# -- what labels hide ------------------------------------------------------------------------------


async def two_teams(at: Faces) -> tuple[str, str]:
    web = await at.engine.new(name="web1", labels={"team": "web"}, goal="a secret of web")
    ops = await at.engine.new(name="ops1", labels={"team": "ops"}, goal="a secret of ops")
    return web, ops


async def test_a_session_out_of_reach_is_not_there_for_any_command():
    async with faces() as at:
        _, ops = await two_teams(at)
        token = await at.token(*sorted(ALL_SCOPES), labels={"team": "web"})
        before = await at.engine.events(ops)
        async with at.http(token) as client:
            for kind, cls in COMMAND_TYPES.items():
                if "sid" not in cls.__struct_fields__:
                    continue
                hidden, made_up = [], []
                for ref, found in (
                    (ops, hidden),
                    ("ops1", hidden),
                    ("ses_none", made_up),
                    ("nobody", made_up),
                ):
                    answer = await client.post("/v1/commands", json=sample(kind, sid=ref) | {"sid": ref})
                    found.append((answer.status_code, answer.json()["detail"].replace(ref, "REF")))
                assert len({*hidden, *made_up}) == 1, (kind, hidden, made_up)
                assert hidden[0][0] in {403, 404, 422}, (kind, hidden)
        assert await at.engine.events(ops) == before


async def test_lists_status_events_and_batches_end_where_the_reach_ends():
    async with faces() as at:
        web, ops = await two_teams(at)
        token = await at.token(*sorted(ALL_SCOPES), labels={"team": "web"})
        async with at.http(token) as client:
            listed = (await client.get("/v1/sessions", params={"ended": "true"})).json()["r"]["sessions"]
            assert [row["sid"] for row in listed] == [web]
            status = (await client.get("/v1/status")).json()["r"]
            assert (status["sessions"]["live"], "data" in status, "socket" in status) == (1, False, False)
            named = await client.get("/v1/sessions", params={"sid": ops})
            assert (named.status_code, "ops" in named.json()["detail"].replace(ops, "")) == (404, False)
            both = {"selector": {}, "cmd": {"t": "suspend", "sid": "x"}, "dry_run": True}
            assert [
                row["sid"] for row in (await client.post("/v1/batch", json=both)).json()["r"]["would"]
            ] == [web]
            other = {**both, "selector": {"labels": {"team": "ops"}}}
            assert (await client.post("/v1/batch", json=other)).json()["code"] == "forbidden"
            for path in ("/v1/history", "/v1/verify", "/v1/audit", "/v1/tokens"):
                assert (await client.get(path)).json()["code"] == "forbidden", path
            assert (await client.post("/v1/freeze", json={})).json()["code"] == "forbidden"
            made = await client.post("/v1/sessions", json={"driver": {"kind": "scripted", "script": "plain"}})
            assert (await at.engine.state(made.json()["r"]["sid"])).labels == {"team": "web"}
            stolen = await client.post(
                "/v1/sessions",
                json={"driver": {"kind": "scripted", "script": "plain"}, "labels": {"team": "ops"}},
            )
            assert stolen.json()["code"] == "forbidden"
            async with client.stream("GET", "/v1/events", params={"after": "0"}) as stream:
                seen = []
                async for line in stream.aiter_lines():
                    if line.startswith("data: ") and '"t":"ev"' in line:
                        seen.append(json.loads(line[6:]))
                        if seen[-1]["sid"] == made.json()["r"]["sid"]:
                            break
            assert {event.get("sid") for event in seen} <= {web, made.json()["r"]["sid"], None}
            assert {event["k"].partition(".")[0] for event in seen if "sid" not in event} <= {"daemon"}
        async with at.wire(token) as wire:
            await wire.send({"t": "sub", "id": "s", "snapshot": True})
            snap = await wire.until("snap")
            assert ops not in json.dumps(snap)
            await wire.send({"t": "sub", "id": "o", "sel": {"sids": [ops]}})
            assert (await wire.until("err"))["code"] == "not_found"


@pytest.mark.parametrize("kind", [str(cls.__struct_config__.tag) for cls in ForMany.__args__])
async def test_no_batch_reaches_beyond_the_labels_of_its_token(kind: str):
    async with faces() as at:
        web, ops = await two_teams(at)
        await at.engine.settle()
        token = await at.token(*sorted(ALL_SCOPES), labels={"team": "web"})
        before = await at.engine.events(ops)
        async with at.http(token) as client:
            for inner in ("x", ops):
                body = {"selector": {"ended": True}, "cmd": sample(kind, sid=inner)}
                dry = await client.post("/v1/batch", json={**body, "dry_run": True})
                assert [row["sid"] for row in dry.json()["r"]["would"]] == [web], kind
                done = await client.post("/v1/batch", json=body)
                assert [row["sid"] for row in done.json()["r"]["results"]] == [web], kind
                named = await client.post("/v1/batch", json={**body, "selector": {"sids": [ops]}})
                assert named.status_code == 404
                other = await client.post("/v1/batch", json={**body, "selector": {"labels": {"team": "ops"}}})
                assert other.json()["code"] == "forbidden"
        assert await at.engine.events(ops) == before


async def test_nobody_gives_on_more_than_they_have():
    async with faces() as at:
        narrow = await at.token("admin", "read", labels={"team": "web"})
        plain = await at.token("admin", "read")
        async with at.http(narrow) as client:
            assert (await client.post("/v1/tokens", json={"scopes": ["read"]})).json()["code"] == "forbidden"
        async with at.http(plain) as client:
            more = await client.post("/v1/tokens", json={"scopes": ["read", "control"]})
            assert (more.status_code, "control" in more.json()["detail"]) == (403, True)
            assert (await client.post("/v1/tokens", json={"scopes": ["read"]})).status_code == 200


# -- content -----------------------------------------------------------------------------------------


async def test_who_may_not_read_content_is_told_how_things_stand_and_not_what_was_said():
    async with faces() as at:
        sid = await at.engine.new(goal="the secret goal", labels={"a": "b"})
        await at.engine.send(sid, "the secret message")
        await at.engine.settle()
        await at.engine.call(codec.decode_command(json.dumps(
            {"t": "cron.put", "sid": sid, "job": "j", "expr": "0 3 * * *", "text": "the secret job"}
        ).encode()))  # fmt: skip
        blind = await at.token("read", "control", "cron")
        sighted = await at.token("read", "read.content")
        paths = [
            f"/v1/sessions/{sid}",
            "/v1/sessions",
            f"/v1/sessions/{sid}/why",
            "/v1/crons",
            f"/v1/sessions/{sid}/gate",
        ]
        async with at.http(blind) as client, at.http(sighted) as reader:
            said = [(await client.get(path)).text for path in paths]
            said.append((await client.post(f"/v1/sessions/{sid}/goal/pause")).text)
            said.append((await client.post(f"/v1/sessions/{sid}/crons/j/run")).text)
            assert not [text for text in said if "secret" in text]
            assert all('"r":' in text for text in said)
            assert "the secret goal" in (await reader.get(paths[0])).text
            for path in (
                f"/v1/sessions/{sid}/inbox",
                f"/v1/sessions/{sid}/turn",
                "/v1/history",
                f"/v1/sessions/{sid}/report",
            ):
                assert (await client.get(path)).status_code == 403
                assert (await reader.get(path)).status_code == 200
            head = at.engine.store.head
            for who, told in ((client, False), (reader, True)):
                async with who.stream("GET", "/v1/events", params={"after": "0"}) as stream:
                    text = ""
                    async for line in stream.aiter_lines():
                        text += line
                        if f":{head}" in line and line.startswith("id:"):
                            break
                assert ("secret" in text) is told


# -- life of a token --------------------------------------------------------------------------------


async def test_a_token_is_shown_once_and_kept_as_its_digest():
    async with faces() as at:
        answer = await at.engine.call(TokenNew(scopes=("read",), note="ada"), key="once")
        token = str(answer.result["token"])
        assert (token[:4], len(token.rpartition("_")[2]) <= 43, len(token)) == ("lpd_", True, 4 + 10 + 1 + 43)
        again = await at.engine.call(TokenNew(scopes=("read",), note="ada"), key="once")
        assert (again.dup, "token" in again.result, again.result["kid"]) == (
            True,
            False,
            answer.result["kid"],
        )
        image = at.engine.store.image()
        assert token.encode() not in image
        assert token[-43:].encode() not in image
        assert hashlib.sha256(token.encode()).hexdigest().encode() in image
        listed = (await at.engine.call(codec.decode_command(b'{"t":"token.list"}'))).result["tokens"]
        assert "sha256" not in json.dumps(listed)


async def test_tokens_live_on_over_a_restart_and_revoked_ones_do_not():
    async with faces() as at:
        token, other = await at.token("read"), await at.made("read")
        await at.engine.call(TokenRevoke(kid=str(other.result["kid"])))
        twin = Keyring(at.engine.clock)
        await twin.load(at.engine.store)
        assert twin.authenticate(token).scopes == {"read"}
        with pytest.raises(Refused):
            twin.authenticate(str(other.result["token"]))


async def test_revoking_ends_every_connection_in_the_middle():
    async with faces() as at:
        made = await at.made("read", "send")
        token, kid = str(made.result["token"]), str(made.result["kid"])
        other = await at.token("read")
        async with (
            at.wire(token) as wire,
            at.wire(other) as untouched,
            at.http(token) as client,
            connect(at.url.replace("http", "ws") + "/v1/ws") as ws,
        ):
            await ws.send(json.dumps({"t": "hello", "v": [1, 1], "auth": token}))
            assert json.loads(await ws.recv())["t"] == "welcome"
            async with client.stream("GET", "/v1/events") as stream:
                lines = stream.aiter_lines()
                assert await anext(lines) == "event: subd"
                await at.engine.call(TokenRevoke(kid=kid, reason="lost"))
                rest = [line async for line in lines]
            assert any('"t":"bye","why":"unauthenticated"' in line for line in rest)
            assert (await wire.until("bye"))["why"] == "unauthenticated"
            last = [message async for message in ws][-1]
            assert json.loads(str(last).splitlines()[-1])["why"] == "unauthenticated"
            assert (await client.get("/v1/status")).status_code == 401
            assert (await untouched.ask("1", {"t": "daemon.status"}))["t"] == "ok"


async def test_an_expired_token_is_worth_nothing_and_its_connections_end():
    async with faces() as at:
        await at.token("admin")  # without any token in force nothing is served at all
        token = await at.token("read", expires_ms=at.engine.clock.now_ms() + 60_000)
        async with at.wire(token) as wire, at.http(token) as client:
            assert (await client.get("/v1/status")).status_code == 200
            async with client.stream("GET", "/v1/events") as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                at.engine.clock.advance(60_000)
                rest = [line async for line in lines]
            assert any("unauthenticated" in line for line in rest)
            assert (await wire.until("bye"))["why"] == "unauthenticated"
            assert (await client.get("/v1/status")).status_code == 401
        with pytest.raises(Refused, match="it is"):
            await at.token("read", expires_ms=1)


async def test_rotating_keeps_the_rights_and_the_old_token_for_its_grace():
    async with faces() as at:
        made = await at.made("read", "cron", labels={"a": "b"}, note="ci")
        old = str(made.result["token"])
        rotate = {"t": "token.rotate", "kid": made.result["kid"], "grace_ms": 60_000}
        fresh = (await at.engine.call(codec.decode_command(json.dumps(rotate).encode()))).result
        assert (fresh["scopes"], fresh["labels"], fresh["note"], fresh["replaces"]) == (
            ["cron", "read"], {"a": "b"}, "ci", made.result["kid"],
        )  # fmt: skip
        keys = at.desk.keys
        assert keys.authenticate(old).principal != keys.authenticate(fresh["token"]).principal
        at.engine.clock.advance(60_000)
        with pytest.raises(Refused):
            keys.authenticate(old)
        keys.authenticate(fresh["token"])


async def test_wrong_tokens_are_all_refused_alike():
    async with faces() as at:
        good = await at.token("read")
        kid = good.split("_")[1]
        async with at.http() as client:
            for bad in (
                good[:-1], good + "A", good[:-1] + ("A" if good[-1] != "A" else "B"), f"lpd_{kid}_", "lpd__", "x", "lpd_" + "0" * 250,
                f"lpa_{kid}_{good[-43:]}", good.upper(), f"lpd_zz{kid[2:]}_{good[-43:]}",
            ):  # fmt: skip
                answer = await client.get("/v1/status", headers={"authorization": f"Bearer {bad}"})
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), bad
                assert answer.headers["www-authenticate"].startswith("Bearer")
            for header in ("Basic eDp5", "Bearer", "bearer x y", f"Token {good}", "Bearer " + "x" * 300):
                assert (await client.get("/v1/status", headers={"authorization": header})).status_code == 401


@pytest.mark.long
def test_the_time_of_a_comparison_tells_nothing_about_the_secret() -> None:
    keyring = Keyring(ManualClock())
    token, key = keyring.make(scopes=("read",), source="human", labels={}, note="", expires_ms=None, by="t")
    keyring.keep(key)
    near = token[:-1] + ("A" if token[-1] != "A" else "B")
    far = token[:-43] + "B" * 43
    unknown = "lpd_0000000000_" + token[-43:]

    def took(bad: str) -> float:
        begun = time.perf_counter_ns()
        for _ in range(200):
            with contextlib.suppress(Refused):
                keyring.authenticate(bad)
        return time.perf_counter_ns() - begun

    samples: dict[str, list[float]] = {near: [], far: [], unknown: []}
    for _ in range(60):
        for bad, found in samples.items():
            found.append(took(bad))
    medians = [statistics.median(found) for found in samples.values()]
    assert max(medians) / min(medians) < 1.15, medians


# -- rates and records --------------------------------------------------------------------------------


async def test_a_token_that_asks_too_much_waits_and_others_do_not():
    async with faces(rates=Rates(10, 5)) as at:
        greedy, other = await at.token("read"), await at.token("read")
        async with at.http(greedy) as client, at.http(other) as calm:
            codes = [(await client.get("/v1/status")).status_code for _ in range(8)]
            assert codes == [200] * 5 + [429] * 3
            refused = await client.get("/v1/status")
            assert 0 < refused.json()["retry_after_ms"] <= 101
            assert int(refused.headers["retry-after"]) >= 1
            assert (await calm.get("/v1/status")).status_code == 200
            at.engine.clock.advance(100)
            assert (await client.get("/v1/status")).status_code == 200
        async with dialled(at.path) as wire:
            await wire.hello()
            assert {(await wire.ask(str(n), {"t": "daemon.status"}))["t"] for n in range(50)} == {"ok"}


def test_rates_forget_who_asked_longest_ago_and_never_go_below_their_bounds() -> None:
    rates = Rates(1, 1)
    for n in range(5_000):
        rates.take(f"token:{n}", 0)
    assert len(rates._buckets) <= 4_096
    with pytest.raises(Refused):
        rates.take("token:4999", 0)
    Rates(0, 1).take("x", 0)


async def test_what_was_refused_is_in_the_audit_trail_with_who_it_was():
    async with faces() as at:
        sid = await at.engine.new(name="mapper")
        made = await at.made("read")
        token, who = str(made.result["token"]), f"token:{made.result['kid']}"
        async with at.http(token) as client:
            for _ in range(30):
                await client.post(f"/v1/sessions/{sid}/suspend", json={"reason": "x"})
        admin = await at.token("admin")
        async with at.http(admin) as client:
            entries = (await client.get("/v1/audit", params={"denied": "true"})).json()["r"]["entries"]
            assert len(entries) == 10  # of thirty: the journal is not filled by trying
            assert {(e["principal"], e["b"]["cmd"], e["b"]["code"]) for e in entries} == {
                (who, "suspend", "forbidden")
            }
            everything = (await client.get("/v1/audit", params={"principal": "uid:*"})).json()["r"]["entries"]
            assert [e["what"] for e in everything][:1] == ["session.created"]
            assert {e["what"] for e in everything} >= {"session.created", "token.created"}
            assert (await client.get("/v1/audit", params={"sid": "mapper"})).json()["r"]["entries"][0][
                "sid"
            ] == sid


async def test_messages_of_a_programs_token_never_count_as_a_persons():
    async with faces() as at:
        sid = await at.engine.new()
        program, person = await at.token("send", source="channel"), await at.token("send")
        for token in (program, person):
            async with at.http(token) as client:
                assert (await client.post(f"/v1/sessions/{sid}/send", json={"text": "hi"})).status_code == 200
        accepted = [json.loads(e.body) for e in await at.engine.events(sid, "envelope.accepted")]
        assert [body["source"] for body in accepted] == ["channel", "human"]


async def test_a_process_of_an_agent_may_show_no_token(monkeypatch: pytest.MonkeyPatch):
    async with faces() as at:
        token = await at.token("admin")
        at.server._policy = msgspec.structs.replace(at.server._policy, lineage=Everybody())
        async with dialled(at.path) as wire:
            await wire.send({"t": "hello", "v": [1, 1], "auth": token})
            assert (await wire.rest())[0]["code"] == "unauthenticated"


class Everybody:
    """Takes every process for an agent's."""

    def session_behind(self, pid: int) -> str | None:
        return "ses_1"


async def test_an_agents_own_token_opens_nothing_here():
    async with faces() as at:
        await at.token("read")
        agent = AgentTokens().issue("ses_1")
        async with at.http(agent) as client:
            for kind in COMMAND_TYPES:
                assert (await client.post("/v1/commands", json=sample(kind))).status_code == 401
        async with dialled(at.path) as wire:
            await wire.send({"t": "hello", "v": [1, 1], "auth": agent})
            assert (await wire.rest())[0]["code"] == "unauthenticated"
        with anyio.fail_after(5):
            async with connect(at.url.replace("http", "ws") + "/v1/ws") as ws:
                await ws.send(json.dumps({"t": "hello", "v": [1, 1], "auth": agent}))
                said = [json.loads(line) async for message in ws for line in str(message).splitlines()]
            assert [frame["code"] for frame in said if frame["t"] == "err"] == ["unauthenticated"]
