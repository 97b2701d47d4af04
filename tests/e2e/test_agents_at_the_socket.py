"""An agent that uses its shell against the daemon that holds it: real processes, real sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopd.server.lineage import UNKNOWN, Lineage
from loopd.testing.replies import Call, ask, say
from loopd_protocol.errors import Refused
from tests.e2e.harness import BIN, Daemon, House, endpoint

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

PLAIN = "LOOPD_SOCKET={socket} {ctl} freeze >out 2>&1; echo $? >code"
NO_ENVIRONMENT = "env -i LOOPD_SOCKET={socket} sh -c '{ctl} freeze >out 2>&1; echo $? >code'"
EXECUTED = "exec env -i LOOPD_SOCKET={socket} sh -c '{ctl} freeze >out 2>&1; echo $? >code'"
ORPHAN = (
    "env -i LOOPD_SOCKET={socket} setsid sh -c '(while kill -0 $$; do sleep 0.05; done; "
    "{ctl} freeze >out 2>&1; echo $? >code.part; mv code.part code) 2>/dev/null &'; "
    "while [ ! -e code ]; do sleep 0.05; done"
)
HEIR = (
    "exec env -i {python} -c '\n"
    "import os, socket, sys\n"
    's = socket.socket(socket.AF_UNIX); s.connect("{socket}")\n'
    'os.fork() and os._exit(0)\nfile = s.makefile("rwb")\nanswer = b""\n'
    "try:\n"
    '    file.write(b"{{\\"t\\":\\"hello\\",\\"v\\":[1,1]}}\\n"); file.flush(); file.readline()\n'
    '    file.write(b"{{\\"t\\":\\"cmd\\",\\"id\\":\\"1\\",\\"c\\":{{\\"t\\":\\"daemon.freeze\\"}}}}\\n"); file.flush()\n'
    "    answer = file.readline()\n"
    "except OSError: pass\n"
    # the daemon may hang up before it is heard: that is a refusal as well
    'open("out", "wb").write(answer or b"unauthenticated: hung up"); open("code.part", "w").write("5")\n'
    'os.rename("code.part", "code")\' & while [ ! -e code ]; do sleep 0.05; done'
)


@pytest.mark.parametrize("attack", [PLAIN, NO_ENVIRONMENT, EXECUTED, ORPHAN, HEIR])
def test_an_agent_may_not_command_its_own_daemon_from_its_shell(
    house: House, daemon: Daemon, attack: str
) -> None:
    work = house.folder / "work"
    work.mkdir()
    command = attack.format(socket=daemon.socket, ctl=BIN / "loopctl", python=sys.executable)
    with endpoint([ask(Call("shell", {"command": command, "timeout_secs": 20})), say("done")]) as (model, _):
        sid = daemon.chat(model.base_url, workspace=str(work))
        daemon.call("send", sid, text="go")
        daemon.until(sid, "turn.completed")
    assert (work / "code").read_text().strip() == "5", (work / "out").read_text()
    said = (work / "out").read_text()
    assert "forbidden" in said or "unauthenticated" in said
    assert daemon.call("daemon.status")["frozen"] is False
    if "forbidden" in said:
        denied = [event["b"] for event in daemon.events(None, "command.denied")]
        assert [(body["cmd"], body["code"]) for body in denied] == [("daemon.freeze", "forbidden")]
        assert denied[0]["principal"] in {f"agent:{sid}", f"agent:{UNKNOWN}"}


def test_trying_for_ever_does_not_fill_the_journal(house: House, daemon: Daemon) -> None:
    code = (
        "import os\nfrom loopd.client import CallFailed, Client\n"
        f"c = Client({daemon.socket!r})\nrefused = 0\n"
        "for _ in range(500):\n"
        "    try: c.call({'t': 'daemon.status'})\n"
        "    except CallFailed as e: refused += e.code == 'forbidden'\n"
        "print(refused)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LOOPD_SESSION": "ses_other"},
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.strip() == "500"
    assert len(daemon.events(None, "command.denied")) == 10


def test_an_agent_cannot_take_the_operators_places(house: House, daemon: Daemon) -> None:
    code = (
        "import socket, sys\nheld = []\n"
        "for _ in range(300):\n"
        f"    s = socket.socket(socket.AF_UNIX); s.connect({daemon.socket!r}); held.append(s)\n"
        '    s.sendall(b\'{"t":"hello","v":[1,1]}\\n\')\n'
        "print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "LOOPD_SESSION": "ses_other"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as greedy:
        assert greedy.stdout is not None
        assert greedy.stdout.readline() == b"held\n"
        assert daemon.ctl("freeze")["frozen"] is True
        assert daemon.stderr().count('"peer refused"') == 292
        greedy.communicate(timeout=10)


def test_status_says_that_there_is_no_isolation(daemon: Daemon) -> None:
    assert (daemon.ctl("status")["isolation"], daemon.ctl("status")["agents_refused"]) == ("none", True)
    assert "isolation  none: shell tools have all rights" in daemon.loopctl("status").stdout


def test_who_lives_in_another_daemons_session_is_nobodys_agent_here(house: House) -> None:
    nested = house.daemon(env={"LOOPD_SESSION": "ses_outer"}).start()
    done = subprocess.run(
        [str(BIN / "loopctl"), "status", "-o", "json"],
        env={**os.environ, "LOOPD_SESSION": "ses_outer", "LOOPD_SOCKET": nested.socket},
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert json.loads(done.stdout)["ready"] is True


def test_a_process_that_is_gone_is_refused(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    with pytest.raises(Refused) as refused:
        Lineage(daemon=1).session_behind(gone.pid)
    assert refused.value.code == "unauthenticated"


def test_a_huge_environment_hides_nothing() -> None:
    stuffed = {f"V{n}": "x" * 100_000 for n in range(11)} | {"LOOPD_SESSION": "ses_1"}
    process = subprocess.Popen(["sleep", "30"], env={"PATH": os.environ["PATH"], **stuffed})
    try:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            pass
        assert Lineage().session_behind(process.pid) == UNKNOWN
    finally:
        process.kill()
        process.wait(10)


def test_adopted_orphans_are_let_go_and_own_children_are_left_to_who_waits_for_them() -> None:
    code = (
        "import os, subprocess\nfrom loopd.server.lineage import adopt_orphans, reap\n"
        "assert adopt_orphans()\n"
        "read, write = os.pipe()\n"
        "subprocess.run(['sh', '-c', '(sleep 0.2; echo) &'], stdout=write, check=True)\n"
        "os.close(write); os.read(read, 1); assert os.read(read, 1) == b''\n"
        "orphans = frozenset()\n"
        "while not orphans: orphans = reap(frozenset())\n"
        "own = subprocess.Popen(['true']); os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)\n"
        "later = reap(orphans)\n"
        "assert later == {own.pid}, (later, own.pid, orphans)\n"
        "assert own.wait() == 0\n"
        "assert reap(frozenset()) == frozenset()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_the_daemons_memory_and_environment_are_closed_to_its_own_user() -> None:
    code = (
        "import ctypes\nfrom loopd.server.lineage import close_memory\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 1\n"  # PR_GET_DUMPABLE
        "assert close_memory()\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
