"""`make fuzz-http`: schemathesis against a real daemon, from the OpenAPI that it serves itself.

The token of the run has every scope but `create`, `admin` and `export`: with them a made-up request could start agents, write
files, send events to made-up addresses, or open more archives than may be open at once (a 503 that is meant). Routes of
these scopes are asked all the same, and must refuse.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCOPES = ("read", "read.content", "send", "control", "cron", "approve", "metrics")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
READY_S = 60


def main() -> int:
    """Start a daemon, give it two sessions, let schemathesis ask; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemathesis", required=True, help="the program")
    parser.add_argument("--examples", type=int, default=100, help="cases of each operation")
    args = parser.parse_args()
    here = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="lp") as folder:
        config = Path(folder, "loopd.toml")
        config.write_text("[access]\nrate_per_s = 0\n[limits]\nmax_sessions = 100\n")
        script = Path(folder, "run.jsonl")
        script.write_text(
            '{"t":"trajectory","v":1,"id":"run"}\n{"t":"step","n":1,"trigger":"continuation","text":"hi"}\n'
        )
        command = [
            str(here / "loopd"),
            "serve",
            "--data",
            f"{folder}/d",
            "--config",
            str(config),
            "--http",
            "127.0.0.1:0",
        ]
        with (
            open(f"{folder}/log", "wb") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as daemon,
        ):
            try:
                return _against(daemon, Path(folder), script, args.schemathesis, args.examples)
            finally:
                daemon.terminate()
                daemon.wait(READY_S)
                errors = [
                    line for line in Path(folder, "log").read_text().splitlines() if '"level":"error"' in line
                ]
                sys.stdout.write("".join(f"{line[:2_000]}\n" for line in errors[:20]))


def _against(daemon: subprocess.Popen[bytes], folder: Path, script: Path, program: str, examples: int) -> int:
    assert daemon.stdout is not None
    ready = json.loads(daemon.stdout.readline())
    ctl = [str(Path(sys.executable).parent / "loopctl"), "--socket", ready["socket"]]
    token = folder / "token"
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    subprocess.run([*ctl, "token", "new", *scopes, "--to", str(token)], check=True)
    for name in ("mapper", "other"):
        subprocess.run(
            [*ctl, "new", "--driver", "scripted", "--script", str(script), "--name", name], check=True
        )
    done = subprocess.run(
        [
            os.path.abspath(program), "run", f"{ready['http']}/v1/openapi.json",
            "--header", f"Authorization: Bearer {token.read_text().strip()}",
            "--checks", CHECKS, "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing",
            "--exclude-path", "/v1/events",  # it never ends; tests/server has it
            "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off", "--request-timeout", "20",
            "--no-shrink", "--output-sanitize", "true",
        ],
        check=False,
        cwd=folder,  # it leaves files where it runs
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    alive = subprocess.run([*ctl, "status"], check=False, capture_output=True)
    sys.stdout.write(f"the daemon {'lives' if alive.returncode == 0 else 'is gone'}\n")
    return done.returncode or alive.returncode


if __name__ == "__main__":
    sys.exit(main())
