"""Another user for everything that agents run: the wall between them and the daemon's own files.

A daemon that is root may be told a user (`agents.user`). Shell commands and hosted agents are started as
that user, and the file tools, which work inside of the daemon, take its rights for each operation: on
Linux a single thread can (`setfsuid`), and loses root's own for as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import platform
import pwd
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypedDict, TypeVar

import msgspec

from loopd_protocol.errors import Refused

P = ParamSpec("P")
T = TypeVar("T")

SETPRIV = "/usr/bin/setpriv"
_CALLS = {"x86_64": (116, 122, 123), "aarch64": (159, 151, 152)}
"""Numbers of setgroups, setfsuid and setfsgid: called directly, because the C library's setgroups is for all threads."""


class SpawnOptions(TypedDict):
    """Arguments of `subprocess.Popen` and `anyio.open_process`."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


class RunAs(msgspec.Struct, frozen=True, kw_only=True):
    """A user with its groups, name and home."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str

    @property
    def spawn(self) -> SpawnOptions:
        """How a process is started as this user."""
        return SpawnOptions(user=self.uid, group=self.gid, extra_groups=list(self.groups))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that follow the user."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command line that becomes this user for good, without a way back: `setpriv` execs the command.

        uvloop takes no `user=`, and this way nothing of ours runs between fork and exec. With no new
        privileges, set-user-id programs (sudo, su) give none either.
        """
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        who = [f"--reuid={self.uid}", f"--regid={self.gid}", groups, "--no-new-privs"]
        return [SETPRIV, *who, "--", *argv]

    def enter(self) -> None:
        """Become this user for good: `preexec_fn` of a child. uvloop takes no `user=`."""
        os.setgroups(self.groups)
        os.setgid(self.gid)
        os.setuid(self.uid)

    @contextlib.contextmanager
    def files(self) -> Iterator[None]:
        """Open files with this user's rights in the present thread.

        Raises:
            PermissionError: the thread could not take them; nothing was opened.
        """
        before = os.getgroups()
        try:
            _rights(self.uid, self.gid, self.groups)
            yield
        finally:
            _rights(os.geteuid(), os.getegid(), tuple(before))

    def within(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry out `work` with this user's rights to files."""
        with self.files():
            return work(*args, **kwargs)


def spawn_as(user: RunAs | None) -> SpawnOptions:
    """How a process is started as this user; None: as the daemon's own."""
    return SpawnOptions(user=None, group=None, extra_groups=None) if user is None else user.spawn


def run_as(user: str) -> RunAs:
    """The user that is named or numbered `user`, fit to run agents of this daemon.

    Raises:
        Refused: `invalid`: there is no such user, it is the daemon's own or root, the daemon is not
            root, or this system cannot do it.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        raise Refused("invalid", f"agents.user: there is no user {user!r}", path="$.agents.user") from None
    if os.geteuid() != 0:
        raise Refused(
            "invalid",
            f"agents.user is {user!r} but the daemon runs as user {os.geteuid()}; expected root, which alone can "
            "start processes as somebody else",
            path="$.agents.user",
        )
    if entry.pw_uid == 0:
        raise Refused(
            "invalid", "agents.user is root; expected a user with fewer rights", path="$.agents.user"
        )
    if not os.path.exists(SETPRIV):
        raise Refused("invalid", f"agents.user needs {SETPRIV} (util-linux); expected it to be installed")
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        where = f"{sys.platform} on {platform.machine()}"
        raise Refused("invalid", f"agents.user on {where}; expected Linux on {', '.join(_CALLS)}")
    groups = tuple(sorted({group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem}))
    return RunAs(
        uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, name=entry.pw_name, home=entry.pw_dir or "/"
    )


def _rights(uid: int, gid: int, groups: tuple[int, ...]) -> None:
    """Set who this thread is to the file system: groups first, for without root they cannot be set."""
    setgroups, setfsuid, setfsgid = _CALLS[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    if uid == os.geteuid():
        call(setfsuid, uid)
    numbers = (ctypes.c_uint32 * max(1, len(groups)))(*groups)
    failed = call(setgroups, len(groups), numbers)
    call(setfsgid, gid)
    call(setfsuid, uid)
    # Both answer with the value before; asking for -1 changes nothing and tells the present one.
    if failed or call(setfsuid, -1) != uid or call(setfsgid, -1) != gid:
        raise PermissionError(ctypes.get_errno(), f"file rights of user {uid} cannot be taken")
