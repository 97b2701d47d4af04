"""Drivers: what a session's turns are made of. The host decides; a driver only does.

`make_driver` checks a driver spec early and imports only the driver that it names, so that a
daemon without chat sessions never loads an HTTP client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from loopd_protocol.commands import AcpSpec, ChatSpec, DriverSpec, ScriptedSpec
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from loopd.drivers.acp.launch import Premises
    from loopd.drivers.fittings import Fittings
    from loopd.drivers.host import Driver

__all__ = ["end_boot", "end_leftovers", "make_driver"]


def make_driver(
    sid: str, spec: Mapping[str, Any], workspace: str | None, fittings: Fittings | None = None
) -> Driver:
    """Build the driver of a session from its spec as stored in `session.created`.

    Args:
        sid: session.
        spec: as stored.
        workspace: absolute path, or None.
        fittings: what the daemon lends to drivers; None where there is no daemon.

    Raises:
        Refused: `invalid` when it cannot work: an unknown kind or field, a script that is no
            trajectory, a workspace that is no directory, an API key variable that is not set.
    """
    try:
        chosen = msgspec.convert(dict(spec), DriverSpec)
    except msgspec.ValidationError as error:
        raise Refused("invalid", f"driver: {error}", path="$.driver") from error
    if workspace is not None:
        _check_workspace(workspace)
    if isinstance(chosen, ScriptedSpec):
        from loopd.drivers.scripted import ScriptedDriver  # noqa: PLC0415

        return ScriptedDriver(chosen)
    if isinstance(chosen, AcpSpec):
        return _acp(sid, chosen, workspace, fittings)
    return _chat(sid, chosen, workspace, fittings)


def end_leftovers(sids: Collection[str], premises: Premises | None = None) -> int:
    """End what the last boot left running when it died; returns how many processes.

    Args:
        sids: sessions that were in the middle of a turn, whose tools may still run.
        premises: where hosted agents live; those of other boots are ended, whatever their session.
    """
    from loopd.drivers import shell  # noqa: PLC0415

    ended = shell.end_leftovers(sids) if sids else 0
    if premises is not None:
        from loopd.drivers.acp.process import end_old_boots  # noqa: PLC0415

        ended += end_old_boots(premises.house, premises.boot)
    return ended


def end_boot(premises: Premises) -> int:
    """End whatever this boot has started, at once; returns how many processes. For who cannot wait for drivers."""
    from loopd.drivers.marks import end_marked  # noqa: PLC0415
    from loopd.drivers.shell import BOOT  # noqa: PLC0415

    ours = f"{BOOT}={premises.house}.{premises.boot}".encode()
    return len(end_marked(lambda variables: ours in variables))


def _chat(sid: str, spec: ChatSpec, workspace: str | None, fittings: Fittings | None) -> Driver:
    from loopd.drivers.chat import ChatDriver  # noqa: PLC0415

    return ChatDriver(sid, spec, workspace, fittings=fittings)


def _acp(sid: str, spec: AcpSpec, workspace: str | None, fittings: Fittings | None) -> Driver:
    from loopd.drivers.acp.driver import AcpDriver  # noqa: PLC0415
    from loopd.drivers.acp.launch import furnished  # noqa: PLC0415

    if fittings is None or fittings.agents is None:
        raise Refused("invalid", "this house hosts no agents; expected a daemon", path="$.driver.kind")
    return AcpDriver(
        sid,
        spec,
        workspace,
        furnished(fittings.agents, fittings.agent_door, fittings.run_as, fittings.proxy),
        tasks=fittings.tasks,
    )


def _check_workspace(workspace: str) -> None:
    import os  # noqa: PLC0415

    if not os.path.isabs(workspace):
        raise Refused("invalid", f"workspace {workspace!r} is relative; expected an absolute path")
    if not os.path.isdir(workspace):
        raise Refused("invalid", f"workspace {workspace!r} is no directory; expected one that exists")
