"""Published packages on the same cases: each in an environment of its own, behind a small adapter.

An adapter (`peers/*_peer.py`) reads cases as JSON lines and answers the steps at which its package flags
something and at which it would stop the agent. Environments lie in `.cache/peers`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from tests.corpus.cases import Case

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
CACHE = TOP / ".cache/peers"
INSTALL_TIMEOUT_S = 600
RUN_TIMEOUT_S = 1_200

Install = Literal["missing", "never"]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A published package; `version` is the one that the figures in the documentation were made with."""

    package: str
    version: str
    adapter: str
    python: tuple[int, int] = (3, 11)


PEERS = (
    Peer(package="openhands-sdk", version="1.58.0", adapter="openhands_peer.py", python=(3, 12)),
    Peer(package="agent-supra", version="1.1.1", adapter="agent_supra_peer.py"),
    Peer(package="runbound", version="0.11.2", adapter="runbound_peer.py"),
    Peer(package="trajectory-fuse", version="0.3.0", adapter="trajectory_fuse_peer.py"),
)


class Answer(msgspec.Struct, frozen=True):
    """What a detector said of a case: steps with a flag, steps at which it would stop the agent."""

    id: str
    flags: list[int]
    stops: list[int]


class PeerMissing(Exception):
    """A peer cannot run here; the text says why."""


def _python(least: tuple[int, int]) -> str:
    """A Python of at least this version, by name or from pyenv.

    Raises:
        PeerMissing: there is none.
    """
    wanted = ".".join(map(str, least))
    versions = [f"3.{minor}" for minor in range(14, least[1] - 1, -1)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        str(found / "bin/python") for v in reversed(versions) for found in sorted(pyenv.glob(f"{v}.*"))
    ]
    candidates += [path for v in versions if (path := shutil.which(f"python{v}"))] + [sys.executable]
    test = f"import sys, venv; sys.exit(sys.version_info < {least})"
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "-c", test], capture_output=True, check=False, timeout=30)
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    raise PeerMissing(f"needs Python {wanted} or newer; none was found")


def environment(peer: Peer, install: Install) -> Path:
    """The Python of the peer's environment, made if it is missing.

    Raises:
        PeerMissing: it is not there and must not or cannot be made.
    """
    folder = CACHE / peer.package
    python = folder / "bin/python"
    if python.exists() and _version(python, peer.package) == peer.version:
        return python
    if install == "never":
        raise PeerMissing(
            f"not installed; `make bench-detection` puts {peer.version} into {folder.relative_to(TOP)}"
        )
    base = _python(peer.python)
    sys.stderr.write(f"installing {peer.package} {peer.version} …\n")
    subprocess.run([base, "-m", "venv", "--clear", folder], check=True, timeout=INSTALL_TIMEOUT_S)
    done = subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"{peer.package}=={peer.version}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise PeerMissing(f"pip could not install {peer.version}: {done.stderr.strip().splitlines()[-1:]}")
    return python


def _version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def plain(case: Case) -> dict[str, Any]:
    """A case as adapters read it."""
    return {
        "id": case.id,
        "steps": [
            {
                "n": step.n,
                "text": step.text,
                "trigger": step.trigger,
                "at_ms": step.at_ms,
                "state": step.state_fingerprint,
                "usage": step.usage,
                "calls": [
                    {
                        "name": call.name,
                        "args": call.args,
                        "ok": call.ok,
                        # cut results are told apart by the digest of the whole
                        "result": call.result if call.result is not None else call.result_sha256,
                        "error_class": call.error_class,
                        "class": call.tool_class,
                    }
                    for call in step.calls
                ],
            }
            for step in case.steps
        ],
    }


def answers(peer: Peer, python: Path, cases: Iterable[Case]) -> dict[str, Answer]:
    """Run one peer over all cases.

    Raises:
        PeerMissing: its adapter ended with an error.
    """
    encoder = msgspec.json.Encoder()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, HERE / "peers" / peer.adapter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        guard = threading.Timer(RUN_TIMEOUT_S, process.kill)
        guard.start()
        assert process.stdin is not None
        assert process.stdout is not None
        told: dict[str, Answer] = {}
        try:
            for case in cases:
                process.stdin.write(encoder.encode(plain(case)) + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    break
                answer = msgspec.convert(json.loads(line), Answer)
                told[answer.id] = answer
            process.stdin.close()
        except BrokenPipeError:
            pass
        finally:
            code = process.wait(timeout=RUN_TIMEOUT_S)
            guard.cancel()
            process.stdout.close()
        if code != 0:
            errors.seek(0)
            last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            raise PeerMissing(f"its adapter ended with exit code {code}: {last}")
    return told
