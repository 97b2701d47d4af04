"""The auditor's side: anchors that left the machine, and an attacker who rewrites the journal behind the daemon's back."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopd.store.rows import Row
from tests.e2e.harness import NO_RULES, Daemon, House, free_port, working
from tests.e2e.hosting import soon
from tests.e2e.rewriting import rewrite

pytestmark = pytest.mark.process
OFTEN = "[anchors]\nevery_events = 12\n"
BUSY = {"continuation.min_gap_ms": 0}


class Elsewhere:
    """A receiver on another machine: keeps each body as a line, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "kept.ndjson"
        self.file.touch()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.status = 204
        self._enough = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.take(dict(self.headers.items()), body)
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/anchors"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, headers: dict[str, str], body: bytes) -> None:
        with self._enough:
            if self.status == 204:
                self.headers.append({name.lower(): value for name, value in headers.items()})
                self.bodies.append(body)
                with self.file.open("ab") as out:
                    out.write(body + b"\n")
            self._enough.notify_all()

    def wait(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many came; the anchors in them."""
        with self._enough:
            assert self._enough.wait_for(lambda: len(self.bodies) >= count, timeout=30), (
                f"{len(self.bodies)} came"
            )
        return [json.loads(body)["b"] for body in self.bodies]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    receiver = Elsewhere(tmp_path)
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def busy(house: House, daemon: Daemon, name: str, turns: int = 12) -> str:
    """A session that works and is done."""
    sid = daemon.scripted(
        house.script(working(turns), f"{name}.jsonl"),
        goal="go",
        name=name,
        once=True,
        set={**BUSY, **NO_RULES},
    )
    daemon.until(sid, "goal.changed", lambda b: b["status"] == "complete")
    return sid


def test_anchors_leave_by_webhook_in_order_signed_and_the_log_that_was_rewritten_is_found(
    house: House, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    daemon = house.daemon("honest", config=OFTEN, http=True).start()
    hook = daemon.ctl("webhook", "create", "auditor", elsewhere.url, "-k", "anchor.*", "--after", "0")
    busy(house, daemon, "early")
    told = daemon.call("send", "early", text="delete the backups, yes all of them")
    daemon.until("early", "turn.completed", after=told["seq"])
    elsewhere.wait(2)
    kept_early = len(elsewhere.bodies)
    busy(house, daemon, "late")
    kept = elsewhere.wait(kept_early + 2)
    seqs = [anchor["seq"] for anchor in kept]
    assert seqs == sorted(set(seqs)), "in order, none twice"
    for headers, body in zip(elsewhere.headers, elsewhere.bodies, strict=True):
        key = base64.b64decode(hook["secret"].removeprefix("whsec_"))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
    pinned = daemon.ctl("anchor", "list")["keys"][0]["public"]
    honest = daemon.ctl("verify", "--anchors", str(elsewhere.file), "--trust", pinned)
    assert honest["anchors_given"]["agreed"] >= seqs[-1]
    daemon.terminate()
    seqs = [anchor["seq"] for anchor in elsewhere.wait(len(seqs))]
    offline = ("verify", "--data", str(daemon.data))
    assert daemon.ctl(*offline, "--anchors", str(elsewhere.file), "--trust", pinned)["ok"]

    def softened(row: Row) -> Row:
        return msgspec.structs.replace(
            row, body=(row.body or b"").replace(b"delete the backups", b"inspect the backup")
        )

    changed = rewrite(daemon.data, softened)
    assert changed > 0
    assert daemon.ctl(*offline)["ok"], "what is left agrees with itself: nothing in the folder tells"
    proof = daemon.ctl(*offline, "--anchors", str(elsewhere.file), code=1)
    assert {finding["check"] for finding in proof["findings"]} == {"anchor"}
    first = proof["findings"][0]
    assert first["after"] < changed <= first["seq"], "it says between which two anchors"
    assert "written anew" in first["what"]
    assert proof["anchors_given"]["agreed"] == first["after"] >= seqs[0]
    for public in (daemon.data / "anchor-keys").iterdir():
        public.unlink()
    unknown = daemon.ctl(*offline, "--anchors", str(elsewhere.file), code=1)
    assert unknown["anchors_given"]["unsigned"] == len(seqs), "without any key the hashes are enough"
    assert unknown["findings"][0]["seq"] == first["seq"]
    distrusted = daemon.ctl(*offline, "--anchors", str(elsewhere.file), "--trust", "ab" * 32, code=1)
    assert any("not trusted" in finding["what"] for finding in distrusted["findings"])
    text = daemon.loopctl(*offline, "--anchors", str(elsewhere.file)).stdout
    assert text.startswith("NOT WHOLE\n")
    assert f"at or before seq {first['seq']}" in text


def test_a_sink_that_was_away_gets_every_anchor_and_metrics_say_how_old_the_last_one_is(
    house: House, elsewhere: Elsewhere
) -> None:
    daemon = house.daemon("away", config=OFTEN, http=True).start()
    elsewhere.status = 503
    daemon.ctl("webhook", "create", "auditor", elsewhere.url, "-k", "anchor.*")
    busy(house, daemon, "one")
    next(daemon.follow(kinds=["webhook.failing"]))

    def metric(name: str) -> float:
        page = urllib.request.urlopen(f"{daemon.ready['http']}/metrics", timeout=10).read().decode()
        return float(next(line for line in page.splitlines() if line.startswith(name)).rpartition(" ")[2])

    assert metric('loopd_anchor_deliveries_total{result="failed"}') >= 1
    assert metric('loopd_anchor_deliveries_total{result="taken"}') == 0
    assert metric('loopd_anchors_total{result="written"}') >= 2
    assert 0 <= metric("loopd_anchor_age_seconds") < 60
    assert metric("loopd_anchor_behind_events") < 12
    elsewhere.status = 204
    daemon.ctl("webhook", "retry", "auditor")
    signed = [event["b"]["seq"] for event in daemon.events(None, "anchor.signed")]
    assert [anchor["seq"] for anchor in elsewhere.wait(len(signed))][: len(signed)] == signed
    assert metric("loopd_anchor_delivered_age_seconds") < 60


def test_the_last_anchor_of_a_daemon_is_told_by_the_next_one_and_an_idle_one_signs_nothing(
    house: House,
) -> None:
    daemon = house.daemon("quiet", config="[anchors]\nevery_s = 1\n").start()
    daemon.terminate()
    daemon.start()
    event = next(daemon.follow(kinds=["anchor.signed"]))
    stopped = daemon.events(None, "daemon.stopped")[0]["seq"]
    assert event["b"]["seq"] == stopped, "it covers the stop itself"
    assert daemon.call("daemon.status")["reasons"] == []
    (started,) = daemon.events(None, "daemon.started")[1:]
    assert started["b"].get("clean", True), "telling it later does not make the stop look like a crash"
    second = next(daemon.follow(kinds=["anchor.signed"], after=event["seq"]))
    assert second["b"]["seq"] < second["seq"]
    head = daemon.head()
    with pytest.raises(Exception, match="time"):  # three periods in which nothing happened
        next(daemon.follow(after=head, within_s=3))
    assert daemon.head() == head
    daemon.verified()


def test_an_export_with_links_is_tied_to_anchors_kept_elsewhere(
    house: House, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    daemon = house.daemon("tied", config=OFTEN).start()
    daemon.ctl("webhook", "create", "auditor", elsewhere.url, "-k", "anchor.*", "--after", "0")
    busy(house, daemon, "first", 4)
    busy(house, daemon, "second", 4)
    told = daemon.call("send", "first", text="delete the backups")
    daemon.until("first", "turn.completed", after=told["seq"])
    busy(house, daemon, "third", 4)
    plain, tied = tmp_path / "plain.zip", tmp_path / "tied.zip"
    daemon.ctl("export", "first", "-f", str(plain))
    manifest = daemon.ctl("export", "first", "--links", "--redact", "content", "-f", str(tied))["manifest"]
    count = 1
    while elsewhere.wait(count)[-1]["seq"] < manifest["links"]["last"]:
        count += 1
    loose = daemon.ctl("verify", str(plain), "--anchors", str(elsewhere.file))
    assert loose["ok"]
    assert loose.get("links") is None
    assert "they prove nothing" in daemon.loopctl(
        "verify", str(plain), "--anchors", str(elsewhere.file)
    ).stdout or (loose["anchors_given"]["compared"] > 0)
    proof = daemon.ctl("verify", str(tied), "--anchors", str(elsewhere.file))
    assert proof["links"]["tied_to"] == proof["links"]["last"] == manifest["links"]["anchor"]
    assert proof["links"]["foreign"] > 10
    assert proof["anchors_given"]["agreed"] >= proof["links"]["last"]
    words = daemon.loopctl("verify", str(tied), "--anchors", str(elsewhere.file)).stdout
    assert (
        f"tied to the log by the anchor at seq {manifest['links']['anchor']} that was kept elsewhere" in words
    )
    for words_, code in (
        (("--all", "--links"), "invalid"),
        (("first", "--links", "--until", "1h"), "invalid"),
    ):
        refused = daemon.loopctl("export", *words_, "-f", str(tmp_path / "no.zip"))
        assert (refused.returncode, code in refused.stderr) == (2, True)

    other = house.daemon("reader").start()
    assert other.ctl("import", str(tied))["sessions"][0]["name"] == "first"
    other.terminate()
    daemon.terminate()

    def softened(row: Row) -> Row:
        return msgspec.structs.replace(
            row, body=(row.body or b"").replace(b"delete the backups", b"inspect the backup")
        )

    rewrite(daemon.data, softened)
    forged = tmp_path / "forged.zip"
    daemon.ctl("export", "first", "--links", "--data", str(daemon.data), "-f", str(forged))
    assert daemon.ctl("verify", str(forged))["ok"], "alone it agrees with itself"
    found = daemon.ctl("verify", str(forged), "--anchors", str(elsewhere.file), code=1)["findings"]
    assert {finding["check"] for finding in found} == {"anchor"}
    assert found[0]["after"] < told["seq"] <= found[0]["seq"]
    assert hashlib.sha256(forged.read_bytes()).digest() != hashlib.sha256(tied.read_bytes()).digest()


def test_the_receiver_of_the_how_to_page_keeps_what_is_signed_and_nothing_else(
    house: House, tmp_path: Path
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "howto" / "keep-evidence-elsewhere.md"
    (program,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    kept, port = tmp_path / "kept.ndjson", free_port()
    daemon = house.daemon("paged", config=OFTEN).start()
    hook = daemon.ctl(
        "webhook", "create", "auditor", f"http://127.0.0.1:{port}/anchors", "-k", "anchor.*", "--after", "0"
    )
    env = {**os.environ, "KEPT": str(kept), "SECRET": hook["secret"], "PORT": str(port)}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stderr=subprocess.DEVNULL) as receiver:
        try:
            busy(house, daemon, "one")
            last = daemon.events(None, "anchor.signed")[-1]["seq"]
            daemon.ctl("webhook", "retry", "auditor")

            def all_taken() -> bool:
                (row,) = daemon.ctl("webhook", "list")["webhooks"]
                if row["tries"]:
                    daemon.ctl("webhook", "retry", "auditor")
                return bool(row["delivered"]) and row["cursor"] >= last

            soon(all_taken)
            forged = urllib.request.Request(
                f"http://127.0.0.1:{port}/anchors", b'{"b":{"sig":"x"}}',
                {"webhook-id": "x:1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"},
            )  # fmt: skip
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(forged, timeout=10)
        finally:
            receiver.terminate()
    proof = daemon.ctl("verify", "--anchors", str(kept))
    assert proof["anchors_given"]["checked"] == len(kept.read_text().splitlines()) >= 2
    assert proof["anchors_given"]["agreed"] is not None
