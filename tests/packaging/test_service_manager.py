"""The daemon under a service manager: a socket that is passed on, readiness, the watchdog, stopping."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopd.client import Client

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]
SERVE = [sys.executable, "-m", "loopd.cli.daemon", "serve"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket at which a service manager listens for states."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(20)
        yield heard


def state(manager: socket.socket, wanted: str) -> str:
    """The next message with `wanted` in it."""
    while True:
        said = manager.recv(4_096).decode()
        if wanted in said:
            return said


def test_the_manager_hears_ready_then_a_living_watchdog_then_stopping(
    tmp_path: Path, manager: socket.socket
) -> None:
    env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    env.pop("WATCHDOG_PID", None)
    with subprocess.Popen(
        [*SERVE, "--data", str(tmp_path / "data")], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            assert f"serving on {tmp_path}" in state(manager, "READY=1")
            with Client(tmp_path / "data/control.sock") as client:
                assert client.call({"t": "daemon.status"})["ready"] is True
            assert [state(manager, "WATCHDOG=1") for _ in range(3)]
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert state(manager, "STOPPING=1")
        assert daemon.wait(20) == 0


def test_a_socket_that_systemd_made_is_served_and_left_in_place(
    tmp_path: Path, manager: socket.socket
) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed: nothing here can pass a socket on")
    path = tmp_path / "control.sock"
    notify = ["-E", f"NOTIFY_SOCKET={tmp_path / 'notify'}"]
    command = [
        activate,
        "-l",
        str(path),
        *notify,
        *SERVE,
        "--data",
        str(tmp_path / "data"),
        "--socket",
        str(path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stderr is not None
            assert "Listening on" in daemon.stderr.readline()
            inode = path.stat().st_ino
            with Client(path) as client:  # this connection starts the daemon, and waits until it serves
                assert client.call({"t": "daemon.status"})["pid"] == daemon.pid
            assert state(manager, "READY=1")
        finally:
            daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=20)
        assert daemon.returncode == 0
    assert path.stat().st_ino == inode
