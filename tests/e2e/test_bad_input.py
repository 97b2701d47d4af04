"""Bad input gets a clear error and changes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from loopd.client import CallFailed
from loopd.testing.endpoint import say
from tests.e2e.harness import (
    NO_RULES,
    Daemon,
    DaemonDied,
    House,
    endpoint,
    now_ms,
    raw_exchange,
    working,
)

pytestmark = pytest.mark.process
HELLO = b'{"t":"hello","v":[1,1]}\n'
BUSY = {"continuation.min_gap_ms": 0, **NO_RULES}


@pytest.fixture
def unchanged(shared: Daemon) -> Iterator[Daemon]:
    """A daemon whose log must not have grown by anything but refusals when the test is over."""
    before = shared.head()
    yield shared
    added = shared.events(after=before)
    assert [event["k"] for event in added if event["k"] != "command.denied"] == []


# -- frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bad_frame"),
        (b"\x00\x01\x02\n", "bad_frame"),
        (b'{"t":"hello"\n', "bad_frame"),
        (b"[]\n", "bad_frame"),
        (b'{"t":"hello","v":7}\n', "invalid"),
        (b'{"t":"cmd","id":"1","c":{"t":"daemon.status"}}\n', "unauthenticated"),
        (b"x" * 20_000 + b"\n", "frame_too_large"),
        (b"x" * 20_000, "frame_too_large"),
        (b"[" * 10_000 + b"]" * 10_000 + b"\n", "frame_too_large"),
        (b"[" * 5_000 + b"]" * 5_000 + b"\n", "bad_frame"),
    ],
)
def test_bytes_that_are_no_greeting_get_one_error_and_the_door(
    unchanged: Daemon, sent: bytes, code: str
) -> None:
    frames = raw_exchange(unchanged.socket, sent)
    errors = [frame for frame in frames if frame["t"] == "err"]
    assert [error["code"] for error in errors][:1] == [code], frames
    assert errors[0]["msg"]
    assert unchanged.ctl("status")["ready"] is True


def deep(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    ("command", "code", "path"),
    [
        (b'{"t":"suspend","sid":"x","untl":5}', "unknown_field", "untl"),
        (b'{"t":"suspend","sid":"x","until_ms":"soon"}', "invalid", "until_ms"),
        (b'{"t":"suspend","sid":"x","until_ms":-5}', "invalid", "until_ms"),
        (b'{"t":"suspend","sid":"x","until_ms":1e99}', "invalid", "until_ms"),
        (b'{"t":"suspend","sid":"x","until_ms":123456789012345678901234567890}', "invalid", "until_ms"),
        (b'{"t":"suspend","sid":"x","mode":"softly"}', "invalid", "mode"),
        (b'{"t":"suspend","sid":7}', "invalid", "sid"),
        (b'{"t":"suspend"}', "invalid", "sid"),
        (b'{"t":"suspend","sid":"no-such-session"}', "not_found", ""),
        (b'{"t":"send","sid":"x","text":""}', "invalid", "text"),
        (b'{"t":"send","sid":"../../etc/passwd","text":"a"}', "invalid", "sid"),
        (b'{"t":"interrupt","sid":"x","for_ms":-1}', "invalid", "for_ms"),
        (b'{"t":"interrupt","sid":"x","for_ms":0}', "invalid", "for_ms"),
        (b'{"t":"budget.spend","sid":"x","tokens":-1}', "unknown_type", ""),
        (b'{"t":"daemon.drain","budget_ms":-1}', "invalid", "budget_ms"),
        (b'{"t":"cron.history","sid":"x","limit":-1}', "invalid", "limit"),
        (b'{"t":"history.page","limit":1001}', "invalid", "limit"),
        (b'{"t":"gate.extend","sid":"x","kind":"Sleepiness","until_ms":5}', "invalid", "kind"),
        (b'{"t":"session.create","driver":{"kind":"telepathy"}}', "invalid", "driver"),
        (b'{"t":"session.create","driver":{"kind":"chat","base_url":"ftp://x","model":"m"}}', "invalid", ""),
        (b'{"t":"self.destruct"}', "unknown_type", ""),
        (b'{"sid":"x"}', "", ""),
        (b"7", "", ""),
        (b'{"t":"send","sid":"x","text":"\\ud800"}', "", ""),
        (deep(70), "", ""),
        (deep(50_000), "", ""),
        (b"[" * 200_000 + b"]" * 200_000, "", ""),
    ],
)
def test_a_bad_command_is_refused_with_its_code_and_the_next_one_works(
    unchanged: Daemon, command: bytes, code: str, path: str
) -> None:
    frame = b'{"t":"cmd","id":"1","c":' + command + b"}\n"
    ask = b'{"t":"cmd","id":"2","c":{"t":"daemon.status"}}\n'
    frames = raw_exchange(unchanged.socket, HELLO, frame, ask)
    error = next(f for f in frames if f["t"] == "err")
    assert error["msg"]
    if code:
        assert error["code"] == code, error
        assert path in (error.get("path") or "") + error["msg"], error
        assert any(f["t"] == "ok" and f["id"] == "2" for f in frames), frames
    else:
        assert error["code"] in {"bad_frame", "invalid", "unknown_type", "not_found"}, error
    assert unchanged.ctl("status")["ready"] is True


def test_an_oversized_command_is_refused_and_the_daemon_goes_on(unchanged: Daemon) -> None:
    text = b"x" * (2 << 20)
    frame = b'{"t":"cmd","id":"1","c":{"t":"send","sid":"x","text":"' + text + b'"}}\n'
    frames = raw_exchange(unchanged.socket, HELLO, frame)
    assert [f["code"] for f in frames if f["t"] == "err"] == ["frame_too_large"]
    assert unchanged.call("daemon.status")["ready"] is True


def test_a_client_of_another_age_may_only_look_freeze_drain_and_stop(unchanged: Daemon) -> None:
    hello = b'{"t":"hello","v":[90,99],"news":"from the future"}\n'
    asks = b'{"t":"cmd","id":"1","c":{"t":"session.list"}}\n{"t":"cmd","id":"2","c":{"t":"daemon.status"}}\n'
    welcome, *answers = raw_exchange(unchanged.socket, hello, asks)
    assert (welcome["t"], welcome["v"], welcome["caps"]) == ("welcome", 0, ["core-0"])
    by_id = {answer["id"]: answer for answer in answers if "id" in answer}
    assert by_id["1"]["code"] == "unsupported_version"
    assert by_id["2"]["r"]["ready"] is True


def test_a_hundred_connections_that_say_half_a_frame_cost_nobody_anything(unchanged: Daemon) -> None:
    peers = []
    for _ in range(100):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(unchanged.socket)
        peer.sendall(HELLO[:11])
        peers.append(peer)
    assert unchanged.ctl("status")["ready"] is True
    for peer in peers:
        peer.close()


def test_values_that_a_session_cannot_have_are_refused_by_name(house: House, unchanged: Daemon) -> None:
    script = str(house.script(working()))
    spec = {"kind": "scripted", "script": script}

    def refused(code: str, word: str, **fields: Any) -> None:
        error = unchanged.refusal("session.create", driver={**spec, **fields.pop("driver", {})}, **fields)
        assert error.code == code, error
        assert word in error.message, error

    refused("invalid", "-5", set={"rules.repeated_text.threshold": -5})
    refused("invalid", "continuation.min_gap_ms", set={"continuation.min_gap_ms": -1})
    refused("invalid", "turn.max_steps", set={"turn.max_steps": 0})
    refused("invalid", "gate.provider_backoff_ms", set={"gate.provider_backoff_ms": "many"})
    refused("unknown_field", "rules.repeated_text.threshold", set={"rules.repeated_text.treshold": 5})
    refused("invalid", "softened", preset="softened")
    refused("unknown_field", "", driver={"colour": "red"})
    refused("invalid", "", driver={"delay_ms": -1})
    refused("invalid", "", name="../up")
    refused("invalid", "", labels={"": "x"})
    assert unchanged.ctl("ps")["sessions"] == unchanged.call("session.list")["sessions"]


def test_a_script_that_is_no_trajectory_is_refused_with_file_and_line(
    house: House, unchanged: Daemon
) -> None:
    good = house.script(working()).read_text().splitlines()
    cases: dict[str, tuple[bytes, str]] = {
        "missing.jsonl": (b"", "No such file"),
        "empty.jsonl": (b"", "no trajectory"),
        "text.jsonl": (b"hello\n", "line 1"),
        "json.jsonl": (b"[1,2]\n", "line 1"),
        "headless.jsonl": (good[1].encode() + b"\n", "line 1"),
        "broken.jsonl": ("\n".join([good[0], good[1], '{"t":"step","text":7}']).encode(), "line 3"),
        "future.jsonl": (b'{"t":"trajectory","v":9}\n', "version 9"),
        "binary.jsonl.gz": (b"\x1f\x8b\x08garbage", "line"),
        "nothing.jsonl": (good[0].encode() + b"\n", "without steps"),
    }
    for name, (content, word) in cases.items():
        path = house.folder / name
        if name != "missing.jsonl":
            path.write_bytes(content)
        error = unchanged.ctl("new", "--driver", "scripted", "--script", str(path), code=2)["error"]
        assert error["code"] == "invalid"
        assert name in error["message"], error
        assert word in error["message"], error
    error = unchanged.ctl("new", "--driver", "scripted", "--script", str(house.folder), code=2)["error"]
    assert error["code"] == "invalid"


def test_unknown_sessions_and_turns_exit_with_3(unchanged: Daemon) -> None:
    for words in (
        ("why", "nobody"),
        ("send", "nobody", "hello"),
        ("suspend", "nobody"),
        ("tail", "nobody"),
        ("show", "nobody@1"),
        ("goal", "set", "nobody", "x"),
        ("cron", "run", "nobody", "job"),
        ("inbox", "nobody"),
        ("end", "nobody"),
        ("verify", "nobody"),
    ):
        error = unchanged.ctl(*words, code=3)["error"]
        assert (error["code"], error["exit"]) == ("not_found", 3)
        assert "nobody" in error["message"]


def test_usage_errors_exit_with_2_and_change_nothing(unchanged: Daemon) -> None:
    for words in (
        ("suspend",),
        ("suspend", "--until", "yesterday-ish", "x"),
        ("new", "--driver", "chat"),
        ("frobnicate",),
        ("verify", "--suspended-since", "-3"),
        ("interrupt", "x", "--for", "-5m"),
        ("new", "--driver", "scripted", "--script", "x", "--set", "nothing"),
    ):
        done = unchanged.loopctl(*words)
        assert done.returncode == 2, (words, done)
        assert done.stderr.strip()
        assert done.stdout == ""
        assert "Traceback" not in done.stderr


def test_no_daemon_is_an_error_that_names_the_socket_and_exits_with_6(house: House) -> None:
    daemon = house.daemon()
    error = daemon.ctl("status", code=6)["error"]
    assert daemon.socket in error["message"]


def test_the_same_key_is_carried_out_once_and_never_for_another_command(house: House, shared: Daemon) -> None:
    sid = shared.scripted(house.script(working()))
    shared.call("suspend", sid, quarantine=True)
    client = shared.client()
    first = client.ask({"t": "send", "sid": sid, "text": "once"}, key="k1")
    again = client.ask({"t": "send", "sid": sid, "text": "once"}, key="k1")
    assert (first["r"], first["seq"]) == (again["r"], again["seq"])
    assert again["dup"] is True
    with pytest.raises(CallFailed, match="idempotency_conflict"):
        client.ask({"t": "send", "sid": sid, "text": "twice"}, key="k1")
    dedupe = [client.call({"t": "send", "sid": sid, "text": "x", "dedupe": "d1"}) for _ in range(3)]
    assert len({answer["id"] for answer in dedupe}) == 1
    assert len(shared.call("inbox.list", sid)["envelopes"]) == 2
    with pytest.raises(CallFailed, match="precondition_failed"):
        client.ask({"t": "send", "sid": sid, "text": "late"}, if_gate_gen=99)


# -- the disk -------------------------------------------------------------------------------------


def test_a_full_journal_refuses_writes_keeps_what_it_had_and_goes_on_with_more_room(house: House) -> None:
    daemon = house.daemon(config=f"[store]\nmax_bytes = {2 << 20}\n", http=True).start()
    sid = daemon.scripted(house.script(working()))
    daemon.call("suspend", sid, quarantine=True)
    filled = fill(daemon, sid)
    assert filled
    assert daemon.call("why", sid)["gate"] == "closed", "reads go on"
    refused = daemon.ctl("send", sid, "x" * 100_000, code=6)["error"]
    assert (refused["code"], refused["exit"]) == ("storage_full", 6)
    assert http_status(daemon, "/livez") == 200
    held = {w["id"] for w in daemon.call("why", sid)["held_back"]}
    assert held <= filled
    assert len(held) == min(len(filled), 100)
    daemon.kill()
    daemon.config = ""
    daemon.start()
    assert {w["id"] for w in daemon.call("why", sid)["held_back"]} == held
    daemon.call("unsuspend", sid)
    started = daemon.until(sid, "turn.started")
    assert set(started["b"]["envelopes"]) == held
    daemon.verified()


def fill(daemon: Daemon, sid: str) -> set[str]:
    """Send until there is no room; returns the acknowledged ids."""
    acknowledged: set[str] = set()
    dice = sha256(b"text that cannot be compressed")
    for _ in range(2_000):
        dice.update(b".")
        text = "".join(sha256(dice.digest() + bytes([n % 256])).hexdigest() for n in range(500))
        try:
            acknowledged.add(daemon.call("send", sid, text=text)["id"])
        except CallFailed as refused:
            if refused.code != "storage_full":
                raise
            return acknowledged
    raise AssertionError("it never got full")


def http_status(daemon: Daemon, path: str) -> int:
    """Status of a GET."""
    try:
        with urllib.request.urlopen(daemon.ready["http"] + path, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)


SMALL_BALLAST = f"[store]\nballast_bytes = {4 << 20}\n"


@pytest.fixture
def small_disk(house: House) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = house.folder / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        for daemon in house.daemons:
            daemon.close()
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_refuses_writes_and_the_daemon_recovers_when_there_is_room(
    house: House, small_disk: Path
) -> None:
    daemon = house.daemon("disk/d", http=True, config=SMALL_BALLAST).start()
    script = house.script(working())
    sid = daemon.scripted(script)
    daemon.call("suspend", sid, quarantine=True)
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        file.write(b"x" * max(0, free - (1 << 20)))
    acknowledged = fill(daemon, sid)
    assert daemon.ctl("why", sid)["gate"] == "closed"
    assert daemon.ctl("send", sid, "x" * 100_000, code=6)["error"]["code"] == "storage_full"
    assert http_status(daemon, "/livez") == 200
    filler.unlink()
    sent = recovered(lambda: daemon.call("send", sid, text="room again"))
    acknowledged.add(sent["id"])
    assert {w["id"] for w in daemon.call("why", sid)["held_back"]} <= acknowledged
    daemon.verified()
    daemon.kill()
    daemon.start()
    accepted = {e["b"]["id"] for e in daemon.events(sid, "envelope.accepted")}
    assert acknowledged <= accepted
    daemon.verified()


def recovered(call: Any) -> dict[str, Any]:
    """The answer, once the daemon takes writes again: within seconds of there being room."""
    deadline = now_ms() + 10_000
    while True:
        try:
            return dict(call())
        except CallFailed as refused:
            if refused.code not in {"storage_full", "storage_readonly"} or now_ms() > deadline:
                raise
            os.sched_yield()


def test_a_working_session_survives_a_full_disk(house: House, small_disk: Path) -> None:
    daemon = house.daemon("disk/d", config=SMALL_BALLAST).start()
    with endpoint([say("Chapter {n}. " + "words " * 500)]) as (model, _):
        sid = daemon.chat(model.base_url, goal="write", set=BUSY)
        daemon.until(sid, "turn.completed", count=3)
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            file.write(b"x" * max(0, free - (256 << 10)))
        while '"storage_full"' not in daemon.stderr():
            assert daemon.call("daemon.status")["pid"] == daemon.pid
        turns = daemon.events(sid, "turn.started")[-1]["b"]["n"]
        filler.unlink()
        after = daemon.head()
        daemon.until(sid, "turn.completed", lambda b: b["n"] > turns + 1, after=after)
        recovered(lambda: daemon.call("suspend", sid, mode="kill"))
    daemon.verified()


def test_a_corrupt_database_is_refused_as_corrupt_and_left_untouched(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()))
    daemon.call("send", sid, text="hello")
    daemon.until(sid, "turn.completed")
    daemon.terminate()
    file = daemon.data / "journal.sqlite"
    whole = file.read_bytes()

    def refuses(damaged: bytes) -> None:
        file.write_bytes(damaged)
        for extra in ("-wal", "-shm"):
            Path(f"{file}{extra}").unlink(missing_ok=True)
        with pytest.raises(DaemonDied) as died:
            daemon.start()
        assert died.value.code not in {0, None}
        assert died.value.out == ""
        assert "corrupt" in died.value.err
        assert "Traceback" not in died.value.err
        assert file.read_bytes() == damaged
        daemon.close()
        daemon._err.unlink()

    refuses(b"this is no database at all\n" * 100)
    refuses(whole[:1_000])
    edited = house.folder / "edited"
    edited.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(edited)) as copy:
        copy.execute(
            "UPDATE journal SET body = CAST(replace(CAST(body AS TEXT), 'hello', 'jello') AS BLOB) "
            "WHERE kind = 'envelope.accepted'"
        )
        copy.commit()
    damaged = edited.read_bytes()
    file.write_bytes(damaged)
    daemon.start()  # it can be read: to be looked at, and nothing else
    assert daemon.call("daemon.status")["reasons"] == ["corrupt"]
    assert daemon.call("session.get", sid)["turns"] == 1
    assert daemon.call("why", sid)["house"] == "corrupt"
    refused = daemon.refusal("send", sid, text="more")
    assert refused.code == "corrupt"
    assert "does not match its hash" in refused.message
    assert daemon.refusal("session.create", driver={"kind": "scripted", "script": "x"}).code == "corrupt"
    proof = daemon.ctl("verify", code=1)
    assert proof["ok"] is False
    assert daemon.terminate() == 0
    assert file.read_bytes() == damaged, "never repaired"
    file.write_bytes(whole)
    daemon.start()
    assert daemon.call("session.get", sid)["turns"] == 1
    daemon.verified()


def test_a_flipped_bit_anywhere_in_the_journal_is_found_by_verify(house: House) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.until(sid, "turn.completed", count=120)
    daemon.call("suspend", sid, mode="kill")
    daemon.terminate()
    with contextlib.closing(sqlite3.connect(daemon.data / "journal.sqlite")) as db:
        row = db.execute("SELECT seq, body FROM journal WHERE kind = 'turn.step' ORDER BY seq LIMIT 1")
        seq, body = row.fetchone()
        db.execute("UPDATE journal SET body = ? WHERE seq = ?", (body.replace(b"report", b"rapport"), seq))
        db.commit()
    daemon.start()  # only the end of the log is checked at a start
    proof = daemon.ctl("verify", code=1)
    assert proof["ok"] is False
    assert {"chain", "session chain"} <= {finding["check"] for finding in proof["findings"]} or seq in {
        finding.get("seq") for finding in proof["findings"]
    }
    assert json.dumps(proof)
