"""What the daemon does while its disk is full: nothing new, everything honest.

    the journal answers storage_full ─▶ house closed, ballast dropped, told (`storage.changed`), holds written
                                          (commands that change anything: storage_full; reads go on)
    there is room again ─▶ ballast laid, told, the holds go, the house is open

The house is closed for all sessions at once, however many there are: each gate asks it before it admits work. In
memory first, for that needs no room; then as one fact, in the room that the ballast gave back, so that a restart
finds it, whether or not the disk is still full. Beside it the sessions that were about to do something get a
`Maintenance` hold, so that their own record says why they stood still; with a deadline that is moved on while it
lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.to_thread

from loopd import failpoints
from loopd.core.inputs import HoldReleased, HoldRequested
from loopd.core.writes import HouseRow, PassiveRow
from loopd.engine.router import Router
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.holds import Maintenance as Hold

logger = logging.getLogger("loopd.engine")

LEAST_BYTES = 1 << 20
LOOK_S = 1.0
HOLD_MS = 5 * 60_000
RENEW_MS = HOLD_MS // 2
HELD_MAX = 1_000
"""Sessions whose hold is written, those that have something to do before all others: at some 8 KB each they take
an eighth of the ballast, and a second or two. What keeps all of them still is the house."""

STORAGE, STATE = "storage", "state"
"""Row of the house that stands while the disk is full."""


class Room(Protocol):
    """The disk that the journal is on."""

    size_bytes: int

    @property
    def laid(self) -> bool:
        """Whether the ballast lies there, whole."""

    def free_bytes(self) -> int:
        """Room on the file system."""

    def lay(self, *, share: int = ...) -> bool:
        """Lay the ballast if there is plenty of room."""

    def drop(self) -> bool:
        """Delete the ballast; whether there was any."""


class Maintenance:
    """Watches whether the journal can be written.

    Args:
        router: whose gates are closed.
        room: the disk.
        refused: why the journal took nothing when it was last asked, or None.
    """

    def __init__(self, router: Router, room: Room, refused: Callable[[], Refused | None]) -> None:
        self._router = router
        self._room = room
        self._refused = refused
        self._renewed_ms = 0
        self._wake = anyio.Event()

    def look(self) -> None:
        """Something failed: look now."""
        self._wake.set()

    async def open(self, *, dropped: bool) -> None:
        """At boot: lay the ballast, or begin in maintenance; holds of a time that is over go.

        Args:
            dropped: the ballast had to go so that this boot could be written down.
        """
        free = await anyio.to_thread.run_sync(self._room.free_bytes)
        stood = STATE in await self._router.store.house(STORAGE)
        was_full = (
            dropped
            or stood
            or any("Maintenance" in row.holds.split(",") for row in self._router.rows.values())
        )
        if free < LEAST_BYTES or (was_full and not await self._laid_again()):
            await self._enter(free)
            return
        if not await anyio.to_thread.run_sync(self._room.lay):
            logger.warning("no room for the ballast", extra={"free_bytes": free})
        held = await self._lift()
        if stood:
            await self._say("writable", free, held)

    async def run(self) -> None:
        """Enter and leave maintenance, for ever."""
        while True:
            self._wake = anyio.Event()
            with anyio.move_on_after(LOOK_S):
                await self._wake.wait()
            refused = self._refused()
            if self._router.maintenance:
                await self._look_for_room()
            elif refused is not None and refused.code == "storage_full":
                await self._enter(await anyio.to_thread.run_sync(self._room.free_bytes))

    async def _enter(self, free: int) -> None:
        router = self._router
        router.maintenance = True
        dropped = await anyio.to_thread.run_sync(self._room.drop)
        if failpoints.armed:
            failpoints.hit("maintenance.entered")
        logger.error(
            "disk full, nothing new is taken", extra={"free_bytes": free, "ballast_dropped": dropped}
        )
        # Told first: it is one small write, and it is what holds for all after a restart.
        await self._say("full", free, len(self._about_to_act()))
        await self._hold()

    async def _hold(self) -> int:
        """Write the hold on the gates of those who were about to act, as far as there is room."""
        now = self._router.clock.now_ms()
        self._renewed_ms = self._router.clock.monotonic_ms()
        hold = Hold(by="daemon", reason="the disk is full", until_ms=now + HOLD_MS)
        return await self._router.feed(self._about_to_act(), HoldRequested(hold=hold, cause="maintenance"))

    def _about_to_act(self) -> list[str]:
        """At most `HELD_MAX` live sessions: whose turn runs, who has something to do, who will, then the others."""
        live = [row for row in self._router.rows.values() if row.status == "live"]
        if len(live) > HELD_MAX:
            live.sort(key=_eagerness)
        return [row.sid for row in live[:HELD_MAX]]

    async def _look_for_room(self) -> None:
        if self._refused() is None and (self._room.laid or await self._laid_again()):
            self._router.maintenance = False
            held = await self._lift()
            await self._say("writable", await anyio.to_thread.run_sync(self._room.free_bytes), held)
            logger.warning("there is room again", extra={"sessions": held})
            await self._router.reconsider()
        elif self._router.clock.monotonic_ms() - self._renewed_ms >= RENEW_MS:
            await self._hold()

    async def _laid_again(self) -> bool:
        return await anyio.to_thread.run_sync(lambda: self._room.lay(share=1))

    async def _lift(self) -> int:
        held = [row.sid for row in self._router.rows.values() if "Maintenance" in row.holds.split(",")]
        return await self._router.feed(held, HoldReleased(kind="Maintenance", cause="maintenance"))

    async def _say(self, state: str, free: int, held: int) -> None:
        told = ev.StorageChanged(state=state, free_bytes=max(0, free), held=held)
        stands = HouseRow(kind=STORAGE, id=STATE, body=b"{}" if state == "full" else None)
        try:
            await self._router.tell((told,), principal="daemon", house=(stands,))
        except Refused as refused:
            logger.error("not journaled", extra={"state": state, "code": refused.code})


def _eagerness(row: PassiveRow) -> int:
    if row.running:
        return 0
    if row.inbox or row.goal == "active":
        return 1
    return 3 if row.deadline_ms is None else 2
