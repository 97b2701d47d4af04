"""Drivers: what a session's turns are made of. The host decides; a driver only does.

`make_driver` checks a driver spec early and imports only the driver that it names, so that a
daemon without chat sessions never loads an HTTP client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from loopd_protocol.commands import ChatSpec, DriverSpec, ScriptedSpec
from loopd_protocol.errors import Refused

if TYPE_CHECKING:
    from loopd.drivers.fittings import Fittings
    from loopd.drivers.host import Driver

__all__ = ["end_leftovers", "make_driver"]


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
    return _chat(sid, chosen, workspace, fittings)


def end_leftovers(sids: Collection[str]) -> int:
    """End what tools of these sessions left running when the daemon died; returns how many processes."""
    from loopd.drivers import shell  # noqa: PLC0415

    return shell.end_leftovers(sids)


def _chat(sid: str, spec: ChatSpec, workspace: str | None, fittings: Fittings | None) -> Driver:
    from loopd.drivers.chat import ChatDriver  # noqa: PLC0415

    return ChatDriver(sid, spec, workspace, fittings=fittings)


def _check_workspace(workspace: str) -> None:
    import os  # noqa: PLC0415

    if not os.path.isabs(workspace):
        raise Refused("invalid", f"workspace {workspace!r} is relative; expected an absolute path")
    if not os.path.isdir(workspace):
        raise Refused("invalid", f"workspace {workspace!r} is no directory; expected one that exists")
