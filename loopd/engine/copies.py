"""Archives on their way out and in: files in a spool folder that are read or written piece by piece.

A place is forgotten ten minutes after the last look; there are few of them, so that nobody fills the disk.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import secrets
import shutil
from pathlib import Path

import msgspec

from loopd.engine.ports import Clock
from loopd_protocol.errors import Refused
from loopd_protocol.forensic_commands import CHUNK_BYTES

PLACES_MAX = 4
FORGOTTEN_MS = 600_000
ROOM = 4
"""An archive that comes in is kept beside the database made of it, and the journal must not run out of room."""


class Place(msgspec.Struct):
    """A file on its way. `size` is what is expected, for what comes in."""

    id: str
    path: Path
    looked_ms: int
    principal: str
    size: int = 0
    sha256: str = ""
    incoming: bool = False


class Spool:
    """The files that are on their way now."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._places: dict[str, Place] = {}

    def clear(self) -> None:
        """At a boot: nothing is on its way any more."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()

    def begin(self, principal: str, *, incoming: bool = False, size: int = 0, sha256: str = "") -> Place:
        """A place for one more file.

        Raises:
            Refused: `overloaded` when there are too many, `storage_full` for one that would leave no room.
        """
        now = self._clock.monotonic_ms()
        for place in list(self._places.values()):
            if now - place.looked_ms > FORGOTTEN_MS:
                self.end(place)
        if len(self._places) >= PLACES_MAX:
            raise Refused(
                "overloaded", f"{PLACES_MAX} archives are on their way already", retry_after_ms=60_000
            )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if size * ROOM > free:
            raise Refused(
                "storage_full", f"an archive of {size} bytes, and what is made of it; {free} bytes are free"
            )
        name = f"{'in' if incoming else 'out'}_{secrets.token_hex(8)}"
        place = Place(name, self._folder / name, now, principal, size, sha256, incoming)
        place.path.touch(mode=0o600)
        self._places[name] = place
        return place

    def find(self, name: str, principal: str, *, incoming: bool) -> Place:
        """A place of this principal.

        Raises:
            Refused: `not_found`.
        """
        place = self._places.get(name)
        if place is None or place.principal != principal or place.incoming != incoming:
            raise Refused(
                "not_found", f"no archive {name!r} is on its way; it may have been forgotten", path="$.id"
            )
        place.looked_ms = self._clock.monotonic_ms()
        return place

    def end(self, place: Place) -> None:
        """Forget a file."""
        self._places.pop(place.id, None)
        with contextlib.suppress(OSError):
            place.path.unlink()

    def keep(self, place: Place) -> None:
        """Forget the place of a file that was taken over."""
        self._places.pop(place.id, None)


def piece_of(place: Place, offset: int) -> tuple[str, int | None]:
    """The next piece, base64, and where the one behind it begins; None at the end."""
    with place.path.open("rb") as file:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        more = bool(file.read(1))
    return base64.b64encode(data).decode(), offset + len(data) if more else None


def append(place: Place, offset: int, data: str) -> int:
    """Write the next piece; returns where the one behind it begins.

    Raises:
        Refused: `invalid` for a piece out of order, no base64, or more than was announced.
    """
    try:
        piece = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused("invalid", f"data is no base64: {error}", path="$.data") from error
    have = place.path.stat().st_size
    if offset != have:
        raise Refused("invalid", f"offset is {offset}; {have} bytes are here", path="$.offset")
    if have + len(piece) > place.size:
        raise Refused("invalid", f"{have + len(piece)} bytes; {place.size} were announced", path="$.data")
    with place.path.open("ab") as file:
        file.write(piece)
    return have + len(piece)


def whole(place: Place) -> None:
    """Whether all of a file is here.

    Raises:
        Refused: `invalid` with what is missing or differs.
    """
    found, size = hashlib.sha256(), 0
    with place.path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
            size += len(piece)
    if size != place.size:
        raise Refused("invalid", f"{size} bytes are here; {place.size} were announced")
    if found.hexdigest() != place.sha256.removeprefix("sha256:"):
        raise Refused("invalid", f"the archive has digest {found.hexdigest()}; announced was {place.sha256}")
