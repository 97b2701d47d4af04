"""Agents that run as somebody else: what their shell tries against the daemon, and what they still can do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd.testing.replies import Call, ask, say
from tests.e2e.harness import BIN, Daemon, DaemonDied, House, endpoint

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
]

SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or sys.executable
"""The tests' own may be in a folder that is closed to other users."""

ATTACKS = """
import ctypes, glob, json, os, signal, socket, sys
data, pid, agent_socket = sys.argv[1], int(sys.argv[2]), sys.argv[3]
found = {}

def attempt(name):
    def wrap(do):
        try: found[name] = repr(do())[:200]
        except BaseException as error: found[name] = "denied " + type(error).__name__
    return wrap

def connect(path, *frames):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5); s.connect(path)
        for frame in frames: s.sendall(json.dumps(frame).encode() + b"\\n")
        s.shutdown(socket.SHUT_WR)
        answer = b""
        while part := s.recv(65536): answer += part
    words = [json.loads(line) for line in answer.splitlines()]
    assert any(w["t"] in ("ok", "welcome") for w in words), words
    return words

hello = {"t": "hello", "v": [1, 1]}
freeze = {"t": "cmd", "id": "1", "c": {"t": "daemon.freeze"}}
attempt("control socket")(lambda: connect(data + "/control.sock", hello, freeze))
attempt("agent socket, no token")(lambda: connect(agent_socket, hello, freeze))
attempt("agent socket, made-up token")(lambda: connect(agent_socket, {**hello, "auth": "lpa_ses_1_" + "x" * 43}, freeze))
attempt("list the data folder")(lambda: os.listdir(data))
for name in ("journal.sqlite", "journal.sqlite-wal", "loopd.lock"):
    attempt("read " + name)(lambda: open(f"{data}/{name}", "rb").read(1))
    attempt("write " + name)(lambda: open(f"{data}/{name}", "ab").write(b"x"))
attempt("put a file beside")(lambda: open(data + "/mine", "w"))
attempt("remove the journal")(lambda: os.unlink(data + "/journal.sqlite"))
attempt("replace the control socket")(lambda: os.unlink(data + "/control.sock"))
attempt("replace the agent socket")(lambda: os.unlink(agent_socket))
for name in ("environ", "mem", "maps", "stack"):
    attempt("read the daemon's " + name)(lambda: open(f"/proc/{pid}/{name}", "rb").read(1) or 1 / 0)
attempt("look at the daemon's files")(lambda: os.listdir(f"/proc/{pid}/fd"))
attempt("open a file of the daemon")(lambda: open(glob.glob(f"/proc/{pid}/fd/*")[0]))
attempt("signal the daemon")(lambda: os.kill(pid, signal.SIGKILL))
attempt("trace the daemon")(lambda: 1 / 0 if ctypes.CDLL(None).ptrace(16, pid, 0, 0) else "traced")
attempt("become root")(lambda: os.setuid(0))
attempt("take a root group")(lambda: os.setgroups([0]))
attempt("change loopd itself")(lambda: open(sys.argv[4], "a"))
found["who"] = [os.getuid(), os.getgid(), os.getgroups(), os.environ["HOME"], os.environ["USER"]]
open("found.json", "w").write(json.dumps(found))
"""


@pytest.fixture
def fenced(house: House) -> Iterator[Daemon]:
    os.chmod(house.folder, 0o711)
    daemon = house.daemon(config='[agents]\nuser = "nobody"\n').start()
    folder = Path(daemon.call("daemon.status")["agents_socket"]).parent
    yield daemon
    if daemon.process is not None:
        daemon.terminate()
        assert not folder.exists()


def workspace(house: House) -> Path:
    work = house.folder / "work"
    work.mkdir()
    os.chown(work, 65_534, 65_534)
    return work


def test_an_agent_that_is_somebody_else_cannot_touch_the_daemon(house: House, fenced: Daemon) -> None:
    work = workspace(house)
    (house.folder / "attack.py").write_text(ATTACKS)
    status = fenced.call("daemon.status")
    assert (status["isolation"], status["agents_user"]) == ("user", "nobody")
    words = [
        SYSTEM_PYTHON, str(house.folder / "attack.py"), str(fenced.data), str(fenced.pid),
        status["agents_socket"], str(Path(__file__).parents[2] / "loopd" / "__init__.py"),
    ]  # fmt: skip
    with endpoint([ask(Call("shell", {"command": " ".join(words), "timeout_secs": 30})), say("done")]) as (
        m,
        _,
    ):
        sid = fenced.chat(m.base_url, workspace=str(work))
        fenced.call("send", sid, text="go")
        fenced.until(sid, "turn.completed")
    found = json.loads((work / "found.json").read_text())
    assert found.pop("who") == [65_534, 65_534, [], "/nonexistent", "nobody"]
    assert len(found) == 25
    assert {name: said for name, said in found.items() if not said.startswith("denied ")} == {}
    assert fenced.call("daemon.status")["frozen"] is False
    fenced.verified()


def test_its_file_tools_have_that_users_rights_too(house: House, fenced: Daemon) -> None:
    work = workspace(house)
    secret = work / "secret"
    secret.write_text("root's own")
    secret.chmod(0o600)
    calls = [
        ask(Call("read_file", {"path": "secret"})),
        ask(Call("write_file", {"path": "mine", "content": "hello"})),
        ask(Call("read_file", {"path": "mine"})),
        say("done"),
    ]
    with endpoint(calls) as (model, _):
        sid = fenced.chat(model.base_url, workspace=str(work))
        fenced.call("send", sid, text="go")
        fenced.until(sid, "turn.completed")
    steps = [event["b"]["calls"][0] for event in fenced.events(sid, "turn.step") if event["b"].get("calls")]
    assert [step["ok"] for step in steps] == [False, True, True], steps
    assert "Permission denied" in steps[0]["result"]
    assert os.stat(work / "mine").st_uid == 65_534
    assert fenced.events(sid)  # the daemon itself still has its rights


def test_a_user_that_cannot_be_taken_is_refused_at_the_start(house: House) -> None:
    for name, words in (("nosuchuser", "there is no user"), ("root", "fewer rights"), ("0", "fewer rights")):
        with pytest.raises(DaemonDied) as died:
            house.daemon(f"d{name}", config=f'[agents]\nuser = "{name}"\n').start()
        assert (died.value.code, words in died.value.err) == (2, True)


def test_status_says_whom_agents_run_as(fenced: Daemon) -> None:
    assert "agents and their tools run as 'nobody'" in fenced.loopctl("status").stdout
    assert BIN.exists()
