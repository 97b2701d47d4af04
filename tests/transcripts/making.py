"""Logs that tests write: small, and each line a plain value that can be spoiled."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from loopd.core.judge import LoggedStep
from loopd.transcripts.logs import Begin, Fault, Item
from loopd.transcripts.reading import read

DATA = Path(__file__).parent / "data"

Line = dict[str, Any] | str


def head(name: str = "run", **more: Any) -> dict[str, Any]:
    return {"t": "trajectory", "v": 1, "id": name, "source": "test", **more}


def step(n: int, command: str = "", result: str = "ok", **more: Any) -> dict[str, Any]:
    call = {
        "id": f"c{n}",
        "name": "bash",
        "args": {"command": command or f"make part{n}"},
        "ok": True,
        "result": result,
    }
    return {"t": "step", "n": n, "text": f"part {n}", "calls": [call], **more}


def healthy(name: str = "fine", steps: int = 12, **more: Any) -> list[Line]:
    """A run that nobody should mind."""
    return [
        head(name, **more),
        *(step(n, result=f"built part {n} of the program") for n in range(1, steps + 1)),
    ]


def stuck(name: str = "stuck", steps: int = 30, before: int = 5, **more: Any) -> list[Line]:
    """A run that does the same again and again after `before` steps; every step costs 100 tokens."""
    usage = {"input_tokens": 90, "output_tokens": 10}
    lines: list[Line] = [head(name, **more)]
    for n in range(1, steps + 1):
        same = n > before
        lines.append(
            step(
                n,
                "cat notes.txt" if same else "",
                "three lines of notes" if same else f"built {n}",
                usage=usage,
            )
        )
    return lines


def text(lines: list[Line]) -> str:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def write(path: Path, *runs: list[Line]) -> Path:
    """Write runs one after the other; gzip by name."""
    data = "".join(map(text, runs)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def items(path: Path | str) -> list[Item]:
    return list(read(path))


def steps_of(path: Path | str) -> list[LoggedStep]:
    return [item for item in read(path) if isinstance(item, LoggedStep)]


def begins_of(path: Path | str) -> list[Begin]:
    return [item for item in read(path) if isinstance(item, Begin)]


def faults_of(path: Path | str) -> list[Fault]:
    return [item for item in read(path) if isinstance(item, Fault)]
