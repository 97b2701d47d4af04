"""The service files are accepted by the programs that read them, and agree with the daemon."""

from __future__ import annotations

import configparser
import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loopd.cli.daemon import whole_parser
from loopd.config.settings import Drain

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SYSTEMD = DEPLOY / "systemd"
PLISTS = sorted((DEPLOY / "launchd").glob("*.plist"))


def verified(scope: str, folder: Path) -> str:
    """What systemd-analyze says about the units in `folder`; nothing when they are right."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units cannot be verified here")
    units = sorted(str(path) for path in folder.glob("loopd.*") if path.suffix in {".service", ".socket"})
    assert len(units) == 2
    ran = subprocess.run(
        ["systemd-analyze", f"--{scope}", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    said = ran.stdout + ran.stderr
    return said if ran.returncode or "loopd" in said else ""


def copied(source: Path, to: Path, program: str) -> Path:
    """The units with `program` in place of the path where an installation has it."""
    to.mkdir(exist_ok=True)
    for path in source.glob("loopd.*"):
        text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={program}", path.read_text())
        (to / path.name).write_text(text)
    return to


@pytest.mark.process
@pytest.mark.parametrize(("scope", "source"), [("system", SYSTEMD), ("user", SYSTEMD / "user")])
def test_systemd_accepts_the_units(scope: str, source: Path, tmp_path: Path) -> None:
    assert verified(scope, copied(source, tmp_path / "units", sys.executable)) == ""


@pytest.mark.process
def test_a_mistake_in_a_unit_would_be_reported(tmp_path: Path) -> None:
    folder = copied(SYSTEMD, tmp_path / "units", sys.executable)
    service = folder / "loopd.service"
    service.write_text(service.read_text().replace("WatchdogSec=30", "WatchdogSex=30"))
    assert "WatchdogSex" in verified("system", folder)


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser


@pytest.mark.parametrize("folder", [SYSTEMD, SYSTEMD / "user"], ids=["system", "user"])
def test_the_service_listens_where_its_socket_unit_does(folder: Path) -> None:
    service, socket = unit(folder / "loopd.service"), unit(folder / "loopd.socket")
    command = service["Service"]["ExecStart"].split()
    assert command[command.index("--socket") + 1] == socket["Socket"]["ListenStream"]
    assert command[0].endswith("/loopd")
    assert whole_parser().parse_args(command[1:]).verb == "serve"
    assert service["Service"]["Type"] == "notify"
    assert service["Service"]["KillMode"] == "mixed"
    assert float(service["Service"]["WatchdogSec"]) > 0


def test_the_system_socket_is_for_the_group_alone() -> None:
    socket = unit(SYSTEMD / "loopd.socket")["Socket"]
    assert (socket["ListenStream"], socket["SocketMode"]) == ("/run/loopd/control.sock", "0660")


@pytest.mark.parametrize("folder", [SYSTEMD, SYSTEMD / "user"], ids=["system", "user"])
def test_stopping_leaves_more_time_than_a_drain_takes(folder: Path) -> None:
    stop_s = float(unit(folder / "loopd.service")["Service"]["TimeoutStopSec"])
    assert stop_s * 1000 > Drain().budget_ms


@pytest.mark.parametrize("path", PLISTS, ids=lambda path: path.name)
def test_launchd_job_is_a_property_list_that_runs_the_daemon(path: Path) -> None:
    job = plistlib.loads(path.read_bytes())
    assert job["Label"] == path.stem
    script = job["ProgramArguments"][-1]
    assert re.search(r'exec "\$HOME/\.local/bin/loopd" serve --data "\$HOME/\.loopd"', script)
    assert job["RunAtLoad"] is True
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["ExitTimeOut"] > 30
    parsed = subprocess.run(["/bin/sh", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_there_is_a_launchd_job() -> None:
    assert PLISTS
