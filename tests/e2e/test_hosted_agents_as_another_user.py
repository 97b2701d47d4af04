"""A hosted agent runs as the user that the daemon was told of, and reaches nothing of the daemon's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from loopd.drivers.acp.launch import HOMELESS, Premises
from tests.e2e.harness import House
from tests.e2e.hosting import soon

PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as somebody else"),
    pytest.mark.skipif(PYTHON is None, reason="no Python that every user can run in /usr/bin"),
]
AGENT = """
import json, os, socket, sys
def put(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def tried(what):
    try: return str(what())
    except Exception as error: return type(error).__name__
for line in sys.stdin:
    message = json.loads(line); number, method = message.get("id"), message.get("method")
    if method == "initialize": put(id=number, result={"protocolVersion": 1, "agentCapabilities": {}})
    elif method == "session/new": put(id=number, result={"sessionId": "s"})
    elif method == "session/prompt":
        data = message["params"]["prompt"][0]["text"].split()[-1]
        control = socket.socket(socket.AF_UNIX)
        found = {"uid": os.geteuid(), "groups": os.getgroups(), "home": os.path.isdir(os.environ["HOME"]),
                 "write": tried(lambda: open(os.environ["HOME"] + "/mine", "w").close()),
                 "journal": tried(lambda: open(data + "/journal.sqlite").read(1)),
                 "control": tried(lambda: control.connect(data + "/control.sock"))}
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": json.dumps(found)}}
        put(method="session/update", params={"sessionId": "s", "update": update})
        put(id=number, result={"stopReason": "end_turn"})
"""


def test_a_hosted_agent_runs_as_the_configured_user_and_reaches_neither_journal_nor_control(
    house: House,
) -> None:
    shown = Path("/var/tmp") / f"loopd-test-{os.getpid()}"
    shown.mkdir(mode=0o755)
    try:
        agent = shown / "agent.py"
        agent.write_text(AGENT)
        shown.chmod(0o755)
        agent.chmod(0o644)
        kind = house.folder / "tiny.toml"
        kind.write_text(
            f'name = "tiny"\ncommand = ["{PYTHON}", "{agent}"]\n'
            '[model]\nrequired = ["model"]\nown_home = true\n[model.env]\nMODEL = "${model}"\n'
        )
        daemon = house.daemon(config='[agents]\nuser = "nobody"\n').start()
        made = daemon.call("session.create", driver={"kind": "acp", "agent": str(kind), "model": "none"})
        daemon.call("send", made["sid"], text=f"try {daemon.data}")
        daemon.until(made["sid"], "turn.completed")
        turn = daemon.call("turn.get", made["sid"], n=1)
        found = json.loads(turn["steps"][0]["text"])
        assert found["uid"] == __import__("pwd").getpwnam("nobody").pw_uid
        assert 0 not in found["groups"]
        assert found["home"] is True
        assert found["write"] == "None"
        assert found["journal"] == "PermissionError"
        assert found["control"] == "PermissionError"
        assert daemon.call("daemon.status")["isolation"] == "user"
        daemon.call("session.end", made["sid"])
        assert soon(lambda: daemon.call("session.get", made["sid"])["status"] != "live")
    finally:
        shutil.rmtree(shown)
        shutil.rmtree(HOMELESS / "nobody" / Premises(data=house.folder / "d").house, ignore_errors=True)
