"""Whoever knocks without being known is in the journal, at every door, and `watch --consumer` reads it from there."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.harness import BIN, Daemon, House, raw_exchange

pytestmark = pytest.mark.process


def asked(daemon: Daemon, method: str, path: str, body: str | None = None, **headers: str) -> int:
    """One request; its status."""
    line = http.client.HTTPConnection(urlsplit(daemon.ready["http"]).netloc, timeout=10)
    try:
        line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        return line.getresponse().status
    finally:
        line.close()


def hello(path: str, token: str | None) -> list[dict[str, Any]]:
    said = {"t": "hello", "v": [1, 1], "client": {"name": "x"}}
    return raw_exchange(path, json.dumps(said | ({} if token is None else {"auth": token})).encode() + b"\n")


@pytest.fixture
def daemon(house: House) -> Daemon:
    """A daemon with an HTTP door and a token, so that it is open."""
    daemon = house.daemon("doors", http=True).start()
    daemon.call("token.new", scopes=["read"])
    return daemon


KNOCKS: dict[str, tuple[Callable[[Daemon], object], str, str, str]] = {
    "no token": (lambda d: asked(d, "GET", "/v1/welcome"), "http", "ip:127.0.0.1", "unauthenticated"),
    "wrong token": (
        lambda d: asked(d, "GET", "/v1/events", authorization="Bearer lpd_aa_" + "x" * 43),
        "http", "ip:127.0.0.1", "unauthenticated",
    ),
    "wrong cookie": (lambda d: asked(d, "GET", "/v1/me", cookie="loopd=x.1.y.z"), "http", "ip:127.0.0.1", "unauthenticated"),
    "wrong login": (
        lambda d: asked(d, "POST", "/v1/login", '{"token":"lpd_no"}', content_type="application/json"),
        "http", "ip:127.0.0.1", "unauthenticated",
    ),
    "another name": (lambda d: asked(d, "GET", "/v1/welcome", host="evil.example"), "http", "ip:127.0.0.1", "not_owner"),
    "a foreign page": (
        lambda d: asked(d, "POST", "/v1/commands", "{}", origin="https://evil.example"),
        "http", "ip:127.0.0.1", "forbidden",
    ),
    "wrong token at the socket": (lambda d: hello(d.socket, "lpd_aa_" + "y" * 43), "control", "uid:", "unauthenticated"),
    "no token at the agents' socket": (
        lambda d: hello(str(d.data / "agent.sock"), None), "agent", "uid:", "unauthenticated",
    ),
}  # fmt: skip


def test_every_door_writes_down_who_was_turned_away(daemon: Daemon) -> None:
    for knock, _, _, _ in KNOCKS.values():
        knock(daemon)
    asked(daemon, "GET", "/v1/me")  # the page, before anybody has logged in: no attempt
    asked(daemon, "GET", "/livez")
    first = daemon.events(None, "access.refused")
    assert len(first) == 1, "the first one at once, the others with the next event"
    daemon.terminate()
    daemon.start()
    told = [attempt for event in daemon.events(None, "access.refused") for attempt in event["b"]["attempts"]]
    total = sum(attempt.get("count", 1) for attempt in told)
    assert total == len(KNOCKS)
    for name, (_, door, source, code) in KNOCKS.items():
        assert any((a["door"], a["code"]) == (door, code) and a["source"].startswith(source) for a in told), (
            name,
            told,
        )
    assert "evil" not in json.dumps(told), "nothing that a stranger says is written down"


def test_a_token_that_was_revoked_is_named_and_its_secret_is_not(daemon: Daemon) -> None:
    made = daemon.call("token.new", scopes=["read"])
    daemon.call("token.revoke", kid=made["kid"])
    assert asked(daemon, "GET", "/v1/welcome", authorization=f"Bearer {made['token']}") == 401
    event = next(daemon.follow(kinds=["access.refused"]))
    (attempt,) = event["b"]["attempts"]
    assert (attempt["kid"], attempt.get("count", 1)) == (made["kid"], 1)
    assert made["token"] not in json.dumps(event)
    words = daemon.loopctl("watch", "--after", "0", "-k", "access.*", "-n", "1").stdout
    assert f"1× ip:127.0.0.1 at http with token {made['kid']}: unauthenticated" in words


def test_ten_thousand_knocks_are_one_event_a_minute(daemon: Daemon) -> None:
    asked(daemon, "GET", "/v1/welcome")
    before = daemon.head()
    line = http.client.HTTPConnection(urlsplit(daemon.ready["http"]).netloc, timeout=10)
    for _ in range(1_000):
        line.request("GET", "/v1/welcome", headers={"authorization": "Bearer lpd_aa_" + "x" * 43})
        assert line.getresponse().read()
    line.close()
    assert daemon.head() - before <= 1, "the minute is not over"
    daemon.terminate()
    daemon.start()
    events = daemon.events(None, "access.refused")
    assert len(events) == 2
    assert sum(a.get("count", 1) for e in events for a in e["b"]["attempts"]) == 1_001


def test_a_consumer_is_watched_where_it_was_left_and_acknowledged_behind_the_output(daemon: Daemon) -> None:
    daemon.ctl("consumer", "create", "auditor", "--after", "0", "-k", "token.*", "-k", "daemon.*")
    first = daemon.loopctl("watch", "--consumer", "auditor", "-n", "2", "-o", "ndjson")
    seen = [json.loads(line)["seq"] for line in first.stdout.splitlines()]
    (row,) = daemon.ctl("consumer", "list")["consumers"]
    assert row["cursor"]["seq"] == seen[-1]
    daemon.call("token.new", scopes=["read"])
    rest = daemon.loopctl("watch", "--consumer", "auditor", "-n", "2", "-o", "json")
    again = [event["seq"] for event in json.loads(rest.stdout)["events"]]
    assert min(again) > max(seen), "nothing twice"
    every = [event["seq"] for event in daemon.events(None, "token.*", "daemon.*")]
    assert seen + again == every[: len(seen) + len(again)], "and nothing left out"
    by_url = daemon.call("token.new", scopes=["read", "admin"])
    (owned,) = daemon.ctl("consumer", "list")["consumers"]
    assert owned["name"] == "auditor"
    away = subprocess.run(
        [str(BIN / "loopctl"), "watch", "--consumer", "auditor", "-n", "1", "-o", "ndjson", "--url", daemon.ready["http"]],
        capture_output=True, text=True, timeout=30, check=False, env={**daemon.env, "LOOPD_TOKEN": by_url["token"]},
    )  # fmt: skip
    assert away.returncode == 0, away.stderr
    assert json.loads(away.stdout)["seq"] > max(again)


def test_a_consumer_that_reads_nothing_wanted_does_not_fall_behind(house: House) -> None:
    daemon = house.daemon("beats", config="").start()
    daemon.ctl("consumer", "create", "c", "--after", "0", "-k", "session.*")
    done = daemon.loopctl("watch", "--consumer", "c", "--timeout", "12s", "-o", "ndjson")
    assert done.returncode == 7, done.stderr
    (row,) = daemon.ctl("consumer", "list")["consumers"]
    created = daemon.events(None, "consumer.created")[0]["seq"]
    assert row["cursor"]["seq"] >= created, "a heartbeat said up to where nothing was wanted"
    assert row["lag"] <= 1, "that the watcher has left"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--consumer", "nobody"), 3, "consumer create nobody"),
        (("--consumer", "c", "--after", "3"), 2, "a place of its own"),
        (("--consumer", "c", "--cursor-file", "f"), 2, "a place of its own"),
        (("--consumer", "c", "-k", "gate.*"), 2, "a selection of its own"),
    ],
)
def test_what_a_consumer_cannot_be_asked_for_is_said(
    shared: Daemon, words: tuple[str, ...], code: int, said: str
) -> None:
    done = shared.loopctl("watch", *words, "-n", "1")
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
