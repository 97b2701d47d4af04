"""Writes the golden corpus of a release: `python -m tests.golden.write 0.1 [--add]`.

Old bytes stay readable for ever, so nothing is ever overwritten. `--add` appends examples of types
that have none yet; lines that are there are not touched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loopd_protocol import schema
from tests.golden.examples import CORPUS, examples

ROOT = Path(__file__).parent / "protocol"


def write(version: str, *, add: bool = False, root: Path = ROOT) -> list[str]:
    """Write what is missing; returns what was written.

    Raises:
        FileExistsError: a file is there and `add` was not asked for.
    """
    folder = root / version
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (tag, known) in CORPUS.items():
        path = folder / f"{name}.ndjson"
        if path.exists() and not add:
            raise FileExistsError(f"{path} exists; old bytes stay as they are (see --add)")
        lines = path.read_bytes().splitlines() if path.exists() else []
        have = {json.loads(line)[tag] for line in lines}
        new = [
            json.dumps(example, ensure_ascii=False, separators=(",", ":"))
            for kind, cls in known.items()
            if kind not in have
            for example in examples(cls)
        ]
        with path.open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in new)
        written += [f"{path.name}: {len(new)} lines"]
    path = folder / "schema.json"
    if not path.exists():
        path.write_text(json.dumps(schema.build(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(path.name)
    return written


if __name__ == "__main__":
    print("\n".join(write(sys.argv[1], add="--add" in sys.argv[2:])))
