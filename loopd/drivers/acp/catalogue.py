"""Which agents are there: the kinds, whether their programs are found, and which version they are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import anyio

from loopd.drivers.acp import kinds
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.acp.launch import Premises, program
from loopd.drivers.shell import environment
from loopd_protocol.errors import Refused

VERSION_S = 15.0
_told: dict[tuple[str, int], str] = {}
"""What programs told of their versions, by path and change of the file: they are asked once."""


def kinds_folder() -> Path:
    """Where the user's own kinds are: `$XDG_CONFIG_HOME/loopd/agents`, or below `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "loopd" / "agents"


async def list_agents(premises: Premises) -> list[dict[str, Any]]:
    """All kinds by name; programs that are found are asked for their versions, all at the same time."""
    rows: list[dict[str, Any]] = []
    async with anyio.create_task_group() as tasks:
        for name in kinds.names(premises.kinds):
            row: dict[str, Any] = {"name": name, "found": False, "path": None, "version": None}
            rows.append(row)
            try:
                kind = kinds.find(name, premises.kinds)
            except Refused as refusal:
                row["problem"] = refusal.message
                continue
            row |= kinds.shown(kind)
            row["path"] = path = program(kind, premises.environ)
            if path is not None:
                row["found"] = True
                tasks.start_soon(_ask_version, kind, path, premises, row)
    return rows


async def _ask_version(kind: AgentKind, path: str, premises: Premises, row: dict[str, Any]) -> None:
    try:
        changed = (await anyio.Path(path).stat()).st_mtime_ns
        text = _told.get((path, changed))
        if text is None:
            with anyio.fail_after(VERSION_S):
                done = await anyio.run_process(
                    [path, *kind.version.args],
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                    env=environment("version", premises.environ),
                    start_new_session=True,
                )
            text = _told[path, changed] = done.stdout[:10_000].decode("utf-8", "replace")
    except TimeoutError:
        row["problem"] = f"did not tell its version within {VERSION_S:g} s"
        return
    except OSError as error:
        row["problem"] = f"cannot be started: {error.strerror}"
        return
    found = re.search(kind.version.pattern, text)
    if found is None:
        row["problem"] = "told no version"
        return
    row["version"] = found.group(1)
    if kind.version.minimum and _numbers(found.group(1)) < _numbers(kind.version.minimum):
        row["problem"] = f"version {found.group(1)}; expected {kind.version.minimum} or newer"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
