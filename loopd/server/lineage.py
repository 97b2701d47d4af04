"""Does a process on the control socket belong to an agent?

The tools of an agent run with the daemon's own user, so the kernel's word about the user does not
tell the two apart. Three things do, on Linux: a tool's process descends from the daemon; its
environment, or that of a process it descends from, carries `LOOPD_SESSION`; and while the daemon
adopts orphans (`adopt_orphans`), a process that lets its parents die still descends from it.

This is a fence, no wall: who has the same user can ask a process outside to connect for it (cron,
`systemd-run --user`, a terminal multiplexer that runs already), trace one, or write to the data
folder. Where /proc does not exist nothing is found.
"""

from __future__ import annotations

import ctypes
import os
import sys

import msgspec

from loopd_protocol.errors import Refused

SESSION = b"LOOPD_SESSION="
DEPTH = 64
"""Processes that are looked at, from one upwards; a longer line of them is taken for an agent's."""
ENVIRONMENTS_BYTES = 1024 * 1024
"""Read of all their environments together; more is taken for an agent's. So a look takes some milliseconds."""
UNKNOWN = "unknown"
"""The session of a process that descends from the daemon and carries no mark."""
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36  # of <linux/prctl.h>


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """How to tell agents from operators.

    Attributes:
        daemon: pid of the daemon when everything that descends from it is an agent's, else None.
        outer: `LOOPD_SESSION` of the daemon itself: it runs inside another daemon's session, and so
            may its operators.
    """

    daemon: int | None = None
    outer: str | None = None

    def session_behind(self, pid: int) -> str | None:
        """The session whose agent this process belongs to, `unknown` for one that hides it, or None.

        Raises:
            Refused: `unauthenticated` when the process is gone, so that nobody knows what it was.
        """
        if pid <= 1 or pid == os.getpid() or not os.path.isdir("/proc/self"):
            return None  # 0: a process of another pid namespace, which no descendant of ours can be
        line, ours = [pid], False
        while not ours and len(line) < DEPTH and (parent := _parent(line[-1])) is not None and parent > 1:
            ours = parent == self.daemon
            if not ours:
                line.append(parent)
        if len(line) == 1 and not ours and _parent(pid) is None and not _exists(pid):
            raise Refused("unauthenticated", f"process {pid} is gone; expected the one that connected")
        if ours:
            # Its name only: the tool's own shell, just below the daemon, carries it unless it hides it.
            return self._mark(line[-1:]) or self._mark(line[:1]) or UNKNOWN
        return self._mark(line) or (UNKNOWN if len(line) == DEPTH else None)

    def _mark(self, line: list[int]) -> str | None:
        """The session that the environments name; `unknown` for more than `ENVIRONMENTS_BYTES` of them."""
        left = ENVIRONMENTS_BYTES
        for pid in line:
            try:
                with open(f"/proc/{pid}/environ", "rb") as stream:
                    data = stream.read(left)
            except OSError:
                continue  # another user's: the others tell
            for variable in data.split(b"\0"):
                if variable.startswith(SESSION):
                    sid = variable[len(SESSION) :].decode("utf-8", "replace")[:64]
                    if sid and sid != self.outer:
                        return sid
            left -= len(data)
            if left <= 0:
                return UNKNOWN
        return None


def own_lineage() -> Lineage:
    """For a process that is a daemon and nothing else: all its descendants are agents' processes."""
    return Lineage(daemon=os.getpid(), outer=os.environ.get("LOOPD_SESSION"))


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends, instead of init; False where that is unknown.

    From then on `reap` must be called now and then.
    """
    return _prctl(_SET_CHILD_SUBREAPER, 1)


def close_memory() -> bool:
    """Keep other processes of this user from reading memory and environment, and from tracing; root still can.

    There are no core dumps then. False where that is unknown.
    """
    return _prctl(_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def reap(seen: frozenset[int]) -> frozenset[int]:
    """Let go of children that have ended and that nobody waits for.

    Args:
        seen: what the call before this one returned. Only children that had ended by then are let go:
            whoever started one himself has taken its exit code long since.

    Returns:
        Pids of children that have ended and still have to be let go.
    """
    ended = frozenset(_ended_children())
    for pid in ended & seen:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
    return ended - seen


def _ended_children() -> list[int]:
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    own = os.getpid()
    return [int(name) for name in names if (found := _stat(int(name))) and found == ("Z", own)]


def _exists(pid: int) -> bool:
    """Also where /proc hides other users' processes (`hidepid`, `ProtectProc=`): those are no agent's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _parent(pid: int) -> int | None:
    found = _stat(pid)
    return None if found is None else found[1]


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The name, in parentheses, may contain anything; state and parent follow the last one.
            state, parent, *_ = stream.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return state.decode(), int(parent)
