"""A full disk closes the house for every session, however many there are, and also over a restart."""

from __future__ import annotations

import anyio
import pytest

from loopd.engine import maintenance as maintenance_module
from loopd.engine.maintenance import Maintenance
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from tests.engine.stage import Stage, stage

pytestmark = pytest.mark.anyio
FULL = Refused("storage_full", "no room")


class Disk:
    """A disk with or without room for the ballast."""

    size_bytes = 64 << 20

    def __init__(self, *, free: int) -> None:
        self.free = free
        self.laid = free > self.size_bytes

    def free_bytes(self) -> int:
        return self.free

    def lay(self, *, share: int = 8) -> bool:
        self.laid = self.laid or self.free >= share * self.size_bytes
        return self.laid

    def drop(self) -> bool:
        was, self.laid = self.laid, False
        return was


def watched(on: Stage, disk: Disk) -> tuple[Maintenance, list[Refused]]:
    """What watches over the disk, and what the journal says of it: empty is well."""
    said: list[Refused] = []
    return Maintenance(on.router, disk, lambda: said[-1] if said else None), said


async def test_every_session_waits_also_those_that_were_given_no_hold(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance_module, "HELD_MAX", 3)
    async with stage() as on:
        idle = [await on.new() for _ in range(5)]
        busy = [await on.new(goal="write", set={"continuation.min_gap_ms": 60_000}) for _ in range(2)]
        cron = await on.new()
        await on.call(cm.CronPut(sid=cron, job="job", expr="* * * * *", text="look"))
        disk = Disk(free=1 << 40)
        watch, said = watched(on, disk)
        await watch.open(dropped=False)
        disk.free = 0
        said.append(FULL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            watch.look()
            await on.until(lambda: sum("Maintenance" in r.holds for r in on.router.rows.values()) == 3)
            held = {row.sid for row in on.router.rows.values() if "Maintenance" in row.holds}
            assert held == {*busy, cron}, "those that were about to do something"
            turns = len(on.requests)
            await on.pump(600_000)
            assert len(on.requests) == turns
            for sid in (*idle, *busy, cron):
                with pytest.raises(Refused, match="storage_full"):
                    await on.send(sid)
                assert (await on.call(cm.Why(sid=sid))).result["house"] == "maintenance"
            tasks.cancel_scope.cancel()
        (told,) = await on.events(None, "storage.changed")
        assert (ev.decode(told.body).state, ev.decode(told.body).held) == ("full", 3)

        async with stage(image=on.store.image(), clock=on.clock) as again:
            disk.free = 32 << 20  # room to start with, none for the ballast
            watch, said = watched(again, disk)
            await watch.open(dropped=False)
            assert again.router.closed_by == "maintenance"
            with pytest.raises(Refused, match="storage_full"):
                await again.send(idle[-1])
            disk.free = 1 << 40
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch.run)
                watch.look()
                await again.until(lambda: again.router.closed_by is None)
                await again.until(lambda: not any(r.holds for r in again.router.rows.values()))
                await again.until(lambda: "there is room again" in caplog.text)
                tasks.cancel_scope.cancel()
            states = [ev.decode(e.body).state for e in await again.events(None, "storage.changed")]
            assert states == ["full", "full", "writable"]
            await again.send(idle[-1])
            await again.settle()
            assert again.requests[-1].sid == idle[-1]


async def test_a_start_with_room_behind_a_full_disk_opens_the_house_and_says_so() -> None:
    async with stage() as on:
        sid = await on.new()
        watch, said = watched(on, disk := Disk(free=1 << 40))
        await watch.open(dropped=False)
        disk.free = 0
        said.append(FULL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            watch.look()
            await on.until(lambda: "Maintenance" in on.router.rows[sid].holds)
            tasks.cancel_scope.cancel()
        async with stage(image=on.store.image(), clock=on.clock) as again:
            watch, _ = watched(again, Disk(free=1 << 40))
            await watch.open(dropped=False)
            assert (again.router.closed_by, again.router.rows[sid].holds) == (None, "")
            states = [ev.decode(e.body).state for e in await again.events(None, "storage.changed")]
            assert states == ["full", "writable"]
            async with stage(image=again.store.image(), clock=on.clock) as third:
                watch, _ = watched(third, Disk(free=1 << 40))
                await watch.open(dropped=False)
                assert len(await third.events(None, "storage.changed")) == 2, "said once"
