"""Run the tests under each Python from 3.11 on that this machine has: `make test-pythons`.

Looks for `python3.N` on the PATH and under pyenv. Each version gets an environment of its own below
.cache/pythons, with the pinned packages. A version that is absent is named, not counted as a failure.
Words behind the script go to pytest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
MINORS = (11, 12, 13, 14)
PINS = TOP / "constraints.txt"
MADE_FROM = (PINS, TOP / "pyproject.toml", TOP / "protocol/pyproject.toml")
CLOSING = re.compile(r"\d+ (?:passed|failed|error)")


def interpreter(minor: int) -> str | None:
    """A Python 3.`minor` that runs; a name may be a version manager's shim for one that is not there."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(versions.glob(f"3.{minor}.*"), key=lambda each: each.name.split(".")[-1].rjust(8))
    check = f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    for candidate in (
        shutil.which(f"python3.{minor}"),
        *(str(each / "bin/python") for each in installed[::-1]),
    ):
        if (
            candidate
            and subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0
        ):
            return candidate
    return None


def environment(minor: int, found: str) -> Path:
    """The Python of an environment with loopd and the test tools, made anew when the pins have changed."""
    folder = TOP / f".cache/pythons/3.{minor}"
    python, stamp = folder / "bin/python", folder / "made-from"
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in MADE_FROM)).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([found, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "-c", PINS]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)
    whole = [*pip, "--build-constraint", PINS, "-e", "./protocol", "-e", ".", "--group", "dev"]
    subprocess.run(whole, cwd=TOP, check=True)
    stamp.write_text(digest)
    return python


def tested(python: Path, words: list[str]) -> tuple[bool, str]:
    """Whether the tests passed, and pytest's closing line."""
    closing = "pytest said nothing"
    with subprocess.Popen(
        [python, "-m", "pytest", *words], cwd=TOP, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as run:
        for line in run.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            if CLOSING.search(line):
                closing = line.strip(" =\n")
    return run.returncode == 0, closing


def main(words: list[str]) -> int:
    """The exit code: 1 if the tests failed under any Python that is here, or none is."""
    said, passed = [], []
    for minor in MINORS:
        found = interpreter(minor)
        if found is None:
            said.append(f"3.{minor}     skipped: not on this machine")
            continue
        python = environment(minor, found)
        version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
        print(f"== Python {version}", flush=True)
        good, closing = tested(python, words)
        passed.append(good)
        said.append(f"{version:8} {closing}")
    print("\n".join(["== in short", *said]))
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
