"""Finds processes by what their environment or descent says, and ends them.

A tool may leave its process group, even its session, on purpose; its environment goes with it, and on
Linux so does its line of parents as long as they live. Only this user's processes are seen, and only
where /proc exists: elsewhere nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

_LOOKS = 5

GONE_S = 2.0
"""How long a look waits until what it killed is gone: a killed process runs nothing more, but on a busy machine it
is there until the kernel had the time. One that hangs in a system call may stay; it is not waited for longer."""

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
    """Kill every process that is meant and wait until it is gone, again while a look still finds some: they fork.

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
        with _handles(found) as handles:
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _await_ends(handles)
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


@contextlib.contextmanager
def _handles(pids: Sequence[int]) -> Iterator[list[int]]:
    """A file descriptor for each process that is there; readable once it has ended."""
    handles: list[int] = []
    try:
        if sys.platform == "linux":
            for pid in pids:
                with contextlib.suppress(
                    OSError
                ):  # it has ended, or no descriptor is free: it is killed all the same
                    handles.append(os.pidfd_open(pid))
        yield handles
    finally:
        for handle in handles:
            os.close(handle)


def _await_ends(handles: Sequence[int]) -> None:
    """Wait until all have ended, at most `GONE_S`."""
    waiting = select.poll()
    for handle in handles:
        waiting.register(handle, select.POLLIN)
    left, until = len(handles), time.monotonic() + GONE_S
    while left and (rest_s := until - time.monotonic()) > 0:
        for handle, _ in waiting.poll(rest_s * 1_000):
            waiting.unregister(handle)
            left -= 1


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
