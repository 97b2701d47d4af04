"""Finds processes by what their environment or descent says, and ends them.

A tool may leave its process group, even its session, on purpose; its environment goes with it, and on
Linux so does its line of parents as long as they live. Only this user's processes are seen, and only
where /proc exists: elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence

_LOOKS = 5

Carries = Callable[[Sequence[bytes]], bool]
"""Is a process meant? It gets the `NAME=value` entries of its environment."""


def environments() -> Iterator[tuple[int, list[bytes]]]:
    """Pid and environment of every other process that may be looked at."""
    for pid in _pids():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                yield pid, stream.read().split(b"\0")
        except OSError:  # it ended, or belongs to somebody else
            continue


def marked(carries: Carries) -> list[int]:
    """Pids of the processes whose environment is meant."""
    return [pid for pid, variables in environments() if carries(variables)]


def descendants(pid: int) -> list[int]:
    """Pids of everything that descends from a process now."""
    children: dict[int, list[int]] = {}
    for each in _pids():
        parent = _parent(each)
        if parent is not None:
            children.setdefault(parent, []).append(each)
    found: list[int] = []
    line = [pid]
    while line:
        below = children.get(line.pop(), [])
        found += below
        line += below
    return found


def end_marked(carries: Carries, *, also: Sequence[int] = ()) -> set[int]:
    """Kill every process that is meant, again while a look still finds some, because they fork.

    Args:
        carries: which ones.
        also: pids that are killed at the first look, whatever their environment.

    Returns:
        The pids that were killed. Those that became children of this process are let go of.
    """
    ended: set[int] = set()
    found = list(dict.fromkeys([*also, *marked(carries)]))
    for _ in range(_LOOKS):
        if not found:
            break
        ended.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        found = marked(carries)
    return ended


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a whole process group. Its id is the leader's pid; it stays taken while any member lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def let_go(pids: Sequence[int]) -> None:
    """Take the exit codes of ended processes that became children of this one; others are left alone."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The name, in parentheses, may contain anything; state and parent follow the last one.
            return int(stream.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
