"""The life of a process: one owner, one ready line, an orderly end, and what systemd hears."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loopd.client import CallFailed
from loopd.testing.endpoint import Reply, say
from tests.e2e.audit import Journal
from tests.e2e.harness import NO_RULES, Daemon, DaemonDied, House, endpoint, working

pytestmark = pytest.mark.process
BUSY = {"continuation.min_gap_ms": 0, **NO_RULES}


def test_stdout_carries_the_ready_line_and_nothing_else_ever(house: House) -> None:
    daemon = house.daemon(http=True).start()
    assert set(daemon.ready) == {"ready", "socket", "http", "boot"}
    assert daemon.ready["ready"] is True
    assert daemon.ready["socket"] == daemon.socket
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.until(sid, "turn.completed", count=5)
    daemon.refusal("why", "nobody")
    assert daemon.terminate() == 0
    assert len(daemon.lines) == 1
    for line in daemon.stderr().splitlines():
        assert isinstance(json.loads(line), dict), line
    boots = [daemon.ready["boot"]]
    daemon.start()
    assert daemon.ready["boot"] not in boots
    daemon.verified()


def test_http_tells_health_and_numbers(house: House, daemon: Daemon) -> None:
    daemon = house.daemon("h", http=True).start()
    base = daemon.ready["http"]
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.until(sid, "turn.completed", count=5)
    daemon.call("suspend", sid, mode="kill")
    for path in ("/livez", "/readyz"):
        with urllib.request.urlopen(base + path, timeout=5) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(base + "/metrics", timeout=5) as answer:
        page = answer.read().decode()
    assert 'loopd_gate_closed{reason="UserSuspend"} 1.0' in page
    turns = sum(
        float(value)
        for value in re.findall(r'loopd_turns_total\{[^}]*outcome="completed"[^}]*\} (\S+)', page)
    )
    assert turns == len(daemon.events(sid, "turn.completed"))
    assert sid not in page, "no session is a label by default"
    request = urllib.request.Request(base + "/metrics", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=5)
    with refused.value:
        assert refused.value.code in {400, 403, 421}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[stoer]\nmax_bytes = 1\n", ("stoer.max_bytes", "store.max_bytes")),
        ("[drain]\nbudget = 5\n", ("drain.budget", "drain.budget_ms")),
        ("[drain]\nbudget_ms = -1\n", ("drain.budget_ms", "-1")),
        ("[limits]\nmax_sessions = 'many'\n", ("limits.max_sessions",)),
        ("[http]\nlisten = '0.0.0.0:80'\n", ("0.0.0.0", "loopback")),
        ("[sessions]\npreset = 'softened'\n", ("softened", "hardened")),
        (
            "[sessions.set]\n'rules.repeated_text.treshold' = 5\n",
            ("treshold", "rules.repeated_text.threshold"),
        ),
        ("this is = not = toml", ("TOML",)),
    ],
)
def test_a_wrong_configuration_is_refused_by_name_before_anything_is_made(
    house: House, config: str, words: tuple[str, ...]
) -> None:
    daemon = house.daemon(config=config)
    with pytest.raises(DaemonDied) as died:
        daemon.start()
    assert died.value.code == 2
    assert died.value.out == ""
    assert "Traceback" not in died.value.err
    for word in words:
        assert word in died.value.err
    assert not (daemon.data / "journal.sqlite").exists()


def test_a_second_daemon_on_the_same_data_refuses_and_names_the_owner(house: House, daemon: Daemon) -> None:
    second = house.daemon("second", argv=["--socket", str(house.folder / "other.sock")])
    second.data = daemon.data
    with pytest.raises(DaemonDied) as died:
        second.start()
    assert died.value.code == 4
    assert str(daemon.pid) in died.value.err
    assert died.value.out == ""
    assert daemon.ctl("status")["pid"] == daemon.pid
    assert not (house.folder / "other.sock").exists()


def test_a_stale_socket_is_replaced_and_a_foreign_file_is_not(house: House) -> None:
    daemon = house.daemon().start()
    daemon.kill()
    assert Path(daemon.socket).is_socket(), "kill -9 leaves the socket behind"
    daemon.start()
    assert daemon.ctl("status")["ready"] is True
    daemon.terminate()
    Path(daemon.socket).unlink(missing_ok=True)
    Path(daemon.socket).write_text("precious")
    with pytest.raises(DaemonDied) as died:
        daemon.start()
    assert daemon.socket in died.value.err
    assert Path(daemon.socket).read_text() == "precious"


def test_the_socket_and_the_journal_are_for_their_owner_only(daemon: Daemon) -> None:
    assert os.stat(daemon.socket).st_mode & 0o007 == 0
    assert os.stat(daemon.data / "journal.sqlite").st_mode & 0o077 == 0
    assert os.stat(daemon.data).st_mode & 0o007 == 0


# -- the end ----------------------------------------------------------------------------------


def test_sigterm_lets_turns_finish_within_the_budget_and_takes_no_new_work(house: House) -> None:
    daemon = house.daemon(config="[drain]\nbudget_ms = 20000\n").start()
    with endpoint([Reply(text="A slow but honest answer, word for word.", gap_ms=60)]) as (model, portal):
        sid = daemon.chat(model.base_url, goal="write", set=BUSY)
        portal.call(model.wait_for_requests, 1)
        client = daemon.client()
        client.ping()
        daemon.signal(signal.SIGTERM)
        refused = until_draining(daemon, sid)
        assert refused.code in {"draining", "unavailable"}
        assert daemon.wait() == 0
        assert len(model.requests) == 1
    daemon.start()
    assert [e["b"]["outcome"] for e in daemon.events(sid, "turn.completed")[:1]] == ["completed"]
    first = Journal(daemon.data / "journal.sqlite")
    kinds = [e["k"] for e in first.events if e["boot"] == 1]
    assert kinds[-1] == "daemon.stopped"
    assert "turn.interrupted" not in kinds
    daemon.verified()


def until_draining(daemon: Daemon, sid: str) -> CallFailed:
    """Send until it is refused: the signal needs a moment to arrive."""
    while True:
        try:
            daemon.call("send", sid, text="one more?")
        except CallFailed as refused:
            return refused


def test_sigterm_interrupts_what_does_not_finish_with_a_mark_and_its_text(house: House) -> None:
    daemon = house.daemon(config="[drain]\nbudget_ms = 300\n").start()
    with endpoint([say("and so on ", endless=True, gap_ms=10)]) as (model, portal):
        endless = [daemon.chat(model.base_url, goal="write", set=BUSY) for _ in range(3)]
        quick = daemon.scripted(house.script(working()), goal="write", set=BUSY)
        portal.call(model.wait_for_requests, 3)
        for sid in endless:
            shown(daemon, sid)
        daemon.until(quick, "turn.completed", count=3)
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert 0.3 <= time.monotonic() - began < 8
        assert model.open_streams == 0 or model.disconnects
    daemon.start()
    for sid in endless:
        (mark,) = daemon.events(sid, "turn.interrupted")
        assert mark["b"]["cause"] == "drain"
        assert "and so on" in mark["b"]["partial"]
    assert not daemon.events(quick, "turn.interrupted")
    (stopped,) = daemon.events(None, "daemon.stopped")
    assert (stopped["b"]["reason"], stopped["b"]["interrupted"]) == ("SIGTERM", 3)
    assert daemon.ctl("status")["recovered"] == 0, "an orderly end leaves nothing to recover"
    daemon.verified()


def shown(daemon: Daemon, sid: str) -> None:
    """Wait until the running turn has shown text."""
    client = daemon.client(deltas=True)
    for frame in client.subscribe(sids=[sid], timeout_s=20):
        if frame["t"] == "delta":
            client.close()
            return


@pytest.mark.parametrize("second", ["SIGTERM", "stop", "drain"])
def test_who_asks_again_and_has_less_patience_is_heard(house: House, second: str) -> None:
    daemon = house.daemon(config="[drain]\nbudget_ms = 600000\n").start()
    with endpoint([say("and so on ", endless=True, gap_ms=10)]) as (model, portal):
        sid = daemon.chat(model.base_url, goal="write", set=BUSY)
        portal.call(model.wait_for_requests, 1)
        daemon.signal(signal.SIGTERM)
        until_draining(daemon, sid)
        began = time.monotonic()
        if second == "SIGTERM":
            daemon.signal(signal.SIGTERM)
        else:
            daemon.call(f"daemon.{second}", **({"budget_ms": 100} if second == "drain" else {}))
        assert daemon.wait() == 0
        assert time.monotonic() - began < 8
    daemon.start()
    assert [m["b"]["cause"] for m in daemon.events(sid, "turn.interrupted")] == ["drain"]


@pytest.mark.parametrize("verb", ["stop", "drain"])
def test_loopctl_ends_the_daemon_and_waits_for_it(house: House, verb: str) -> None:
    daemon = house.daemon().start()
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY, delay_ms=5)
    daemon.until(sid, "turn.completed", count=2)
    daemon.ctl(verb, "--wait")
    assert daemon.wait() == 0
    daemon.start()
    (stopped,) = daemon.events(None, "daemon.stopped")
    assert stopped["b"]["reason"] == verb
    daemon.verified()


# -- systemd ------------------------------------------------------------------------------------


def test_systemd_hears_ready_watchdog_and_stopping(house: House) -> None:
    path = house.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(20)
        daemon = house.daemon(env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"})
        heard: list[str] = []

        def hear(word: str) -> None:
            while not any(word in message for message in heard):
                heard.append(manager.recv(4_096).decode())

        daemon.spawn()
        hear("READY=1")
        hear("WATCHDOG=1")
        heard.clear()
        hear("WATCHDOG=1")
        assert daemon.process is not None
        daemon.signal(signal.SIGTERM)
        hear("STOPPING=1")
        daemon.wait()


def test_a_frozen_daemon_stops_feeding_the_watchdog(house: House) -> None:
    path = house.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(20)
        daemon = house.daemon(env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "100000"})
        daemon.start()
        while b"WATCHDOG=1" not in manager.recv(4_096):
            pass
        daemon.signal(signal.SIGSTOP)
        while select.select([manager], [], [], 1)[0]:  # what was on its way already may still come
            manager.recv(4_096)
        daemon.signal(signal.SIGCONT)
        manager.settimeout(20)
        while b"WATCHDOG=1" not in manager.recv(4_096):
            pass


# -- readers --------------------------------------------------------------------------------------


def test_a_reader_that_reads_nothing_loses_nothing_and_slows_nobody(house: House, daemon: Daemon) -> None:
    sids = [
        daemon.scripted(house.script(working()), goal="write", set=BUSY, name=f"worker{n}") for n in range(4)
    ]
    log = daemon.call("daemon.status")["log"]
    frozen = daemon.client(timeout_s=60)
    asleep = frozen.subscribe(after={"log": log, "seq": 0}, timeout_s=60)
    assert next(asleep)["t"] == "subd"  # and from here on it reads nothing

    live: list[int] = []
    lags: list[float] = []
    for event in daemon.follow(kinds=[], within_s=60):
        live.append(event["seq"])
        lags.append(time.time() * 1_000 - event["ts"])
        if len(live) >= 6_000:
            break
    assert live == list(range(1, len(live) + 1)), "contiguous from the beginning"
    late = sorted(lags[2_000:])
    assert late[len(late) // 2] < 1_000, "the median of what is live is not held up"

    for sid in sids:
        daemon.call("suspend", sid, mode="kill")
    head = daemon.head()
    caught: list[int] = []
    previous = None
    for frame in asleep:
        assert frame["t"] != "gap", frame
        if frame["t"] == "ev":
            assert previous is None or frame.get("prev") == previous
            previous = frame["seq"]
            caught.append(frame["seq"])
            if frame["seq"] >= head:
                break
    assert caught == list(range(1, head + 1))
    daemon.verified()


def test_a_reader_comes_back_with_its_cursor_across_a_restart(house: House, daemon: Daemon) -> None:
    sid = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    seen: list[int] = []
    for event in daemon.follow():
        seen.append(event["seq"])
        if len(seen) == 100:
            break
    daemon.kill()
    daemon.start()
    for event in daemon.follow(after=seen[-1]):
        seen.append(event["seq"])
        if len(seen) == 400:
            break
    assert seen == list(range(1, 401))
    daemon.call("suspend", sid, mode="kill")


def test_watchers_of_one_session_get_only_its_events_and_a_snapshot_first(
    house: House, daemon: Daemon
) -> None:
    one = daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.scripted(house.script(working()), goal="write", set=BUSY)
    daemon.until(one, "turn.completed", count=5)
    client = daemon.client()
    frames = client.subscribe(sids=[one], kinds=["turn.*"], snapshot=True, timeout_s=20)
    snapshots, events = [], []
    for frame in frames:
        if frame["t"] == "snap":
            snapshots.append(frame)
        elif frame["t"] == "ev":
            events.append(frame)
            if len(events) == 20:
                break
    (session,) = [s for snap in snapshots for s in snap["sessions"]]
    assert session["sid"] == one
    assert {event["sid"] for event in events} == {one}
    assert {event["k"].split(".")[0] for event in events} == {"turn"}
    turns = [e["b"]["n"] for e in events if e["k"] == "turn.started"]
    assert turns == list(range(turns[0], turns[0] + len(turns)))
    assert turns[0] in {session["turns"], session["turns"] + 1}


def test_many_clients_at_once_are_all_served(house: House, daemon: Daemon) -> None:
    sid = daemon.scripted(house.script(working()), set={"gate.inbox_cap": 10_000})
    daemon.call("suspend", sid, quarantine=True)
    answers: list[str] = []

    def work(number: int) -> None:
        client = daemon.client()
        answers.extend(
            client.call({"t": "send", "sid": sid, "text": f"{number}.{n}"})["id"] for n in range(25)
        )

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(answers)) == 400
    assert len(daemon.call("inbox.list", sid)["envelopes"]) == 400


def test_a_relative_data_folder_is_announced_with_a_socket_that_works_from_anywhere(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(house.folder)
    daemon = house.daemon()
    daemon.data = Path("relative")
    daemon.start()
    assert daemon.ready["socket"] == str(house.folder.resolve() / "relative" / "control.sock")
    assert daemon.ctl("--socket", daemon.ready["socket"], "status")["socket"] == daemon.ready["socket"]
    daemon.terminate()


@pytest.mark.long
def test_a_watcher_that_stays_is_in_the_journal_and_a_stop_in_order_is_still_one(house: House) -> None:
    daemon = house.daemon()
    daemon.start()
    watching = daemon.follow(kinds=["watcher.attached"])
    came = next(watching)
    assert (came["b"]["via"], came["b"]["all"], came["principal"]) == ("socket", True, f"uid:{os.getuid()}")
    watching.close()  # type: ignore[attr-defined]
    gone = next(event for event in daemon.follow(kinds=["watcher.detached"]))
    assert gone["b"]["id"] == came["b"]["id"]
    assert gone["b"]["lasted_ms"] >= 5_000
    standing = daemon.follow(kinds=["watcher.attached"], after=came["seq"])
    assert next(standing)["b"]["id"] == "w2"
    assert daemon.terminate() == 0
    daemon.start()
    (boot, *_) = daemon.ctl("recover")["boots"]
    assert boot["clean"], "that everybody hung up came behind the daemon's last event"
    assert daemon.events(None)[-1]["k"] != "watcher.detached"
    daemon.verified()
