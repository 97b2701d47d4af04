"""Folders of sessions that are no more: their agents' homes go when the journal forgets them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from loopd.drivers.acp.launch import Premises


def remove_strays(premises: Premises, known: Callable[[str], bool]) -> int:
    """Remove the folders of sessions that are not known any more; returns how many sessions had some.

    Args:
        premises: where hosted agents live.
        known: whether a session is in the journal, ended or not.
    """
    places = {premises.folder("x").parent, premises.quarters("x").parent}
    gone = {sid for place in places for sid in _entries(place) if sid.startswith("ses_") and not known(sid)}
    for sid in gone:
        for place in places:
            shutil.rmtree(place / sid, ignore_errors=True)
    return len(gone)


def _entries(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []
