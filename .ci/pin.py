"""Write `pip list --format=freeze` (standard input) to constraints.txt and to [tool.uv] in pyproject.toml.

Names and versions only: a lock file would carry the addresses of somebody's registry.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
NOT_OURS = ("setuptools", "wheel")  # what some Pythons put into every new environment


def write(pins: list[str]) -> None:
    """Replace both lists by `pins`, sorted by name."""
    (TOP / "constraints.txt").write_text("".join(f"{pin}\n" for pin in pins))
    project = TOP / "pyproject.toml"
    listed = "".join(f'    "{pin}",\n' for pin in pins)
    text, found = re.subn(
        r"(?m)^constraint-dependencies = \[\n(?:.*,\n)*\]$",
        f"constraint-dependencies = [\n{listed}]",
        project.read_text(),
    )
    if found != 1:
        sys.exit(f"pyproject.toml: {found} lists called constraint-dependencies; expected 1")
    project.write_text(text)


if __name__ == "__main__":
    lines = {line.strip() for line in sys.stdin if "==" in line}
    write(sorted((line for line in lines if line.split("==")[0] not in NOT_OURS), key=str.lower))
