"""What users install: both wheels, in an environment that has nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
MIGRATIONS = {f"{path.parent.name}/{path.name}" for path in (TOP / "migrations").rglob("*.sql")}
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        [str(arg) for arg in argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first worker of this test run makes and the others wait for."""
    top = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = top / name
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(folder)
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, each built by way of its source distribution, as a release would be."""

    def build(out: Path) -> None:
        for project in (TOP / "protocol", TOP):
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project, cwd=out.parent)

    out = once(tmp_path_factory, "dist", build)
    return {path.name.split("-")[0]: path for path in out.glob("*.whl")}


@pytest.fixture(scope="session")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that was empty before both wheels came in."""

    def install(venv: Path) -> None:
        # Without a pip of its own and without compiling ahead: that is most of the time otherwise.
        run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
        run(
            *(sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--no-compile"),
            *("--quiet", "--no-input", "--disable-pip-version-check"),
            *("--constraint", TOP / "constraints.txt", *wheels.values()),
            cwd=venv.parent,
        )

    return once(tmp_path_factory, "empty", install) / "bin"


def alone() -> dict[str, str]:
    """The environment without anything that would let a program find this checkout."""
    kept = ("LANG", "LC_ALL", "PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_each_wheel_carries_its_package_its_types_and_its_licence(wheels: dict[str, Path]) -> None:
    assert wheels.keys() == {"loopd", "loopd_protocol"}
    for package, wheel in wheels.items():
        inside = names(wheel)
        assert f"{package}/__init__.py" in inside
        assert f"{package}/py.typed" in inside
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
        assert {name.split("/")[0] for name in inside if ".dist-info/" not in name} == {package}


def test_the_wheel_carries_every_migration_as_it_is_in_the_checkout(wheels: dict[str, Path]) -> None:
    assert MIGRATIONS
    with zipfile.ZipFile(wheels["loopd"]) as archive:
        for name in MIGRATIONS:
            assert archive.read(f"loopd/migrations/{name}") == (TOP / "migrations" / name).read_bytes()


def test_the_programs_of_the_wheel_start(installed: Path, tmp_path: Path) -> None:
    assert "0.1.0" in run(installed / "loopd", "--version", cwd=tmp_path, env=alone())
    assert "suspend" in run(installed / "loopctl", "--help", cwd=tmp_path, env=alone())
    runner = run(installed / "python", "-m", "loopd.testing.vectors", "--help", cwd=tmp_path, env=alone())
    assert "FILE" in runner


def test_the_vectors_pass_from_the_wheel_with_runtime_dependencies_only(
    installed: Path, tmp_path: Path
) -> None:
    files = sorted((TOP / "tests/vectors").glob("tool_repetition*.json"))
    assert files
    run(installed / "python", "-m", "loopd.testing.vectors", *files, cwd=tmp_path, env=alone())


def test_the_wheel_finds_the_migrations_that_it_carries(installed: Path, tmp_path: Path) -> None:
    said = run(
        *(installed / "python", "-c", "from loopd.store import schema; print(schema.migrations_folder())"),
        cwd=tmp_path,
        env=alone(),
    )
    folder = Path(said.strip())
    assert folder.is_relative_to(installed.parent)
    assert {f"sqlite/{path.name}" for path in folder.glob("*.sql")} == MIGRATIONS


def test_a_daemon_from_the_wheel_opens_a_journal_and_answers(installed: Path, tmp_path: Path) -> None:
    serve = [installed / "loopd", "serve", "--data", tmp_path / "data"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            serve, cwd=tmp_path, env=alone(), stdout=subprocess.PIPE, stderr=log, text=True
        ) as daemon,
    ):
        try:
            assert daemon.stdout is not None
            line = daemon.stdout.readline()
            assert line, (tmp_path / "log").read_text()
            ready = json.loads(line)
            assert ready["ready"] is True
            status = run(
                *(installed / "loopctl", "--socket", ready["socket"], "-o", "json", "status"),
                cwd=tmp_path,
                env=alone(),
            )
            assert ready["boot"] in json.dumps(json.loads(status))
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
        assert daemon.stdout.read() == ""


def test_an_editable_install_ignores_a_stale_copy_of_the_migrations(tmp_path: Path) -> None:
    stale = tmp_path / "loopd/migrations/sqlite"
    stale.mkdir(parents=True)
    (stale / "0001_stale.sql").write_text("SELECT 1;\n")
    # Ahead of everything else on the path, where an editable install leaves its copy.
    said = run(
        *(sys.executable, "-c", "from loopd.store import schema; print(schema.migrations_folder())"),
        cwd=tmp_path,
        env={**alone(), "PYTHONPATH": str(tmp_path)},
    )
    assert Path(said.strip()) == TOP / "migrations/sqlite"
