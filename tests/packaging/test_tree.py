"""What must not be committed, and lists that must agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())


def run(*argv: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=TOP, capture_output=True, text=True, timeout=110, check=False, **kwargs)  # type: ignore[call-overload,no-any-return]


def committed() -> dict[str, str]:
    """Every text file that git tracks, or would."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard")
    if listed.returncode != 0:
        pytest.skip("not a git checkout: nothing says which files belong to the tree")
    texts = {}
    for name in listed.stdout.splitlines():
        try:
            texts[name] = (TOP / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return texts


def registry_hosts() -> set[str]:
    """Hosts of the registries that this machine uses: pip's own default, configured ones, npm's, Debian's."""
    said = [
        "from pip._internal.models.index import PyPI",
        "print(PyPI.simple_url, 'https://' + PyPI.file_storage_domain)",
    ]
    texts = [run(sys.executable, "-c", "\n".join(said)).stdout]
    configured = ("global.index-url", "global.extra-index-url")
    texts += [run(sys.executable, "-m", "pip", "config", "get", key).stdout for key in configured]
    texts += [os.environ.get(name, "") for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")]
    if shutil.which("npm"):
        texts.append(run("npm", "config", "get", "registry", stdin=subprocess.DEVNULL).stdout)
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if path.is_file():
            texts.append(path.read_text(errors="replace"))
    hosts = set(re.findall(r"https?://(?:[^/@\s]*@)?([^/:\s]+\.[^/:\s]+)", "\n".join(texts)))
    return {host for host in hosts if not host.startswith("127.")}


def test_no_address_of_a_package_registry_is_in_the_tree() -> None:
    hosts = registry_hosts()
    texts = committed()
    assert [(name, host) for name, text in texts.items() for host in hosts if host in text] == []


def test_no_path_of_this_machine_is_in_the_tree() -> None:
    here = {str(TOP), str(Path.home()) + "/", f"{os.sep}work{os.sep}"} - {"/"}
    assert [(name, path) for name, text in committed().items() for path in here if path in text] == []


def test_no_lock_file_is_committed() -> None:
    tracked = run("git", "ls-files").stdout.splitlines()
    assert [name for name in tracked if name.endswith((".lock", "package-lock.json"))] == []


def test_the_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    ran = run(str(tool), "--no-cache")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 broken" in ran.stdout


def pins() -> dict[str, str]:
    lines = (TOP / "constraints.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def test_uv_reads_the_same_pins_as_pip() -> None:
    listed = PROJECT["tool"]["uv"]["constraint-dependencies"]
    assert listed == (TOP / "constraints.txt").read_text().split()


def needed() -> set[str]:
    """Canonical names of everything that `make test` installs, by what the installed packages declare."""
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    seen: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        wanted += metadata.requires(name) or []
    return seen - {"loopd-protocol"}


def test_every_package_that_is_installed_is_pinned() -> None:
    pinned = {canonicalize_name(name) for name in pins()}
    assert needed() - pinned == set(), "run `make constraints`"


def test_the_two_distributions_carry_one_version_and_one_licence() -> None:
    protocol = tomllib.loads((TOP / "protocol/pyproject.toml").read_text())
    version = PROJECT["project"]["version"]
    assert protocol["project"]["version"] == version
    assert f"loopd-protocol=={version}" in PROJECT["project"]["dependencies"]
    assert metadata.version("loopd") == metadata.version("loopd-protocol") == version
    assert (TOP / "LICENSE").read_bytes() == (TOP / "protocol/LICENSE").read_bytes()
    assert "Apache License" in (TOP / "LICENSE").read_text()


def test_no_statement_binds_by_numbers() -> None:
    """sqlite3 takes `?1` for a name: with a tuple a warning from Python 3.12 on, an error from 3.14 on."""
    numbered = re.compile(r"""(?:[=<>(,] ?|VALUES ?\(?)\?\d""")
    found = [
        f"{path.relative_to(TOP)}:{number}"
        for folder in ("loopd", "tests", "docs")
        for path in sorted((TOP / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if numbered.search(line) and "numbered" not in line
    ]
    assert found == []
