"""Write the corpus as loopd.trajectory: `python -m tests.corpus.write OUT.jsonl [--seed N] [--data FILE]`.

One head line per case, with family, variant, onset and pair beside the fields of the format, then its steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from loopd.core.judge import LoggedStep
from tests.corpus.cases import Case
from tests.corpus.grafts import grafts, runs
from tests.corpus.incidents import incidents
from tests.corpus.lookalikes import lookalikes
from tests.corpus.pairs import pairs


def lines(cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """The lines of a trajectory file."""
    for case in cases:
        yield {
            "t": "trajectory",
            "v": 1,
            "id": case.id,
            "source": "tests.corpus",
            "outcome": "unknown",
            "label": case.label,
            "steps": len(case.steps),
            "family": case.family,
            "variant": case.variant,
            "onset": case.onset,
            "pair": case.pair,
        }
        for step in case.steps:
            yield _step(step)


def _step(step: LoggedStep) -> dict[str, Any]:
    line: dict[str, Any] = {"t": "step", "n": step.n}
    if step.at_ms:
        line["at"] = datetime.fromtimestamp(step.at_ms / 1_000, UTC).isoformat()
    if step.trigger is not None:
        line["trigger"] = step.trigger.value
    line["text"] = step.text
    line["calls"] = [
        {
            key: value
            for key, value in msgspec.to_builtins(call).items()
            if key
            in {
                "id",
                "name",
                "args",
                "ok",
                "result",
                "result_sha256",
                "result_bytes",
                "exit_code",
                "error_class",
            }
        }
        for call in step.calls
    ]
    if step.usage is not None:
        line["usage"] = {"input_tokens": step.usage.input_tokens, "output_tokens": step.usage.output_tokens}
    if step.state_fingerprint is not None:
        line["state_fingerprint"] = step.state_fingerprint
    if step.compacted:
        line["compacted"] = True
    return line


def corpus(seed: int = 1, data: str | None = None) -> Iterator[Case]:
    """Everything, in a fixed order."""
    yield from incidents(seed)
    yield from lookalikes(seed)
    yield from pairs(seed)
    if data is not None:
        for run in runs(data):
            if run.label == "healthy":
                yield from grafts(run, seed)


def main(arguments: list[str]) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.corpus.write", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("out", help="file to write; packed if it ends in .gz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="trajectories of real runs; loops are grafted into the healthy ones")
    given = parser.parse_args(arguments)
    opened = gzip.open if given.out.endswith(".gz") else open
    count = 0
    with opened(given.out, "wt", encoding="utf-8") as out:
        for line in lines(corpus(given.seed, given.data)):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += line["t"] == "trajectory"
    sys.stdout.write(f"{count} cases in {given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
