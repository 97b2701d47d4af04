"""Who is at the other end of a unix socket, as the kernel says, and what that user may do."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Protocol

import msgspec

from loopd.core.access import ALL_SCOPES, Caller
from loopd.server.lineage import Lineage
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

ROOT_UID = 0
_NO_SCOPES: frozenset[str] = frozenset()
_SO_PEERGROUPS = 59  # Linux; not named by the socket module
_GROUPS_BYTES = 1_024  # what getsockopt of Python takes at most: 256 groups


class SocketLike(Protocol):
    """What is needed of a socket."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As `socket.socket.getsockopt`."""


class Credentials(msgspec.Struct, frozen=True):
    """User, groups and process of a peer, as they were when it connected; `pid` is 0 for unknown."""

    uid: int
    gids: tuple[int, ...]
    pid: int


def peer_credentials(sock: SocketLike) -> Credentials:
    """Ask the kernel who is connected.

    Raises:
        Refused: `unauthenticated` when the system cannot tell.
    """
    try:
        if sys.platform == "linux":
            pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return Credentials(uid, (gid, *_more_groups(sock)), pid)
        if sys.platform == "darwin":
            # struct xucred of <sys/ucred.h>: version, uid, number of groups, 16 groups.
            data = sock.getsockopt(0, 1, 76)
            _, uid, count = struct.unpack_from("IIh", data)
            return Credentials(uid, struct.unpack_from(f"{min(max(count, 0), 16)}I", data, 12), 0)
    except (OSError, struct.error) as error:
        raise Refused("unauthenticated", f"the kernel does not say who connected: {error}") from error
    raise Refused("unauthenticated", f"no peer credentials on {sys.platform!r}; expected linux or darwin")


def _more_groups(sock: SocketLike) -> tuple[int, ...]:
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError as error:
        if error.errno in {errno.ERANGE, errno.ENOPROTOOPT}:
            return ()  # more than fit, or a kernel before 4.13: the primary group still counts
        raise
    return struct.unpack(f"{len(groups) // 4}I", groups)


def hung_up(fd: int) -> bool:
    """Whether the peer closed both directions, not only its own sending."""
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    return bool(poll.poll(0))


class PeerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which local users may connect.

    The daemon's own user and root may do everything. `uids` and `gids` give others their scopes;
    a user who is named twice has all of them. Everybody else is refused. With `lineage`, a process
    that belongs to an agent has no scopes, whoever its user is.
    """

    uids: Mapping[int, frozenset[str]] = {}
    gids: Mapping[int, frozenset[str]] = {}
    owner: int | None = None
    lineage: Lineage | None = None

    def caller(self, peer: Credentials) -> Caller:
        """The caller behind a connection.

        Raises:
            Refused: `unauthenticated`: this user is not known here.
        """
        agent = None if self.lineage is None else self.lineage.session_behind(peer.pid)
        if agent is not None:
            return Caller(principal=f"agent:{agent}", scopes=_NO_SCOPES, source=Source.AGENT)
        owner = os.geteuid() if self.owner is None else self.owner
        if peer.uid in {owner, ROOT_UID}:
            scopes = ALL_SCOPES
        else:
            scopes = self.uids.get(peer.uid, _NO_SCOPES).union(
                *(self.gids[gid] for gid in peer.gids if gid in self.gids)
            )
            if not scopes:
                raise Refused(
                    "unauthenticated",
                    f"user {peer.uid} may not talk to this daemon; expected {owner}, root or a user in its"
                    " configuration",
                )
        return Caller(principal=f"uid:{peer.uid}", scopes=scopes, source=Source.HUMAN)
